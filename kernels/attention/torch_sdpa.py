"""PyTorch's scaled_dot_product_attention: its own choice of backend (auto), and each backend forced.

Masks. is_causal is aligned top-left in PyTorch, so causal with unequal lengths goes through `causal_lower_right`
(flash, efficient, auto; seqlen_q up to seqlen_k) or an explicit mask (math; auto where the other does not apply).
Sliding windows need an explicit mask, which only math, efficient and auto take; it has seqlen_q x seqlen_k elements.
"""

from __future__ import annotations

import warnings
from functools import cache, partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention.torch_naive import hidden_keys
from kernels.registry import AttentionCase, Device, Implementation, UnsupportedCase

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
_CAN_USE = {
    "flash": torch.backends.cuda.can_use_flash_attention,
    "cudnn": torch.backends.cuda.can_use_cudnn_attention,
    "efficient": torch.backends.cuda.can_use_efficient_attention,
}
_TAKES_MASK = ("auto", "math", "efficient")


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
    variant: str = "auto",
) -> torch.Tensor:
    """Attention by one of PyTorch's backends; see `kernels.registry.Attention`.

    Raises UnsupportedCase when PyTorch has no such kernel for these tensors.
    """
    call = partial(scaled_dot_product_attention, scale=softmax_scale, enable_gqa=q.shape[1] != k.shape[1])
    mask = _mask(q, k, causal, window_size, variant)
    call = partial(call, attn_mask=mask) if mask is not None else partial(call, is_causal=causal)
    if variant == "auto":
        return call(q, k, v)
    try:
        with sdpa_kernel(BACKENDS[variant]), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # PyTorch warns why each backend refuses; the error says it
            return call(q, k, v)
    except RuntimeError as error:
        if "No available kernel" not in str(error) and "No viable backend" not in str(error):
            raise
        raise UnsupportedCase(
            f"torch_sdpa_{variant}: PyTorch {torch.__version__} has no {variant} kernel for q {tuple(q.shape)}, "
            f"k {tuple(k.shape)} in {q.dtype} on {q.device.type}; use torch_sdpa_auto to let it choose."
        ) from error


def _mask(q: torch.Tensor, k: torch.Tensor, causal: bool, window_size: int, variant: str) -> torch.Tensor | None:
    """None where is_causal says it all; an aligned causal bias; or True where a query may look."""
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    if not window_size and (not causal or seqlen_q == seqlen_k):
        return None
    if not window_size and variant != "math" and q.device.type == "cuda" and seqlen_q <= seqlen_k:
        return causal_lower_right(seqlen_q, seqlen_k)
    if variant not in _TAKES_MASK:
        raise UnsupportedCase(
            f"torch_sdpa_{variant} takes no mask but plain causal; use torch_sdpa_math or torch_sdpa_auto."
        )
    return hidden_keys(seqlen_q, seqlen_k, causal, window_size, q.device).logical_not_()


def _refuses(variant: str, case: AttentionCase, device: Device) -> str | None:
    """Rules first, then PyTorch's own answer where this machine can give it."""
    name = f"torch_sdpa_{variant}"
    lengths_known = case.seqlen_q is not None and case.seqlen_k is not None
    if case.causal and lengths_known and not case.window_size and case.seqlen_q != case.seqlen_k:
        if variant == "flash" and device.type == "cpu":
            return f"{name} has no bottom-right causal mask on the CPU; torch_sdpa_math has."
        if variant in ("flash", "efficient") and case.seqlen_q > case.seqlen_k:
            return f"{name} does not define rows that see no key (seqlen_q {case.seqlen_q} > seqlen_k {case.seqlen_k})."
    if device.type != "cuda" or variant not in _CAN_USE or not torch.cuda.is_available():
        return None
    answer = _pytorch_refuses(
        variant,
        case.dtype,
        case.head_dim,
        case.num_heads or 1,
        case.num_kv_heads or case.num_heads or 1,
        bool(case.causal),
    )
    return f"{name}: {answer}" if answer else None


@cache
def _pytorch_refuses(
    variant: str, dtype: str | None, head_dim: int | None, num_heads: int, num_kv_heads: int, causal: bool
) -> str | None:
    """What PyTorch says against small tensors of this kind on the current device, None if it takes them."""
    seqlen, like = 128, {"dtype": getattr(torch, dtype or "bfloat16"), "device": "cuda", "requires_grad": True}
    q = torch.empty(1, num_heads, seqlen, head_dim or 64, **like)
    k, v = (torch.empty(1, num_kv_heads, seqlen, head_dim or 64, **like) for _ in range(2))
    with sdpa_kernel(BACKENDS[variant]), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        params = torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, causal, num_heads != num_kv_heads)
        if _CAN_USE[variant](params, debug=True):
            return None
    texts = [str(warning.message).split(" (Triggered internally")[0].strip() for warning in said]
    return " ".join(text.rstrip(".") + "." for text in texts) or f"PyTorch {torch.__version__} has no such kernel here."


def _implementation(variant: str, description: str, **limits: object) -> Implementation:
    return Implementation(
        name=f"torch_sdpa_{variant}",
        description=description,
        attention=partial(attention, variant=variant),
        refuses=partial(_refuses, variant),
        **limits,
    )


_HALF = ("bfloat16", "float16")

IMPLEMENTATIONS = (
    _implementation("auto", "PyTorch's SDPA, backend chosen by PyTorch"),
    _implementation("flash", "PyTorch's SDPA, FlashAttention-2 backend", window=False, max_head_dim=256),
    _implementation(
        "cudnn",
        "PyTorch's SDPA, cuDNN backend",
        dtypes=_HALF,
        devices=("cuda",),
        window=False,
        unequal_causal=False,
        min_compute_capability=(8, 0),
    ),
    _implementation("efficient", "PyTorch's SDPA, memory-efficient backend", devices=("cuda",)),
    _implementation("math", "PyTorch's SDPA, its C++ composition of matmuls and softmax", materialises_scores=True),
)
