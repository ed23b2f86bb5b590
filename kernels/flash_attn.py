"""The functions of the package flash-attn 2.8, computed by our kernels; on a CPU by their definition in PyTorch.

Names, order and defaults of the arguments are theirs: tensors are (batch, seqlen, heads, head_dim), packed ones (total,
heads, head_dim), and window_size is (left, right), -1 for all keys. All masks, softcap and ALiBi are computed by
kernels, also windows of two widths. Differences:

- Dropout takes its seed from PyTorch's generator and drops other places than flash-attn does.
- return_attn_probs gives out, softmax_lse and None; softmax_lse has a gradient, and is -inf for a query without a key.
  With dropout it is refused.
- Windows below -1 are refused: flash-attn 2 takes them for all keys, FlashAttention-4 for a distance.
- deterministic=True uses kernels that give the same bits in every run. Otherwise PyTorch's global switch decides.
- Arguments that cannot be computed raise UnsupportedCase. The values of tensors of integers (lengths, page numbers,
  left padding) are checked on a CPU. On a GPU that would synchronize; the environment variable ATTNBENCH_CHECK=1 turns
  the check on. Without it, no number leads to a write outside of the cache: PyTorch's assertion fails instead.
"""

import inspect
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from . import dispatch, feature_calls
from .decode.triton_decode.checks import MAX_SEQLEN_Q
from .feature_calls import reads
from .features import Features, SequenceBounds, check, one_window
from .plans import check_inputs, given_scale
from .registry import UnsupportedCase
from .routes import DTYPES

