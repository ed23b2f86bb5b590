"""PyTorch's scaled_dot_product_attention: its own choice of backend (auto), and each backend forced.

Masks. is_causal is aligned top-left in PyTorch, so causal with unequal lengths goes through `causal_lower_right`
(flash, efficient, auto; on CUDA) or an explicit mask (math, auto).
Sliding windows need an explicit mask, which only math, efficient and auto take; it has seqlen_q x seqlen_k elements.
Features that are masks or biases become one tensor; cuDNN takes it where PyTorch says so.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ..features import Features, Window, reach, with_masks
from ..registry import AttentionCase, Device, UnsupportedCase, declare
from .torch_naive import hidden_keys

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
MAX_HEADS = 65535  # the limit of the second and third axis of a grid (CUDA C++ Programming Guide)
_TAKES_MASK = ("auto", "math", "efficient")


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: Window = 0,
    softmax_scale: float | None = None,
    variant: str = "auto",
    features: Features | None = None,
) -> torch.Tensor:
    """Attention by one of PyTorch's backends; see `kernels.registry.Attention`.

    Raises UnsupportedCase when PyTorch has no such kernel for these tensors.
    """
    if softmax_scale is not None and softmax_scale <= 0:  # fused kernels scale what a mask has hidden to inf or NaN
        q, softmax_scale = (-q, -softmax_scale) if softmax_scale else (q * 0, 1.0)
    call = partial(scaled_dot_product_attention, scale=softmax_scale, **_grouped(q, k))
    if features is not None or isinstance(window_size, tuple):
        mask, blind = merged_mask(
            features or Features(), (*q.shape[:3], k.shape[2]), (causal, window_size), q.dtype, q.device
        )
        if blind is not None:
            call = partial(_with_blind_rows, call, blind)
    else:
        mask = _mask(q, k, causal, window_size, variant)
    call = partial(call, attn_mask=mask) if mask is not None else partial(call, is_causal=causal)
    if variant == "auto":
        return call(q, k, v)
    try:
        with sdpa_kernel(BACKENDS[variant]):
            return call(q, k, v)
    except RuntimeError as error:
        if "No available kernel" not in str(error) and "No viable backend" not in str(error):
            raise
        raise UnsupportedCase(
            f"torch_sdpa_{variant}: PyTorch {torch.__version__} has no {variant} kernel for q {tuple(q.shape)}, "
            f"k {tuple(k.shape)} in {q.dtype} on {q.device.type}; use torch_sdpa_auto to let it choose."
        ) from error


def _with_blind_rows(call: Callable[..., torch.Tensor], blind: torch.Tensor, *tensors: Any, **mask: Any) -> Any:
    return call(*tensors, **mask).masked_fill(blind, 0.0)


def bound(
    q: torch.Tensor, k: torch.Tensor, *, causal: bool, window_size: Window, softmax_scale: float | None, variant: str
) -> Callable[..., torch.Tensor]:
    """Return what computes calls with such tensors, PyTorch's function itself where its causal mask is enough."""
    usual = softmax_scale is None or softmax_scale > 0
    if usual and variant == "auto" and not window_size and (not causal or q.shape[2] == k.shape[2]):
        return partial(scaled_dot_product_attention, is_causal=causal, scale=softmax_scale, **_grouped(q, k))
    masks: dict[str, Any] = {"causal": causal, "window_size": window_size}
    return partial(attention, **masks, softmax_scale=softmax_scale, variant=variant)


def _grouped(q: torch.Tensor, k: torch.Tensor) -> dict[str, Any]:
    """Return the option for shared key heads, by a branch: torch.compile takes no comparison of dynamic sizes."""
    return {"enable_gqa": True} if q.shape[1] != k.shape[1] else {"enable_gqa": False}


def is_pytorch(attend: Any) -> bool:
    """Return whether `bound` returned PyTorch's function itself, which obeys all settings of a program."""
    return isinstance(attend, partial) and attend.func is scaled_dot_product_attention


def _mask(q: torch.Tensor, k: torch.Tensor, causal: bool, window_size: int, variant: str) -> torch.Tensor | None:
    """Return None where is_causal says it all; an aligned causal bias; or True where a query may look."""
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    if not window_size and (not causal or seqlen_q == seqlen_k):
        return None
    if _undefined_rows(variant, q.device.type, seqlen_q, seqlen_k, causal, window_size):
        raise UnsupportedCase(_UNDEFINED.format(variant=variant, seqlen_q=seqlen_q, seqlen_k=seqlen_k))
    if not window_size and variant != "math" and q.device.type == "cuda" and seqlen_q <= seqlen_k:
        from torch.nn.attention.bias import causal_lower_right  # brings torch._dynamo, seconds at import

        return causal_lower_right(seqlen_q, seqlen_k)
    if variant not in _TAKES_MASK:
        raise UnsupportedCase(
            f"torch_sdpa_{variant} takes no mask but plain causal; use torch_sdpa_math or torch_sdpa_auto."
        )
    return hidden_keys(seqlen_q, seqlen_k, causal, window_size, q.device).logical_not_()


