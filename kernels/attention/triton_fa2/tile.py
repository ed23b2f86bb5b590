"""A tile, and the ladders of tiles that the tables are made of."""

from __future__ import annotations

from typing import NamedTuple

PRECISIONS = ("half", "ieee", "bf16x6", "tf32")
BLOCK_DIMS = (16, 32, 64, 128, 256)


class Tile(NamedTuple):
    """One shape of work for a block of threads."""

    block_m: int  # query rows
    block_n: int  # key rows
    num_warps: int
    num_stages: int
    programs: int = 0  # that fill a multiprocessor, for which walks are split (split.py); 0: never


Ladder = tuple[tuple[int, Tile | None], ...]
Table = dict[str, dict[int, Ladder]]  # precision -> padded head_dim -> ladder


def row(*rungs: tuple[int, ...]) -> Ladder:
    """Return a ladder of (rows, block_m, block_n, num_warps, num_stages[, programs]); (rows,): not used."""
    return tuple((rung[0], Tile(*rung[1:]) if rung[1:] else None) for rung in rungs)


UNUSED: dict[int, Ladder] = {dim: row((0,)) for dim in BLOCK_DIMS}
NOWHERE: Table = {precision: UNUSED for precision in PRECISIONS}
