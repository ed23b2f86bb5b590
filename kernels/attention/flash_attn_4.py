"""FlashAttention-4 (the package flash-attn-4, written in the CuTe DSL), where it is installed."""

from .. import packages
from ..registry import AttentionCase, Device


def _refuses(case: AttentionCase, device: Device) -> str | None:
    only_hopper = 128 < (case.head_dim or 0) != 256 and device.compute_capability not in (None, (9, 0))
    limit = f"takes head_dim {case.head_dim} only on compute capability 9.0; other devices take up to 128, or 256"
    return packages.reason("flash_attn_4", (only_hopper, limit))


call = packed = packages.flash_call("flash_attn.cute", every=None)
IMPLEMENTATIONS = packages.op("flash_attn_4", call, packed=packed, refuses=_refuses)