def merged_mask(
    asked: Features,
    shape: tuple[int, int, int, int],
    masks: tuple[bool, Window],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the masks and biases of a call as one tensor, boolean if there is no bias, and True for blind rows.

    What does not change with the data is kept for the features, as users make a mask once for all layers. Rows that see
    no key because of it are blind, None if there are none: cuDNN gives NaN for them and then in all of dk and dv, so
    their mask is opened, and their out is to be overwritten. A bias that hides all keys of a row is not searched for.
    Fused kernels take a bias of the dtype of q whose last stride is 1.
    """
    bias = asked.mask if asked.mask is not None and asked.mask.dtype != torch.bool else None
    if bias is None:
        return _constant_mask(asked, shape, masks, dtype, device)
    if not any(masks) and asked.asked == ("mask",):
        return bias.to(dtype).contiguous(), None
    constant, blind = _constant_mask(asked, shape, masks, dtype, device)
    return (constant + bias).to(dtype).contiguous(), blind


@lru_cache(maxsize=8)
def _constant_mask(
    asked: Features, shape: Any, masks: Any, dtype: Any, device: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    _, heads, seqlen_q, seqlen_k = shape
    left, right = reach(masks[0], masks[1], seqlen_q + seqlen_k)
    positions = torch.arange(seqlen_k - seqlen_q, seqlen_k, device=device)[:, None]
    distance = torch.arange(seqlen_k, device=device) - positions
    hidden = ((distance > right) | (distance < -left))[None, None]
    biased = asked.mask is not None and asked.mask.dtype != torch.bool
    constant = replace(asked, mask=None) if biased else asked
    scores, hidden = with_masks(torch.zeros(1, heads, seqlen_q, seqlen_k, device=device), hidden, constant)
    rows = hidden.all(-1, keepdim=True)
    blind = rows if bool(rows.any()) else None
    hidden = hidden & ~rows
    if not biased and asked.alibi_slopes is None:
        return (~hidden).contiguous(), blind
    return scores.masked_fill(hidden, float("-inf")).to(dtype), blind


_UNDEFINED = (
    "torch_sdpa_{variant} does not define queries that see no key (seqlen_q {seqlen_q}, seqlen_k {seqlen_k}); "
    "torch_sdpa_math does."
)


def _undefined_rows(variant: str, device: str, seqlen_q: int, seqlen_k: int, causal: bool, window_size: Window) -> bool:
    """Return whether some query sees no key, where PyTorch then does not return 0 (seen on an H200, torch 2.11)."""
    _, ahead = reach(causal, window_size, seqlen_q + seqlen_k)
    return seqlen_q - seqlen_k > ahead and bool(causal or window_size) and variant != "math" and device == "cuda"


def _refuses(variant: str, case: AttentionCase, device: Device) -> str | None:
    """Apply rules first, then PyTorch's own answer where this machine can give it."""
    name = f"torch_sdpa_{variant}"
    if case.seqlen_q is not None and case.seqlen_k is not None:
        lengths, window_size = (case.seqlen_q, case.seqlen_k), case.window_size or 0
        if _undefined_rows(variant, device.type, *lengths, bool(case.causal), window_size):
            return _UNDEFINED.format(variant=variant, seqlen_q=case.seqlen_q, seqlen_k=case.seqlen_k)
        if variant == "flash" and device.type == "cpu" and case.causal and lengths[0] != lengths[1]:
            return f"{name} has no bottom-right causal mask on the CPU; torch_sdpa_math has."
    if device.type != "cuda":
        return None
    if variant == "cudnn" and 1 in (case.seqlen_q, case.seqlen_k):
        return f"{name} has no kernel for a seqlen of 1 (seen with cuDNN 9.19); torch_sdpa_auto chooses another."
    if variant in ("auto", "flash", "cudnn") and (case.num_heads or 0) > MAX_HEADS:
        return f"{name} launches a grid row a head and supports {MAX_HEADS} heads at most, not {case.num_heads}."
    kind = {"head_dim_v": case.head_dim_v, "masked": bool(case.asked)}
    return pytorch_refuses_case(variant, case, bool(case.causal), **kind)


def pytorch_refuses_case(variant: str, case: AttentionCase, causal: bool, **kind: Any) -> str | None:
    """Return what a backend does not compute of a case on a GPU, or None; kind: arguments of `pytorch_refuses`."""
    if variant == "flash" and case.dtype == "float32":
        return "torch_sdpa_flash supports bfloat16 and float16 on CUDA, not float32."
    heads = case.num_heads or 1, case.num_kv_heads or case.num_heads or 1
    answer = pytorch_refuses(variant, case.dtype, case.head_dim, *heads, causal, **kind)
    return f"torch_sdpa_{variant}: {answer}" if answer else None


@cache
def pytorch_refuses(
    variant: str,
    dtype: str | None,
    head_dim: int | None,
    num_heads: int,
    num_kv_heads: int,
    causal: bool,
    *,
    head_dim_v: int | None = None,
    seqlen_q: int = 128,
    training: bool = True,
    masked: bool = False,
) -> str | None:
    """Return what PyTorch says against small tensors of this kind on the current device, None if it takes them."""
    if variant not in _CAN_USE or not torch.cuda.is_available():
        return None
    like = {"dtype": getattr(torch, dtype or "bfloat16"), "device": "cuda", "requires_grad": training}
    q = torch.empty(1, num_heads, seqlen_q, head_dim or 64, **like)
    k, v = (torch.empty(1, num_kv_heads, 128, width or 64, **like) for width in (head_dim, head_dim_v or head_dim))
    with sdpa_kernel(BACKENDS[variant]), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        mask = q.new_zeros(1, 1, seqlen_q, 128).detach() if masked else None
        params = torch.backends.cuda.SDPAParams(q, k, v, mask, 0.0, causal and not masked, num_heads != num_kv_heads)
        if _CAN_USE[variant](params, debug=True):
            return None
    texts = [str(warning.message).split(" (Triggered internally")[0].strip() for warning in said]
    return " ".join(text.rstrip(".") + "." for text in texts) or f"PyTorch {torch.__version__} has no such kernel here."


IMPLEMENTATIONS = tuple(
    declare(f"torch_sdpa_{variant}", partial(attention, variant=variant), refuses=partial(_refuses, variant))
    for variant in ("auto", *BACKENDS)
)
