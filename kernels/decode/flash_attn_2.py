"""FlashAttention-2's flash_attn_with_kvcache, which chooses its splits over keys at every call."""

from .. import packages
from .step import DecodeStep


def prepare(step: DecodeStep) -> packages.Step:
    """Return the step as a call of the package."""
    from flash_attn import flash_attn_with_kvcache

    cache = {"cache_seqlens": step.cache_seqlens, "block_table": step.page_table, "softmax_scale": step.scale}
    mask = packages.masked(step.causal, step.window_size)
    return packages.step_of(flash_attn_with_kvcache, *step.tokens_first(), **cache, **mask)


IMPLEMENTATIONS = packages.decode("flash_attn_2", prepare)
