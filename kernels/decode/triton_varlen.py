"""Query tokens in any number over a cache, by the kernels of this repository: prefill over pages, and mixed batches.

`triton_varlen` is one call of `attention_varlen` for all sequences. `triton_separate` decodes the sequences with few
query tokens and computes the others by `attention_varlen`, call by call, like a serving engine without mixed batches.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch

from .. import dispatch, feature_calls
from ..registry import AttentionCase, Device, Implementation
from .step import DecodeStep, by_groups
from .triton_decode import MAX_SEQLEN_Q
from .triton_split_kv import decode, refuses_device


def varlen(step: DecodeStep) -> Callable[[], torch.Tensor]:
    """Return the step as a call of `attention_varlen` over its pages, or of `attention` over a contiguous cache."""
    masks: dict[str, Any] = {"causal": step.causal, "window_size": step.window_size, "softmax_scale": step.scale}
    if step.page_table is None:
        return lambda: dispatch.attention(step.q, *step.in_use(), **masks)
    starts_k = torch.tensor([0, *accumulate(step.lengths)], dtype=torch.int32, device=step.q.device)
    lengths: tuple[Any, ...] = (step.query_starts, starts_k, step.query_tokens, step.longest)

    def attend() -> torch.Tensor:
        rows = step.query_rows, step.k_cache, step.v_cache
        return step.like_q(feature_calls.attention_varlen(*rows, *lengths, block_table=step.page_table, **masks))

    return attend


def separate(step: DecodeStep) -> Callable[[], torch.Tensor]:
    """Return the step as one call for each group of sequences with as many query tokens."""
    return by_groups(lambda group: (decode if group.query_tokens <= MAX_SEQLEN_Q else varlen)(group), step)


def _refuses(name: str, case: AttentionCase) -> str | None:
    if case.lengths not in (None, "uniform") and not case.page_size:
        return f"{name} takes sequences of different lengths only in paged caches."
    return None


def _refuses_varlen(case: AttentionCase, device: Device) -> str | None:
    return _refuses("triton_varlen", case)


def _refuses_separate(case: AttentionCase, device: Device) -> str | None:
    return _refuses("triton_separate", case) or refuses_device("triton_separate", case, device)


_DECLARED: dict[str, Any] = {
    "level": "decode", "backward": False, "paged": True, "ragged": True, "mixed": True, "compiled": "first_call",
    "min_compute_capability": (8, 0), "memory": {"growth": "linear"}, "planned": "the starts of sequences",
}  # fmt: skip
IMPLEMENTATIONS = (
    Implementation(
        name="triton_varlen",
        description="Any number of query tokens in one call of attention_varlen",
        attention=varlen,
        colour="#009e73",
        refuses=_refuses_varlen,
        **_DECLARED,
    ),
    Implementation(
        name="triton_separate",
        description="Decoding of few query tokens and attention_varlen of the others, in separate calls",
        attention=separate,
        colour="#56b4e9",
        interpreted_on_cpu=True,
        refuses=_refuses_separate,
        **_DECLARED,
    ),
)
