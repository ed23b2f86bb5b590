"""The tiles of the kernels with features, which fit 99 KB of shared memory.

Those of 16 bits on compute capability 9.0 were timed on an H200 (kernels/DESIGN.md, "Features"):
a product of 64 rows wants 4 warps, which is one warpgroup. Elsewhere these spill.
"""

from __future__ import annotations

from functools import cache

import torch

from ..tile import Tile
from ..tuning import chip_class

_WHOLE = {  # (kernel, bytes of a number, the wider head_dim padded): the first tile, then one that needs less memory
    ("forward", 2, 64): (Tile(64, 64, 4, 2), Tile(32, 32, 4, 1)),
    ("forward", 2, 128): (Tile(64, 64, 8, 2), Tile(32, 32, 4, 1)),
    ("forward", 2, 256): (Tile(64, 32, 8, 1), Tile(16, 16, 4, 1)),
    ("dq", 2, 64): (Tile(64, 64, 8, 2), Tile(32, 32, 4, 1)),
    ("dq", 2, 128): (Tile(64, 32, 8, 1), Tile(32, 32, 4, 1)),
    ("dq", 2, 256): (Tile(32, 32, 8, 1), Tile(16, 16, 4, 1)),
    ("dkdv", 2, 64): (Tile(32, 64, 8, 2), Tile(32, 32, 4, 1)),
    ("dkdv", 2, 128): (Tile(32, 64, 8, 1), Tile(32, 32, 4, 1)),
    ("dkdv", 2, 256): (Tile(32, 32, 8, 1), Tile(16, 16, 4, 1)),
    ("forward", 4, 64): (Tile(32, 32, 4, 1), Tile(16, 16, 4, 1)),
    ("forward", 4, 128): (Tile(32, 32, 8, 1), Tile(16, 16, 4, 1)),
    ("forward", 4, 256): (Tile(16, 16, 4, 1),),
    ("dq", 4, 64): (Tile(32, 32, 4, 1), Tile(16, 16, 4, 1)),
    ("dq", 4, 128): (Tile(32, 16, 8, 1), Tile(16, 16, 4, 1)),
    ("dq", 4, 256): (Tile(16, 16, 8, 1),),
    ("dkdv", 4, 64): (Tile(32, 32, 4, 1), Tile(16, 16, 4, 1)),
    ("dkdv", 4, 128): (Tile(16, 32, 8, 1), Tile(16, 16, 4, 1)),
    ("dkdv", 4, 256): (Tile(16, 16, 4, 1),),
}


_HOPPER = {  # before those of _WHOLE
    ("forward", 2, 64): Tile(64, 64, 4, 3),
    ("forward", 2, 128): Tile(64, 64, 4, 3),
    ("forward", 2, 256): Tile(64, 32, 4, 2),
    ("dq", 2, 64): Tile(64, 64, 4, 2),
    ("dq", 2, 128): Tile(64, 64, 4, 2),
    ("dq", 2, 256): Tile(64, 32, 4, 1),
    ("dkdv", 2, 64): Tile(64, 64, 4, 2),
    ("dkdv", 2, 128): Tile(32, 64, 4, 2),
    ("dkdv", 2, 256): Tile(32, 64, 8, 2),
    ("packed_dq", 2, 64): Tile(64, 64, 4, 3),
    ("packed_dq", 2, 128): Tile(128, 64, 8, 3),
    ("packed_dkdv", 2, 64): Tile(64, 64, 4, 3),
    ("packed_dkdv", 2, 128): Tile(64, 128, 8, 3),
}


def tiles(kernel: str, itemsize: int, head_dim: int, head_dim_v: int, chip: str) -> tuple[Tile, ...]:
    """Return the tile to use on a chip ("sm_90") and those to fall back to.

    A kernel for packed sequences without features ("packed_dq") falls back to the tiles of the kernel with features.
    """
    wider = max(head_dim, head_dim_v)
    rest = (itemsize, 64 if wider <= 64 else 128 if wider <= 128 else 256)
    with_features = (kernel.removeprefix("packed_"), *rest)
    timed = (_HOPPER.get(row) for row in ((kernel, *rest), with_features) if chip == "sm_90")
    first = next((tile for tile in timed if tile), None)
    return (first, *_WHOLE[with_features]) if first else _WHOLE[with_features]


@cache
def chip_of(device: torch.device) -> str:
    """Return the name of a device's table."""
    if device.type == "cpu":
        return "sm_86"
    properties = torch.cuda.get_device_properties(device)
    most_shared = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]  # not in PyTorch's stubs
    return chip_class(properties.major * 10 + properties.minor, most_shared)


def panels(head_dim: int) -> tuple[int, int]:
    """Return the columns of the two panels of q and k: one power of two, or two where that leaves a quarter less."""
    whole = max(16, 1 << (head_dim - 1).bit_length())
    if whole >= 64 and head_dim <= whole * 3 // 4:
        return whole // 2, whole // 4
    return whole, 0
