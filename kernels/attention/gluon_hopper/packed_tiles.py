"""The tile scheduler of packed sequences: a kernel lists the tiles of a head, since lengths are on the device alone.

The tiles that take longest come last, as static_tile (forward_tiles.py) has it. Programs deal the list of each head
among themselves. Rows behind the last sequence are one of their own without keys, or without queries, so that kernels
fill them: with zeros.
"""

import triton
import triton.language as tl

_TILES = 32  # that a program places at a time


def most_tiles(total: int, sequences: int, rows: int) -> int:
    """Return how many tiles of so many rows a head of packed sequences may have, with the rows behind the last."""
    return total // rows + sequences + 1


def constants_of(sequences: int) -> tuple[int, int]:
    """Return TILES and SEQUENCES for so many sequences."""
    return _TILES, min(128, triton.next_power_of_2(sequences + 1))


@triton.jit(do_not_specialize=["sequences", "total_q", "total_k", "most"])
def list_tiles_kernel(tiles, starts_q, ends_q, starts_k, ends_k, sequences, total_q, total_k, most,
                      ROWS: tl.constexpr, STEP: tl.constexpr, OF_KEYS: tl.constexpr, BY_LENGTH: tl.constexpr,
                      FIELDS: tl.constexpr, TILES: tl.constexpr, SEQUENCES: tl.constexpr):  # fmt: skip
    """Write the list of tiles of ROWS queries, or with OF_KEYS of ROWS keys, of which there are up to `most`.

    A program has a sequence; that behind the last has the rows that are nobody's. The list begins with its length; an
    entry is FIELDS numbers: the tile in its sequence, the first query and the first key of that, its seqlen_q and
    seqlen_k, and how many blocks of STEP queries the sequences before it have. Tiles are in the order of how many
    blocks of STEP keys, or queries, each sees: under a causal mask with BY_LENGTH, else under none; equal ones are in
    the order of their rows.
    """
    bounds = (starts_q, ends_q, starts_k, ends_k, sequences, total_q, total_k)
    own = tl.program_id(0)
    first_q, first_k, seqlen_q, seqlen_k = sequence_of(own, bounds, OF_KEYS)
    own_tiles = tl.cdiv(seqlen_k if OF_KEYS else seqlen_q, ROWS)
    for first in range(0, own_tiles, TILES):
        m = first + tl.arange(0, TILES)
        seen = _blocks_seen(m, seqlen_q, seqlen_k, ROWS, STEP, OF_KEYS, BY_LENGTH)
        place = tl.zeros_like(m)
        steps_before = 0
        for chunk in range(0, sequences + 1, SEQUENCES):
            numbers = chunk + tl.arange(0, SEQUENCES)
            _, _, rows, keys = sequence_of(numbers, bounds, OF_KEYS)
            sizes = (rows[None, :], keys[None, :])
            less = _tiles_seeing_less(seen[:, None], sizes, ROWS, STEP, OF_KEYS, BY_LENGTH)
            not_more = _tiles_seeing_less(seen[:, None] + 1, sizes, ROWS, STEP, OF_KEYS, BY_LENGTH)
            place += tl.sum(tl.where((numbers < own)[None, :], not_more, less), 1)
            steps_before += tl.sum(tl.where(numbers < own, tl.cdiv(rows, STEP), 0))
        # and those of its own sequence that see as many and come before
        sizes = (seqlen_q, seqlen_k)
        if OF_KEYS and BY_LENGTH:
            place += m - (own_tiles - _tiles_seeing_less(seen + 1, sizes, ROWS, STEP, OF_KEYS, BY_LENGTH))
        else:
            place += m - _tiles_seeing_less(seen, sizes, ROWS, STEP, OF_KEYS, BY_LENGTH)
        inside = (m < own_tiles) & (place < most)
        entry = tiles + FIELDS * (1 + place)
        tl.store(entry, m, inside)
        tl.store(entry + 1, first_q + tl.zeros_like(m), inside)
        tl.store(entry + 2, first_k + tl.zeros_like(m), inside)
        tl.store(entry + 3, seqlen_q + tl.zeros_like(m), inside)
        tl.store(entry + 4, seqlen_k + tl.zeros_like(m), inside)
        tl.store(entry + 5, steps_before + tl.zeros_like(m), inside)
    if own == sequences:
        count = 0
        for chunk in range(0, sequences + 1, SEQUENCES):
            _, _, rows, keys = sequence_of(chunk + tl.arange(0, SEQUENCES), bounds, OF_KEYS)
            count += tl.sum(tl.cdiv(keys if OF_KEYS else rows, ROWS))
        tl.store(tiles, tl.minimum(count, most))


@triton.jit
def sequence_of(number, bounds, OF_KEYS: tl.constexpr):
    """Return the first query and key of sequences, and their seqlen_q and seqlen_k.

    That behind the last has the queries up to `total_q` and no keys, or with OF_KEYS the other way round.
    """
    starts_q, ends_q, starts_k, ends_k, sequences, total_q, total_k = bounds
    first_q, seqlen_q = _rows_of(number, starts_q, ends_q, sequences, total_q, not OF_KEYS)
    first_k, seqlen_k = _rows_of(number, starts_k, ends_k, sequences, total_k, OF_KEYS)
    return first_q, first_k, seqlen_q, seqlen_k


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
def _blocks_seen(m, seqlen_q, seqlen_k, ROWS: tl.constexpr, STEP: tl.constexpr, OF_KEYS: tl.constexpr,
                 CAUSAL: tl.constexpr):  # fmt: skip
    """Return how many blocks of keys a tile of queries sees, or how many blocks of queries see a tile of keys."""
    low = 0
    if OF_KEYS:
        high = tl.cdiv(seqlen_q, STEP)
        if CAUSAL:
            low = tl.maximum(m * ROWS - (seqlen_k - seqlen_q), 0) // STEP
    else:
        high = tl.cdiv(seqlen_k, STEP)
        if CAUSAL:
            high = tl.minimum(high, tl.cdiv(tl.maximum((m + 1) * ROWS + seqlen_k - seqlen_q, 0), STEP))
    return tl.maximum(high - low, 0) + tl.zeros_like(m)


@triton.jit
def _tiles_seeing_less(blocks, sizes, ROWS: tl.constexpr, STEP: tl.constexpr, OF_KEYS: tl.constexpr,
                       CAUSAL: tl.constexpr):  # fmt: skip
    """Return how many of a sequence's tiles have a smaller `_blocks_seen`; `sizes` are its seqlen_q and seqlen_k."""
    seqlen_q, seqlen_k = sizes
    shift = seqlen_k - seqlen_q
    tiles = tl.cdiv(seqlen_k if OF_KEYS else seqlen_q, ROWS)
    most = tl.cdiv(seqlen_q if OF_KEYS else seqlen_k, STEP)
    some = tl.zeros_like(blocks + tiles)
    if CAUSAL:
        if OF_KEYS:  # the last ones
            some = tiles - tl.cdiv(tl.maximum((most - blocks + 1) * STEP + shift, 0), ROWS)
        else:
            some = tl.maximum((blocks - 1) * STEP - shift, 0) // ROWS
        some = tl.where(blocks > 0, tl.minimum(tl.maximum(some, 0), tiles), 0)
    return tl.where(most < blocks, tiles, some)
