"""Which query tiles each program of the forward takes: dealt on the host, once a shape.

Tiles come in an order that has few heads' keys and values in use at a time, and each goes to the program that would
else be the first with nothing to do. Where the tiles of the last round are fewer than the programs, all programs can
share the keys of these (`in_parts`), and forward_combine.py joins what they have.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from kernels.attention.gluon_hopper.tuning import ENTRY

OVERHEAD = 1.5  # what a tile takes beside its blocks of keys, in blocks
Entry = tuple[int, ...]


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

    @property
    def n_blocks(self) -> int:
        """Blocks of a head's keys."""
        return -(-self.seqlen_k // self.block_n)

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


@dataclass(frozen=True)
class Agenda:
    """What the kernels read, rows of `ENTRY` numbers."""

    entries: torch.Tensor  # of each program: how many tiles; their (tile, head, part or -1, first block and end)
    joins: torch.Tensor | None  # of each tile in parts: (tile, head, its first part, how many)
    n_parts: int


@lru_cache(maxsize=256)
def agenda(tiling: Tiling, programs: int, in_parts: bool, device: torch.device) -> Agenda:
    """The agenda of a shape. Each program's entries end with one that it looks up and does not take."""
    tiles = list(tiling.tiles())
    rest = len(tiles) % programs if in_parts else 0
    whole, shared = tiles[: len(tiles) - rest], tiles[len(tiles) - rest :]
    taken = _deal(tiling, whole, programs)
    joins = _share(tiling, shared, taken) if shared else []
    longest = 2 + max(map(len, taken))
    rows = [[(len(own),), *own, *[()] * (longest - 1 - len(own))] for own in taken]
    entries = [[_padded(entry) for entry in row] for row in rows]
    return Agenda(
        torch.tensor(entries, dtype=torch.int32, device=device),
        torch.tensor([_padded(join) for join in joins], dtype=torch.int32, device=device) if joins else None,
        sum(join[3] for join in joins),
    )


def _padded(entry: Entry) -> Entry:
    return entry + (0,) * (ENTRY - len(entry))


def _deal(tiling: Tiling, tiles: Sequence[Entry], programs: int) -> list[list[Entry]]:
    """Each tile to the program that is the first to be ready for it."""
    times = [tiling.blocks(m) + OVERHEAD for m in range(tiling.n_m)]
    taken: list[list[Entry]] = [[] for _ in range(programs)]
    ready = [(0.0, program) for program in range(programs)]
    for tile in tiles:
        time, program = ready[0]
        heapq.heapreplace(ready, (time + times[tile[0]], program))
        taken[program].append((*tile, -1))
    return taken


def _share(tiling: Tiling, tiles: Sequence[Entry], taken: list[list[Entry]]) -> list[Entry]:
    """Give every program as many key blocks of the tiles; returns which parts each tile has."""
    n_blocks, programs = tiling.n_blocks, len(taken)
    firsts = [len(tiles) * n_blocks * program // programs for program in range(programs + 1)]
    parts_of: list[list[int]] = [[] for _ in tiles]
    part = 0
    for own, first, end in zip(taken, firsts[:-1], firsts[1:], strict=True):
        for number in range(first // n_blocks, -(-end // n_blocks)):
            low, high = max(first - number * n_blocks, 0), min(end - number * n_blocks, n_blocks)
            own.append((*tiles[number], part, low | high << 16))
            parts_of[number].append(part)
            part += 1
    return [(*tile, parts[0], len(parts)) for tile, parts in zip(tiles, parts_of, strict=True)]
