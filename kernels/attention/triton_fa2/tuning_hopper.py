"""Tiles for compute capability 9.0, and for 10.0, which has its shared memory."""

from .tile import NOWHERE, UNUSED, Ladder, Table, row
from .tuning_float32 import BF16X6, IEEE

MANY_ROWS = 1500  # at head_dim 32, from which "forward" is measured to be faster than "few_keys" above 128 keys

# Of the kernels whose rows are two panels (panels.py), for 16 bits. Rungs count the query rows of one head.
# Measured on an H200, 2026-11, at 77, 50, 14 and 4 keys and head_dim 40, 64, 80 and 160. block_n is
# the most keys of the first panel.
_FEW_KEYS: dict[int, Ladder] = {
    **dict.fromkeys((16, 32, 64), row((0, 16, 128, 1, 1, 16), (17, 64, 128, 4, 2, 5))),
    128: row((0, 16, 128, 4, 1, 4), (17, 64, 128, 4, 2, 3)),
    256: row((0, 16, 128, 4, 1, 4), (1024,)),
}
# Measured on an H200, 2026-11: 32 queries of 257 keys at head_dim 64, 1 of 729 at 72; on an H100: 1 of 1500 at 64, 256
# of 256 at 160.
_PANELS: dict[int, Ladder] = {
    **UNUSED,
    64: row((0, 16, 32, 1, 4), (17, 32, 64, 2, 3), (33,)),
    128: row((0, 16, 64, 2, 3), (17,)),
    256: row((0,), (33, 64, 64, 4, 3)),
}
# Measured, 2026-11, 8 heads that share keys, 8192 tokens: windows of 64, 128 and 192 on an H200, 128 on an H100
# (kernels/DESIGN.md).
_WINDOW: dict[int, Ladder] = {**UNUSED, 64: row((0,), (200, 64, 128, 4, 2, 3))}
# Measured on an H200, 2026-11: 14 queries of 14 keys, 32 of 257, 50 of 50 and 77 of 77 at head_dim 64, 1 of 729 at 72.
_FEW_QUERIES: dict[int, Ladder] = {
    **dict.fromkeys(
        (16, 32, 64), row((0, 16, 32, 2, 3), (17, 32, 32, 4, 2), (33, 64, 64, 4, 1), (65, 128, 16, 4, 1), (129,))
    ),
    128: row((0, 16, 32, 2, 3), (17,)),
    256: row((0,)),
}
# Measured on an H200, 2026-11: causal, single heads of 512 to 32768 tokens and 16384 tokens of hidden size 2048. Of the
# rungs that cut walks, 16 bits: forward at 2048, 4096, 6016, 8192, 12032 and 16384 tokens of one head, below 24 rows
# also at 1024; "dq_dkdv" at head_dim 128 at 1024, 2048, 4096, 8192 and 16384 tokens (whole, in two splits of which one
# is nearly all), 64 at 1024 to 4096, 32 at 4096, 16 at 2048. Between these, without a mask and with several heads:
# expected, for what decides is how many programs there are and how far they walk.
SM_90: dict[str, Table] = {
    "forward": {
        "half": {
            16: row((0, 16, 128, 2, 3), (6, 64, 64, 4, 3, 2), (24, 64, 128, 4, 3, 2), (200, 64, 128, 4, 3)),
            32: row(
                (0, 16, 128, 4, 3),
                (6, 64, 64, 4, 3, 2),
                (24, 64, 128, 4, 3, 2),
                (200, 64, 128, 4, 3),
                (MANY_ROWS, 128, 64, 4, 3),
            ),
            64: row(
                (0, 16, 128, 4, 3),
                (6, 64, 64, 4, 3, 2),
                (24, 64, 128, 4, 3, 2),
                (200, 64, 128, 4, 3),
                (1000, 64, 64, 4, 2),
            ),
            128: row((0, 16, 128, 4, 3), (6, 64, 64, 4, 3, 2), (200, 64, 64, 4, 3)),
            256: row((0, 16, 64, 4, 2), (50, 128, 64, 8, 2)),
        },
        "ieee": IEEE["forward"],
        "bf16x6": BF16X6["forward"],
        "tf32": {
            16: row((0, 16, 64, 2, 3), (50, 64, 64, 4, 3)),
            32: row((0, 16, 64, 2, 3), (50, 64, 64, 4, 3)),
            64: row((0, 16, 64, 4, 3), (100, 64, 64, 4, 3)),
            128: row((0, 16, 64, 4, 3), (50, 16, 64, 4, 2), (100, 64, 32, 4, 2)),
            256: row((0, 16, 32, 4, 1), (48, 32, 32, 4, 1)),
        },
    },
    "few_keys": {**NOWHERE, "half": _FEW_KEYS},
    "window": {**NOWHERE, "half": _WINDOW},
    "panels": {**NOWHERE, "half": _PANELS},
    "few_queries": {**NOWHERE, "half": _FEW_QUERIES},
    "one_pass": {"half": UNUSED, "ieee": IEEE["one_pass"], "bf16x6": BF16X6["one_pass"], "tf32": UNUSED},
    "dq_dkdv": {
        "half": {
            16: row((0, 32, 64, 2, 3), (12, 64, 64, 4, 3, 2), (24, 32, 64, 2, 3), (200,)),
            32: row((0, 16, 128, 4, 3), (24, 64, 64, 4, 3, 2), (50, 64, 128, 4, 3), (200,)),
            64: row((0, 16, 128, 4, 3), (6, 64, 64, 4, 2, 1), (12, 64, 64, 4, 2, 2), (50, 64, 128, 4, 3), (200,)),
            128: row((0, 16, 128, 4, 3), (6, 64, 32, 4, 2, 1), (12, 64, 32, 4, 2, 2), (24, 64, 32, 4, 3, 2), (130,)),
            256: row((0, 16, 64, 4, 2), (50,)),
        },
        "ieee": IEEE["dq_dkdv"],
        "bf16x6": BF16X6["dq_dkdv"],
        "tf32": {
            16: row((0, 16, 64, 2, 3), (100,)),
            32: row((0, 16, 64, 2, 3), (50, 64, 64, 4, 2), (100,)),
            64: row((0, 16, 64, 4, 2), (50, 64, 64, 4, 2), (100,)),
            128: row((0, 16, 64, 4, 2), (100,)),
            256: row((0,)),
        },
    },
    "dq": {
        "half": {
            16: row((0, 32, 128, 2, 3), (200, 64, 128, 4, 3)),
            32: row((0, 16, 128, 4, 3), (50, 64, 128, 4, 3)),
            64: row((0, 16, 128, 4, 3), (24, 64, 128, 4, 3), (1000, 64, 64, 4, 3)),
            128: row((0, 16, 128, 4, 3), (50, 64, 64, 4, 3), (200, 128, 64, 8, 3)),
            256: row((0, 16, 64, 4, 2), (50, 64, 64, 4, 2), (200, 128, 32, 8, 2)),
        },
        "ieee": IEEE["dq"],
        "bf16x6": BF16X6["dq"],
        "tf32": {
            16: row((0, 16, 64, 4, 3), (24, 64, 64, 4, 2)),
            32: row((0, 16, 64, 4, 2), (100, 64, 64, 4, 2)),
            64: row((0, 16, 64, 4, 3), (100, 64, 64, 4, 2)),
            128: row((0, 16, 64, 4, 3), (50, 16, 64, 4, 2), (100, 64, 32, 4, 2)),
            256: row((0, 16, 16, 4, 1)),
        },
    },
    "dkdv": {
        "half": {
            16: row((0, 64, 16, 2, 3), (50, 64, 32, 2, 3), (200, 128, 64, 4, 3)),
            32: row((0, 128, 16, 4, 3), (50, 128, 64, 4, 3)),
            64: row((0, 128, 16, 4, 3), (200, 128, 64, 4, 2)),
            128: row((0, 128, 16, 4, 3), (50, 128, 32, 8, 3), (200, 64, 128, 8, 3)),
            256: row((0, 64, 16, 4, 2), (50, 64, 32, 8, 2), (200, 32, 32, 4, 2)),
        },
        "ieee": IEEE["dkdv"],
        "bf16x6": BF16X6["dkdv"],
        "tf32": {
            16: row((0, 64, 16, 2, 2), (100, 64, 64, 4, 2)),
            32: row((0, 64, 16, 4, 2), (100, 64, 64, 4, 2)),
            64: row((0, 64, 16, 4, 2), (100, 64, 64, 4, 2)),
            128: row((0, 64, 16, 4, 2), (100, 32, 64, 4, 2)),
            256: row((0, 16, 16, 4, 1)),
        },
    },
}

# sm_100: expected as sm_90, whose shared memory it has, but for bf16x6, which is unmeasured there.
SM_100: dict[str, Table] = {kernel: {**table, "bf16x6": UNUSED} for kernel, table in SM_90.items()}
