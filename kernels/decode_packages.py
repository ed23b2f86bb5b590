"""What other projects' decoding packages have in common: how they are declared, and that they may be missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .decode.step import DecodeStep
from .registry import AttentionCase, DecodeAttention, Implementation, UnsupportedCase

LATENTS = (512, 64)  # of DeepSeek's models: latent and rotary dimensions, the only ones that peers have kernels for
Step = Callable[[], torch.Tensor]


def implementation(
    name: str, description: str, prepare: DecodeAttention, unavailable: str | None, **rules: Any
) -> Implementation:
    """Declare a peer at level decode; `unavailable` is why it cannot be had here, or None; `rules` are its bits."""
    usual = {"dtypes": ("bfloat16", "float16"), "devices": ("cuda",), "family": "peer", "backward": False}

    def attention(step: DecodeStep) -> Step:
        if unavailable:
            raise UnsupportedCase(unavailable)
        return prepare(step)

    declared = {**usual, "memory": {"growth": "linear"}, **rules}
    return Implementation(name, description, attention, level="decode", unavailable=unavailable, **declared)


def only_pages_of(name: str, case: AttentionCase, *sizes: int, contiguous: bool = False) -> str | None:
    """Return why a peer cannot take the page size of a case, or None; without `contiguous` it takes pages alone."""
    if not case.page_size:
        return None if contiguous else f"{name} takes paged caches alone."
    if case.page_size in sizes:
        return None
    return f"{name} takes pages of {' or '.join(map(str, sizes))} tokens, not of {case.page_size}."


def only_these_latents(name: str, case: AttentionCase) -> str | None:
    """Return why a peer cannot take the latents of a case, or None if it can or there are none."""
    if not case.latent_dim or (case.latent_dim, (case.head_dim or 0) - case.latent_dim) == LATENTS:
        return None
    return f"{name} takes latents of {LATENTS[0]} and {LATENTS[1]} rotary dimensions alone."
