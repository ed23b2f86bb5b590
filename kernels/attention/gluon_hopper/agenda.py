"""Which query tiles each program of the forward takes: dealt on the host, once a shape.

Tiles come in an order that has few heads' keys and values in use at a time, and each goes to the program that is the
first to be ready for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

OVERHEAD = 1.5  # what a tile takes beside its blocks of keys, in blocks


@dataclass(frozen=True)
class Tiling:
    """The query tiles of a shape."""

    batch: int
    num_heads: int
    seqlen_q: int
    seqlen_k: int
    rows: int  # of a tile
    block_n: int
    causal: bool
    window: int
    together: int  # heads that are worked on at a time

    def __len__(self) -> int:
        return self.n_m * self.n_heads

    @property
    def n_m(self) -> int:
        """Tiles of a head."""
        return -(-self.seqlen_q // self.rows)

    @property
    def n_heads(self) -> int:
        """Heads of all sequences."""
        return self.batch * self.num_heads

    def tiles(self) -> Iterator[tuple[int, int]]:
        """(tile, head). Causal ones by length within a group of heads, rising and falling, and falling in the last."""
        if not self.causal or self.window:
            yield from ((m, head) for head in range(self.n_heads) for m in range(self.n_m))
            return
        firsts = range(0, self.n_heads, self.together)
        for group, first in enumerate(firsts):
            heads = range(first, min(first + self.together, self.n_heads))
            falls = (len(firsts) - 1 - group) % 2 == 0
            for m in reversed(range(self.n_m)) if falls else range(self.n_m):
                yield from ((m, head) for head in heads)

    def blocks(self, m: int) -> int:
        """Blocks of keys that a tile sees."""
        first = m * self.rows + self.seqlen_k - self.seqlen_q
        last = first + self.rows - 1
        low, end = 0, self.seqlen_k
        if self.causal or self.window:
            end = min(end, max(last + (1 if self.causal else self.window), 0))
        if self.window:
            low = max(first - self.window + 1, 0) // self.block_n
        return max(-(-end // self.block_n) - low, 1)


@lru_cache(maxsize=256)
def agenda(tiling: Tiling, programs: int, device: torch.device) -> torch.Tensor:
    """(programs, entries, ENTRY) numbers: how many tiles, then each one's place and head, then one that none takes."""
    times = [tiling.blocks(m) + OVERHEAD for m in range(tiling.n_m)]
    taken: list[list[tuple[int, int]]] = [[] for _ in range(programs)]
    ready = [(0.0, program) for program in range(programs)]
    for m, head in tiling.tiles():
        time, program = ready[0]
        heapq.heapreplace(ready, (time + times[m], program))
        taken[program].append((m, head))
    longest = max(map(len, taken))
    rows = [[(len(own), 0), *own, *[(0, 0)] * (longest + 1 - len(own))] for own in taken]
    return torch.tensor(rows, dtype=torch.int32, device=device)
