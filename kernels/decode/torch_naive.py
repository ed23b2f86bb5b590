"""The baseline of decoding: eager PyTorch that reads the cache where it lies and keeps the softmax in float32.

Heads that share keys are rows of one matrix product, so that keys and values are neither repeated nor copied.
"""

from __future__ import annotations

import torch

from kernels.attention.torch_naive import hidden_keys
from kernels.registry import Implementation


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    context: int,
    cache_seqlens: torch.Tensor | None = None,
    causal: bool = True,
    window_size: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Return softmax(scale q k^T) v over the first `context` keys; see `kernels.registry.DecodeAttention`."""
    k, v = k_cache[:, :, :context], v_cache[:, :, :context]
    batch, num_heads, query_tokens, head_dim = q.shape
    num_kv_heads = k.shape[1]
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    grouped = (q * scale).reshape(batch, num_kv_heads, -1, head_dim)  # group x query_tokens rows a key head
    scores = (grouped @ k.mT).float()
    if window_size or (causal and query_tokens > 1):
        hidden = hidden_keys(query_tokens, context, causal, window_size, q.device)
        scores.view(batch, num_heads, query_tokens, context).masked_fill_(hidden, float("-inf"))
    p = scores.softmax(-1).to(v.dtype)
    return (p @ v).view(batch, num_heads, query_tokens, v.shape[-1])


IMPLEMENTATIONS = (
    Implementation(
        name="torch_naive",
        description="Eager PyTorch over a contiguous cache, softmax in float32",
        attention=decode,
        level="decode",
        family="pytorch",
        backward=False,
        memory={"growth": "matrix"},
        colour="#7f7f7f",
    ),
)