Pair = tuple[int, int]
_WINDOW = "window_size must be (left, right), each at least -1 (all keys)"
_LONGEST = "max_seqlen_q and max_seqlen_k must be whole numbers"


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Pair = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Compute attention of q (batch, seqlen_q, heads, head_dim) to k and v (batch, seqlen_k, heads_k, head_dim).

    Return out, or with return_attn_probs out, softmax_lse (batch, heads, seqlen_q) and None.
    """
    q, k, v = (_four(x).transpose(1, 2) for x in (q, k, v))
    asked = _asked(dropout_p, softcap, alibi_slopes, deterministic, return_attn_probs)
    window = _whole(window_size, _WINDOW)
    result = dispatch.attention(q, k, v, causal=causal, window_size=window, softmax_scale=softmax_scale, **asked)
    if return_attn_probs:
        return result[0].transpose(1, 2), result[1], None
    return result.transpose(1, 2)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Pair = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> Any:
    """Compute attention of packed sequences: q (total_q, heads, head_dim), k and v (total_k, heads_k, head_dim).

    With block_table (batch, pages of a sequence) k and v are (pages, page_size, heads_k, head_dim); what is copied says
    `feature_calls.attention_varlen`. Return out, or with return_attn_probs out, softmax_lse (heads, total_q) and None.
    """
    _check_tensors(q, k, v, cu_seqlens_q, cu_seqlens_k)
    if not cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32:
        raise UnsupportedCase(f"cu_seqlens must be int32, not {cu_seqlens_q.dtype} and {cu_seqlens_k.dtype}.")
    if block_table is not None:
        _check_pages(block_table, cu_seqlens_k.diff(), k)
    asked = _asked(dropout_p, softcap, alibi_slopes, deterministic, return_attn_probs)
    asked |= {"window_size": _whole(window_size, _WINDOW), "softmax_scale": softmax_scale, "block_table": block_table}
    lengths: tuple[Any, ...] = cu_seqlens_q, cu_seqlens_k, *_whole((max_seqlen_q, max_seqlen_k), _LONGEST)
    result = feature_calls.attention_varlen(q, k, v, *lengths, causal=causal, **asked)
    return (*result, None) if return_attn_probs else result


def _packed(function: Callable[..., Any], first: str, dim: int, words: str) -> Callable[..., Any]:
    """Return a function whose k and v, or q, k and v, are one tensor that has both, or the three, in dimension `dim`.

    `first` names the arguments before dropout_p. One name of lengths means those of q and those of k.
    """
    options = list(inspect.signature(flash_attn_func).parameters.values())[3:]
    tensors = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in first.split()]
    signature = inspect.Signature([*tensors, *options])
    names = list(signature.parameters)

    def call(*arguments: Any, **named: Any) -> Any:
        if len(arguments) > len(names) or not named.keys() <= set(names[len(arguments) :]):
            signature.bind(*arguments, **named)  # raises a TypeError that says what is wrong
        given = dict(zip(names, arguments, strict=False)) | named
        for packed in given.keys() & {"kv", "qkv"}:
            given |= dict(zip(packed, _unpacked(given.pop(packed), len(packed), dim), strict=True))
        for lengths in given.keys() & {"cu_seqlens", "max_seqlen"}:
            given[f"{lengths}_q"] = given[f"{lengths}_k"] = given.pop(lengths)
        return function(**given)

    call.__signature__ = signature  # type: ignore[attr-defined]  # set on a function
    call.__doc__ = f"Compute attention of {words}; the rest as for {function.__name__}."
    return call


_LENGTHS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
flash_attn_kvpacked_func = _packed(flash_attn_func, "q kv", 2, "q to kv (batch, seqlen_k, 2, heads_k, head_dim)")
flash_attn_qkvpacked_func = _packed(flash_attn_func, "qkv", 2, "qkv (batch, seqlen, 3, heads, head_dim)")
flash_attn_varlen_kvpacked_func = _packed(
    flash_attn_varlen_func, f"q kv {_LENGTHS}", 1, "q to kv (total_k, 2, heads_k, head_dim)"
)
flash_attn_varlen_qkvpacked_func = _packed(
    flash_attn_varlen_func, "qkv cu_seqlens max_seqlen", 1, "qkv (total, 3, heads, head_dim)"
)


@torch.no_grad()
def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Pair = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attend to a cache (batch, capacity, heads_k, head_dim), or pages with block_table, after k and v are appended.

    k and v (batch, seqlen_new, heads_k, head_dim) are written in place from cache_seqlens on, k after the rotary
    embedding, which q gets too. num_splits is ignored: the kernels choose. There are no gradients. Up to 16 query
    tokens without left padding, softcap, ALiBi and windows of two widths use the decoding kernels; other calls use
    `triton_fa2`, for which pages are copied. Return out, or with return_softmax_lse out and lse (batch, heads, seqlen).
    """
    cache = _Cache(k_cache, v_cache, cache_batch_idx, cache_leftpad, block_table)
    cache.check(q, k, v)
    new = 0 if k is None else k.shape[1]
    if cache_seqlens is None:
        cache_seqlens = 0 if k is not None else cache.capacity
    lengths = _lengths(cache_seqlens, q)
    cache.check_lengths(torch.tensor([cache_seqlens]) if isinstance(cache_seqlens, int) else lengths, lengths, new)
    if not isinstance(num_splits, int) or num_splits < 0:
        raise UnsupportedCase(f"num_splits must be a number of at least 0, not {num_splits!r}; it is not used.")
    _check_rotary(rotary_cos, rotary_sin, q, k, cache.capacity)
    causal, window = one_window(causal, _whole(window_size, _WINDOW))
    if rotary_cos is not None:
        tables = rotary_cos, rotary_sin
        q = _rotated(q, tables, lengths, rotary_interleaved, one_position=not causal and not window)
        k = _rotated(k, tables, lengths, rotary_interleaved)
    asked = _asked(0.0, softcap, alibi_slopes, True, True)
    masks = (causal, window, given_scale(softmax_scale, q.shape[3]))
    found, sizes = Features(softcap or 0.0, alibi_slopes=alibi_slopes), (len(q), q.shape[2], q.shape[1], cache.capacity)
    check(found, sizes, q.device, causal=causal, window_size=window)  # before anything is written
    if k is not None:
        cache.append(lengths, k, v)
    lengths = (lengths + new).clamp(0, cache.capacity)  # lengths that are not checked must not lead beyond the cache
    if cache_leftpad is None and len(asked) == 2 and _decodes(q, window, masks[2]):
        out, lse = _decoded(q, cache, lengths, masks)
    else:
        out, lse = _of_rows(q, cache, lengths, asked, masks)
    return (out, lse) if return_softmax_lse else out


