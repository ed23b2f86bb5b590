"""FlashAttention-1's loop order in plain PyTorch: keys outside, queries inside. For reading and for its memory curve.

Algorithm 1 of arXiv 2205.14135: for each block of keys every block of queries is visited, and its out, sum and maximum
are read and written again. Report flashtile_a100 calls this Flash V1; like it, no block is left out under a mask.
"""

from __future__ import annotations

import torch

from ..registry import Implementation
from .tiled_blocks import Statistics, TiledProblem, attend


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Compute attention by blocks of keys and within them of queries; see `kernels.registry.Attention`."""
    return attend(q, k, v, keys_outside, False, causal, window_size, softmax_scale)


def keys_outside(problem: TiledProblem) -> Statistics:
    """Return out, sums and maxima of all rows."""
    blocks = problem.row_blocks()
    found = [problem.nothing_yet(rows) for rows in blocks]
    for keys in problem.key_blocks():
        k, v = problem.keys_and_values(keys)
        for i, rows in enumerate(blocks):
            found[i] = problem.absorb(found[i], problem.queries(rows), k, v, problem.hidden(rows, keys))
    out, total, highest = (problem.whole(parts) for parts in zip(*found, strict=True))
    return out, total, highest


IMPLEMENTATIONS = (
    Implementation(
        name="tiled_v1",
        description="FlashAttention-1's loop order in plain PyTorch, block by block",
        attention=attention,
        features=("head_dim_v",),
        memory={"growth": "linear"},
        colour="#b5a27a",
    ),
)
