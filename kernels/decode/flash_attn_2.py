"""FlashAttention-2's flash_attn_with_kvcache (the package flash-attn, BSD licence), where it is installed.

It chooses splits over keys itself, at every call. Written to the signature of version 2.8 and tested against a stand-in
that has it; it was never run against the package itself.
"""

from __future__ import annotations

import torch

from .. import attention_packages, decode_packages
from ..registry import AttentionCase, Device
from .step import DecodeStep

_PAGE_MULTIPLE = 256


def prepare(step: DecodeStep) -> decode_packages.Step:
    """Return the step as a call of the package."""
    from flash_attn import flash_attn_with_kvcache

    q, k_cache, v_cache = step.tokens_first()

    def attend() -> torch.Tensor:
        out = flash_attn_with_kvcache(
            q,
            k_cache,
            v_cache,
            cache_seqlens=step.cache_seqlens,
            block_table=step.page_table,
            softmax_scale=step.softmax_scale,
            causal=step.causal,
            window_size=attention_packages.window(step.causal, step.window_size),
        )
        return out.transpose(1, 2)

    return attend


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if (case.page_size or 0) % _PAGE_MULTIPLE:
        return f"flash_attn_2 takes pages of a multiple of {_PAGE_MULTIPLE} tokens, not of {case.page_size}."
    return attention_packages.misaligned("flash_attn_2", case)


IMPLEMENTATIONS = (
    decode_packages.implementation(
        "flash_attn_2",
        "FlashAttention-2's flash_attn_with_kvcache, where it is installed",
        prepare,
        attention_packages.missing(
            "flash-attn", "FlashAttention-2 is not installed: pip install flash-attn --no-build-isolation."
        ),
        max_head_dim=256,
        paged=True,
        ragged=True,
        min_compute_capability=(8, 0),
        refuses=_refuses,
    ),
)
