"""FlashAttention-3's flash_attn_with_kvcache: pages of any size; the latent part of an absorbed query is `qv`."""

from .. import packages
from ..registry import AttentionCase, Device
from .step import DecodeStep


def prepare(step: DecodeStep) -> packages.Step:
    """Return the step as a call of the package."""
    from flash_attn_interface import flash_attn_with_kvcache

    q, k, v = step.tokens_first()
    cache = {"cache_seqlens": step.cache_seqlens, "page_table": step.page_table, "softmax_scale": step.scale}
    if step.latent_dim:
        cache["qv"] = q[..., : step.latent_dim]
        q, k = q[..., step.latent_dim :], k[..., step.latent_dim :]
    return packages.step_of(flash_attn_with_kvcache, q, k, v, **cache, **packages.masked(step.causal, step.window_size))


def _refuses(case: AttentionCase, device: Device) -> str | None:
    too_wide = not case.latent_dim and max(case.head_dim or 0, case.head_dim_v or 0) > 256
    wide = too_wide, f"does not support head_dim {case.head_dim} (up to 256)"
    return packages.reason("flash_attn_3", wide, packages.other_latents(case), packages.misaligned(case))


IMPLEMENTATIONS = packages.decode("flash_attn_3", prepare, refuses=_refuses)
