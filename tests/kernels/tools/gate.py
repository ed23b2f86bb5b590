"""The pieces of the compile gate, each a list of variants: `python -m tests.kernels.tools.gate PIECE` compiles one.

A process of its own, since the tests' processes interpret the kernels.
"""

from __future__ import annotations

import sys

from kernels.tools import offline
from kernels.tools.offline import Variant

COMMON_DIMS = (64, 128)
SMALL_DIMS = (16, 32)
ALL_DIMS = (16, 32, 64, 128, 256)
# head_dim 64 and 128 tiles on an H200 are faster with a few spilled values than the next smaller tile without
SPILLED_BYTES = 512
# of float32 in pieces: addresses for the most part, kept over a loop of 5 to 10 thousand cycles
PIECES_SPILLED_BYTES = 896
# with a window, the 16-bit backward at head_dim 64 spills more: 784 (both) and 608 (dkdv) on sm_90, not yet mended
WINDOW_SPILLED_BYTES = 784


def wanted(precision: str, chips: tuple[int, ...], dims: tuple[int, ...], masks: tuple[str, ...]) -> list[Variant]:
    """The largest tile that cuts its walk (split.py) and the largest that does not, of every row of the tables."""
    every = [v for v in offline.variants(chips, masks) if v.precision == precision and v.head_dim in dims]
    cut, whole = ([v for v in every if (v.tile.programs > 0) == is_cut] for is_cut in (True, False))
    return offline.largest(cut) + offline.largest(whole)


# name -> precision, chips, head_dims, masks; each about a minute of one core
PIECES = {
    "IEEE float32 on sm_90, head_dim 128": ("ieee", (90,), (128,), ("causal",)),
    "IEEE float32 in pieces on sm_90": ("pieces", (90,), (32, *COMMON_DIMS), ("causal",)),
    "IEEE float32 on sm_86, head_dim 128": ("ieee", (86,), (128,), ("causal",)),
    "IEEE float32 on sm_90, head_dim 64": ("ieee", (90,), (64,), ("causal",)),
    "IEEE float32 on sm_86, head_dim 64": ("ieee", (86,), (64,), ("causal",)),
    "IEEE float32 on sm_90, head_dim 16 and 32": ("ieee", (90,), SMALL_DIMS, ("causal",)),
    "16-bit on sm_90": ("half", (90,), ALL_DIMS, ("causal",)),
    "16-bit on sm_86": ("half", (86,), ALL_DIMS, ("causal",)),
    "16-bit on sm_80, sm_100 and sm_120": ("half", (80, 100, 120), COMMON_DIMS, ("causal",)),
    "16-bit with a window and without a mask": ("half", (90,), COMMON_DIMS, ("window", "full")),
    "TF32 on sm_90 and sm_100": ("tf32", (90, 100), COMMON_DIMS, ("causal",)),
    "TF32 on sm_80, sm_86 and sm_120": ("tf32", (80, 86, 120), COMMON_DIMS, ("causal",)),
}


def _most(variant: Variant) -> int:
    """The bytes that a variant may spill."""
    if variant.precision == "pieces":
        return PIECES_SPILLED_BYTES
    return WINDOW_SPILLED_BYTES if variant.mask == "window" else SPILLED_BYTES


def main(piece: str) -> int:
    """Print the table of a piece; 1 if anything does not fit its chip or spills too much."""
    reports = list(map(offline.compile_variant, wanted(*PIECES[piece])))
    print("\n".join(offline.table(reports)))
    bad = [r for r in reports if not r.fits or r.spilled_bytes > _most(r.variant)]
    print(f"{len(reports)} variants, {len(bad)} of them too large or spilling too much")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
