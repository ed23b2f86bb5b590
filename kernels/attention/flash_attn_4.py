"""FlashAttention-4 (the package flash-attn-4, written in the CuTe DSL), where it is installed."""

from .. import packages
from ..problem import TRAINING
from ..registry import AttentionCase, Device


def _refuses(case: AttentionCase, device: Device) -> str | None:
    """Return why a case is not served; a rule's case also says whether gradients follow, a case to measure does not."""
    only_hopper = 128 < (case.head_dim or 0) != 256 and device.compute_capability not in (None, (9, 0))
    limit = f"takes head_dim {case.head_dim} only on compute capability 9.0; other devices take up to 128, or 256"
    sixteens = -(-(case.head_dim or 0) // 16)  # two make a column block of dQ (pull request 2896 of flash-attention)
    odd = sixteens % 2 == 1 and device.compute_capability == (9, 0)
    wrong = odd and getattr(case, "direction", None) == TRAINING
    dq = f"computes a wrong dQ at head_dim {case.head_dim} on compute capability 9.0 (seen in 4.0.0b36)"
    return packages.reason("flash_attn_4", (only_hopper, limit), (wrong, dq))


call = packed = packages.flash_call("flash_attn.cute", every=None)
IMPLEMENTATIONS = packages.op("flash_attn_4", call, packed=packed, refuses=_refuses)
