"""FlashAttention-3's flash_attn_with_kvcache: pages of any size; the latent part of an absorbed query is `qv`."""

from .. import packages
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


IMPLEMENTATIONS = packages.decode("flash_attn_3", prepare)
