"""Query tokens in any number over a cache, by the kernels of this repository: prefill over pages, and mixed batches.

`triton_varlen` is one call of `attention_varlen` for all sequences, which may copy pages; for `triton_paged` its
kernel reads them where they lie. `triton_separate` decodes the sequences with few query tokens and computes the others
by `attention_varlen`, call by call, like a serving engine without mixed batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from .. import dispatch, feature_calls
from ..registry import AttentionCase, Device, declare
from .step import DecodeStep, by_groups
from .triton_decode import MAX_SEQLEN_Q
from .triton_split_kv import decode, refuses_device


def varlen(step: DecodeStep, *, copy_pages: bool = True) -> Callable[[], torch.Tensor]:
    """Return the step as a call of `attention_varlen` over its pages, or of `attention` over a contiguous cache."""
    masks: dict[str, Any] = {"causal": step.causal, "window_size": step.window_size, "softmax_scale": step.scale}
    if step.page_table is None:
        return lambda: dispatch.attention(step.q, *step.in_use(), **masks)
    starts_k = torch.tensor([0, *accumulate(step.lengths)], dtype=torch.int32, device=step.q.device)
    starts_q, longest_q, longest_k = step.query_starts, step.query_tokens, step.longest
    masks |= {"block_table": step.page_table, "copy_pages": copy_pages}

    def attend() -> torch.Tensor:
        q, k, v = step.query_rows, step.k_cache, step.v_cache
        return step.like_q(feature_calls.attention_varlen(q, k, v, starts_q, starts_k, longest_q, longest_k, **masks))

    return attend


def separate(step: DecodeStep) -> Callable[[], torch.Tensor]:
    """Return the step as one call for each group of sequences with as many query tokens."""
    return by_groups(lambda group: (decode if group.query_tokens <= MAX_SEQLEN_Q else varlen)(group), step)


def _refuses(name: str, case: AttentionCase, device: Device) -> str | None:
    if case.lengths not in (None, "uniform") and not case.page_size:
        return f"{name} takes sequences of different lengths only in paged caches."
    return refuses_device(name, case, device) if name == "triton_separate" else None


def _refuses_paged(case: AttentionCase, device: Device) -> str | None:
    if not case.page_size or device.type == "cpu":
        return "triton_paged reads the pages of a cache on a GPU; triton_varlen takes other caches and devices."
    return refuses_device("triton_paged", case, device)


IMPLEMENTATIONS = (
    declare("triton_varlen", varlen, "decode", refuses=partial(_refuses, "triton_varlen")),
    declare("triton_paged", partial(varlen, copy_pages=False), "decode", refuses=_refuses_paged),
    declare("triton_separate", separate, "decode", refuses=partial(_refuses, "triton_separate")),
)
