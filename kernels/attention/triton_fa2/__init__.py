"""FlashAttention-2 in Triton for any GPU from compute capability 8.0: forward, and backward in two kernels.

`triton_fa2` computes float32 in IEEE float32, on Hopper at head_dim 17 to 128 mostly in bf16x6, whose factors are three
bfloat16 parts each and which loses no more (tile_ops.py). `triton_fa2_tf32` rounds the factors of float32 products to
TF32 for the tensor cores, and has a separate name so that the two are never confused.
"""

import os
import shutil
from functools import partial

import torch

from ...features import Features, SequenceBounds, Window
from ...registry import FEATURES, AttentionCase, Device, declare, interpreter_lacks, refuse_cpu, triton_missing

DTYPES = ("bfloat16", "float16", "float32")


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: Window = 0,
    softmax_scale: float | None = None,
    precision: str = "ieee",
    features: Features | None = None,
    bounds: SequenceBounds | None = None,
) -> torch.Tensor:
    """Attention as `kernels.registry.Attention` defines it; `precision` ("ieee" or "tf32") is for float32 products.

    With features, sequences within bounds, a window of two widths, or values of another head_dim, its kernels are those
    of `features`. Raises UnsupportedCase for tensors it cannot take, and on the CPU without TRITON_INTERPRET=1.
    """
    if q.device.type != "cuda":
        refuse_cpu("triton_fa2", q)
    if features is not None or bounds is not None or v.shape[-1] != q.shape[-1] or isinstance(window_size, tuple):
        from .features.call import attend_checked

        return attend_checked(q, k, v, features, bounds, (causal, window_size, softmax_scale, precision))
    from .plan import attend  # needs triton, which this package must import without

    return attend(q, k, v, causal, window_size, softmax_scale, precision)


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if device.type == "cpu":
        return interpreter_lacks(case.dtype)
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton needs a C compiler to build its launcher; install gcc or clang, or set CC."
    return None


IMPLEMENTATIONS = tuple(
    declare(
        name, partial(attention, precision=float32), features=FEATURES, unavailable=triton_missing(), refuses=_refuses
    )
    for name, float32 in (("triton_fa2", "ieee"), ("triton_fa2_tf32", "tf32"))
)
