"""Attention whose numbers for a sequence do not depend on its batch, on padding behind it or on splits of its keys.

Within `batch_invariant` the kernels of triton_fa2 with features compute every call, also of decoding. Their tile
depends on dtype, head_dims and chip only, and a program walks over all keys of its rows in their order. A key is
therefore added at the same place of the same sum whatever else is in the batch. Other calls are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from . import dispatch, feature_calls, plans, routes
from .decode import triton_decode, triton_mla
from .features import Features
from .registry import UnsupportedCase


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Compute within a `with` block by kernels whose order of additions is that of the sequence alone.

    It holds for the whole process: for `attention`, `attention_varlen`, `decode`, `flash_attn` and the drop-in. Long
    contexts with few query rows are slower, as their keys are not split among multiprocessors.
    """
    new: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (routes, "bound", _bound),
        (routes, "left_to_pytorch", lambda *call: False),
        (dispatch, "_traced", lambda q, k, v, *options: _bound(q, k, v, *options)(q, k, v)),
        (feature_calls, "takes", partial(_taken, feature_calls.takes)),
        (feature_calls, "_on_hopper", lambda *call: None),
        (feature_calls, "_plan_without_features", lambda *call: None),
        (triton_decode, "decode", _decode),
        (triton_mla, "mla_decode", _refuse_latents),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in new]
    try:
        for module, name, function in new:
            setattr(module, name, function)
        plans.forget(plans.SeenCalls)
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)
        plans.forget(plans.SeenCalls)


def _taken(takes: Callable[..., bool], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, names: Any) -> bool:
    """Return True, or refuse a call that our kernels do not take."""
    if not takes(q, k, v, names):
        shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} in {q.dtype} and {v.dtype} on {q.device}"
        raise UnsupportedCase(
            f"batch_invariant() got {shapes}. It takes one dtype of bfloat16, float16 and float32 and head_dims up to "
            f"{routes.MAX_HEAD_DIM} on a GPU with Triton; call outside of it to compute by other implementations."
        )
    return True


def _bound(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window_size: int, scale: float | None
) -> Callable[..., torch.Tensor]:
    """Return what computes a call of `kernels.attention`, as `routes.bound`."""
    feature_calls.takes(q, k, v, ())
    options = (bool(causal), window_size, q.shape[3] ** -0.5 if scale is None else float(scale))
    return lambda q, k, v: feature_calls._by_kernels(q, k, v, Features(), options, None)


@torch.no_grad()
def _decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    cache_seqlens: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    kv_layout: str = "NHD",
    return_lse: bool = False,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: int = 0,
    **_speed: Any,
) -> Any:
    """Attend as `triton_decode.decode` does; a sequence of a contiguous cache is a page."""
    if k_scale is not None or v_scale is not None:
        raise UnsupportedCase("batch_invariant() takes no scales of caches in e4m3; use a cache in 16 bits.")
    (batch, _, tokens, _), device = q.shape, q.device
    if page_table is None:
        page_table = torch.arange(batch, dtype=torch.int32, device=device)[:, None]
        kv_layout = "HND"
    k, v = (x.transpose(1, 2) if kv_layout == "HND" else x for x in (k_cache, v_cache))
    room = page_table.shape[1] * k.shape[1]
    lengths = torch.full((batch,), room, device=device) if cache_seqlens is None else cache_seqlens
    starts_q = torch.arange(batch + 1, device=device) * tokens
    starts_k = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    masks: dict[str, Any] = {"causal": causal, "window_size": window_size, "softmax_scale": softmax_scale}
    paged: dict[str, Any] = {"block_table": page_table, "copy_pages": False, "return_lse": True}
    rows = q.transpose(1, 2).flatten(0, 1)
    out, lse = feature_calls.attention_varlen(rows, k, v, starts_q, starts_k, tokens, room, **masks, **paged)
    out, lse = out.unflatten(0, (batch, tokens)).transpose(1, 2), lse.unflatten(1, (batch, tokens)).transpose(0, 1)
    return (out, lse) if return_lse else out


def _refuse_latents(*_: Any, **__: Any) -> Any:
    raise UnsupportedCase("batch_invariant() does not decode over latents; call mla_decode outside of it.")
