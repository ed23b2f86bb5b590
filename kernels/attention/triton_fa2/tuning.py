"""Which tile each kernel uses, as data: by chip, precision, head_dim and how much work there is to share out.

A row of a table is a ladder of (rows, Tile). `rows` is the least number of query rows (for dkdv: key rows), counted
over batch and heads and divided by the number of multiprocessors, from which the tile is used: a single short head
needs small tiles to reach every multiprocessor, a large batch needs large ones for reuse.

Rows marked "measured" were swept with every plausible tile on the chip named (log: kernels/NOTES.md). The
others are expected: chosen so that `python -m kernels.offline` shows no spills and a fit in shared memory.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple


class Tile(NamedTuple):
    """One shape of work for a block of threads."""

    block_m: int  # query rows
    block_n: int  # key rows
    num_warps: int
    num_stages: int
    programs: int = 0  # a multiprocessor's fill, for which split.py cuts the walks; 0: never


Ladder = tuple[tuple[int, Tile | None], ...]
Table = dict[str, dict[int, Ladder]]  # precision -> padded head_dim -> ladder

KERNELS = ("forward", "fused", "both", "dq", "dkdv")
PRECISIONS = ("half", "ieee", "pieces", "tf32")
BLOCK_DIMS = (16, 32, 64, 128, 256)

# A block's opt-in shared memory by compute capability (CUDA C++ Programming Guide, table of technical specifications).
SHARED_MEMORY = {80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448, 120: 101376}


def chip_class(capability: int, shared_memory_bytes: int) -> str:
    """The table that serves a chip: by what a block can hold, since names and capabilities do not order it."""
    if shared_memory_bytes < SHARED_MEMORY[80]:
        return "sm_86"
    if capability >= 100:
        return "sm_100"
    return "sm_90" if capability >= 90 else "sm_80"


def in_pieces(chip: str, block_d: int) -> bool:
    """Whether IEEE float32 goes through pieces.py: where the tensor cores beat the FMA units though used six times."""
    return ladder("forward", chip, "pieces", block_d)[0][1] is not None


@cache
def ladder(kernel: str, chip: str, precision: str, block_d: int) -> Ladder:
    """The rungs of one table row, smallest demand first."""
    return TABLES[chip][kernel][precision][block_d]


def tiles(kernel: str, chip: str, precision: str, block_d: int, rows_per_multiprocessor: float) -> list[Tile]:
    """The tile to use, and after it those to fall back to when it does not fit, each smaller than the one before.

    Empty if the table says not to use this kernel for so many rows ("both": then dq and dkdv are faster).
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
    """The next smaller tile: rows first, then keys, then stages, since fewer stages do not always hold less."""
    if tile.block_m > 16 and tile.block_m >= tile.block_n:
        return tile._replace(block_m=tile.block_m // 2)
    if tile.block_n > 16:
        return tile._replace(block_n=tile.block_n // 2)
    if tile.block_m > 16:
        return tile._replace(block_m=tile.block_m // 2)
    return tile._replace(num_stages=1) if tile.num_stages > 1 else None


def every_tile(chip: str) -> list[tuple[str, str, int, Tile]]:
    """All (kernel, precision, padded head_dim, tile) of a chip's tables, each once."""
    found = {
        (kernel, precision, block_d, tile): None
        for kernel, table in TABLES[chip].items()
        for precision, by_dim in table.items()
        for block_d, rungs in by_dim.items()
        for _, tile in rungs
        if tile is not None
    }
    return list(found)


def _row(*rungs: tuple[int, ...]) -> Ladder:
    return tuple((rung[0], Tile(*rung[1:]) if rung[1:] else None) for rung in rungs)


# Each rung: (rows, block_m, block_n, num_warps, num_stages[, programs]); (rows,) alone: the kernel is not used.

# IEEE float32. Measured on an H200, 2026-11: single heads of 1024 to 8192 and 16384 tokens of hidden size 2048, causal.
_IEEE = {
    "fused": {
        16: _row((0,), (5, 32, 64, 4, 2, 2), (40,)),
        32: _row((0,)),
        64: _row((0,), (5, 32, 64, 8, 2, 2), (40,)),
        128: _row((0,)),
        256: _row((0,)),
    },
    "forward": {
        16: _row((0, 16, 128, 4, 2), (5, 32, 64, 4, 2, 4), (24, 64, 64, 4, 2, 4), (200, 64, 32, 4, 2)),
        32: _row((0, 16, 128, 4, 2), (5, 32, 64, 4, 2, 4), (40, 32, 64, 4, 2, 2), (200, 64, 32, 4, 2)),
        64: _row((0, 16, 64, 4, 3), (5, 32, 64, 4, 2, 4), (40, 32, 64, 4, 2, 2), (200, 32, 64, 8, 2)),
        128: _row((0, 16, 128, 4, 3), (3, 32, 64, 4, 3, 8), (40, 32, 64, 4, 3, 2), (200, 32, 64, 4, 2)),
        256: _row((0, 16, 128, 8, 2), (50, 32, 64, 8, 2)),
    },
    "both": {
        16: _row((0, 16, 128, 4, 2), (50, 32, 64, 4, 2), (100,)),
        32: _row((0, 16, 64, 4, 2), (24, 32, 128, 8, 2), (50, 64, 64, 8, 2), (100,)),
        64: _row((0, 16, 64, 8, 3), (24, 32, 64, 8, 2), (50,)),
        128: _row((0, 16, 128, 8, 3), (3, 32, 32, 4, 2, 2), (50,)),
        256: _row((0, 16, 128, 8, 2), (24,)),
    },
    "dq": {
        16: _row((0, 16, 128, 4, 2), (200, 64, 32, 4, 2)),
        32: _row((0, 16, 128, 4, 2), (50, 32, 128, 8, 2), (200, 32, 64, 4, 2)),
        64: _row((0, 16, 128, 8, 2), (50, 32, 128, 8, 3), (200, 64, 64, 8, 3)),
        128: _row((0, 16, 128, 4, 3), (50, 32, 128, 8, 3)),
        256: _row((0, 16, 128, 8, 2), (50, 32, 128, 8, 2), (200, 64, 64, 8, 2)),
    },
    "dkdv": {
        16: _row((0, 128, 16, 4, 2), (50, 128, 32, 8, 2), (200, 32, 64, 4, 2)),
        32: _row((0, 64, 16, 4, 2), (24, 128, 16, 4, 2), (200, 64, 64, 8, 2)),
        64: _row((0, 128, 16, 8, 2), (24, 64, 16, 8, 3), (50, 64, 32, 8, 3)),
        128: _row((0, 128, 16, 8, 2), (50, 128, 32, 8, 3)),
        256: _row((0, 128, 16, 8, 2), (200, 32, 32, 8, 2)),
    },
}

# IEEE float32 for chips with less shared memory: measured on an H200 too, among the tiles that fit there.
_UNUSED: dict[int, Ladder] = {dim: _row((0,)) for dim in BLOCK_DIMS}

_IEEE_SMALL = {
    "fused": _IEEE["fused"],
    "forward": {
        16: _row((0, 16, 128, 4, 2), (5, 32, 64, 4, 2, 4), (24, 64, 64, 4, 2, 4), (200, 64, 32, 4, 2)),
        32: _row((0, 16, 128, 4, 2), (5, 32, 64, 4, 2, 4), (40, 32, 64, 4, 2, 2), (200, 64, 32, 4, 2)),
        64: _row((0, 16, 64, 4, 2), (5, 32, 64, 4, 2, 4), (40, 32, 64, 4, 2, 2), (200, 64, 64, 8, 2)),
        128: _row((0, 16, 64, 4, 3), (3, 32, 64, 4, 2, 8), (40, 32, 64, 4, 2, 2), (200, 64, 64, 8, 3)),
        256: _row((0, 16, 32, 4, 3), (50, 32, 32, 8, 3)),
    },
    "both": {
        16: _row((0, 16, 128, 4, 2), (50, 32, 64, 4, 2), (100,)),
        32: _row((0, 16, 64, 4, 2), (24, 32, 128, 8, 2), (50, 64, 64, 8, 2), (100,)),
        64: _row((0, 16, 64, 4, 2), (24, 32, 64, 8, 2), (50,)),
        128: _row((0, 16, 64, 8, 3), (3, 32, 32, 4, 2, 2), (50, 32, 32, 4, 3)),
        256: _row((0, 16, 32, 8, 3)),
    },
    "dq": {
        16: _row((0, 16, 128, 4, 2), (200, 64, 32, 4, 2)),
        32: _row((0, 16, 128, 4, 2), (50, 32, 128, 8, 2), (200, 32, 64, 4, 2)),
        64: _row((0, 16, 64, 4, 2), (50, 32, 64, 8, 2)),
        128: _row((0, 16, 64, 4, 3), (200, 64, 64, 8, 3)),
        256: _row((0, 16, 32, 8, 3)),
    },
    "dkdv": {
        16: _row((0, 128, 16, 4, 2), (50, 128, 32, 8, 2), (200, 32, 64, 4, 2)),
        32: _row((0, 64, 16, 4, 2), (24, 128, 16, 4, 2), (200, 64, 64, 8, 2)),
        64: _row((0, 64, 16, 4, 2), (50, 64, 32, 8, 2)),
        128: _row((0, 64, 16, 8, 3), (50, 64, 32, 8, 3), (200, 32, 32, 4, 3)),
        256: _row((0, 32, 16, 8, 3)),
    },
}

# IEEE float32 on Hopper's tensor cores (pieces.py). Each tile was checked on an H200; timed was the forward of 2048
# tokens at head_dim 128 alone, so the other choices are expected.
_PIECES = {
    "fused": _UNUSED,
    "forward": {
        **_UNUSED,
        64: _row((0, 64, 64, 4, 2, 2), (24, 128, 64, 8, 2, 4), (200, 128, 64, 8, 2)),
        128: _row((0, 64, 64, 4, 1, 1), (24, 128, 32, 8, 2, 4), (200, 128, 32, 8, 2)),
    },
    "both": {
        **_UNUSED,
        64: _row((0, 64, 32, 4, 2, 2), (100,)),
        128: _row((0, 64, 32, 4, 2, 1), (50, 64, 32, 4, 2)),
    },
    "dq": {**_UNUSED, 64: _row((0, 64, 64, 4, 2), (100, 128, 64, 8, 2)), 128: _row((0, 64, 32, 4, 2))},
    "dkdv": {**_UNUSED, 64: _row((0, 64, 64, 4, 1)), 128: _row((0, 32, 64, 4, 2))},
}

# Measured on an H200, 2026-11: causal, single heads of 512 to 32768 tokens and 16384 tokens of hidden size 2048.
_SM_90 = {
    "forward": {
        "half": {
            16: _row((0, 16, 128, 2, 3), (6, 64, 128, 4, 3, 1), (40, 64, 128, 4, 3, 2), (200, 64, 128, 4, 3)),
            32: _row((0, 16, 128, 4, 3), (6, 64, 128, 4, 3, 1), (40, 64, 128, 4, 3, 2), (100, 64, 128, 4, 3)),
            64: _row(
                (0, 16, 128, 4, 3),
                (12, 64, 64, 4, 3, 1),
                (40, 64, 64, 4, 3, 2),
                (100, 64, 128, 4, 3),
                (1000, 64, 64, 4, 2),
            ),
            128: _row((0, 16, 128, 4, 3), (12, 64, 64, 4, 3, 1), (100, 64, 64, 4, 3)),
            256: _row((0, 16, 64, 4, 2), (50, 128, 64, 8, 2)),
        },
        "ieee": _IEEE["forward"],
        "pieces": _PIECES["forward"],
        "tf32": {
            16: _row((0, 16, 64, 2, 3), (50, 64, 64, 4, 3)),
            32: _row((0, 16, 64, 2, 3), (50, 64, 64, 4, 3)),
            64: _row((0, 16, 64, 4, 3), (100, 64, 64, 4, 3)),
            128: _row((0, 16, 64, 4, 3), (50, 16, 64, 4, 2), (100, 64, 32, 4, 2)),
            256: _row((0, 16, 32, 4, 1), (48, 32, 32, 4, 1)),
        },
    },
    "fused": {"half": _UNUSED, "ieee": _IEEE["fused"], "pieces": _PIECES["fused"], "tf32": _UNUSED},
    "both": {
        "half": {
            16: _row((0, 32, 64, 2, 3), (200,)),
            32: _row((0, 16, 128, 4, 3), (50, 64, 128, 4, 3), (100,)),
            64: _row((0, 16, 128, 4, 3), (24, 32, 128, 4, 3), (50, 64, 128, 4, 3), (100,)),
            128: _row((0, 16, 128, 4, 3), (24, 32, 128, 8, 2), (50, 64, 32, 4, 3), (100,)),
            256: _row((0, 16, 64, 4, 2), (50,)),
        },
        "ieee": _IEEE["both"],
        "pieces": _PIECES["both"],
        "tf32": {
            16: _row((0, 16, 64, 2, 3), (100,)),
            32: _row((0, 16, 64, 2, 3), (50, 64, 64, 4, 2), (100,)),
            64: _row((0, 16, 64, 4, 2), (50, 64, 64, 4, 2), (100,)),
            128: _row((0, 16, 64, 4, 2), (100,)),
            256: _row((0,)),
        },
    },
    "dq": {
        "half": {
            16: _row((0, 32, 128, 2, 3), (200, 64, 128, 4, 3)),
            32: _row((0, 16, 128, 4, 3), (50, 64, 128, 4, 3)),
            64: _row((0, 16, 128, 4, 3), (24, 64, 128, 4, 3), (1000, 64, 64, 4, 3)),
            128: _row((0, 16, 128, 4, 3), (50, 64, 64, 4, 3), (200, 128, 64, 8, 3)),
            256: _row((0, 16, 64, 4, 2), (50, 64, 64, 4, 2), (200, 128, 32, 8, 2)),
        },
        "ieee": _IEEE["dq"],
        "pieces": _PIECES["dq"],
        "tf32": {
            16: _row((0, 16, 64, 4, 3), (24, 64, 64, 4, 2)),
            32: _row((0, 16, 64, 4, 2), (100, 64, 64, 4, 2)),
            64: _row((0, 16, 64, 4, 3), (100, 64, 64, 4, 2)),
            128: _row((0, 16, 64, 4, 3), (50, 16, 64, 4, 2), (100, 64, 32, 4, 2)),
            256: _row((0, 16, 16, 4, 1)),
        },
    },
    "dkdv": {
        "half": {
            16: _row((0, 64, 16, 2, 3), (50, 64, 32, 2, 3), (200, 128, 64, 4, 3)),
            32: _row((0, 128, 16, 4, 3), (50, 128, 64, 4, 3)),
            64: _row((0, 128, 16, 4, 3), (200, 128, 64, 4, 2)),
            128: _row((0, 128, 16, 4, 3), (50, 128, 32, 8, 3), (200, 64, 128, 8, 3)),
            256: _row((0, 64, 16, 4, 2), (50, 64, 32, 8, 2), (200, 32, 32, 4, 2)),
        },
        "ieee": _IEEE["dkdv"],
        "pieces": _PIECES["dkdv"],
        "tf32": {
            16: _row((0, 64, 16, 2, 2), (100, 64, 64, 4, 2)),
            32: _row((0, 64, 16, 4, 2), (100, 64, 64, 4, 2)),
            64: _row((0, 64, 16, 4, 2), (100, 64, 64, 4, 2)),
            128: _row((0, 64, 16, 4, 2), (100, 32, 64, 4, 2)),
            256: _row((0, 16, 16, 4, 1)),
        },
    },
}

# For 99 KB of shared memory, and for compute capability 8.0. Expected, not measured: what fits without spills.
_SM_86 = {
    "forward": {
        "half": {
            16: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 3), (256, 128, 64, 4, 3)),
            32: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 3), (256, 128, 64, 4, 3)),
            64: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 3), (256, 128, 64, 4, 3)),
            128: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 2), (256, 128, 64, 8, 2)),
            256: _row((0, 16, 32, 4, 2), (48, 64, 32, 4, 2)),
        },
        "ieee": _IEEE_SMALL["forward"],
        "pieces": _UNUSED,
        "tf32": {
            16: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 2)),
            32: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 2)),
            64: _row((0, 16, 64, 4, 2), (48, 64, 32, 4, 2)),
            128: _row((0, 16, 32, 4, 2), (48, 64, 32, 4, 2)),
            256: _row((0, 16, 32, 4, 1)),
        },
    },
    "fused": {"half": _UNUSED, "ieee": _IEEE["fused"], "pieces": _UNUSED, "tf32": _UNUSED},
    "both": {
        "half": {
            16: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 2), (128,)),
            32: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 2), (128,)),
            64: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 2), (128,)),
            128: _row((0, 16, 64, 4, 2), (48, 64, 64, 8, 2), (128,)),
            256: _row((0, 16, 32, 4, 2), (48,)),
        },
        "ieee": _IEEE_SMALL["both"],
        "pieces": _UNUSED,
        "tf32": {
            16: _row((0, 16, 64, 4, 2), (128,)),
            32: _row((0, 16, 64, 4, 2), (128,)),
            64: _row((0, 16, 64, 4, 2), (128,)),
            128: _row((0, 16, 32, 4, 2), (48,)),
            256: _row((0,)),
        },
    },
    "dq": {
        "half": {
            16: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 3)),
            32: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 3)),
            64: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 3), (256, 128, 64, 8, 2)),
            128: _row((0, 16, 64, 4, 2), (48, 64, 64, 8, 2)),
            256: _row((0, 16, 32, 4, 2), (48, 32, 32, 4, 2)),
        },
        "ieee": _IEEE_SMALL["dq"],
        "pieces": _UNUSED,
        "tf32": {
            16: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 2)),
            32: _row((0, 16, 64, 4, 2), (48, 64, 64, 4, 2)),
            64: _row((0, 16, 64, 4, 2), (48, 64, 32, 4, 2)),
            128: _row((0, 16, 32, 4, 2), (48, 32, 32, 4, 1)),
            256: _row((0, 16, 16, 4, 1)),
        },
    },
    "dkdv": {
        "half": {
            16: _row((0, 64, 16, 4, 2), (48, 64, 64, 4, 2)),
            32: _row((0, 64, 16, 4, 2), (48, 64, 64, 4, 2)),
            64: _row((0, 64, 16, 4, 2), (48, 64, 64, 4, 2), (256, 64, 128, 8, 2)),
            128: _row((0, 64, 16, 4, 2), (48, 64, 64, 8, 2)),
            256: _row((0, 32, 16, 4, 2), (48, 32, 32, 8, 2)),
        },
        "ieee": _IEEE_SMALL["dkdv"],
        "pieces": _UNUSED,
        "tf32": {
            16: _row((0, 64, 16, 4, 2), (48, 64, 64, 4, 2)),
            32: _row((0, 64, 16, 4, 2), (48, 64, 64, 4, 2)),
            64: _row((0, 32, 16, 4, 2), (48, 32, 64, 4, 2)),
            128: _row((0, 32, 16, 4, 2), (48, 32, 32, 4, 1)),
            256: _row((0, 16, 16, 4, 1)),
        },
    },
}

# sm_100: expected as sm_90, whose shared memory it has, but for pieces, which are unmeasured there.
_SM_100 = {kernel: {**table, "pieces": _UNUSED} for kernel, table in _SM_90.items()}

TABLES: dict[str, dict[str, Table]] = {"sm_80": _SM_86, "sm_86": _SM_86, "sm_90": _SM_90, "sm_100": _SM_100}
