"""Which tile the split-KV kernel uses, as data: by chip, what the cache holds, rows of a tile and head_dim.

Rows marked "measured" were swept on the chip named (NOTES.md); the others fit in shared memory without spills.
"""

from __future__ import annotations

from dataclasses import dataclass

# A block's opt-in shared memory by compute capability (CUDA C++ Programming Guide, table of technical specifications).
SHARED_MEMORY = {80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
BLOCK_MS = (16, 32, 64, 128)
BLOCK_DS = (16, 32, 64, 128, 256)
CACHES = ("half", "e4m3", "float32")


@dataclass(frozen=True)
class Tile:
    """How a program works, and how many there are."""

    block_n: int  # keys of a step
    num_warps: int
    num_stages: int
    per_sm: int = 2  # programs a multiprocessor
    least_keys: int = 128  # of a program's share
    rows: int = 64  # at most; more are several tiles
    tickets: bool | None = None  # whether programs combine their parts, not a second kernel; by their size if None


def tile(chip: str, cache: str, block_m: int, block_d: int) -> Tile:
    """The tile for rows (block_m) of head_dim (block_d, padded) over a cache; chip: "sm_86" (99 KB a block) or more."""
    if block_d == 512:
        return Tile(16 if chip == "sm_86" or cache == "float32" else 32, 8, 2, 1)
    if cache == "float32":
        return Tile(32 if block_d <= 64 else 16, 4, 2)
    small = chip == "sm_86"
    warps = 8 if block_m == 128 else 4
    size = 1 if cache == "e4m3" else 2
    block_n = {16: 128, 32: 128, 64: 128, 128: 64, 256: 32}[block_d]
    if size == 1 and block_d > 64:
        block_n *= 2
    if small:
        return Tile(block_n // 2, warps, 2, 2)
    return Tile(block_n, warps, 3, 2)


def chip_class(capability: int, shared_memory_bytes: int) -> str:
    """The table that serves a chip: by what a block can hold, since names and capabilities do not order it."""
    if shared_memory_bytes < SHARED_MEMORY[80]:
        return "sm_86"
    return "sm_90" if capability >= 90 else "sm_80"
