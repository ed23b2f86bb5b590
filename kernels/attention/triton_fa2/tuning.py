"""Which tile each kernel uses, as data: by chip, precision, head_dim and how much work there is to share out.

The tables are named after the kernels: "forward", "few_keys", "panels" and "window" (forward_window.py; its `programs`
are those that fit a multiprocessor), "dq" and "dkdv", "dq_dkdv" (both in one launch), "one_pass" and "few_queries". A
kernel without a tile for a problem is not used for it.
Precisions: "half" for 16 bits; "ieee", "bf16x6" and "tf32" for float32 (tile_ops.py).

A row of a table is a ladder of (rows, Tile). `rows` is the least number of query rows (for dkdv: key rows), counted
over batch and heads and divided by the number of multiprocessors, from which the tile is used: a single short head
needs small tiles to reach every multiprocessor, a large batch needs large ones for reuse.

Rows marked "measured" were swept with every plausible tile on the chip named (kernels/DESIGN.md). The
others are expected: chosen so that `python -m kernels.tools.check compile` shows no spills and a fit in shared memory.
"""

from __future__ import annotations

from functools import cache

from .tile import BLOCK_DIMS, PRECISIONS, Ladder, Table, Tile
from .tuning_hopper import SM_90, SM_100
from .tuning_small import SM_86

__all__ = [
    "BLOCK_DIMS",
    "BY_HEAD",
    "PRECISIONS",
    "SHARED_MEMORY",
    "TABLES",
    "Tile",
    "chip_class",
    "computes_delta",
    "every_tile",
    "uses_bf16x6",
    "ladder",
    "smaller",
    "tiles",
]

BY_HEAD = ("few_keys", "few_queries", "panels")  # their rungs count the query rows of one head
# By padded head_dim: rows or keys of a walk, see computes_delta. Expected: no device time was taken with and without.
OWN_DELTA = {16: 1024, 32: 1024, 64: 1024, 128: 256}
TABLES: dict[str, dict[str, Table]] = {"sm_80": SM_86, "sm_86": SM_86, "sm_90": SM_90, "sm_100": SM_100}

# A block's opt-in shared memory by compute capability (CUDA C++ Programming Guide, table of technical specifications).
SHARED_MEMORY = {80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448, 120: 101376}


def chip_class(capability: int, shared_memory_bytes: int) -> str:
    """Return the table that serves a chip: by what a block can hold, since names and capabilities do not order it."""
    if shared_memory_bytes < SHARED_MEMORY[80]:
        return "sm_86"
    if capability >= 100:
        return "sm_100"
    return "sm_90" if capability >= 90 else "sm_80"


def uses_bf16x6(chip: str, block_d: int, rows_per_multiprocessor: float) -> bool:
    """Return whether IEEE float32 is computed as bf16x6: where six products on tensor cores beat one on FMA units."""
    return bool(tiles("forward", chip, "bf16x6", block_d, rows_per_multiprocessor))


def computes_delta(precision: str, block_d: int, tile: Tile, walk: int = 1) -> bool:
    """Return whether a program of "dq_dkdv" computes delta itself, for walks of that many rows or keys.

    Where a launch of preprocess.py takes longer: in short walks, and in tiles that do not spill for it.
    """
    is_small = tile.block_m * tile.block_n <= 4096
    return precision in ("half", "tf32") and is_small and walk <= OWN_DELTA.get(block_d, 0)


@cache
def ladder(kernel: str, chip: str, precision: str, block_d: int) -> Ladder:
    """Return the rungs of one table row, smallest demand first."""
    return TABLES[chip][kernel][precision][block_d]


def tiles(kernel: str, chip: str, precision: str, block_d: int, rows_per_multiprocessor: float) -> list[Tile]:
    """Return the tile to use, and those to fall back to when it does not fit, each smaller than the one before.

    Empty if the table says not to use this kernel for so many rows ("dq_dkdv": then dq and dkdv are faster).
    """
    rungs = ladder(kernel, chip, precision, block_d)
    chosen = max((rung for rung in rungs if rung[0] <= rows_per_multiprocessor), key=lambda rung: rung[0])[1]
    if chosen is None:
        return []
    ways = [chosen]
    while (next_tile := smaller(ways[-1])) is not None:
        ways.append(next_tile)
    return ways


def smaller(tile: Tile) -> Tile | None:
    """Return the next smaller tile: rows first, then keys, then stages, since fewer stages do not always hold less."""
    if tile.block_m > 16 and tile.block_m >= tile.block_n:
        return tile._replace(block_m=tile.block_m // 2)
    if tile.block_n > 16:
        return tile._replace(block_n=tile.block_n // 2)
    if tile.block_m > 16:
        return tile._replace(block_m=tile.block_m // 2)
    return tile._replace(num_stages=1) if tile.num_stages > 1 else None


def every_tile(chip: str) -> list[tuple[str, str, int, Tile]]:
    """Return all (kernel, precision, padded head_dim, tile) of a chip's tables, each once."""
    found = {
        (kernel, precision, block_d, tile): None
        for kernel, table in TABLES[chip].items()
        for precision, by_dim in table.items()
        for block_d, rungs in by_dim.items()
        for _, tile in rungs
        if tile is not None
    }
    return list(found)
