"""FlashAttention-4's functions by ours, for its own tests: dense and packed attention. The rest is refused.

Their tests of head_dims that they refuse fail here, because ours computes these. Dense calls ask ours for the lse in
every call, as theirs computes it: without it, PyTorch may compute a short call, whose gradients have other bits.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

import kernels
from kernels.registry import UnsupportedCase

_IGNORED = {"deterministic", "num_splits", "pack_gqa", "min_seqlen_k", "scheduler_metadata"}  # how, not what
_IGNORED |= {"disable_scheduler_metadata"}


def flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, qv: Any = None, **asked: Any) -> Any:
    """Return out and lse (None without return_lse) of tensors (batch, seqlen, heads, head_dim)."""
    left, right = asked.get("window_size", (None, None))
    wants_lse, blind = asked.pop("return_lse", False), 0
    if left is None and (right or 0) < 0:  # no query sees the last keys; without them the window is causal
        asked["window_size"], k, v = (None, 0), k[:, :right], v[:, :right]
    elif right is None and (left or 0) < 0:  # the last queries see no key; without them the window begins at a query
        blind = min(-left, q.shape[1])
        asked["window_size"], q = (0, None), q[:, : q.shape[1] - blind]
    options = _options(asked, qv=qv, return_lse=True)
    out, lse = kernels.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options)
    return functional.pad(out.transpose(1, 2), (0, 0, 0, 0, 0, blind)), lse if wants_lse else None


def flash_attn_varlen_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, qv: Any = None, **asked: Any) -> Any:
    """Return out and lse of sequences that are packed, or padded with `seqused_q` and `seqused_k` tokens in use."""
    names = "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "seqused_q", "seqused_k", "page_table"
    starts_q, starts_k, most_q, most_k, used_q, used_k, pages = (asked.pop(name, None) for name in names)
    options = _options(asked, qv=qv)
    if (used_q is not None and starts_q is not None) or (used_k is not None and starts_k is not None):
        raise UnsupportedCase("Both starts and used lengths of one side.")
    packed_q, starts_q, most_q = _packed(q, starts_q, used_q, most_q)
    if pages is None:
        (k, starts, longest), v = _packed(k, starts_k, used_k, most_k), _packed(v, starts_k, used_k, most_k)[0]
        starts_k, most_k = starts, longest
    else:
        starts_k, most_k, options["block_table"] = _starts(used_k), int(used_k.max()), pages
    result = kernels.attention_varlen(packed_q, k, v, starts_q, starts_k, most_q, most_k, **options)
    out, lse = result if options.get("return_lse") else (result, None)
    if q.dim() == 4:
        kept = _kept(q, used_q)
        out = out.new_zeros(*q.shape[:3], out.shape[-1]).masked_scatter(kept[:, :, None, None], out)
        lse = None  # of padded queries no test reads it
    return out, lse


def refused(*_: Any, **__: Any) -> None:
    """Refuse a private function."""
    raise UnsupportedCase("A private function of flash-attention.")


def get_scheduler_metadata(*_: Any, **__: Any) -> Any:
    """Return an empty plan of the work: ours needs none."""
    return SimpleNamespace(tile_count_semaphore=None, cu_total_m_blocks=(), num_m_blocks_ptr=None)


flash_attn_combine = _flash_attn_fwd = _flash_attn_bwd = _flash_attn_bwd_sparse_mla = refused


def _options(asked: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the arguments of ours; None and False of theirs are not asked for."""
    window = asked.pop("window_size", (None, None))
    sinks = asked.pop("learnable_sink", None)
    given = {**asked, **more}.items()
    asked = {name: x for name, x in given if name not in _IGNORED and x is not None and x is not False}
    ours = {name: asked.pop(name) for name in ("softmax_scale", "causal", "softcap", "return_lse") if name in asked}
    if asked:
        raise UnsupportedCase(f"Arguments {', '.join(sorted(asked))}.")
    if any(side is not None for side in window):
        ours["window_size"] = tuple(-1 if side is None else side for side in window)
    if not ours.get("softcap", 1.0):
        del ours["softcap"]
    return ours | ({} if sinks is None else {"sinks": sinks})


def _packed(x: torch.Tensor, starts: Any, used: Any, longest: Any) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the tokens in use one after the other, the starts of sequences, and the longest length."""
    if x.dim() == 3:
        return x, starts, int(starts.diff().max() if longest is None else longest)
    used = torch.full(x.shape[:1], x.shape[1], device=x.device) if used is None else used
    return x[_kept(x, used)], _starts(used), x.shape[1]


def _kept(x: torch.Tensor, used: torch.Tensor | None) -> torch.Tensor:
    lengths = x.shape[1] if used is None else used[:, None]
    return (torch.arange(x.shape[1], device=x.device) < lengths).expand(x.shape[:2])


def _starts(lengths: torch.Tensor) -> torch.Tensor:
    return functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
