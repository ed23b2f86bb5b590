"""Attention with products of 8-bit factors (e4m3) on Hopper, forward only: twice the tensor cores' rate, 2 digits less.

Takes bfloat16 and float16 as the others do, and quantises within the call: one kernel reads q, k and v, another
computes. kernels/DESIGN.md says how and why.
"""

import torch

from ...plans import scale_of, wants_gradients
from ...registry import AttentionCase, Device, UnsupportedCase, declare
from .. import gluon_hopper


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Attention as `kernels.registry.Attention` defines it, without gradients, causal masks and windows.

    Raises UnsupportedCase for tensors it cannot take.
    """
    check(q, k, v, window_size, causal=causal)
    if q.numel() == 0 or k.numel() == 0:
        return torch.zeros_like(q)
    scale = scale_of(softmax_scale, q.shape[-1])
    if scale <= 0:  # the kernel takes the maximum of a row before it scales
        q, scale = (-q, -scale) if scale < 0 else (q * 0.0, 1.0)
    from . import plan  # needs Gluon, which this package must import without

    return plan.attend(plan.quantise(q, k, v), scale)


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window_size: int, *, causal: bool = False) -> None:
    """Raise UnsupportedCase for what the kernel cannot compute."""
    if wants_gradients(q, k, v):
        raise UnsupportedCase("gluon_fp8 has no backward; call it under torch.no_grad(), or use gluon_hopper.")
    if causal:
        raise UnsupportedCase(f"gluon_fp8 does not support causal masks: {IMPLEMENTATIONS[0].no_causal}.")
    if window_size:
        raise UnsupportedCase(f"gluon_fp8 has no sliding window, got window_size {window_size}; use gluon_hopper.")
    gluon_hopper.check(q, k, v, "gluon_fp8", wide_keys=False)


def _refuses(case: AttentionCase, device: Device) -> str | None:
    return gluon_hopper.gluon_lacks("gluon_fp8", __name__)


def _unavailable() -> str | None:
    reason = gluon_hopper.IMPLEMENTATIONS[0].unavailable
    return reason and reason.replace("gluon_hopper", "gluon_fp8")


IMPLEMENTATIONS = (declare("gluon_fp8", attention, unavailable=_unavailable(), refuses=_refuses),)
