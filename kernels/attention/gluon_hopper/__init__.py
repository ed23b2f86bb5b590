"""Attention for Hopper alone: warp-specialised kernels in Gluon, fed by TMA.

Forward and backward for head dims up to 256, and the forward up to 512. kernels/DESIGN.md says how they work and why.
"""

import importlib
import importlib.metadata
from typing import Any

import torch

from ... import plans
from ...features import Features, SequenceBounds
from ...features import check as check_features
from ...plans import Masks, check_inputs
from ...registry import AttentionCase, Device, UnsupportedCase, declare, triton_missing
from .configs import HALF, HEAD_DIMS, MOST_PACKED, SCORES, takes_head_dims, takes_packed

DTYPES = (torch.bfloat16, torch.float16)
_SCORES = (
    "Of features, gluon_hopper takes sinks, or for whole sequences in bfloat16 with a positive scale a softcap of at "
    "least 2 (head_dim 1 to 256) or slopes (head_dim 65 to 128) alone."
)
_HEAD_DIMS = "head_dim_v must be head_dim, or 128 where head_dim is 129 to 192."
TRITON_VERSIONS = ((3, 6), (4, 0))  # the first that serves, the first that may not


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
    bounds: SequenceBounds | None = None,
    features: Features | None = None,
) -> torch.Tensor:
    """Attention as `kernels.registry.Attention` defines it. Raises UnsupportedCase for tensors it cannot take.

    With `bounds`, sequences lie one after the other: q is (1, num_heads, total_q, head_dim).
    """
    scale = plans.scale_of(softmax_scale, q.shape[-1] or 1)
    masks = bool(causal), window_size, scale
    if features is not None and features.asked:
        return _attend_with_sinks(q, k, v, features, bounds, masks)
    from . import packed, plan  # need Gluon, which this package must import without

    if bounds is not None:
        _check_packed(q, k, v, bounds, scale)
        return plans.attend(packed.PackedCall(bounds, *masks), q, k, v)
    if scale > 0:
        known = plan.known_plan(q, k, v, causal, window_size, scale)
        if known is not None:
            return plans.attend(known, q, k, v)
    check(q, k, v)
    if q.numel() == 0 or k.numel() == 0:
        return q[..., : v.shape[3]] * 0.0
    if scale <= 0:  # the kernel takes the maximum of a row before it scales
        q, scale = (-q, -scale) if scale < 0 else (q * 0.0, 1.0)
    return plan.attend(q, k, v, causal, window_size, scale)


def _attend_with_sinks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, features: Features, bounds: SequenceBounds | None, masks: Masks
) -> torch.Tensor:
    causal, window_size, scale = masks
    sinks = features.asked == ("sinks",)
    if sinks and scale <= 0:
        raise UnsupportedCase(f"gluon_hopper takes sinks and a positive scale, not {scale}.")
    if not sinks and bounds is not None:
        raise UnsupportedCase(_SCORES)
    from ..triton_fa2.features.call import attend
    from .launch import addressable
    from .scores import with_scores
    from .sinks import with_sinks

    if bounds is None:
        check(q, k, v)
    else:
        _check_packed(q, k, v, bounds, scale)
    check_features(features, (*q.shape[:3], k.shape[2]), q.device, causal=causal, window_size=window_size)
    if not q.numel() or not k.numel():
        raise UnsupportedCase(f"gluon_hopper got q {tuple(q.shape)} and k {tuple(k.shape)}: with sinks none is empty.")
    q, k, v = map(addressable, (q, k, v))
    call: Any = with_sinks(features, q, k, v, bounds, masks) if sinks else with_scores(features, q, k, v, masks)
    if call is None:
        raise UnsupportedCase(_SCORES)
    return attend(call, q, k, v)


def _check_packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: SequenceBounds, scale: float) -> None:
    check(q, k, v)
    fits = takes_packed(q.shape[3], v.shape[3]) and scale > 0 and bounds.packed and len(bounds.starts_q) > 0
    if not fits or not q.numel() or not k.numel():
        raise UnsupportedCase(
            f"gluon_hopper takes packed sequences of head_dims that 8 divides, up to {MOST_PACKED}, and a positive "
            f"scale; it got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} and the scale {scale}."
        )


def check(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, name: str = "gluon_hopper", *, wide_keys: bool = True
) -> None:
    """Raise UnsupportedCase, in the implementation's name, for tensors that the kernels cannot take.

    `wide_keys`: those of the name take keys that are wider than values, and head_dims above 256.
    """
    check_inputs(name, q, k, v, DTYPES, HEAD_DIMS[-1] if wide_keys else HALF, any_width=wide_keys)
    if k.shape[3] != v.shape[3] and not takes_head_dims(k.shape[3], v.shape[3]):
        raise UnsupportedCase(f"{name} got k {tuple(k.shape)} and v {tuple(v.shape)}: {_HEAD_DIMS}")
    if q.device.type != "cuda":
        raise UnsupportedCase(f"{name} got tensors on {q.device}: it runs on a Hopper GPU.")


def _unavailable() -> str | None:
    if missing := triton_missing():
        return missing
    version = importlib.metadata.version("triton")
    if not TRITON_VERSIONS[0] <= tuple(map(int, version.split(".")[:2])) < TRITON_VERSIONS[1]:
        return f"gluon_hopper is written for Triton 3.6 to 3.9, this is {version}; pip install 'triton>=3.6,<4'."
    return None


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if case.head_dim_v not in (None, case.head_dim) and not takes_head_dims(case.head_dim or 0, case.head_dim_v):
        return f"gluon_hopper got head_dim {case.head_dim} and head_dim_v {case.head_dim_v}: {_HEAD_DIMS}"
    asked = set(case.asked or ())
    for name in asked & set(SCORES):
        if len(asked) > 1 or case.dtype not in (None, "bfloat16") or (case.head_dim or 128) not in SCORES[name]:
            return _SCORES
    return gluon_lacks("gluon_hopper", __name__)


def gluon_lacks(name: str, package: str) -> str | None:
    """Return why the package of an implementation cannot use the Gluon that is installed, or None."""
    try:
        importlib.import_module(".plan", package)
    except (ImportError, AttributeError) as error:  # Gluon is experimental: its names move
        return f"{name} cannot use the Gluon of this Triton: {error}."
    return None


IMPLEMENTATIONS = (declare("gluon_hopper", attention, unavailable=_unavailable(), refuses=_refuses),)
