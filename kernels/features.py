"""Features of attention beyond masks by distance, and their definition in plain PyTorch.

`attention` is the definition: differentiable, in any floating dtype, with the whole score matrix in memory. In float64
it is the oracle of the kernels that compute features, and it serves where no kernel of ours does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import index
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from .registry import UnsupportedCase

TENSORS = ("sinks", "alibi_slopes", "mask", "prefix_lengths", "document_ids")
_PHILOX = ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85))  # multipliers, steps of the key
_LOW = 0xFFFFFFFF
_CHUNK = 2048  # rows of scores that `head_by_head` holds at a time, a multiple of every block


class BlockMask(NamedTuple):
    """Which blocks of 64 or 128 keys each block of as many queries sees, from `block_mask`.

    Kernels read the lists: that of a batch, head and query block is keys[key_starts[n] : key_starts[n + 1]], and that
    of a batch, key block and head the same part of `queries`. Tensors are int32 except `listed`.
    """

    listed: torch.Tensor  # boolean (batch or 1, num_heads, query blocks, key blocks)
    key_starts: torch.Tensor
    keys: torch.Tensor  # numbers of key blocks
    query_starts: torch.Tensor
    queries: torch.Tensor  # head x query blocks + query block

    def size(self, seqlen_q: int, seqlen_k: int) -> int:
        """Return the length of a block; 0 if such queries and keys do not have as many blocks."""
        counts = self.listed.shape[2:]
        return next((size for size in (64, 128) if counts == (-(-seqlen_q // size), -(-seqlen_k // size))), 0)

    def to(self, device: Any) -> BlockMask:
        """Return the mask on a device."""
        return BlockMask(*(x.to(device) for x in self))


def block_mask(listed: torch.Tensor) -> BlockMask:
    """Return the mask of a boolean (batch or 1, num_heads, query blocks, key blocks), True for blocks that are seen.

    It serves any number of calls. Making it waits for the GPU. Raises UnsupportedCase for another tensor.
    """
    if listed.dim() != 4 or listed.dtype != torch.bool:
        raise UnsupportedCase(
            "block_mask needs a boolean tensor (batch or 1, num_heads, query blocks, key blocks), "
            f"not {listed.dtype} {tuple(listed.shape)}."
        )
    by_key = listed.permute(0, 3, 1, 2)
    starts = (functional.pad(x.sum(3).flatten().cumsum(0), (1, 0)).int() for x in (listed, by_key))
    _, _, heads, queries = by_key.nonzero(as_tuple=True)
    lists = listed.nonzero()[:, 3], heads * listed.shape[2] + queries
    of_queries, of_keys = zip(starts, (x.int() for x in lists), strict=True)
    return BlockMask(listed, *of_queries, *of_keys)


@dataclass(frozen=True, eq=False)
class Features:
    """What one call asks for. Gradients flow to q, k, v, the sinks, and a mask that is added."""

    softcap: float = 0.0  # scores become softcap x tanh(score / softcap); 0: they do not
    dropout_p: float = 0.0  # the share of probabilities that are dropped; the others are divided by 1 - dropout_p
    dropout_seed: int | torch.Tensor = 0  # which, see `dropout_mask`; as a tensor an int64 of no dimensions
    sinks: torch.Tensor | None = None  # (num_heads,): a logit in each row's denominator
    alibi_slopes: torch.Tensor | None = None  # (num_heads,) or (batch, num_heads): scores lose slope x distance
    mask: torch.Tensor | None = None  # broadcasts to the scores; boolean: True where a key is seen; else added
    prefix_lengths: torch.Tensor | None = None  # (batch,): so many first keys are seen by all; with causal=True
    document_ids: torch.Tensor | None = None  # (batch, seqlen_k): a query sees only keys of its document
    block_mask: BlockMask | None = None  # see the function of this name: a query sees only keys of listed blocks

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the names of `kernels.registry.FEATURES` that the call uses."""
        tensors = [name for name in (*TENSORS, "block_mask") if getattr(self, name) is not None]
        return (*(["softcap"] if self.softcap else []), *tensors, *(["dropout"] if self.dropout_p else []))

    @property
    def mask_is_learned(self) -> bool:
        """Return whether the mask requires a gradient."""
        return self.mask is not None and self.mask.requires_grad

    @property
    def learns_mask(self) -> bool:
        """Return whether a gradient of the mask is wanted."""
        return self.mask_is_learned and torch.is_grad_enabled()

    def seeded(self, device: torch.device) -> Features:
        """Return these with the seed as a tensor on a device, if there is dropout."""
        if not self.dropout_p or isinstance(self.dropout_seed, torch.Tensor):
            return self
        return replace(self, dropout_seed=torch.full((), self.dropout_seed, dtype=torch.int64, device=device))


