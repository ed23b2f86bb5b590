"""The tile scheduler of packed sequences: a kernel lists the tiles of a head, since lengths are on the device alone.

The tiles that take longest come last, as static_tile (forward_tiles.py) has it. Programs of the forward deal the list
of each head among themselves, those of the backward come in its order (backward_schedule.py). Rows behind the last
sequence count as a sequence without keys, or without queries, so that kernels fill them with zeros.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .configs import PACKED_FIELDS

_TILES = 8  # tiles that a program places at a time
_PROGRAMS = 16  # most programs of a sequence
_ALL_PROGRAMS = 4096
_FIELDS = tl.constexpr(PACKED_FIELDS)


def most_tiles(total: int, sequences: int, rows: int) -> int:
    """Return how many tiles of so many rows a head of packed sequences may have, with the rows behind the last."""
    return total // rows + sequences + 1


def list_length(tiles: int, blocks: int = 0) -> int:
    """Return how many numbers a list of up to so many tiles has, and with it a table of so many blocks of queries."""
    return PACKED_FIELDS * (1 + tiles) + (2 * (1 + blocks) if blocks else 0)


def list_shape(sequences: int) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Return the grid of `list_tiles_kernel` for so many sequences, and `tiles` and `sequences` of its constants."""
    grid = sequences + 1, max(1, min(_PROGRAMS, _ALL_PROGRAMS // (sequences + 1))), 1
    return grid, (_TILES, max(16, min(128, triton.next_power_of_2(sequences + 1))))


@dataclass(frozen=True)
class TileListConfig:
    """Compile-time constants of `list_tiles_kernel`."""

    rows: int  # queries or keys of a tile
    step: int  # keys or queries of a block
    of_keys: bool  # tiles of keys, not of queries
    by_length: bool  # tiles are sorted as under a causal mask
    tiles: int  # tiles that a program places at a time
    sequences: int  # sequences that a program compares with at a time
    pdl: bool = False  # the next kernel may begin before this one has ended
    chained: bool = False  # this one begins before the last has ended, of which only the next needs something


@triton.jit(
    do_not_specialize=["sequences", "total_q", "total_k", "room", "few", "most", "multiprocessors", "rows_in_l2"]
)
def list_tiles_kernel(tiles, starts_q, ends_q, starts_k, ends_k, sequences, total_q, total_k, room, few, most,
                      multiprocessors, rows_in_l2, CONFIG: tl.constexpr):  # fmt: skip
    """Write the list of tiles, of which there are up to `most`; CONFIG is a TileListConfig.

    Programs of a sequence take its tiles in turn; the programs after the last sequence take the rows outside all
    sequences. The list begins with what `_list_head` writes. An entry is PACKED_FIELDS numbers: the tile in its
    sequence, the sequence's first query and first key, its seqlen_q and seqlen_k, and how many blocks of `step` queries
    the earlier sequences have. Tiles are sorted by how many blocks of `step` keys, or queries, each sees; equal tiles
    by their rows. With `of_keys` the table of `_list_blocks` follows. Of sequences over pages, whose keys have `room`
    for so many rows, those with up to `few` queries have no tiles, as they are decoded.
    """
    if CONFIG.pdl:
        gdc_launch_dependents()
    bounds = (starts_q, ends_q, starts_k, ends_k, sequences, total_q, total_k, room, few)
    own = tl.program_id(0)
    first_q, first_k, seqlen_q, seqlen_k = sequence_of(own, bounds, CONFIG.of_keys)
    steps_before = 0
    for chunk in range(0, own, CONFIG.sequences):
        numbers = chunk + tl.arange(0, CONFIG.sequences)
        _, _, rows, _ = sequence_of(numbers, bounds, CONFIG.of_keys)
        steps_before += tl.sum(tl.where(numbers < own, tl.cdiv(rows, CONFIG.step), 0))
    own_tiles = tl.cdiv(seqlen_k if CONFIG.of_keys else seqlen_q, CONFIG.rows)
    for first in range(tl.program_id(1) * CONFIG.tiles, own_tiles, tl.num_programs(1) * CONFIG.tiles):
        m = first + tl.arange(0, CONFIG.tiles)
        seen = _blocks_seen(m, seqlen_q, seqlen_k, CONFIG)
        place = tl.zeros_like(m)
        for chunk in range(0, sequences + 1, CONFIG.sequences):
            numbers = chunk + tl.arange(0, CONFIG.sequences)
            _, _, rows, keys = sequence_of(numbers, bounds, CONFIG.of_keys)
            ahead = (numbers < own).to(tl.int32)  # earlier sequences: tiles that see as many blocks come first
            sizes = (rows[None, :], keys[None, :])
            place += tl.sum(_tiles_seeing_less(seen[:, None] + ahead[None, :], sizes, CONFIG), 1)
        # add the earlier tiles of the same sequence that see as many blocks
        sizes = (seqlen_q, seqlen_k)
        if CONFIG.of_keys and CONFIG.by_length:
            place += m - (own_tiles - _tiles_seeing_less(seen + 1, sizes, CONFIG))
        else:
            place += m - _tiles_seeing_less(seen, sizes, CONFIG)
        inside = (m < own_tiles) & (place < most)
        entry = tiles + _FIELDS * (1 + place)
        tl.store(entry, m, inside)
        tl.store(entry + 1, first_q + tl.zeros_like(m), inside)
        tl.store(entry + 2, first_k + tl.zeros_like(m), inside)
        tl.store(entry + 3, seqlen_q + tl.zeros_like(m), inside)
        tl.store(entry + 4, seqlen_k + tl.zeros_like(m), inside)
        tl.store(entry + 5, steps_before + tl.zeros_like(m), inside)
    if CONFIG.of_keys:
        _list_blocks(tiles + _FIELDS * (1 + most), own, steps_before, bounds, CONFIG)
    if (own == sequences) & (tl.program_id(1) == 0):
        _list_head(tiles, bounds, most, multiprocessors, rows_in_l2, CONFIG)
    if CONFIG.chained:
        gdc_wait()


@triton.jit
def _list_blocks(table, own, before, bounds, CONFIG: tl.constexpr):
    """Write a sequence's part of the table of blocks of queries; `before`: how many the earlier sequences have.

    The table begins with how many there are and a number that nobody reads; of each block it has the first row, and the
    row behind the last of its sequence. Rows that are nobody's are a sequence.
    """
    starts_q, ends_q, _, _, sequences, total_q, _, _, _ = bounds
    first_q, seqlen_q = _rows_of(own, starts_q, ends_q, sequences, total_q, True)
    own_blocks = tl.cdiv(seqlen_q, CONFIG.step)
    for first in range(tl.program_id(1) * CONFIG.tiles, own_blocks, tl.num_programs(1) * CONFIG.tiles):
        m = first + tl.arange(0, CONFIG.tiles)
        entry = table + 2 * (1 + before + m)
        tl.store(entry, first_q + m * CONFIG.step, m < own_blocks)
        tl.store(entry + 1, first_q + seqlen_q + tl.zeros_like(m), m < own_blocks)
    if (own == sequences) & (tl.program_id(1) == 0):
        tl.store(table, before + own_blocks)


@triton.jit
def _list_head(tiles, bounds, most, multiprocessors, rows_in_l2, CONFIG: tl.constexpr):
    """Write the length of the list, and how many heads' tiles together keep all multiprocessors busy, or 1.

    They do for twice the time of the longest tile. Tiles of keys: as many heads at most as have the queries that are
    walked at a time in the L2, which holds `rows_in_l2` of a head. Tiles of queries: 1 where lengths are not skewed,
    so that the longest tile takes up to half as long again as the mean.
    """
    count = 0
    work = 0.0
    squares = 0.0
    longest = 0.0
    for chunk in range(0, bounds[4] + 1, CONFIG.sequences):
        _, _, rows, keys = sequence_of(chunk + tl.arange(0, CONFIG.sequences), bounds, CONFIG.of_keys)
        own_tiles = tl.cdiv(keys if CONFIG.of_keys else rows, CONFIG.rows)
        steps = tl.cdiv(rows if CONFIG.of_keys else keys, CONFIG.step).to(tl.float32)
        count += tl.sum(own_tiles)
        work += tl.sum(own_tiles.to(tl.float32) * steps)
        squares += tl.sum(steps * steps)
        longest = tl.maximum(longest, tl.max(steps))
    work = tl.maximum(work, 1.0)
    together = 2.0 * multiprocessors * longest / (work / 2 if CONFIG.by_length else work)
    if CONFIG.of_keys:  # most of what is walked at a time are long sequences: squares / longest blocks of queries
        together = tl.minimum(together, rows_in_l2 * longest / tl.maximum(squares * CONFIG.step, 1.0) - 1)
    else:
        together = tl.where(longest * count > 1.5 * work, together, 0.0)
    tl.store(tiles, tl.minimum(count, most))
    tl.store(tiles + 1, 1 + tl.maximum(tl.minimum(together, 65536.0), 0.0).to(tl.int32))


@triton.jit
def sequence_of(number, bounds, OF_KEYS: tl.constexpr):
    """Return the first query and key of sequences, and their seqlen_q and seqlen_k.

    That behind the last has the queries up to `total_q` and no keys, or with OF_KEYS the other way round.
    """
    starts_q, ends_q, starts_k, ends_k, sequences, total_q, total_k, room, few = bounds
    first_q, seqlen_q = _rows_of(number, starts_q, ends_q, sequences, total_q, not OF_KEYS)
    first_k, seqlen_k = _rows_of(number, starts_k, ends_k, sequences, total_k, OF_KEYS)
    first_k = tl.where((room > 0) & (number < sequences), number * room, first_k)
    here = (seqlen_q > few) | (number >= sequences)
    return first_q, first_k, tl.where(here, seqlen_q, 0), tl.where(here, seqlen_k, 0)


@triton.jit
def _rows_of(number, starts, ends, sequences, total, REST: tl.constexpr):
    real = number < sequences
    first = tl.load(starts + number, real, 0).to(tl.int32)
    end = tl.load(ends + number, real, 0).to(tl.int32)
    if REST:
        rest = number == sequences
        first = tl.where(rest, tl.load(ends + sequences - 1).to(tl.int32), first)
        end = tl.where(rest, total, end)
    return first, tl.maximum(end - first, 0)


@triton.jit
def _blocks_seen(m, seqlen_q, seqlen_k, CONFIG: tl.constexpr):
    """Return how many blocks of keys a tile of queries sees, or how many blocks of queries see a tile of keys."""
    low = 0
    if CONFIG.of_keys:
        high = tl.cdiv(seqlen_q, CONFIG.step)
        if CONFIG.by_length:
            low = tl.maximum(m * CONFIG.rows - (seqlen_k - seqlen_q), 0) // CONFIG.step
    else:
        high = tl.cdiv(seqlen_k, CONFIG.step)
        if CONFIG.by_length:
            high = tl.minimum(high, tl.cdiv(tl.maximum((m + 1) * CONFIG.rows + seqlen_k - seqlen_q, 0), CONFIG.step))
    return tl.maximum(high - low, 0) + tl.zeros_like(m)


@triton.jit
def _tiles_seeing_less(blocks, sizes, CONFIG: tl.constexpr):
    """Return how many of a sequence's tiles have a smaller `_blocks_seen`; `sizes` are its seqlen_q and seqlen_k."""
    seqlen_q, seqlen_k = sizes
    shift = seqlen_k - seqlen_q
    tiles = tl.cdiv(seqlen_k if CONFIG.of_keys else seqlen_q, CONFIG.rows)
    most = tl.cdiv(seqlen_q if CONFIG.of_keys else seqlen_k, CONFIG.step)
    some = tl.zeros_like(blocks + tiles)
    if CONFIG.by_length:
        if CONFIG.of_keys:  # the last ones
            some = tiles - tl.cdiv(tl.maximum((most - blocks + 1) * CONFIG.step + shift, 0), CONFIG.rows)
        else:
            some = tl.maximum((blocks - 1) * CONFIG.step - shift, 0) // CONFIG.rows
        some = tl.where(blocks > 0, tl.minimum(tl.maximum(some, 0), tiles), 0)
    return tl.where(most < blocks, tiles, some)
