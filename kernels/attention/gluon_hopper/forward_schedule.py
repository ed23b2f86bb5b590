"""The tile scheduler of the forward on the host: which query tiles each program takes, decided once a shape.

Tiles come in an order that has few heads' keys and values in use at a time, and each goes to the program that would
else be the first with nothing to do. Where the tiles of the last round are fewer than the programs, all programs can
split the keys of these (`split_kv`), and `combine_kernel` adds up what they have.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate

import torch

from .configs import SCHEDULE_FIELDS

OVERHEAD = 1.5  # time of a tile in addition to its key blocks, in blocks


@dataclass(frozen=True)
class Tiling:
    """The query tiles of a shape."""

    batch: int
    num_heads: int
    seqlen_q: int
    seqlen_k: int
    rows: int  # query rows of a tile
    block_n: int
    causal: bool
    window: int
    heads_in_l2: int  # heads processed at a time
    heads_together: int = 0  # all but the last heads_in_l2 are groups of so many; 0: groups are of heads_in_l2

    def __len__(self) -> int:
        return self.n_m * self.n_heads

    @property
    def n_m(self) -> int:
        """Return the number of tiles of a head."""
        return -(-self.seqlen_q // self.rows)

    @property
    def n_heads(self) -> int:
        """Return the number of heads of all sequences."""
        return self.batch * self.num_heads

    @property
    def n_blocks(self) -> int:
        """Return the number of blocks of a head's keys."""
        return -(-self.seqlen_k // self.block_n)

    def tiles(self) -> Iterator[tuple[int, int]]:
        """Yield (tile, head); causal ones by length in a group of heads, rising and falling, falling in the last.

        With `heads_together`, all fall.
        """
        if not self.causal or self.window:
            yield from ((m, head) for head in range(self.n_heads) for m in range(self.n_m))
            return
        groups = self._groups()
        for group, heads in enumerate(groups):
            falls = self.heads_together > 0 or (len(groups) - 1 - group) % 2 == 0
            for m in reversed(range(self.n_m)) if falls else range(self.n_m):
                yield from ((m, head) for head in heads)

    def _groups(self) -> list[range]:
        """Return the heads whose tiles come together."""
        if not self.heads_together:
            firsts = range(0, self.n_heads, self.heads_in_l2)
            return [range(first, min(first + self.heads_in_l2, self.n_heads)) for first in firsts]
        last = max(self.n_heads - self.heads_in_l2, 0) // self.heads_together * self.heads_together
        firsts = range(0, last, self.heads_together)
        return [*(range(first, first + self.heads_together) for first in firsts), range(last, self.n_heads)]

    def blocks(self, m: int) -> int:
        """Return how many blocks of keys a tile sees."""
        first = m * self.rows + self.seqlen_k - self.seqlen_q
        last = first + self.rows - 1
        low, end = 0, self.seqlen_k
        if self.causal or self.window:
            end = min(end, max(last + (1 if self.causal else self.window), 0))
        if self.window:
            low = max(first - self.window + 1, 0) // self.block_n
        return max(-(-end // self.block_n) - low, 1)


@dataclass(frozen=True)
class TileSchedule:
    """Tables that the kernels read, rows of `SCHEDULE_FIELDS` numbers, int32."""

    entries: torch.Tensor  # for each program: the number of tiles, then (tile, head, split or -1, blocks)
    combines: torch.Tensor | None  # for each split tile: (tile, head, first split, number of splits)
    n_splits: int
    n_blocks: int = 0  # key blocks of all tiles
    time: float = 0.0  # of the program that takes longest over whole tiles, in key blocks


@lru_cache(maxsize=256)
def tile_schedule(
    tiling: Tiling, programs: int, split_kv: bool, device: torch.device, first_head: int = 0
) -> TileSchedule:
    """Make the schedule of a shape. Each program's entries end with one that it looks up and does not take."""
    tiles = [(m, first_head + head) for m, head in tiling.tiles()]
    rest = len(tiles) % programs if split_kv else 0
    whole, split = tiles[: len(tiles) - rest], tiles[len(tiles) - rest :]
    blocks = [tiling.blocks(m) for m in range(tiling.n_m)]
    taken, time = _deal(blocks, whole, programs)
    combines = _split(tiling, split, taken) if split else []
    firsts = [0, *accumulate(sum(map(blocks.__getitem__, own[::SCHEDULE_FIELDS])) for own in taken)]
    length = 2 * SCHEDULE_FIELDS + max(map(len, taken))
    numbers: list[int] = []
    for own, first in zip(taken, firsts, strict=False):
        numbers += (len(own) // SCHEDULE_FIELDS, first, 0, 0, *own)
        numbers += [0] * (-len(numbers) % length)
    table = partial(torch.tensor, dtype=torch.int32, device=device)
    return TileSchedule(
        table(numbers).reshape(programs, -1, SCHEDULE_FIELDS),
        table(combines).reshape(-1, SCHEDULE_FIELDS) if combines else None,
        sum(combines[3::SCHEDULE_FIELDS]),
        firsts[-1],
        time,
    )


def _deal(blocks: list[int], tiles: Sequence[tuple[int, int]], programs: int) -> tuple[list[list[int]], float]:
    """Give each tile, of so many blocks, to the program that is ready first; return entries and the last one's time."""
    taken: list[list[int]] = [[] for _ in range(programs)]
    ready = [(0.0, program) for program in range(programs)]
    for m, head in tiles:
        time, program = ready[0]
        heapq.heapreplace(ready, (time + blocks[m] + OVERHEAD, program))
        taken[program] += (m, head, -1, 0)
    return taken, max(ready)[0]


def _split(tiling: Tiling, tiles: Sequence[tuple[int, int]], taken: list[list[int]]) -> list[int]:
    """Give every program as many key blocks of the tiles; return which splits each tile has."""
    n_blocks, programs = tiling.n_blocks, len(taken)
    firsts = [len(tiles) * n_blocks * program // programs for program in range(programs + 1)]
    splits_of: list[list[int]] = [[] for _ in tiles]
    split = 0
    for own, first, end in zip(taken, firsts[:-1], firsts[1:], strict=True):
        for number in range(first // n_blocks, -(-end // n_blocks)):
            low, high = max(first - number * n_blocks, 0), min(end - number * n_blocks, n_blocks)
            own += (*tiles[number], split, low | high << 16)
            splits_of[number].append(split)
            split += 1
    return [x for tile, splits in zip(tiles, splits_of, strict=True) for x in (*tile, splits[0], len(splits))]
