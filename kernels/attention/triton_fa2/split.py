"""A walk shared out: when there are fewer tiles than a GPU runs at once, several programs walk one tile's rows or keys.

The walk is cut at multiples of `piece`, the same for every tile. A program does one piece of one tile and writes what
it adds to a slot of its own; a second kernel (combine.py) sums the slots in their order, so the result is the same bits
on every run. A tile's pieces follow one another and are at most `pieces` many: piece i goes to slot i % pieces.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

STEP = 128  # a piece is a multiple of this, and so of every tile's rows and keys
MOST = 32  # pieces
LONG = 2048  # keys or rows; shorter walks are not cut where every multiprocessor has a tile


class Cut(NamedTuple):
    """How many pieces a walk has at most, and how long they are."""

    pieces: int
    piece: int


def cut(length: int, walk: int, wanted: float) -> Cut | None:
    """The cut of `length` rows or keys of which a tile walks over at most `walk`, for about `wanted` pieces a walk.

    None if that is one. A walk over less than everything starts anywhere, and so may touch one piece more.
    """
    if wanted <= 1:
        return None
    wanted = min(MOST - 1, wanted)
    piece = max(1, -int(-walk // (wanted * STEP))) * STEP
    pieces = min(-(-walk // piece) + (walk < length), -(-length // piece))
    return Cut(pieces, piece) if pieces > 1 else None


def slots_of(x: torch.Tensor, pieces: int) -> torch.Tensor:
    """Room for as many results like x, in float32."""
    return torch.empty((pieces * x.shape[0], *x.shape[1:]), dtype=torch.float32, device=x.device)


@triton.jit
def share(lo, full_lo, full_hi, hi, slot, pieces, piece):
    """The part of a tile's bounds (forward.key_ranges) that belongs to a slot; lo >= hi if that is nothing."""
    first = lo // piece
    start = (first + (slot + pieces - first % pieces) % pieces) * piece
    end = start + piece
    lo = tl.minimum(tl.maximum(lo, start), end)
    full_lo = tl.minimum(tl.maximum(full_lo, start), end)
    full_hi = tl.minimum(tl.maximum(full_hi, start), end)
    return lo, full_lo, full_hi, tl.minimum(tl.maximum(hi, start), end)


@triton.jit
def longest_first(rank, tiles, tiles_a_piece):
    """The tile of a rank where, under a causal mask, the tiles whose last piece holds most come first.

    That piece ends with its tile. So these are the last tiles of every `tiles_a_piece` that follow one another, then
    the last but one of each, and so on; the last of these groups may be short.
    """
    groups = tl.cdiv(tiles, tiles_a_piece)
    lacking = groups * tiles_a_piece - tiles
    before = lacking * (groups - 1)  # ranks of tiles further back in their group than the short one reaches
    late = rank >= before
    width = tl.where(late, groups, tl.maximum(groups - 1, 1))
    rank = tl.where(late, rank - before, rank)
    back = rank // width + tl.where(late, lacking, 0)
    return rank % width * tiles_a_piece + tiles_a_piece - 1 - back
