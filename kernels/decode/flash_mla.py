"""FlashMLA's dense decoding over latents (deepseek-ai/FlashMLA, MIT licence), where it is built.

Pages of 64 tokens, records of 512 + 64 in 16 bits, compute capability 9.0. Its schedule is made at the first call of a
step and kept. Written to the signature of its file flash_mla_interface.py (April 2026) and tested against a stand-in
that has it; it was never run against the package itself.
"""

from __future__ import annotations

import importlib.util

import torch

from .. import decode_packages
from ..registry import AttentionCase, Device
from .step import DecodeStep

PAGE_SIZE = 64


def prepare(step: DecodeStep) -> decode_packages.Step:
    """Return the step as a call of the package."""
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

    schedule, _ = get_mla_metadata()
    q, records, _ = step.tokens_first()

    def attend() -> torch.Tensor:
        out, _ = flash_mla_with_kvcache(
            q,
            records,
            step.page_table,
            step.cache_seqlens,
            step.latent_dim,
            schedule,
            softmax_scale=step.scale,
            causal=step.causal,
        )
        return out.transpose(1, 2)

    return attend


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if not case.latent_dim:
        return "flash_mla takes latent caches alone."
    pages = decode_packages.only_pages_of("flash_mla", case, PAGE_SIZE)
    return pages or decode_packages.only_these_latents("flash_mla", case)


def _unavailable() -> str | None:
    if importlib.util.find_spec("flash_mla") is None:
        return "FlashMLA is not installed: build github.com/deepseek-ai/FlashMLA."
    return None


IMPLEMENTATIONS = (
    decode_packages.implementation(
        "flash_mla",
        "FlashMLA over latents, in CUDA C++ for Hopper, where it is built",
        prepare,
        _unavailable(),
        paged=True,
        ragged=True,
        latent=True,
        window=False,
        planned="the schedule of lengths, at the first call",
        min_compute_capability=(9, 0),
        max_compute_capability=(9, 0),
        refuses=_refuses,
    ),
)
