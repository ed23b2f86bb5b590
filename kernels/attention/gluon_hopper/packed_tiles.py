"""The tile scheduler of packed sequences: a kernel lists the tiles of a head, since lengths are on the device alone.

The tiles that take longest come last, as static_tile (forward_tiles.py) has it. Programs deal the list of each head
among themselves. Rows behind the last sequence are one of their own without keys, or without queries, so that kernels
fill them: with zeros.
"""

import triton
import triton.language as tl

_ITEMS = 128  # of the list, that a program places


def most_tiles(total: int, sequences: int, rows: int) -> int:
    """Return how many tiles of so many rows a head of packed sequences may have, with the rows behind the last."""
    return total // rows + sequences + 1


def grid_of(most: int) -> tuple[int, int, int]:
    """Return the programs of list_tiles_kernel for a list of up to so many tiles."""
    return -(-most // _ITEMS), 1, 1


def constants_of(sequences: int) -> tuple[int, int]:
    """Return ITEMS and SEQUENCES for so many sequences."""
    return _ITEMS, min(256, triton.next_power_of_2(sequences + 1))


@triton.jit(do_not_specialize=["sequences", "total_q", "total_k", "window", "most"])
def list_tiles_kernel(tiles, starts_q, ends_q, starts_k, ends_k, sequences, total_q, total_k, window, most,
                      ROWS: tl.constexpr, STEP: tl.constexpr, OF_KEYS: tl.constexpr, CAUSAL: tl.constexpr,
                      WINDOW: tl.constexpr, FIELDS: tl.constexpr, ITEMS: tl.constexpr,
                      SEQUENCES: tl.constexpr):  # fmt: skip
    """Write the list of tiles of ROWS queries, or with OF_KEYS of ROWS keys, of which there are up to `most`.

    The list begins with its length; an entry is FIELDS numbers: the tile in its sequence, the first query and the first
    key of that, its seqlen_q and seqlen_k, and, with OF_KEYS, how many blocks of STEP queries the sequences before it
    have. They are in the order of how many blocks of STEP keys, or queries, each sees; equal ones stay in order.
    """
    items = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    bounds = (starts_q, ends_q, starts_k, ends_k, sequences, total_q, total_k)
    m, first_q, first_k, seqlen_q, seqlen_k, steps, count = tiles_of(items, bounds, ROWS, STEP, OF_KEYS, SEQUENCES)
    count = tl.minimum(count, most)
    seen = _blocks_seen(m, seqlen_q, seqlen_k, window, ROWS, STEP, OF_KEYS, CAUSAL, WINDOW)
    place = tl.zeros_like(items)
    for chunk in range(0, count, ITEMS):
        others = chunk + tl.arange(0, ITEMS)
        n, _, _, rows, keys, _, _ = tiles_of(others, bounds, ROWS, STEP, OF_KEYS, SEQUENCES)
        of_others = _blocks_seen(n, rows, keys, window, ROWS, STEP, OF_KEYS, CAUSAL, WINDOW)
        before = (of_others[None, :] == seen[:, None]) & (others[None, :] < items[:, None])
        before = (before | (of_others[None, :] < seen[:, None])) & (others < count)[None, :]
        place += tl.sum(before.to(tl.int32), 1)
    inside = items < count
    entry = tiles + FIELDS * (1 + place)
    tl.store(entry, m, inside)
    tl.store(entry + 1, first_q, inside)
    tl.store(entry + 2, first_k, inside)
    tl.store(entry + 3, seqlen_q, inside)
    tl.store(entry + 4, seqlen_k, inside)
    tl.store(entry + 5, steps, inside)
    if tl.program_id(0) == 0:
        tl.store(tiles, count)


@triton.jit
def tiles_of(items, bounds, ROWS: tl.constexpr, STEP: tl.constexpr, OF_KEYS: tl.constexpr,
             SEQUENCES: tl.constexpr):  # fmt: skip
    """Return the fields of these tiles, counted from the first sequence on, and how many tiles there are."""
    starts_q, ends_q, starts_k, ends_k, sequences, total_q, total_k = bounds
    found = tl.zeros_like(items)
    tiles_before = tl.zeros_like(items)
    steps_before = tl.zeros_like(items)
    tiles = 0
    steps = 0
    for chunk in range(0, sequences + 1, SEQUENCES):
        numbers = chunk + tl.arange(0, SEQUENCES)
        _, seqlen_q = _sequences(numbers, starts_q, ends_q, sequences, total_q, not OF_KEYS)
        _, seqlen_k = _sequences(numbers, starts_k, ends_k, sequences, total_k, OF_KEYS)
        own = seqlen_k if OF_KEYS else seqlen_q
        own_end = tiles + tl.cumsum((own + ROWS - 1) // ROWS)
        steps_end = steps + tl.cumsum((seqlen_q + STEP - 1) // STEP)
        behind = (own_end[None, :] <= items[:, None]) & (numbers <= sequences)[None, :]
        found += tl.sum(behind.to(tl.int32), 1)
        tiles_before = tl.maximum(tiles_before, tl.max(tl.where(behind, own_end[None, :], 0), 1))
        steps_before = tl.maximum(steps_before, tl.max(tl.where(behind, steps_end[None, :], 0), 1))
        tiles = tl.max(own_end)
        steps = tl.max(steps_end)
    first_q, seqlen_q = _sequences(found, starts_q, ends_q, sequences, total_q, not OF_KEYS)
    first_k, seqlen_k = _sequences(found, starts_k, ends_k, sequences, total_k, OF_KEYS)
    return items - tiles_before, first_q, first_k, seqlen_q, seqlen_k, steps_before, tiles


@triton.jit
def _sequences(numbers, starts, ends, sequences, total, REST: tl.constexpr):
    """Return first rows and lengths of sequences; that behind the last has, with REST, the rows up to `total`."""
    real = numbers < sequences
    first = tl.load(starts + numbers, real, 0).to(tl.int32)
    end = tl.load(ends + numbers, real, 0).to(tl.int32)
    if REST:
        rest = numbers == sequences
        first = tl.where(rest, tl.load(ends + sequences - 1).to(tl.int32), first)
        end = tl.where(rest, total, end)
    return first, tl.maximum(end - first, 0)


@triton.jit
def _blocks_seen(m, seqlen_q, seqlen_k, window, ROWS: tl.constexpr, STEP: tl.constexpr, OF_KEYS: tl.constexpr,
                 CAUSAL: tl.constexpr, WINDOW: tl.constexpr):  # fmt: skip
    """Return how many blocks of keys a tile of queries sees, or how many blocks of queries see a tile of keys."""
    shift = seqlen_k - seqlen_q
    low = tl.zeros_like(m)
    if OF_KEYS:
        high = seqlen_q
        if CAUSAL:
            low = tl.maximum(m * ROWS - shift, 0)
        elif WINDOW:
            low = tl.maximum(m * ROWS - window + 1 - shift, 0)
        if WINDOW:
            high = tl.minimum(high, tl.maximum(m * ROWS + ROWS - 1 + window - shift, 0))
    else:
        first = m * ROWS + shift
        high = seqlen_k
        if CAUSAL:
            high = tl.minimum(high, tl.maximum(first + ROWS, 0))
        elif WINDOW:
            high = tl.minimum(high, tl.maximum(first + ROWS - 1 + window, 0))
        if WINDOW:
            low = tl.maximum(first - window + 1, 0)
    return tl.maximum((high + STEP - 1) // STEP - low // STEP, 0)
