"""FlashAttention-4 over a cache.

On compute capability 9.0 it has no split over keys and no latents, so one sequence uses few multiprocessors. It
multiplies hidden keys of a page by zero; rows beyond a length are not finite here, so the check reports NaN.
"""

from functools import partial

from .. import packages
from ..registry import AttentionCase, Device
from .step import DecodeStep


def prepare(step: DecodeStep) -> packages.Step:
    """Return the step as a call: flash_attn_func if all lengths are equal, else flash_attn_varlen_func."""
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

    options = {"softmax_scale": step.scale, **packages.masked(step.causal, step.window_size, every=None)}
    if step.page_table is None and step.uniform:
        return packages.step_of(flash_attn_func, *step.tokens_first(), **options)
    options |= {"seqused_k": step.cache_seqlens, "page_table": step.page_table}
    if step.query_lengths:
        _, k, v = step.tokens_first()
        varlen = partial(flash_attn_varlen_func, step.query_rows, k, v, cu_seqlens_q=step.query_starts, **options)
        return lambda: step.like_q(packages.first(varlen()))
    return packages.step_of(flash_attn_varlen_func, *step.tokens_first(), **options)


def _refuses(case: AttentionCase, device: Device) -> str | None:
    chip = device.compute_capability
    pages = case.page_size and chip and chip[0] not in (9, 10, 11), "takes paged caches only on 9.0, 10 and 11"
    return packages.reason("flash_attn_4", pages)


IMPLEMENTATIONS = packages.decode("flash_attn_4", prepare, refuses=_refuses)