class _Cache(NamedTuple):
    """The tensors of a cache."""

    k: torch.Tensor
    v: torch.Tensor
    batch_idx: torch.Tensor | None
    leftpad: torch.Tensor | None
    block_table: torch.Tensor | None

    @property
    def capacity(self) -> int:
        """Return the keys that a sequence has room for."""
        return self.k.shape[1] * (1 if self.block_table is None else self.block_table.shape[1])

    @property
    def table(self) -> torch.Tensor | None:
        """Return the pages of each sequence; a sequence of a contiguous cache is a page."""
        return self.batch_idx[:, None].int() if self.batch_idx is not None else self.block_table

    @property
    def readable_table(self) -> torch.Tensor | None:
        """Return the table with numbers of pages that exist."""
        return None if self.table is None else self.table.clamp(0, len(self.k) - 1)

    def check(self, q: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor | None) -> None:
        """Refuse tensors that do not belong together."""
        name, batch = "flash_attn_with_kvcache", len(q)
        first, keys, values = (_four(x)[:1].transpose(1, 2) for x in (q, self.k, self.v))
        check_inputs(name, first, keys, values, dispatch.DTYPES, any_width=True)
        if self.k.shape[:3] != self.v.shape[:3]:
            raise UnsupportedCase(f"{name} got caches {tuple(self.k.shape)} and {tuple(self.v.shape)}.")
        table = self.block_table
        if table is None:
            if self.batch_idx is None and len(self.k) != batch:
                raise UnsupportedCase(f"The cache holds {len(self.k)} sequences and q {batch}; pass cache_batch_idx.")
        elif self.batch_idx is not None or self.leftpad is not None:
            raise UnsupportedCase(f"{name}: block_table excludes cache_batch_idx and cache_leftpad.")
        elif table.dim() != 2 or len(table) != batch or table.dtype != torch.int32 or table.device != q.device:
            raise UnsupportedCase(f"{name} needs an int32 block_table ({batch}, pages) on {q.device}.")
        if not all(x is None or _holds_integers(x, q) for x in (self.batch_idx, self.leftpad)):
            raise UnsupportedCase(f"cache_batch_idx and cache_leftpad must hold integers ({batch},) on {q.device}.")
        if k is None and v is None:
            return
        for x, cache in ((k, self.k), (v, self.v)):
            fits = x is not None and x.dim() == 4 and len(x) == batch and x.shape[2:] == cache.shape[2:]
            if not fits or (x.dtype, x.device) != (cache.dtype, cache.device) or x.shape[1] != k.shape[1]:
                raise UnsupportedCase(f"{name}: k and v must be ({batch}, seqlen_new, heads, head_dim) like the cache.")

    def check_lengths(self, known: torch.Tensor, lengths: torch.Tensor, new: int) -> None:
        """Refuse lengths that the cache has no room for, and numbers of sequences or pages that do not exist.

        `known` are the lengths, on the host where it knows them: then their check needs no synchronization.
        """
        place = f"{'a cache' if self.block_table is None else 'a row of block_table'} of {self.capacity}"
        if new > self.capacity:
            raise UnsupportedCase(f"{new} new keys do not fit into {place}.")
        if reads(known) and bool(((known < 0) | (known + new > self.capacity)).any()):
            raise UnsupportedCase(f"{new} keys after {known.tolist()} do not fit into {place}.")
        pads = self.leftpad
        if pads is not None and reads(pads) and bool(((pads < 0) | (pads > lengths + new)).any()):
            raise UnsupportedCase(f"cache_leftpad {pads.tolist()} must be 0 to the keys in use.")
        if self.table is not None:
            _check_pages(self.table, lengths + new, self.k)

    def append(self, lengths: torch.Tensor, *new: torch.Tensor) -> None:
        """Write k and v behind each sequence; outside of the cache, PyTorch raises on a CPU and asserts on a GPU."""
        size, table = self.k.shape[1], self.table
        positions = lengths[:, None].long() + torch.arange(new[0].shape[1], device=lengths.device)
        positions = torch.where(positions < 0, self.capacity, positions)  # a negative index would count from the end
        if table is None:
            pages = torch.arange(len(lengths), device=lengths.device)[:, None].expand_as(positions)
        elif table.shape[1] == 1:
            pages = table.long().expand_as(positions)
        else:
            pages, positions = table.long().gather(1, positions // size), positions % size
        pages = torch.where(pages < 0, len(self.k), pages)
        self.k[pages, positions], self.v[pages, positions] = new


def _asked(
    dropout_p: float, softcap: float, alibi_slopes: torch.Tensor | None, deterministic: bool, return_lse: bool
) -> dict[str, Any]:
    """Return the arguments of kernels.attention that differ from their defaults."""
    if dropout_p and return_lse:
        raise UnsupportedCase("return_attn_probs is refused with dropout_p: the kernels do not store probabilities.")
    asked = {"dropout_p": dropout_p, "softcap": softcap, "deterministic": deterministic, "return_lse": return_lse}
    given = {} if alibi_slopes is None else {"alibi_slopes": alibi_slopes}
    _check_tensors(*given.values())
    return {name: x for name, x in asked.items() if x} | given


def _whole(given: Any, words: str) -> Any:
    try:
        return tuple(map(operator.index, given))
    except TypeError as error:  # such as a window_size of one number, which would be a window of kernels.attention
        raise UnsupportedCase(f"{words}, not {given!r}.") from error


def _check_tensors(*given: Any) -> None:
    """Refuse what is no tensor."""
    for x in given:
        if not isinstance(x, torch.Tensor):
            raise UnsupportedCase(f"Expected a tensor, not {x!r}.")


def _four(x: torch.Tensor) -> torch.Tensor:
    _check_tensors(x)
    if x.dim() != 4:
        raise UnsupportedCase(f"Expected a tensor (batch, seqlen, heads, head_dim), not {tuple(x.shape)}.")
    return x


def _unpacked(packed: torch.Tensor, count: int, dim: int) -> tuple[torch.Tensor, ...]:
    _check_tensors(packed)
    if packed.dim() != dim + 3 or packed.shape[dim] != count:
        raise UnsupportedCase(f"Dimension {dim} of the packed tensor {tuple(packed.shape)} must be {count}.")
    return packed.unbind(dim)


def _check_pages(block_table: torch.Tensor, lengths: torch.Tensor, pages: torch.Tensor) -> None:
    """Refuse numbers of pages that do not exist, among those that the lengths use."""
    if block_table.dim() == 2 and reads(block_table) and len(block_table) == len(lengths):
        first = torch.arange(block_table.shape[1], device=block_table.device) * pages.shape[1]
        wrong = ((block_table < 0) | (block_table >= len(pages))) & (first < lengths[:, None])
        if bool(wrong.any()):
            raise UnsupportedCase(f"block_table names pages outside 0 to {len(pages) - 1}.")


def _check_rotary(
    cos: torch.Tensor | None, sin: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor | None, capacity: int
) -> None:
    """Refuse rotary tables that do not go with q and a cache of that capacity."""
    name = "flash_attn_with_kvcache"
    if (cos is None) != (sin is None) or (cos is not None and k is None):
        raise UnsupportedCase(f"{name}: rotary_cos, rotary_sin and k belong together.")
    if cos is None or sin is None:
        return
    fits = cos.dim() == 2 and cos.shape == sin.shape and 2 * cos.shape[1] <= q.shape[3] and len(cos) >= capacity
    if not fits or not cos.device == sin.device == q.device or not cos.is_floating_point():
        raise UnsupportedCase(
            f"{name} needs rotary_cos and rotary_sin of at least {capacity} positions and at most {q.shape[3] // 2} "
            f"angles on {q.device}, not {tuple(cos.shape)} and {tuple(sin.shape)} on {cos.device}."
        )


def _lengths(given: Any, q: torch.Tensor) -> torch.Tensor:
    """Return the keys in the cache before the call, int32 (batch,)."""
    if isinstance(given, int):
        return torch.full((len(q),), given, dtype=torch.int32, device=q.device)
    if not _holds_integers(given, q) or given.dtype != torch.int32:
        raise UnsupportedCase(f"cache_seqlens must be a number or an int32 tensor ({len(q)},) on {q.device}.")
    return given


def _holds_integers(x: Any, q: torch.Tensor) -> bool:
    """Return whether x is a tensor with an integer for each sequence of q."""
    fits = isinstance(x, torch.Tensor) and x.shape == q.shape[:1] and x.device == q.device
    return fits and x.dtype in (torch.int32, torch.int64)


def _rotated(
    x: torch.Tensor,
    tables: tuple[torch.Tensor, torch.Tensor],
    lengths: torch.Tensor,
    interleaved: bool,
    one_position: bool = False,
) -> torch.Tensor:
    """Apply the rotary embedding to x (batch, seqlen, heads, head_dim) at positions from `lengths` on."""
    steps = torch.arange(x.shape[1], device=x.device) * (not one_position)
    positions = (lengths[:, None] + steps).clamp(0, len(tables[0]) - 1)
    cos, sin = (table[positions][:, :, None].float() for table in tables)
    width = 2 * cos.shape[-1]
    turned = x[..., :width].float()
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
    else:
        a, b = turned.chunk(2, -1)
    parts = a * cos - b * sin, a * sin + b * cos
    turned = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat([turned.to(x.dtype), x[..., width:]], -1)


def _decodes(q: torch.Tensor, window: Any, scale: float) -> bool:
    few = q.device.type == "cuda" and q.shape[1] <= MAX_SEQLEN_Q and q.dtype in DTYPES
    return few and not isinstance(window, tuple) and scale > 0


def _decoded(
    q: torch.Tensor, cache: _Cache, lengths: torch.Tensor, masks: tuple[Any, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend by the decoding kernels."""
    from .decode.triton_decode import decode

    causal, window_size, scale = masks
    options = {"causal": causal, "window_size": window_size, "softmax_scale": scale, "return_lse": True}
    table = cache.readable_table
    caches = (cache.k, cache.v) if table is not None else (cache.k.transpose(1, 2), cache.v.transpose(1, 2))
    q = q if q.stride(3) == 1 else q.contiguous()
    out, lse = decode(q.transpose(1, 2), *caches, cache_seqlens=lengths, page_table=table, **options)
    return out.transpose(1, 2), lse


def _of_rows(
    q: torch.Tensor, cache: _Cache, lengths: torch.Tensor, asked: dict[str, Any], masks: tuple[Any, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to the cache as to one row of keys, in which each sequence has its limits; pages are copied into one."""
    (batch, seqlen_q), table, room = q.shape[:2], cache.readable_table, cache.capacity
    k, v, numbers = cache.k, cache.v, torch.arange(len(q), dtype=torch.int32, device=q.device)
    first = numbers * room
    if cache.block_table is not None:
        k, v = (x[table].flatten(1, 2) for x in (k, v))
    elif table is not None:
        first = table[:, 0] * room
    starts_k = first if cache.leftpad is None else first + cache.leftpad.int().clamp(min=0)
    rows = numbers * seqlen_q
    bounds = SequenceBounds(rows, rows + seqlen_q, starts_k, first + lengths, seqlen_q, room, packed=True)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    out, lse = feature_calls.attention_of_rows(q, k, v, bounds, asked, masks)
    return out.unflatten(0, (batch, seqlen_q)), lse.unflatten(1, (batch, seqlen_q)).transpose(0, 1)
