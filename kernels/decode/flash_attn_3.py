"""FlashAttention-3's flash_attn_with_kvcache (the folder hopper of Dao-AILab/flash-attention), where it is installed.

Pages of any size, and latents as `qv`: the rotary part is the query of the keys, the latent part that of the values.
Its scheduler's metadata is made on the device at every call. Written to the signature of release 3.0.0b1 and tested
against a stand-in that has it; it was never run against the package itself.
"""

from __future__ import annotations

import torch

from .. import attention_packages, decode_packages
from ..attention.flash_attn_3 import IMPLEMENTATIONS as OF_OP
from ..registry import AttentionCase, Device
from .step import DecodeStep


def prepare(step: DecodeStep) -> decode_packages.Step:
    """Return the step as a call of the package."""
    from flash_attn_interface import flash_attn_with_kvcache

    q, k_cache, v_cache = step.tokens_first()
    latent = {}
    if step.latent_dim:
        latent = {"qv": q[..., : step.latent_dim]}
        q, k_cache = q[..., step.latent_dim :], k_cache[..., step.latent_dim :]

    def attend() -> torch.Tensor:
        out = flash_attn_with_kvcache(
            q,
            k_cache,
            v_cache,
            cache_seqlens=step.cache_seqlens,
            page_table=step.page_table,
            softmax_scale=step.scale,
            causal=step.causal,
            window_size=attention_packages.window(step.causal, step.window_size),
            **latent,
        )
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return attend


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if not case.latent_dim and max(case.head_dim or 0, case.head_dim_v or 0) > 256:
        return f"flash_attn_3 does not support head_dim {case.head_dim} (up to 256)."
    latents = decode_packages.only_these_latents("flash_attn_3", case)
    return latents or attention_packages.misaligned("flash_attn_3", case)


IMPLEMENTATIONS = (
    decode_packages.implementation(
        "flash_attn_3",
        "FlashAttention-3's flash_attn_with_kvcache for Hopper, where it is installed",
        prepare,
        OF_OP[0].unavailable,
        paged=True,
        ragged=True,
        latent=True,
        min_compute_capability=(9, 0),
        max_compute_capability=(9, 0),
        refuses=_refuses,
    ),
)
