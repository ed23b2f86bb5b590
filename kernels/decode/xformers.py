"""xFormers' memory_efficient_attention over a cache, where it is installed.

A contiguous cache of one length uses the call of level op. Pages and lengths are in a mask object, which reads the
lengths on the host.
"""

import torch

from .. import packages
from ..attention.xformers import call
from .step import DecodeStep


def prepare(step: DecodeStep) -> packages.Step:
    """Return the step as a call of the package."""
    from xformers.ops import memory_efficient_attention_forward
    from xformers.ops.fmha import attn_bias

    causal = step.causal and step.query_tokens > 1  # a single query sees all keys
    if step.page_table is None:
        options = {"window_size": step.window_size, "softmax_scale": step.softmax_scale}
        masked = causal or (step.causal and step.window_size > 0)
        return packages.step_of(call, *step.tokens_first(), causal=masked, **options)
    kind = f"PagedBlockDiagonal{'CausalWithOffset' if causal else ''}PaddedKeysMask"
    lengths = [step.query_tokens] * len(step.lengths), list(step.lengths)
    pages = step.readable_table(), step.page_size
    mask = getattr(attn_bias, kind).from_seqlens(*lengths, *pages, device=step.q.device)
    group = step.q.shape[1] // step.num_kv_heads

    def attend() -> torch.Tensor:
        q = step.query_rows.unflatten(1, (-1, group))[None]
        k, v = (x.flatten(0, 1)[None, :, :, None].expand(-1, -1, -1, group, -1) for x in (step.k_cache, step.v_cache))
        options = {"attn_bias": mask, "scale": step.softmax_scale}
        out = packages.supported(memory_efficient_attention_forward, q, k, v, **options)
        return step.like_q(out[0].flatten(1, 2))

    return attend


IMPLEMENTATIONS = packages.decode("xformers", prepare)
