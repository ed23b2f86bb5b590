"""xFormers' memory_efficient_attention over a cache, where it is installed.

A contiguous cache of one length uses the call of level op. Pages and lengths are in a mask object, which reads the
lengths on the host.
"""

import torch

from .. import packages
from ..attention.xformers import call
from ..registry import AttentionCase, Device
from .step import DecodeStep


def prepare(step: DecodeStep) -> packages.Step:
    """Return the step as a call of the package."""
    if step.page_table is None:
        causal = step.causal and (step.query_tokens > 1 or step.window_size > 0)  # a single query sees all keys
        options = {"causal": causal, "window_size": step.window_size, "softmax_scale": step.softmax_scale}
        return packages.step_of(call, *step.tokens_first(), **options)
    return _paged(step)


def _paged(step: DecodeStep) -> packages.Step:
    from xformers.ops import memory_efficient_attention_forward
    from xformers.ops.fmha import attn_bias

    kind = "PagedBlockDiagonalPaddedKeysMask"
    if step.causal and step.query_tokens > 1:
        kind = "PagedBlockDiagonalCausalWithOffsetPaddedKeysMask"
    mask = getattr(attn_bias, kind).from_seqlens(
        q_seqlen=[step.query_tokens] * len(step.lengths),
        kv_seqlen=list(step.lengths),
        block_tables=step.readable_table(),
        page_size=step.page_size,
        device=step.q.device,
    )
    batch, num_heads, tokens, head_dim = step.q.shape
    group = (step.num_kv_heads, num_heads // step.num_kv_heads)

    def attend() -> torch.Tensor:
        q = step.q.transpose(1, 2).reshape(1, batch * tokens, *group, head_dim)
        pages = (cache.flatten(0, 1)[None].unsqueeze(3) for cache in (step.k_cache, step.v_cache))
        k, v = (cache.expand(-1, -1, -1, group[1], -1) for cache in pages)
        options = {"attn_bias": mask, "scale": step.softmax_scale}
        out = packages.supported(memory_efficient_attention_forward, q, k, v, **options)
        return out.reshape(batch, tokens, num_heads, -1).transpose(1, 2)

    return attend


def _refuses(case: AttentionCase, device: Device) -> str | None:
    contiguous = case.lengths == "ragged" and not case.page_size
    return packages.reason(
        "xformers",
        (contiguous, "takes different lengths only in paged caches: its contiguous keys are one row"),
        (case.page_size and case.window_size, "takes no sliding window over pages"),
        packages.misaligned(case),
    )


IMPLEMENTATIONS = packages.decode("xformers", prepare, refuses=_refuses)
