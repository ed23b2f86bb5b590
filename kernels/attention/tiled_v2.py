"""Queries outside, keys inside, in plain PyTorch: the loop order of FlashAttention-2. For reading and its memory curve.

Report flashtile_a100 calls this Flash V2. Like its code (flashtile/attention/flash_attention_v2.py), it divides out by
the sum in every step, which FlashAttention-2 (arXiv 2307.08691, section 3.1) leaves for the end; what it has of it is
that a row's out stays where it is made, and that blocks which the mask hides are left out.
"""

from __future__ import annotations

import torch

from kernels.attention.tiled_blocks import Statistics, TiledProblem, attend, visible
from kernels.registry import Implementation


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Compute attention by blocks of queries and within them of keys; see `kernels.registry.Attention`."""
    return attend(q, k, v, queries_outside, True, causal, window_size, softmax_scale)


def queries_outside(problem: TiledProblem) -> Statistics:
    """Return out, sums and maxima of all rows."""
    found = problem.nothing_yet(slice(0, problem.seqlen_q))
    for rows in problem.row_blocks():
        own = problem.nothing_yet(rows)
        for keys in visible(problem, rows):
            own = problem.absorb(rows, keys, own)
        for whole, part in zip(found, own, strict=True):
            whole[:, :, :, rows] = part
    return found


IMPLEMENTATIONS = (
    Implementation(
        name="tiled_v2",
        description="Queries outside, keys inside in plain PyTorch, block by block, divided in every step",
        attention=attention,
        features=("head_dim_v",),
        memory={"growth": "linear"},
        colour="#8c6d31",
    ),
)
