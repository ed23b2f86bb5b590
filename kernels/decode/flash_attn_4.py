"""FlashAttention-4 (the package flash-attn-4, written in the CuTe DSL) over a cache, where it is installed.

On compute capability 9.0 it has no split over keys and no latents (`qv`), so that one sequence fills few
multiprocessors. A page that holds whole tiles of keys is read whole, and what is hidden is multiplied by zero: rows
beyond a length must be finite there, which those of these caches are not, and the check finds it.
"""

from __future__ import annotations

import torch

from .. import attention_packages, decode_packages
from ..registry import AttentionCase, Device
from .step import DecodeStep


def prepare(step: DecodeStep) -> decode_packages.Step:
    """Return the step as a call: flash_attn_func where all lengths are one, else flash_attn_varlen_func."""
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

    q, k_cache, v_cache = step.tokens_first()
    options = {
        "softmax_scale": step.softmax_scale,
        "causal": step.causal and not step.window_size,
        "window_size": attention_packages.window(step.causal, step.window_size, every=None),
    }
    plain = step.page_table is None and step.uniform

    def attend() -> torch.Tensor:
        if plain:
            out = flash_attn_func(q, k_cache, v_cache, **options)
        else:
            out = flash_attn_varlen_func(
                q, k_cache, v_cache, seqused_k=step.cache_seqlens, page_table=step.page_table, **options
            )
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return attend


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if case.page_size and device.compute_capability and device.compute_capability[0] not in (9, 10, 11):
        return "flash_attn_4 takes paged caches on compute capabilities 9.0, 10 and 11 alone."
    return attention_packages.misaligned("flash_attn_4", case)


IMPLEMENTATIONS = (
    decode_packages.implementation(
        "flash_attn_4",
        "FlashAttention-4 over a cache, in the CuTe DSL, where it is installed",
        prepare,
        attention_packages.missing(
            "flash-attn-4", "FlashAttention-4 is not installed: pip install --pre flash-attn-4."
        ),
        max_head_dim=256,
        paged=True,
        ragged=True,
        min_compute_capability=(8, 0),
        colour="#c51b8a",
        compiled="first_call",
        refuses=_refuses,
    ),
)
