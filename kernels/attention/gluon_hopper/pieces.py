"""Tiles of keys that are cut by queries, where the last round would leave many programs without a tile.

Each piece has a program in a launch behind that of the whole tiles, which begins as soon as programs of that end. A
piece's dK and dV are float32 sums until merging.py adds them up, in the order of the queries: the same bits on every
run. dQ needs nothing of this: its sums are added up in memory anyway.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.attention.gluon_hopper.launch import Launch
from kernels.attention.gluon_hopper.merging import merge_kernel
from kernels.attention.gluon_hopper.steps import Step

ROWS = 16  # of dK and dV that a program of merge_kernel adds up
Piece = tuple[int, int, int]  # tile, first block of queries, block behind the last


def cut(tiles: range, blocks: int, programs: int) -> list[Piece]:
    """Tiles of so many blocks of queries in pieces, tile by tile: what each program would have, dealt evenly.

    A cut near the end of a tile is left out.
    """
    length = -(-len(tiles) * blocks // programs)
    near = length // 16
    found = []
    for i, tile in enumerate(tiles):
        begin, end = i * blocks, (i + 1) * blocks
        cuts = [x for x in range(-(-begin // length) * length, end, length) if begin + near < x < end - near]
        edges = [begin, *cuts, end]
        found += [(tile, low - begin, high - begin) for low, high in zip(edges, edges[1:], strict=False)]
    return found


class Pieces:
    """The launches of the pieces of `tiles`, and of what adds them up."""

    def __init__(self, plan: Any, block_n: int, tiles: range, blocks: int, programs: int) -> None:
        found = cut(tiles, blocks, programs)
        longest_first = sorted(range(len(found)), key=lambda i: found[i][1] - found[i][2])
        self.table = torch.tensor([[*found[i], i] for i in longest_first], dtype=torch.int32, device=plan.device)
        firsts = [i for i, (_, low, _) in enumerate(found) if low == 0]
        self._firsts = torch.tensor([*firsts, len(found)], dtype=torch.int32, device=plan.device)
        self._numbers = len(found) * 2 * block_n * plan.size
        self._merge: Launch | None = None
        self._plan, self._block_n, self._tiles = plan, block_n, tiles

    def sums(self, like: torch.Tensor) -> torch.Tensor:
        """Room for dK and dV of all pieces."""
        return like.new_empty(self._numbers, dtype=torch.float32)

    def merge(self, sums: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor) -> Step:
        """The launch for dK and dV of the tiles that were cut."""
        if self._merge is None:
            self._merge = self._launch(dk, dv)
        return self._merge, (sums, self._firsts, dk, dv)

    def _launch(self, dk: torch.Tensor, dv: torch.Tensor) -> Launch:
        plan, block_n = self._plan, self._block_n
        rest = (
            *(*dk.stride()[:3], *dv.stride()[:3], self._tiles.start, -(-plan.seqlen_k // block_n)),
            *(plan.num_kv_heads, plan.seqlen_k, plan.softmax_scale, ROWS, block_n, plan.head_dim, plan.size, True),
        )
        return Launch(merge_kernel, (len(self._tiles), block_n // ROWS, 1), plan.device, [None] * 4, rest, early=True)
