"""Queries outside, keys inside, in plain PyTorch: the loop order of FlashAttention-2. For reading and its memory curve.

Report flashtile_a100 calls this Flash V2. Like its code (flashtile/attention/flash_attention_v2.py), it divides out by
the sum in every step, which FlashAttention-2 (arXiv 2307.08691, section 3.1) leaves for the end; what it has of it is
that a row's out stays where it is made, and that blocks which the mask hides are left out.
"""

from __future__ import annotations

import torch

from ..registry import Implementation
from .tiled_blocks import Statistics, TiledProblem, attend, visible


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
    found = []
    for rows in problem.row_blocks():
        q, seen = problem.queries(rows), problem.nothing_yet(rows)
        for keys in visible(problem, rows):
            seen = problem.absorb(seen, q, *problem.keys_and_values(keys), problem.hidden(rows, keys))
        found.append(seen)
    out, total, highest = (problem.whole(parts) for parts in zip(*found, strict=True))
    return out, total, highest


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
