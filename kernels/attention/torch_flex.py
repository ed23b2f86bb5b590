"""PyTorch's FlexAttention, compiled: a mask written as a function, which Inductor turns into a Triton kernel.

The mask of blocks is made once for a shape or its features and kept, as its users do; making it is not part of a call.
Compiling costs seconds for each new shape, forward and backward. It has no dropout.
"""

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any

import torch

from ..features import Features, SequenceBounds, Window, reach
from ..registry import FEATURES, AttentionCase, Device, UnsupportedCase, declare, triton_missing

COMPILED_SHAPES = 256  # torch._dynamo gives a function up after eight shapes otherwise
# PyTorch 2.13's own forward tile for float32 at head_dim 192 on sm_90. That of PyTorch 2.11, 64 by 64 in three stages,
# needs 272 KB of shared memory, and an SM has 227.
_WIDE_FLOAT32 = {"fwd_BLOCK_M": 32, "fwd_BLOCK_N": 64, "fwd_num_stages": 1, "fwd_num_warps": 8}

# Tiles of an added mask go through shared memory too. One of float32 with q of 16 bits needs 240 KB in three stages.
_WIDE_MASK = {"num_stages": 2}


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    """Attention by FlexAttention; see `kernels.registry.Attention`. Raises UnsupportedCase off a GPU."""
    if q.device.type != "cuda":
        raise UnsupportedCase(f"torch_flex is compiled for a GPU, not for {q.device}; use torch_sdpa_auto.")
    return call(compiled(), q, k, v, **options)


def call(
    flex: Callable[..., Any],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: Window = 0,
    softmax_scale: float | None = None,
    features: Features | None = None,
    bounds: SequenceBounds | None = None,
) -> torch.Tensor:
    """Attention by a form of flex_attention. Packed sequences become documents of one row.

    A sink is one more key without a value: out is multiplied with the share of the others, sigmoid(lse - sink).
    """
    sizes = (*q.shape[:3], k.shape[2])
    score, mask = _modifications(features, bounds, sizes, (causal, window_size), q.device)
    tile = _WIDE_FLOAT32 if q.dtype == torch.float32 and 128 < q.shape[3] < 256 else {}
    if features and features.mask is not None and features.mask.itemsize > q.itemsize:
        tile = _WIDE_MASK
    options = {"block_mask": mask, "scale": softmax_scale, "enable_gqa": q.shape[1] != k.shape[1]}
    options |= {"kernel_options": tile} | ({"score_mod": score} if score else {})
    if features is None or features.sinks is None:
        return flex(q, k, v, **options)
    from torch.nn.attention.flex_attention import AuxRequest

    out, aux = flex(q, k, v, **options, return_aux=AuxRequest(lse=True))
    return out * torch.sigmoid((aux.lse - features.sinks[:, None]).nan_to_num(0.0))[..., None].to(out.dtype)


@lru_cache(maxsize=8)  # of several cases in turn; features may hold large masks
def _modifications(
    features: Features | None,
    bounds: SequenceBounds | None,
    sizes: tuple[int, int, int, int],
    masks: tuple[bool, Window],
    device: torch.device,
) -> tuple[Callable[..., Any] | None, Any]:
    """Return the score_mod and the block mask of a call, kept for its features; each is None where it is not needed."""
    from torch.nn.attention.flex_attention import create_block_mask

    batch, _, seqlen_q, seqlen_k = sizes
    asked = features or Features()
    position = _positions(bounds, seqlen_k - seqlen_q)
    score = None
    for other in _scores(asked, position):
        score = other
    sees = visible_keys(position, seqlen_q + seqlen_k, *masks) if masks[0] or masks[1] else None
    for other in _others(asked, bounds, position, sees, sizes[2:]):
        sees = other
    if sees is None:
        return score, None
    listed = None if asked.block_mask is None else asked.block_mask.listed
    of_batch = any(x is not None for x in (asked.mask, asked.prefix_lengths, asked.document_ids, listed))
    heads = max(x.shape[-3] if x is not None and x.dim() > 2 else 1 for x in (asked.mask, listed))
    rows = (batch if of_batch else None, heads if heads > 1 else None)
    # Blocks of 128, also for a block mask of 64: on an H200, PyTorch 2.11 has no tile of the backward that divides 64.
    return score, create_block_mask(sees, *rows, seqlen_q, seqlen_k, device, 128, _compile=device.type == "cuda")


