"""What is known of an implementation by its name: precision, memory law, colour, family.

A run records what each of its implementations declares (`Run.implementations`). Runs from before that was recorded, and
implementations of published reports, are looked up in the table below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from results.levels.memory import MemoryLaw, law_from_json
from results.levels.tensors import BF16X6

FP8 = "float8_e4m3fn"
PRECISIONS = ("tf32", "fp8")
_IN_PARTS = range(17, 129)
_HOPPER = re.compile(r"\bG?H(?:20|100|200|800)\b")
Declared = Mapping[str, Mapping[str, Any]]  # by name, as a run records it

_MATRIX, _LINEAR = {"growth": "matrix"}, {"growth": "linear"}
_FORWARD = {"fwd": {"numbers": 1}}
_SUMS_OF_DQ = {"numbers": 2, "queries_float32": 1}
_OWN_GRADIENTS = {**_LINEAR, **_FORWARD, "fwd_bwd": {"numbers": 2}}  # each gradient summed within a block
_SPLIT = {"split_rows": [32768, 131072], "split_most": [8, 16]}
_TRANSPOSED = {
    "fwd": {"numbers": 1, "copies_float32": 1, "parts_float32": 3, **_SPLIT},
    "fwd_bwd": {"numbers": 2, "copies_float32": 4, "parts_float32": 4},
}
_WINDOW = {"window_mask_bytes": 2, "window_copies": 1.5, "sum_head_dim": 64}
_FLOAT32_MATRICES = {"matrices": 4, "float32_matrices": True, "upcast": 1}
_SAFE_SOFTMAX = {"matrices": 2.25, "float32_matrices": True, "upcast": 4, "mask_bytes": 4}
_QUANTISED = {"quantised_rows": 128, "quantised_head_dims": [64, 128, 256]}
_DQ_SUMS = {"numbers": 3, "queries_float32": 1, "grouped_float32": 1}

# As declared in November 2026. Colours: Okabe and Ito's palette, which people with a colour vision deficiency can tell
# apart, and further tones of it.
_BEFORE: dict[str, dict[str, Any]] = {
    "torch_naive": {
        "memory": {**_MATRIX, "fwd": {"matrices": 2, "scaled": 1}, "fwd_bwd": {"matrices": 4, "mask_bytes": 1}},
        "colour": "#7f7f7f",
    },
    "torch_sdpa_auto": {
        "memory": {"fwd": {"numbers": 1, "window_mask_bytes": 3}, "fwd_bwd": {**_SUMS_OF_DQ, **_WINDOW}},
        "colour": "#56b4e9",
    },
    "torch_sdpa_flash": {
        "memory": {**_LINEAR, **_FORWARD, "fwd_bwd": {**_SUMS_OF_DQ, "copies": 2, "sum_head_dim": 32}},
        "colour": "#0072b2",
    },
    "torch_sdpa_cudnn": {"memory": {**_LINEAR, **_FORWARD, "fwd_bwd": _SUMS_OF_DQ}, "colour": "#009e73"},
    "torch_sdpa_efficient": {
        "memory": {
            **_LINEAR,
            "fwd": {"numbers": 1, "out_float32_above": 128},
            "fwd_bwd": {**_SUMS_OF_DQ, "copies": 1, "sum_head_dim": 64},
        },
        "colour": "#cc79a7",
    },
    "torch_sdpa_math": {
        "memory": {**_MATRIX, "fwd": _SAFE_SOFTMAX, "fwd_bwd": _FLOAT32_MATRICES},
        "colour": "#a6761d",
    },
    "triton_fa2": {"family": "own", "memory": {**_LINEAR, **_TRANSPOSED}, "colour": "#e69f00", "float32": BF16X6},
    "triton_fa2_tf32": {"family": "own", "memory": _OWN_GRADIENTS, "colour": "#d55e00", "precision": "tf32"},
    "gluon_hopper": {
        "family": "own",
        "memory": {
            **_LINEAR,
            **_FORWARD,
            "fwd_bwd": {**_SUMS_OF_DQ, "ring_bytes": 32 << 20, "ring_seqlen": 16384, "sum_head_dim": 64},
        },
        "colour": "#6a3d9a",
    },
    "gluon_fp8": {"family": "own", "memory": {**_LINEAR, "fwd": _QUANTISED}, "colour": "#c1121f", "precision": "fp8"},
    "flash_attn_4": {"memory": {**_LINEAR, **_FORWARD, "fwd_bwd": _DQ_SUMS}, "colour": "#c51b8a"},
    "torch_flex": {
        "memory": {**_LINEAR, "fwd": {"numbers": 2}, "fwd_bwd": {"numbers": 2}},
        "colour": "#66a61e",
    },
    # published reports
    "standard": {"memory": _MATRIX},
    "naive": {"memory": _MATRIX},
    "flash_attn_2": {"memory": _LINEAR},
    "flash_attn_3_fp16": {"memory": _LINEAR},
    "flash_attn_3_fp8": {"precision": "fp8"},
}


@dataclass(frozen=True)
class ImplementationFacts:
    """What an implementation declares, as far as it is known."""

    family: str | None = None  # pytorch, own or peer
    precision: str | None = None  # one of PRECISIONS if factors have fewer bits than the case's dtype
    memory: MemoryLaw = MemoryLaw()
    float32: str | None = None  # BF16X6 where float32 products are made of bfloat16 ones
    colour: str | None = None  # in charts, #rrggbb

    @property
    def reduced(self) -> bool:
        """Return whether it computes in another precision than its column's dtype, and so wins nothing there."""
        return self.precision is not None

    @property
    def tf32(self) -> bool:
        """Return whether it rounds the factors of float32 products to TF32."""
        return self.precision == "tf32"

    def multiplies(self, dtype: str | None, head_dim: int | None = None, gpu_name: str | None = None) -> str | None:
        """Return what its matrix products take, which is what bounds its speed: a dtype, or BF16X6.

        `triton_fa2` multiplies float32 in six bfloat16 products on Hopper at head_dim 17 to 128, else in IEEE float32.
        """
        if dtype == "float32" and self.float32 == BF16X6 and head_dim in _IN_PARTS and _HOPPER.search(gpu_name or ""):
            return BF16X6
        return FP8 if self.precision == "fp8" else dtype


