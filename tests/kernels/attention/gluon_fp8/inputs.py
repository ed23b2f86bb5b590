"""Inputs of gluon_fp8, where its kernels run if they can."""

from __future__ import annotations

import torch

from tests.kernels.conftest import ON_HOPPER


def draw(batch: int, heads: int, kv_heads: int, seqlen_q: int, seqlen_k: int, head_dim: int, **options: object):
    """q, k and v; on the GPU where there is one."""
    device, dtype = ("cuda" if ON_HOPPER else "cpu"), options.get("dtype", torch.bfloat16)
    generator = torch.Generator().manual_seed(0)

    def normal(num_heads: int, seqlen: int) -> torch.Tensor:
        x = torch.randn(batch, num_heads, seqlen, head_dim, generator=generator) * options.get("magnitude", 1.0)
        return x.to(dtype).to(device)

    return normal(heads, seqlen_q), normal(kv_heads, seqlen_k), normal(kv_heads, seqlen_k)