def _positions(bounds: SequenceBounds | None, offset: int) -> Callable[..., Any]:
    """Return the function from a query to the key at its position; the last query of a sequence is at its last key."""
    if bounds is None:
        return lambda query: query + offset
    moved = torch.repeat_interleave(bounds.ends_k - bounds.ends_q, bounds.ends_q - bounds.starts_q)
    return lambda query: query + moved[query]


def _scores(asked: Features, position: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield the score after each feature; the last is that of all."""
    before = _unchanged
    if cap := asked.softcap:
        yield (before := lambda score, b, h, q, k: cap * torch.tanh(score / cap))
    if (slopes := asked.alibi_slopes) is not None:
        of_batches, first = slopes.dim() == 2, before

        def sloped(score, b, h, q, k):
            return first(score, b, h, q, k) - (slopes[b, h] if of_batches else slopes[h]) * (position(q) - k).abs()

        yield (before := sloped)
    if asked.mask is not None and asked.mask.dtype != torch.bool:
        of, second = _entry(asked.mask), before
        yield lambda score, b, h, q, k: second(score, b, h, q, k) + of(b, h, q, k)


def _unchanged(score, b, h, q, k):
    return score


def _entry(mask: torch.Tensor) -> Callable[..., Any]:
    """Return a function of batch, head, query and key that reads a mask, broadcast where its size is 1."""
    whole = mask if mask.dim() == 4 else mask[(None,) * (4 - mask.dim())]  # a view is no leaf, which Dynamo warns of
    b, h, q, k = (int(size > 1) for size in whole.shape)
    return lambda batch, head, query, key: whole[batch * b, head * h, query * q, key * k]


def _others(
    asked: Features,
    bounds: SequenceBounds | None,
    position: Callable[..., Any],
    sees: Callable[..., Any] | None,
    sizes: tuple[int, int],
) -> Iterator[Callable[..., Any]]:
    """Yield the masks after each feature; the last is that of all."""
    if (lengths := asked.prefix_lengths) is not None:
        before = sees
        yield (sees := lambda b, h, q, k: before(b, h, q, k) | (k < lengths[b]))
    whole = sees
    if bounds is not None:
        of_q = torch.repeat_interleave(bounds.ends_q - bounds.starts_q)
        of_k = torch.repeat_interleave(bounds.ends_k - bounds.starts_k)
        yield (sees := _both(lambda b, h, q, k: of_q[q] == of_k[k], whole))
    elif (ids := asked.document_ids) is not None:
        yield (sees := _both(lambda b, h, q, k: ids[b, position(q)] == ids[b, k], whole))
    if asked.mask is not None and asked.mask.dtype == torch.bool:
        yield (sees := _both(_entry(asked.mask), sees))
    if (blocks := asked.block_mask) is not None:
        size, listed = blocks.size(*sizes), _entry(blocks.listed)
        yield _both(lambda b, h, q, k: listed(b, h, q // size, k // size), sees)


def _both(one: Callable[..., Any], other: Callable[..., Any] | None) -> Callable[..., Any]:
    return (lambda b, h, q, k: one(b, h, q, k) & other(b, h, q, k)) if other else one


def visible_keys(position: Callable[..., Any], far: int, causal: bool, window_size: Window):
    """Return FlexAttention's mask: True where a query looks; `far`: more than the distance of any key."""
    left, right = reach(causal, window_size, far)

    def sees(batch, head, query, key):
        seen = key <= position(query) + right
        return seen & (key >= position(query) - left) if window_size else seen

    return sees


@cache
def compiled():
    """Return FlexAttention under torch.compile, which compiles for each new shape."""
    from torch.nn.attention.flex_attention import flex_attention  # brings torch._dynamo, seconds at import

    torch._dynamo.config.recompile_limit = max(COMPILED_SHAPES, torch._dynamo.config.recompile_limit)
    return torch.compile(flex_attention, dynamic=False)


def refuses(case: AttentionCase, device: Device) -> str | None:
    """Return what FlexAttention cannot compute of a case, or None."""
    if (case.head_dim or 16) < 16:
        return f"torch_flex needs a head_dim of at least 16, not {case.head_dim}."
    return None


IMPLEMENTATIONS = (
    declare(
        "torch_flex",
        attention,
        features=tuple(name for name in FEATURES if name != "dropout"),
        unavailable=triton_missing(),
        refuses=refuses,
    ),
)
