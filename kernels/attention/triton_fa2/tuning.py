"""Which tile each kernel uses, by chip, precision, head_dim and how much work there is to share out.

The tables "triton_fa2 half", "ieee", "bf16x6" and "tf32" of `kernels.tables` hold the tiles, by the kernels' names:
"forward", "few_keys" and "window" (forward_held_keys.py; its `programs` are those that fit a multiprocessor),
"dq" and "dkdv", "dq_dkdv" (both in one launch), "few_queries" and "whole_heads". A kernel without a tile for a problem
is not used for it. "half" is 16 bits; the others are precisions of float32 (tile_ops.py).

`rows` is the number of query rows (for dkdv: key rows), counted over batch and heads and divided by the number of
multiprocessors: a single short head needs small tiles to reach every multiprocessor, a large batch needs large ones for
reuse. The kernels of BY_HEAD count the query rows of one head. `queries` and `keys` are the lengths of a head.
"""

from functools import cache
from typing import NamedTuple

from ...tables import Row, family

PRECISIONS = ("half", "ieee", "bf16x6", "tf32")
BLOCK_DIMS = (16, 32, 64, 128, 256, 512)
WALKS = ("forward", "dq", "dkdv", "dq_dkdv")  # kernels that are right with any tile and any length
BY_HEAD = ("few_keys", "few_queries")


class Tile(NamedTuple):
    """One shape of work for a block of threads."""

    block_m: int  # query rows
    block_n: int  # key rows
    num_warps: int
    num_stages: int
    programs: int = 0  # that fill a multiprocessor, for which walks are split (split.py); 0: never
    registers: int = 0  # that a thread may use; 0: as many as it needs
    batches: int = 1  # of a program for dq, which share an added mask


def limit(name: str, chip: str, block_d: int, rows: float = 0) -> int:
    """Return up to how many rows or keys a form is used; 0 if never."""
    return next(iter(family(chip)["triton_fa2 limits"].first(limit=name, block_d=block_d, rows=rows)), 0)


def uses_bf16x6(chip: str, block_d: int, rows_per_multiprocessor: float) -> bool:
    """Return whether IEEE float32 is computed as bf16x6: where six products on tensor cores beat one on FMA units."""
    return bool(tiles("forward", chip, "bf16x6", block_d, rows_per_multiprocessor))


def tiles(kernel: str, chip: str, precision: str, block_d: int, rows: float, *lengths: float) -> list[Tile]:
    """Return the tile to use, and those to fall back to when it does not fit, each smaller than the one before.

    `lengths`: queries and keys, else long. Empty if a table names none ("dq_dkdv": then dq and dkdv are faster).
    """
    queries, keys = lengths or (float("inf"),) * 2
    table = family(chip)[f"triton_fa2 {precision}"]
    return list(_with_smaller(table.first(kernel=kernel, block_d=block_d, rows=rows, queries=queries, keys=keys)))


@cache
def _with_smaller(chosen: Row) -> list[Tile]:
    found = [Tile(*chosen)] if chosen else []
    while found and (next_tile := smaller(found[-1])) is not None:
        found.append(next_tile)
    return found


def smaller(tile: Tile) -> Tile | None:
    """Return the next smaller tile: rows first, then keys, then stages, since fewer stages do not always hold less."""
    if tile.block_m > 16 and tile.block_m >= tile.block_n:
        return tile._replace(block_m=tile.block_m // 2)
    if tile.block_n > 16:
        return tile._replace(block_n=tile.block_n // 2)
    if tile.block_m > 16:
        return tile._replace(block_m=tile.block_m // 2)
    return tile._replace(num_stages=1) if tile.num_stages > 1 else None
