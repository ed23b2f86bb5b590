"""Tiles of the kernels whose rows are two panels (panels.py), for 16 bits and compute capability 9.0.

Rungs of FEW_KEYS and FEW_QUERIES count the query rows of one head.
"""

from kernels.attention.triton_fa2.tile import UNUSED, Ladder, row

# Measured on an H200, 2026-11, at 77, 50, 14 and 4 keys and head_dim 40, 64, 80 and 160 (kernels/NOTES.md). block_n is
# the most keys of the first panel.
FEW_KEYS: dict[int, Ladder] = {
    **dict.fromkeys((16, 32, 64), row((0, 16, 128, 1, 1, 16), (17, 64, 128, 4, 2, 5))),
    128: row((0, 16, 128, 4, 1, 4), (17, 64, 128, 4, 2, 3)),
    256: row((0, 16, 128, 4, 1, 4), (1024,)),
}
PANELS: dict[int, Ladder] = {**UNUSED, 128: row((0, 16, 32, 2, 3), (6,))}  # measured with one query of 729 keys
# Measured on an H200, 2026-11: 14 queries of 14 keys, 32 of 257, 50 of 50 and 77 of 77 at head_dim 64, 1 of 729 at 72.
FEW_QUERIES: dict[int, Ladder] = {
    **dict.fromkeys(
        (16, 32, 64), row((0, 16, 32, 2, 3), (17, 32, 32, 4, 2), (33, 64, 64, 4, 1), (65, 128, 16, 4, 1), (129,))
    ),
    128: row((0, 16, 32, 2, 3), (17,)),
    256: row((0,)),
}