Window = int | tuple[int, int]  # window_size, or the keys to the left and to the right, -1 for all


def one_window(causal: bool, window_size: Window) -> tuple[bool, Window]:
    """Return causal and the window, with one number in place of a pair where that describes the same mask."""
    pair = isinstance(window_size, tuple | list)
    given: Any = window_size if pair else (window_size,)
    try:
        sizes = [index(size) for size in given]
    except TypeError:  # not whole numbers
        sizes = []
    if len(sizes) != 1 + pair or min(sizes) < -pair:
        raise UnsupportedCase(
            "window_size must be a number of keys (0: all) or (left, right), each at least -1 (-1: all), "
            f"not {window_size!r}."
        )
    if not pair:
        return bool(causal), sizes[0]
    left, right = sizes
    if causal or right == 0:
        return True, left + 1
    return False, left + 1 if left == right else (left, right)


def reach(causal: bool, window_size: Window, far: int) -> tuple[int, int]:
    """Return how many keys to the left and to the right of its position a query sees, at most `far`."""
    if not isinstance(window_size, tuple):
        left = min(window_size - 1, far) if window_size else far
        return left, 0 if causal else left
    left, right = (far if keys < 0 else min(keys, far) for keys in window_size)
    return left, right


class SequenceBounds(NamedTuple):
    """Where sequences lie in rows of q and of k: int32 (sequences,), and numbers that none is longer than."""

    starts_q: torch.Tensor
    ends_q: torch.Tensor  # after the last row
    starts_k: torch.Tensor
    ends_k: torch.Tensor
    longest_q: int
    longest_k: int
    packed: bool  # whether all are in the rows of a batch of 1; otherwise each is one batch


def check(
    features: Features, shape: tuple[int, int, int, int], device: torch.device, *, causal: bool, window_size: Window
) -> None:
    """Raise UnsupportedCase if features do not go with scores of (batch, num_heads, seqlen_q, seqlen_k)."""
    batch, num_heads, seqlen_q, seqlen_k = shape
    mask, ids, blocks = features.mask, features.document_ids, features.block_mask
    if not isinstance(blocks, BlockMask | None):
        raise UnsupportedCase("kernels.attention: block_mask must come from kernels.block_mask(listed).")
    tensors = [x for x in (getattr(features, name) for name in TENSORS) if x is not None]
    tensors += [blocks.listed] if blocks else []
    seed = features.dropout_seed
    prefixed = features.prefix_lengths is not None
    problems = (  # texts are formatted only where one is shown: torch.compile makes constants of sizes in a text
        (features.softcap < 0, "softcap must not be negative, not {features.softcap}"),
        (not 0 <= features.dropout_p < 1, "dropout_p must be at least 0 and below 1, not {features.dropout_p}"),
        (_is_not(features.sinks, (num_heads,)), "sinks must be ({shape[1]},)"),
        (
            _is_not(features.alibi_slopes, (num_heads,), (batch, num_heads)),
            "alibi_slopes must be ({shape[1]},) or ({shape[0]}, {shape[1]})",
        ),
        (mask is not None and not _broadcasts(mask, shape), "mask must broadcast to {shape}"),
        (
            any(x.requires_grad for x in tensors if x is not features.sinks and x is not mask),
            "of features only sinks and an additive mask have a gradient",
        ),
        (_is_not(features.prefix_lengths, (batch,)), "prefix_lengths must be ({shape[0]},)"),
        (prefixed and not (causal and not window_size), "prefix_lengths need causal=True and no window"),
        (_is_not(ids, (batch, seqlen_k)), "document_ids must be ({shape[0]}, {shape[3]}), an id a key"),
        (ids is not None and seqlen_q > seqlen_k, "document_ids need no more queries than keys"),
        (
            blocks is not None and not _has_blocks(blocks, shape),
            "block_mask must have ({shape[0]} or 1, {shape[1]}) lists of blocks of 64 or 128 for {shape[2]} queries "
            "and {shape[3]} keys",
        ),
        (any(x.device != device for x in tensors), "all tensors must be on {device}"),
        (
            isinstance(seed, torch.Tensor) and (seed.device, seed.dtype, seed.dim()) != (device, torch.int64, 0),
            "dropout_seed as a tensor must be an int64 without dimensions on {device}",
        ),
    )
    problem = next((text for failed, text in problems if failed), None)
    if problem:
        raise UnsupportedCase(f"kernels.attention: {problem.format(features=features, shape=shape, device=device)}.")


