"""Split walks: when there are fewer tiles than a GPU runs at once, several programs walk one tile's rows or keys.

A walk is split at multiples of one length, the same for every tile. A program does one split of one tile and writes
the contribution to its own slot; a second kernel (combine.py) sums the slots in their order, so the result is the same
bits on every run. Of the `splits` slots of a tile, split number i, counted from the first key or row of all, has slot
i % splits. FlashDecoding splits the keys of a decoding query in this way (https://pytorch.org/blog/flash-decoding/).
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

STEP = 128  # a split's length is a multiple of this, and so of every tile's rows and keys
MOST = 32  # splits of a walk
LONG = 2048  # keys or rows; shorter walks are not split where every multiprocessor has a tile


class Split(NamedTuple):
    """How the walks of a kernel's tiles are split."""

    count: int  # type: ignore[assignment]  # hides tuple.count; splits of a walk at most, and so slots
    length: int  # rows or keys of a split


def choose_split(length: int, walk: int, wanted: float) -> Split | None:
    """Split `length` rows or keys, of which a tile walks over at most `walk`, into about `wanted` splits a walk.

    None if that is one. A walk over less than everything starts anywhere, and so may touch one split more.
    """
    if wanted <= 1:
        return None
    wanted = min(MOST - 1, wanted)
    split_len = max(1, -int(-walk // (wanted * STEP))) * STEP
    splits = min(-(-walk // split_len) + (walk < length), -(-length // split_len))
    return Split(splits, split_len) if splits > 1 else None


@triton.jit
def share(lo, full_lo, full_hi, hi, slot, splits, split_len):
    """Return the part of a tile's bounds (forward.key_ranges) that belongs to a slot; lo >= hi if that is nothing."""
    first = lo // split_len
    start = (first + (slot + splits - first % splits) % splits) * split_len
    end = start + split_len
    lo = tl.minimum(tl.maximum(lo, start), end)
    full_lo = tl.minimum(tl.maximum(full_lo, start), end)
    full_hi = tl.minimum(tl.maximum(full_hi, start), end)
    return lo, full_lo, full_hi, tl.minimum(tl.maximum(hi, start), end)


@triton.jit
def longest_first(rank, tiles, tiles_a_split):
    """Return the tile of a rank where, under a causal mask, the tiles whose last split holds most come first.

    That split ends with its tile. So these are the last tiles of every `tiles_a_split` that follow one another, then
    the last but one of each, and so on; the last of these groups may be short.
    """
    groups = tl.cdiv(tiles, tiles_a_split)
    lacking = groups * tiles_a_split - tiles
    before = lacking * (groups - 1)  # ranks of tiles further back in their group than the short one reaches
    late = rank >= before
    width = tl.where(late, groups, tl.maximum(groups - 1, 1))
    rank = tl.where(late, rank - before, rank)
    back = rank // width + tl.where(late, lacking, 0)
    return rank % width * tiles_a_split + tiles_a_split - 1 - back
