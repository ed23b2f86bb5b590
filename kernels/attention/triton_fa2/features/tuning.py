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