def _is_not(x: torch.Tensor | None, *shapes: tuple[int, ...]) -> bool:
    return x is not None and all(x.shape != shape for shape in shapes)


def _broadcasts(mask: torch.Tensor, shape: tuple[int, ...]) -> bool:
    sizes = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    return mask.dim() <= 4 and all(size == 1 or size == full for size, full in zip(sizes, shape, strict=True))


def _has_blocks(blocks: BlockMask, shape: tuple[int, int, int, int]) -> bool:
    batch, num_heads = blocks.listed.shape[:2]
    return batch in (1, shape[0]) and num_heads == shape[1] and blocks.size(*shape[2:]) > 0


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    features: Features | None = None,
    bounds: SequenceBounds | None = None,
    **masks: Any,
) -> torch.Tensor:
    """Compute attention with features from its definition, packed sequences one after the other.

    `attention_and_lse` documents the arguments.
    """
    asked = features or Features()
    if bounds is not None:
        return attention_of_sequences(q, k, v, asked, bounds, **masks)[0]
    return attention_and_lse(q, k, v, asked, **masks)[0]


def attention_and_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    features: Features,
    *,
    causal: bool = False,
    window_size: Window = 0,
    softmax_scale: float | None = None,
    kept: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention and its natural logsumexp in the dtype of q: (batch, num_heads, seqlen_q, head_dim).

    scores = softcap x tanh(scale q k^T / softcap) - slope x |position - key| + mask, hidden keys -inf; a sink is
    another score, without a value; dropout follows the softmax. A query that sees no key gets 0 and -inf. `kept` is
    what dropout keeps, where that is not `dropout_mask` of these scores' shape.
    """
    scores = logits(q, k, features, causal=causal, window_size=window_size, softmax_scale=softmax_scale)
    p, lse = _probabilities(scores, features.sinks)
    if features.dropout_p:
        if kept is None:
            kept = dropout_mask(features.dropout_seed, tuple(scores.shape), features.dropout_p, q.device)
        p = p * kept / (1 - features.dropout_p)
    group = q.shape[1] // v.shape[1]
    return p @ (v.repeat_interleave(group, 1) if group > 1 else v), lse


def logits(
    q: torch.Tensor,
    k: torch.Tensor,
    features: Features,
    *,
    causal: bool,
    window_size: Window,
    softmax_scale: float | None,
) -> torch.Tensor:
    """Return the scores (batch, num_heads, seqlen_q, seqlen_k) before the softmax, -inf where a key is hidden."""
    group, head_dim = q.shape[1] // k.shape[1], q.shape[3]
    k = k.repeat_interleave(group, 1) if group > 1 else k
    scores = q @ k.mT * (head_dim**-0.5 if softmax_scale is None else softmax_scale)
    if features.softcap:
        scores = features.softcap * torch.tanh(scores / features.softcap)
    seqlen_q, seqlen_k = scores.shape[2:]
    left, right = reach(causal, window_size, seqlen_q + seqlen_k)
    keys = torch.arange(seqlen_k, device=q.device)
    positions = torch.arange(seqlen_k - seqlen_q, seqlen_k, device=q.device)[:, None]
    hidden = (keys > positions + right) | (keys < positions - left)
    scores, hidden = with_masks(scores, hidden, features)
    return scores.masked_fill(hidden, float("-inf"))


def attention_of_sequences(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, features: Features, bounds: SequenceBounds, **masks: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute out and the logsumexp of packed sequences in rows of a batch of 1, one sequence after the other."""
    nothing = attention_and_lse(q[:, :, :0], k[:, :, :0], v[:, :, :0], Features())
    results, end = [nothing], 0  # so that gradients are 0 where there is no sequence
    shape = (len(bounds.starts_q), q.shape[1], bounds.longest_q, bounds.longest_k)
    kept = dropout_mask(features.dropout_seed, shape, features.dropout_p, q.device) if features.dropout_p else None
    for i, (rows, keys) in enumerate(_slices(bounds)):
        own_kept = None if kept is None else kept[i : i + 1, :, : rows.stop - rows.start, : keys.stop - keys.start]
        part = q[:, :, rows], k[:, :, keys], v[:, :, keys]
        results.append(attention_and_lse(*part, of_sequence(features, i), **masks, kept=own_kept))
        end = rows.stop
    rest = (1, q.shape[1], q.shape[2] - end)
    results.append((q.new_zeros(*rest, v.shape[3]), q.new_full(rest, float("-inf"))))
    out, statistics = (torch.cat(parts, 2) for parts in zip(*results, strict=True))
    return out, statistics


