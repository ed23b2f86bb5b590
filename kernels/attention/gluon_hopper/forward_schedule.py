"""The tile scheduler of the forward on the host: which query tiles each program takes, decided once a shape.

Tiles come in an order that has few heads' keys and values in use at a time, and each goes to the program that would
else be the first with nothing to do. Where the tiles of the last round are fewer than the programs, all programs can
split the keys of these (`split_kv`), and `combine_kernel` adds up what they have.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapreplace
from itertools import accumulate, groupby
from operator import itemgetter

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
    first_head: int = 0
    group: int = 1  # query heads that each of `num_heads` is, as tiles go on from one to the next
    ends: tuple[int, int | None] = (0, None)  # of the tiles in their order that are computed

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

    def tiles(self) -> list[tuple[int, int]]:
        """Return tiles with their heads; causal ones by length in a group of heads, rising and falling, last falling.

        With `heads_together`, all fall. The longest tiles of windows, most of which are equal, come first.
        """
        if not self.causal or self.window:
            lengths = self.blocks(self.first)
            every = [(m, head) for head in range(self.n_heads) for m in range(self.n_m)]
            return sorted(every, key=lambda tile: -lengths[tile[0]])
        found: list[tuple[int, int]] = []
        groups = self._groups()
        for number, group in enumerate(groups):
            falls = self.heads_together > 0 or (len(groups) - 1 - number) % 2 == 0
            found += [(m, head) for m in range(self.n_m)[:: -1 if falls else 1] for head in group]
        return found

    def _groups(self) -> list[range]:
        """Return the heads whose tiles come together."""
        if not self.heads_together:
            firsts = range(0, self.n_heads, self.heads_in_l2)
            return [range(first, min(first + self.heads_in_l2, self.n_heads)) for first in firsts]
        last = max(self.n_heads - self.heads_in_l2, 0) // self.heads_together * self.heads_together
        firsts = range(0, last, self.heads_together)
        return [*(range(first, first + self.heads_together) for first in firsts), range(last, self.n_heads)]

    @property
    def first(self) -> int:
        """Return the position of the first query among the keys, where a mask depends on it."""
        return self.seqlen_k - self.seqlen_q if self.causal or self.window else 0

    def blocks(self, first: int) -> list[int]:
        """Return how many blocks of keys each tile of a head sees, whose first query is at a position."""
        end, beyond = self.seqlen_k, self.rows if self.causal else self.rows - 1 + self.window
        firsts = range(first, first + self.n_m * self.rows, self.rows)
        ends = [min(end, max(m + beyond, 0)) if self.causal or self.window else end for m in firsts]
        lows = [max(m - self.window + 1, 0) // self.block_n if self.window else 0 for m in firsts]
        return [max(-(-end // self.block_n) - low, 1) for end, low in zip(ends, lows, strict=True)]


@dataclass(frozen=True)
class TileSchedule:
    """Tables that the kernels read, rows of `SCHEDULE_FIELDS` numbers, int32."""

    entries: torch.Tensor  # for each program: the number of tiles, then (tile, head, split or -1, blocks)
    combines: torch.Tensor | None  # for each split tile: (tile, head, first split, number of splits)
    n_splits: int
    n_blocks: int = 0  # key blocks of all tiles
    time: float = 0.0  # of the program that takes longest over whole tiles, in key blocks


def tile_schedule(tiling: Tiling, programs: int, split_kv: bool, device: torch.device) -> TileSchedule:
    """Return the schedule of a shape, of which another with as many tiles and blocks and the same masks has the same.

    Each program's entries end with one that it looks up and does not take.
    """
    whole = replace(tiling, seqlen_q=tiling.n_m * tiling.rows, seqlen_k=tiling.n_blocks * tiling.block_n)
    return _schedule(whole, tiling.first, programs, split_kv, device)


@lru_cache(maxsize=256)
def _schedule(tiling: Tiling, first: int, programs: int, split_kv: bool, device: torch.device) -> TileSchedule:
    blocks = tiling.blocks(first)
    tiles = [(m, (tiling.first_head + head) * tiling.group) for m, head in tiling.tiles()[slice(*tiling.ends)]]
    whole = len(tiles) - (len(tiles) % programs if split_kv else 0)
    takers, time = _deal(blocks, tiles[:whole], programs)
    splits = _split(blocks, tiles[whole:], programs)
    taken: list[list[int]] = [[] for _ in range(programs)]
    for program, (m, head) in zip(takers, tiles, strict=False):
        taken[program] += (m, head, -1, 0)
    for program, *entry in splits:
        taken[program] += entry
    firsts = [0, *accumulate(sum(map(blocks.__getitem__, own[::SCHEDULE_FIELDS])) for own in taken)]
    length = 2 * SCHEDULE_FIELDS + max(map(len, taken))
    numbers = array("i")
    for own, first in zip(taken, firsts, strict=False):
        numbers.extend((len(own) // SCHEDULE_FIELDS, first, 0, 0, *own, *[0] * (length - SCHEDULE_FIELDS - len(own))))
    entries = torch.frombuffer(numbers, dtype=torch.int32)  # in a third of the time of torch.tensor
    combines = [
        (*tile, first, 1 + sum(1 for _ in others))
        for tile, ((*_, first, _), *others) in groupby(splits, key=itemgetter(1, 2))
    ]
    return TileSchedule(
        entries.reshape(programs, -1, SCHEDULE_FIELDS).to(device),
        torch.tensor(combines, dtype=torch.int32, device=device) if combines else None,
        len(splits),
        firsts[-1],
        time,
    )


def _deal(blocks: Sequence[int], tiles: list[tuple[int, int]], programs: int) -> tuple[list[int], float]:
    """Give each tile, of so many blocks, to the program that is ready first; return it, and the last one's time.

    A number that orders programs is its time in half blocks and, behind that, the program.
    """
    lengths = [int(2 * (n + OVERHEAD)) * programs for n in blocks]
    ready = [*range(programs)]
    taken = [heapreplace(ready, ready[0] + lengths[m]) % programs for m, _ in tiles]
    return taken, max(ready) // programs / 2


def _split(blocks: Sequence[int], tiles: list[tuple[int, int]], programs: int) -> list[tuple[int, int, int, int, int]]:
    """Give every program as many key blocks of the tiles: (program, tile, head, split, blocks), tile after tile."""
    total = sum(blocks[m] for m, _ in tiles)
    found: list[tuple[int, int, int, int, int]] = []
    low = number = 0
    for program in range(programs):
        left = total * (program + 1) // programs - total * program // programs
        while left:
            m, head = tiles[number]
            high = min(low + left, blocks[m])
            found.append((program, m, head, len(found), low | high << 16))
            left -= high - low
            low, number = (0, number + 1) if high == blocks[m] else (high, number)
    return found