def facts_of(name: str, declared: Declared | None = None) -> ImplementationFacts:
    """Return what is known of an implementation; what `declared` says of it comes before the table here.

    A declaration comes from a run's record, which anybody may have written: what it says in a way that is not possible
    counts as not said.
    """
    said = (declared or {}).get(name)
    return _facts_before(name) if said is None else _facts(name, said)


@cache
def _facts_before(name: str) -> ImplementationFacts:
    return _facts(name, _BEFORE.get(name, {}))


def version_name(name: str, label: str) -> str:
    """Return the name under which a run holds another version of an implementation; its own without a label."""
    return f"{name}@{label}" if label else name


def known_names() -> tuple[str, ...]:
    """Return the names of which something is known without a run that declares it."""
    return tuple(_BEFORE)


def _facts(name: str, said: Mapping[str, Any]) -> ImplementationFacts:
    precision, colour = said.get("precision"), said.get("colour")
    family = said.get("family", _BEFORE.get(name, {}).get("family"))
    if "precision" not in said:  # before it was declared, names ended with it
        precision = next((each for each in PRECISIONS if name.endswith(f"_{each}")), None)
    try:
        law = law_from_json(said.get("memory"))
    except ValueError:
        law = MemoryLaw()
    return ImplementationFacts(
        family=family if isinstance(family, str) else None,
        precision=precision if precision in PRECISIONS else None,
        memory=law,
        float32=_BEFORE.get(name, {}).get("float32"),
        colour=colour if isinstance(colour, str) and re.fullmatch("#[0-9a-f]{6}", colour) else None,
    )
