"""xFormers' memory_efficient_attention over a cache (BSD licence, facebookresearch/xformers), where it is installed.

A contiguous cache of one length goes the way of level op. Pages and lengths are said by a mask object, whose making
reads lengths on the host. Written to the signatures of version 0.0.35 and tested against a stand-in that has them; its
kernels were never run: the wheel of that version is built for PyTorch 2.10.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .. import attention_packages, decode_packages
from ..attention import xformers as of_op
from ..registry import AttentionCase, Device, UnsupportedCase
from .step import DecodeStep


def prepare(step: DecodeStep) -> decode_packages.Step:
    """Return the step as a call of the package; of pages, the mask is made before it."""
    return _contiguous(step) if step.page_table is None else partial(_paged, step, _mask(step))


def _contiguous(step: DecodeStep) -> decode_packages.Step:
    q, k, v = step.tokens_first()
    masked = step.query_tokens > 1 or step.window_size > 0  # one query token sees all keys
    mask = {"causal": step.causal and masked, "window_size": step.window_size}
    return lambda: of_op.call(q, k, v, softmax_scale=step.softmax_scale, **mask).transpose(1, 2)


def _mask(step: DecodeStep) -> Any:
    from xformers.ops.fmha import attn_bias

    causal = step.causal and step.query_tokens > 1
    kind = (
        attn_bias.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask
        if causal
        else attn_bias.PagedBlockDiagonalPaddedKeysMask
    )
    return kind.from_seqlens(
        q_seqlen=[step.query_tokens] * len(step.lengths),
        kv_seqlen=list(step.lengths),
        block_tables=step.readable_table(),
        page_size=step.page_size,
        device=step.q.device,
    )


def _paged(step: DecodeStep, mask: Any) -> torch.Tensor:
    from xformers.ops import memory_efficient_attention_forward

    batch, num_heads, query_tokens, head_dim = step.q.shape
    group = num_heads // step.num_kv_heads
    q = step.q.transpose(1, 2).reshape(1, batch * query_tokens, step.num_kv_heads, group, head_dim)
    k, v = (
        cache.flatten(0, 1)[None].unsqueeze(3).expand(-1, -1, -1, group, -1) for cache in (step.k_cache, step.v_cache)
    )
    try:
        out = memory_efficient_attention_forward(q, k, v, attn_bias=mask, scale=step.softmax_scale)
    except NotImplementedError as error:  # no kernel, for one when the wheel was built for another PyTorch
        raise UnsupportedCase(" ".join(str(error).split())) from error
    return out.reshape(batch, query_tokens, num_heads, -1).transpose(1, 2)


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if case.lengths == "ragged" and not case.page_size:
        return "xformers takes different lengths in paged caches alone: its contiguous keys are one row."
    if case.page_size and case.window_size:
        return "xformers takes no sliding window over pages."
    return attention_packages.misaligned("xformers", case)


IMPLEMENTATIONS = (
    decode_packages.implementation(
        "xformers",
        "xFormers' memory-efficient attention over a cache, where it is installed",
        prepare,
        of_op.IMPLEMENTATIONS[0].unavailable,
        max_head_dim=256,
        paged=True,
        ragged=True,
        planned="the mask of lengths and pages",
        min_compute_capability=(8, 0),
        refuses=_refuses,
    ),
)
