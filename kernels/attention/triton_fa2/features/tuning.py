"""The tiles of the kernels with features: the table "features" of `kernels.tables`. All fit 99 KB of shared memory.

On compute capability 9.0 a product of 64 rows wants 4 warps, which is one warpgroup. Elsewhere these spill.
"""

from ....tables import family
from ..tile import Tile


def tiles(kernel: str, itemsize: int, head_dim: int, head_dim_v: int, chip: str) -> tuple[Tile, ...]:
    """Return the tile to use on a chip ("sm_90") and those to fall back to.

    "packed_dq" and "packed_dkdv" are the kernels for packed sequences without features.
    """
    rows = family(chip)["features"].every(kernel=kernel, itemsize=itemsize, width=max(head_dim, head_dim_v))
    return tuple(Tile(*row) for row in rows)


def panels(head_dim: int) -> tuple[int, int]:
    """Return the columns of the two panels of q and k: one power of two, or two where that leaves a quarter less."""
    whole = max(16, 1 << (head_dim - 1).bit_length())
    if whole >= 64 and head_dim <= whole * 3 // 4:
        return whole // 2, whole // 4
    return whole, 0
