"""A tile of triton_fa2."""

from __future__ import annotations

from typing import NamedTuple

PRECISIONS = ("half", "ieee", "bf16x6", "tf32")
BLOCK_DIMS = (16, 32, 64, 128, 256, 512)
WALKS = ("forward", "dq", "dkdv", "dq_dkdv")  # kernels that are right with any tile and any length


class Tile(NamedTuple):
    """One shape of work for a block of threads."""

    block_m: int  # query rows
    block_n: int  # key rows
    num_warps: int
    num_stages: int
    programs: int = 0  # that fill a multiprocessor, for which walks are split (split.py); 0: never
