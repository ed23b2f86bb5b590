"""Tiles for 99 KB of shared memory, and for compute capability 8.0."""

from .tile import NOWHERE, UNUSED, Table, row
from .tuning_float32 import IEEE_SMALL

# Expected, not measured, but for IEEE float32: what fits without spills.
SM_86: dict[str, Table] = {
    "forward": {
        "half": {
            **dict.fromkeys((16, 32, 64), row((0, 16, 64, 4, 2), (48, 64, 64, 4, 3), (256, 128, 64, 4, 3))),
            128: row((0, 16, 64, 4, 2), (48, 64, 64, 4, 2), (256, 128, 64, 8, 2)),
            256: row((0, 16, 32, 4, 2), (48, 64, 32, 4, 2)),
        },
        "ieee": IEEE_SMALL["forward"],
        "bf16x6": UNUSED,
        "tf32": {
            **dict.fromkeys((16, 32), row((0, 16, 64, 4, 2), (48, 64, 64, 4, 2))),
            64: row((0, 16, 64, 4, 2), (48, 64, 32, 4, 2)),
            128: row((0, 16, 32, 4, 2), (48, 64, 32, 4, 2)),
            256: row((0, 16, 32, 4, 1)),
        },
    },
    "few_keys": NOWHERE,
    "window": NOWHERE,
    "panels": NOWHERE,
    "few_queries": NOWHERE,
    "one_pass": {"half": UNUSED, "ieee": IEEE_SMALL["one_pass"], "bf16x6": UNUSED, "tf32": UNUSED},
    "dq_dkdv": {
        "half": {
            **dict.fromkeys((16, 32, 64), row((0, 16, 64, 4, 2), (48, 64, 64, 4, 2), (128,))),
            128: row((0, 16, 64, 4, 2), (48, 64, 64, 8, 2), (128,)),
            256: row((0, 16, 32, 4, 2), (48,)),
        },
        "ieee": IEEE_SMALL["dq_dkdv"],
        "bf16x6": UNUSED,
        "tf32": {
            **dict.fromkeys((16, 32, 64), row((0, 16, 64, 4, 2), (128,))),
            128: row((0, 16, 32, 4, 2), (48,)),
            256: row((0,)),
        },
    },
    "dq": {
        "half": {
            **dict.fromkeys((16, 32), row((0, 16, 64, 4, 2), (48, 64, 64, 4, 3))),
            64: row((0, 16, 64, 4, 2), (48, 64, 64, 4, 3), (256, 128, 64, 8, 2)),
            128: row((0, 16, 64, 4, 2), (48, 64, 64, 8, 2)),
            256: row((0, 16, 32, 4, 2), (48, 32, 32, 4, 2)),
        },
        "ieee": IEEE_SMALL["dq"],
        "bf16x6": UNUSED,
        "tf32": {
            **dict.fromkeys((16, 32), row((0, 16, 64, 4, 2), (48, 64, 64, 4, 2))),
            64: row((0, 16, 64, 4, 2), (48, 64, 32, 4, 2)),
            128: row((0, 16, 32, 4, 2), (48, 32, 32, 4, 1)),
            256: row((0, 16, 16, 4, 1)),
        },
    },
    "dkdv": {
        "half": {
            **dict.fromkeys((16, 32), row((0, 64, 16, 4, 2), (48, 64, 64, 4, 2))),
            64: row((0, 64, 16, 4, 2), (48, 64, 64, 4, 2), (256, 64, 128, 8, 2)),
            128: row((0, 64, 16, 4, 2), (48, 64, 64, 8, 2)),
            256: row((0, 32, 16, 4, 2), (48, 32, 32, 8, 2)),
        },
        "ieee": IEEE_SMALL["dkdv"],
        "bf16x6": UNUSED,
        "tf32": {
            **dict.fromkeys((16, 32), row((0, 64, 16, 4, 2), (48, 64, 64, 4, 2))),
            64: row((0, 32, 16, 4, 2), (48, 32, 64, 4, 2)),
            128: row((0, 32, 16, 4, 2), (48, 32, 32, 4, 1)),
            256: row((0, 16, 16, 4, 1)),
        },
    },
}