def head_by_head(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    features: Features,
    bounds: SequenceBounds | None = None,
    dout: torch.Tensor | None = None,
    **masks: Any,
) -> dict[str, torch.Tensor]:
    """Compute out, and with dout also dq, dk and dv, with the scores of one head of one sequence at a time.

    With dout, "dmask" is the gradient of a mask that requires one, in the dtype of q.
    """
    found = {"out": q.new_zeros(*q.shape[:3], v.shape[3])}
    if dout is not None:
        found |= {name: torch.zeros_like(x) for name, x in (("dq", q), ("dk", k), ("dv", v))}
        if features.mask is not None and features.mask_is_learned:
            found["dmask"] = torch.zeros_like(features.mask, dtype=q.dtype)
    whole = slice(None)
    parts = [(0, *each) for each in _slices(bounds)] if bounds else [(i, whole, whole) for i in range(len(q))]
    longest = (bounds.longest_q, bounds.longest_k) if bounds else (q.shape[2], k.shape[2])
    for i, (row, of_q, of_k) in enumerate(parts):
        for head in range(q.shape[1]):
            places = [(row, head, of_q)] + [(row, head * k.shape[1] // q.shape[1], of_k)] * 2
            own_q, own_k, own_v = (x[at][None, None].detach() for x, at in zip((q, k, v), places, strict=True))
            kept = None
            if features.dropout_p:
                first = i * q.shape[1] + head
                kept = dropout_mask(features.dropout_seed, (1, 1, *longest), features.dropout_p, q.device, first)
                kept = kept[:, :, : own_q.shape[2], : own_k.shape[2]]
            own = of_sequence(features, i, slice(head, head + 1))
            for rows, keys, asked in _chunks(own, own_q.shape[2], own_k.shape[2], masks):
                tensors = [own_q[:, :, rows], own_k[:, :, keys], own_v[:, :, keys]]
                if "dmask" in found and asked.mask is not None:
                    tensors.append(asked.mask.detach().to(q.dtype))
                    asked = replace(asked, mask=tensors[3])
                with torch.enable_grad():
                    tensors = [x.requires_grad_(dout is not None) for x in tensors]
                    out = attention_and_lse(tensors[0], tensors[1], tensors[2], asked, **masks, kept=kept)[0]
                found["out"][places[0]][rows] = out[0, 0].detach()
                if dout is None:
                    continue
                sums = [found["dq"][places[0]][rows], *(found[name][places[1]][keys] for name in ("dk", "dv"))]
                sums += [_own_mask(found["dmask"], i, slice(head, head + 1))] if "dmask" in found else []
                gradients = torch.autograd.grad(out, tensors, dout[places[0]][rows][None, None])
                for total, gradient in zip(sums, gradients, strict=True):
                    total += gradient.view(total.shape)
    return found


def _chunks(
    features: Features, seqlen_q: int, seqlen_k: int, masks: Mapping[str, Any]
) -> Iterator[tuple[slice, slice, Features]]:
    """Yield rows of the scores of a head, the keys that they may see, and their features.

    The last key is at the position of the last row, unless positions do not matter, so that a part is a call by itself.
    """
    blocks, ids, far = features.block_mask, features.document_ids, seqlen_q + seqlen_k
    left, right = reach(masks.get("causal", False), masks.get("window_size", 0), far)
    of_positions = set() if right else {"alibi_slopes", "document_ids"}
    if 0 < right < far or right > left or not set(features.asked) <= {"block_mask", "softcap", "sinks"} | of_positions:
        yield slice(seqlen_q), slice(seqlen_k), features
        return
    size = blocks.size(seqlen_q, seqlen_k) if blocks else 1
    for start in range(0, seqlen_q, _CHUNK):
        stop, moved = min(start + _CHUNK, seqlen_q), seqlen_k - seqlen_q
        last = seqlen_k if right else max(0, moved + stop)
        first = 0 if right else max(0, moved + start - left) // 128 * 128  # where a block begins
        if blocks:
            listed = blocks.listed[:, :, start // size : -(-stop // size), first // size : -(-last // size)]
            features = replace(features, block_mask=blocks._replace(listed=listed))
        own_ids = None if ids is None else ids[:, first:last]
        yield slice(start, stop), slice(first, last), replace(features, document_ids=own_ids)


def of_sequence(features: Features, i: int, heads: slice = slice(None)) -> Features:
    """Return the features of one sequence of a batch, and of some of its heads."""
    slopes, mask = features.alibi_slopes, features.mask
    if slopes is not None:
        slopes = (slopes[i] if slopes.dim() == 2 else slopes)[heads]
    if mask is not None:
        mask = _own_mask(mask, i, heads)
    prefixes, ids = (None if x is None else x[i : i + 1] for x in (features.prefix_lengths, features.document_ids))
    sinks = None if features.sinks is None else features.sinks[heads]
    if (blocks := features.block_mask) is not None:
        listed = blocks.listed[i : i + 1] if len(blocks.listed) > 1 else blocks.listed
        features = replace(features, block_mask=blocks._replace(listed=listed[:, heads]))
    return replace(features, alibi_slopes=slopes, mask=mask, prefix_lengths=prefixes, document_ids=ids, sinks=sinks)


def _own_mask(mask: torch.Tensor, i: int, heads: slice) -> torch.Tensor:
    """Return the part of a mask that some heads of a sequence have, all of what is broadcast."""
    mask = mask[(None,) * (4 - mask.dim())]
    mask = mask[i : i + 1] if mask.shape[0] > 1 else mask
    return mask[:, heads] if mask.shape[1] > 1 else mask


def _slices(bounds: SequenceBounds) -> list[tuple[slice, slice]]:
    """Return the rows of q and of k of each sequence."""
    starts_q, ends_q, starts_k, ends_k = (x.tolist() for x in bounds[:4])
    return [(slice(a, b), slice(c, d)) for a, b, c, d in zip(starts_q, ends_q, starts_k, ends_k, strict=True)]


def _probabilities(scores: torch.Tensor, sinks: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the softmax of scores with each head's sink in the denominator, and the logarithm of the denominator.

    Where all scores are -inf, they are 0 and -inf.
    """
    top = scores.amax(-1, keepdim=True) if scores.shape[3] else scores.new_full((*scores.shape[:3], 1), float("-inf"))
    if sinks is not None:
        sinks = sinks.to(scores.dtype)[None, :, None, None]
        top = torch.maximum(top, sinks)
    top = top.detach().masked_fill(top == float("-inf"), 0.0)
    p = (scores - top).exp()
    total = p.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks - top).exp()
    blind = total == 0
    total = total.masked_fill(blind, 1.0)
    return p / total, (top + total.log()).masked_fill(blind, float("-inf")).squeeze(-1)


def with_masks(scores: torch.Tensor, hidden: torch.Tensor, features: Features) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores with slopes and an additive mask, and which keys are hidden, (seqlen_q, seqlen_k) or wider."""
    lengths = seqlen_q, seqlen_k = tuple(scores.shape[2:])
    keys = torch.arange(seqlen_k, device=scores.device)
    positions = torch.arange(seqlen_k - seqlen_q, seqlen_k, device=scores.device)[:, None]
    if features.alibi_slopes is not None:
        slopes = features.alibi_slopes.to(scores.dtype).reshape(-1, scores.shape[1], 1, 1)
        scores = scores - slopes * (positions - keys).abs()
    if features.prefix_lengths is not None:
        hidden = hidden & (keys >= features.prefix_lengths[:, None, None, None])
    if features.document_ids is not None:
        ids = features.document_ids
        hidden = hidden | (ids[:, None, seqlen_k - seqlen_q :, None] != ids[:, None, None, :])
    if (blocks := features.block_mask) is not None:
        rows, columns = (torch.arange(n, device=scores.device) // blocks.size(*lengths) for n in lengths)
        hidden = hidden | ~blocks.listed[:, :, rows[:, None], columns]
    if features.mask is not None and features.mask.dtype == torch.bool:
        hidden = hidden | ~features.mask
    elif features.mask is not None:
        scores = scores + features.mask.to(scores.dtype)
    return scores, hidden


def dropout_mask(
    seed: int | torch.Tensor, shape: tuple[int, ...], dropout_p: float, device: Any, first: int = 0
) -> torch.Tensor:
    """Return which probabilities of a shape (batch, num_heads, seqlen_q, seqlen_k) dropout keeps.

    Heads, counted over batches from `first` on, are in 16 by 16 tiles of queries and keys. Queries r and r + 8 of a
    tile with keys c and c + 8 share a number of Philox-4x32-7 (Salmon et al. 2011, doi:10.1145/2063384.2063405), a word
    each: (r, c), (r, c + 8), (r + 8, c), (r + 8, c + 8). Its key is `seed`, its counter the place of (r, c) among such
    pairs, 64 bits each. A word of at least dropout_p x 2^32 keeps.
    """
    heads, tiles_q, tiles_k = shape[0] * shape[1], -(-shape[2] // 16), -(-shape[3] // 16)
    of_head = tiles_q * tiles_k * 64
    places = torch.arange(first * of_head, (first + heads) * of_head, device=device)
    words = [places & _LOW, places >> 32, torch.zeros_like(places), torch.zeros_like(places)]
    key = [seed & _LOW, seed >> 32 & _LOW]
    for _ in range(7):
        (high_0, low_0), (high_1, low_1) = (_product(x, by) for x, by in zip(words[::2], _PHILOX[0], strict=True))
        words = [high_1 ^ words[1] ^ key[0], low_1, high_0 ^ words[3] ^ key[1], low_0]
        key = [(word + step) & _LOW for word, step in zip(key, _PHILOX[1], strict=True)]
    kept = (torch.stack(words) >= threshold(dropout_p)).view(2, 2, heads, tiles_q, 8, tiles_k, 8)
    whole = kept.permute(2, 3, 0, 4, 5, 1, 6).reshape(*shape[:2], tiles_q * 16, tiles_k * 16)
    return whole[:, :, : shape[2], : shape[3]]


def threshold(dropout_p: float) -> int:
    """Return the first of the 32-bit numbers that keep a probability."""
    return min(_LOW, round(dropout_p * 2**32))


def _product(x: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and the low 32 bits of products of 32-bit numbers, which an int64 holds by halves."""
    low, high = x * (by & 0xFFFF), x * (by >> 16)
    middle = (low >> 16) + (high & 0xFFFF)
    return (high >> 16) + (middle >> 16), (middle & 0xFFFF) << 16 | low & 0xFFFF
