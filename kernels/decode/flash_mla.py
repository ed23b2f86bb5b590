"""FlashMLA's dense decoding over latents (deepseek-ai/FlashMLA, MIT licence), where it is installed.

Its schedule is made at the first call of a step and kept. Written for the signatures of flash_mla_interface.py (April
2026) and tested with mocks that have them, never with the package itself.
"""

from .. import packages
from .step import DecodeStep


def prepare(step: DecodeStep) -> packages.Step:
    """Return the step as a call of the package."""
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

    schedule, _ = get_mla_metadata()
    q, records, _ = step.tokens_first()
    arguments = (q, records, step.page_table, step.cache_seqlens, step.latent_dim, schedule)
    return packages.step_of(flash_mla_with_kvcache, *arguments, softmax_scale=step.scale, causal=step.causal)


IMPLEMENTATIONS = packages.decode("flash_mla", prepare)
