"""Attention whose numbers for a sequence do not depend on its batch, on padding behind it or on splits of its keys.

Within `batch_invariant` the kernels of triton_fa2 with features compute every call, also of decoding, or refuse it. A
key is added at the same place of the same sum for any batch; kernels/DESIGN.md, "Features", says how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from . import plans
from .registry import UnsupportedCase

if TYPE_CHECKING:
    from .decode.triton_decode.request import Caches, Options

_OPEN: list[None] = []  # one for each block that is open


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Compute within a `with` block by kernels whose order of additions is that of the sequence alone.

    It holds for the whole process: for `attention`, `attention_varlen`, `decode`, `flash_attn` and the drop-in. Long
    contexts with few query rows are slower, as their keys are not split among multiprocessors.
    """
    _OPEN.append(None)
    plans.forget(plans.SeenCalls)
    try:
        yield
    finally:
        _OPEN.pop()
        plans.forget(plans.SeenCalls)


def wanted() -> bool:
    """Return whether a block of `batch_invariant` is open; the dispatcher asks it wherever it chooses kernels."""
    return bool(_OPEN)


def refusal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> UnsupportedCase:
    """Return the refusal of a call that the kernels with features do not take."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} in {q.dtype} and {v.dtype} on {q.device}"
    return UnsupportedCase(
        f"batch_invariant() got {shapes}. It takes one dtype of bfloat16, float16 and float32 and head_dims up to "
        f"{plans.MAX_HEAD_DIM} on a GPU with Triton; call outside of it to compute by other implementations."
    )


def bound(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window_size: int, scale: float | None
) -> Callable[..., torch.Tensor]:
    """Return what computes a call of `kernels.attention`, as `routes.bound`."""
    from . import feature_calls
    from .features import Features

    feature_calls.takes(q, k, v, ())
    options = (bool(causal), window_size, plans.scale_of(scale, q.shape[3]))
    return lambda q, k, v: feature_calls.by_kernels(q, k, v, Features(), options, None)


@torch.no_grad()
def decode(q: torch.Tensor, caches: Caches, options: Options) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and lse as `triton_decode.calls.attend` does; a sequence of a contiguous cache is a page."""
    from . import feature_calls

    if options.latent_dim:
        raise UnsupportedCase("batch_invariant() does not decode over latents; call mla_decode outside of it.")
    if caches.k_scale is not None or caches.v_scale is not None:
        raise UnsupportedCase("batch_invariant() takes no scales of caches in e4m3; use a cache in 16 bits.")
    (batch, _, tokens, _), device, table, lengths = q.shape, q.device, caches.page_table, caches.seqlens
    by_pages = table is not None and options.kv_layout == "NHD"
    if table is None:
        table = torch.arange(batch, dtype=torch.int32, device=device)[:, None]
    k, v = (x if by_pages else x.transpose(1, 2) for x in (caches.k, caches.v))
    room = table.shape[1] * k.shape[1]
    lengths = torch.full((batch,), room, device=device) if lengths is None else lengths
    starts_q = torch.arange(batch + 1, device=device) * tokens
    starts_k = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    masks = {name: getattr(options, name) for name in ("causal", "window_size", "softmax_scale")}
    paged: dict[str, Any] = {"block_table": table, "copy_pages": False, "return_lse": True}
    rows = q.transpose(1, 2).flatten(0, 1)
    out, lse = feature_calls.attention_varlen(rows, k, v, starts_q, starts_k, tokens, room, **masks, **paged)
    return out.unflatten(0, (batch, tokens)).transpose(1, 2), lse.unflatten(1, (batch, tokens)).transpose(0, 1)
