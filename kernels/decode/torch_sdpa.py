"""Decoding by PyTorch's scaled_dot_product_attention over the used part of a contiguous cache, each backend by itself.

The slice of the cache is a view: batch and head strides keep the room beyond the context. Heads that share keys are
passed as they are (enable_gqa), never repeated. PyTorch's causal mask is aligned top-left, so a single query token
takes none; several take an aligned one where the backend has it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from ..attention import torch_sdpa
from ..registry import AttentionCase, Device, Implementation
from .step import DecodeStep


def decode(step: DecodeStep, *, variant: str = "auto") -> Callable[[], torch.Tensor]:
    """Return the step as a call of one backend, which raises UnsupportedCase when PyTorch has no kernel for it."""
    masks = step.masks | {"causal": step.causal and step.query_tokens > 1}
    return partial(torch_sdpa.attention, step.q, *step.in_use(), **masks, variant=variant)


def _refuses(variant: str, case: AttentionCase, device: Device) -> str | None:
    """Return what PyTorch says against the case where this machine can ask it, None if nothing."""
    name = f"torch_sdpa_{variant}"
    if (case.seqlen_q or 1) > 1 and (variant == "cudnn" or (variant == "flash" and device.type == "cpu")):
        return f"{name} has no bottom-right causal mask for {case.seqlen_q} query tokens; torch_sdpa_math has."
    if device.type != "cuda":
        return None
    return torch_sdpa.pytorch_refuses_case(variant, case, causal=False, seqlen_q=case.seqlen_q or 1, training=False)


def _implementation(of_op: Implementation) -> Implementation:
    """Return a backend at this level; it declares what it does at level op, but for masks and memory."""
    variant = of_op.name.removeprefix("torch_sdpa_")
    return replace(
        of_op,
        description=f"{of_op.description}, over a contiguous cache",
        attention=partial(decode, variant=variant),
        level="decode",
        unequal_causal=True,
        features=(),
        backward=False,
        memory={"growth": "matrix" if of_op.materialises_scores else "linear"},
        refuses=partial(_refuses, variant),
    )


IMPLEMENTATIONS = tuple(_implementation(of_op) for of_op in torch_sdpa.IMPLEMENTATIONS)
