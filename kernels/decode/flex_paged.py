"""FlexAttention over the pages of a cache: PyTorch's own paged attention, a mask of blocks that names physical pages.

A block of the mask is a page. FlexAttention multiplies hidden values by zero, so every row of a used page must be
finite: it supports lengths that fill their pages. The mask is made once for each step, and compiling takes seconds for
each shape.
"""

from functools import partial

import torch

from ..attention import torch_flex
from ..registry import AttentionCase, Device, UnsupportedCase, declare
from .step import DecodeStep

PAGE_MULTIPLE = 64  # keys of a tile of its decoding kernel


def prepare(step: DecodeStep) -> partial[torch.Tensor]:
    """Return the step as a call; the mask of its pages is made before it. Raises UnsupportedCase off a GPU."""
    if step.q.device.type != "cuda":
        raise UnsupportedCase(f"flex_paged is compiled for a GPU, not for {step.q.device}.")
    k, v = (cache.flatten(0, 1).transpose(0, 1)[None] for cache in (step.k_cache, step.v_cache))
    grouped = step.q.shape[1] != step.num_kv_heads
    compiled = torch_flex.compiled()
    return partial(compiled, step.q, k, v, block_mask=block_mask(step), scale=step.softmax_scale, enable_gqa=grouped)


def block_mask(step: DecodeStep):
    """Return FlexAttention's mask: every page of a sequence is seen whole, but for the last by several query tokens."""
    from torch.nn.attention.flex_attention import BlockMask  # brings torch._dynamo, seconds at import

    device, batch = step.q.device, len(step.lengths)
    pages, page_size = step.k_cache.shape[:2]
    used, tokens = step.longest // page_size, step.query_tokens
    several = int(step.causal and tokens > 1)  # the page that is seen in part
    indices = torch.zeros((batch, 1, 1, pages), dtype=torch.int32, device=device)
    partly, wholly = indices, indices.clone()
    wholly[:, 0, 0, : used - several] = step.page_table[:, : used - several]
    last = step.page_table[:, used - 1]
    partly[:, 0, 0, 0] = last

    def sees(sequence, head, query, key):
        return key - last[sequence] * page_size <= page_size - tokens + query

    def count(number: int) -> torch.Tensor:
        return torch.full((batch, 1, 1), number, dtype=torch.int32, device=device)

    return BlockMask.from_kv_blocks(
        count(several),
        partly,
        count(used - several),
        wholly,
        BLOCK_SIZE=(128, page_size),
        mask_mod=sees,
        seq_lengths=(tokens, pages * page_size),
    )


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if not case.page_size or case.page_size % PAGE_MULTIPLE:
        return f"flex_paged takes paged caches with pages of a multiple of {PAGE_MULTIPLE} tokens."
    if (case.seqlen_k or 0) % case.page_size:
        return f"flex_paged multiplies hidden values by zero: the context must fill its pages of {case.page_size}."
    if (case.seqlen_q or 1) > case.page_size:
        return f"flex_paged takes up to a page of query tokens, {case.page_size}, not {case.seqlen_q}."
    return torch_flex.refuses(case, device)


IMPLEMENTATIONS = (
    declare("flex_paged", prepare, "decode", unavailable=torch_flex.IMPLEMENTATIONS[0].unavailable, refuses=_refuses),
)
