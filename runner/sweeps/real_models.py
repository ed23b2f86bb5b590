"""The sweeps over attention shapes of existing models, by domain or individually."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from results.levels.real_shapes import DOMAINS, FEATURE_DOMAINS, FEATURE_SHAPES, SHAPES
from results.records import Case
from runner.sweeps.grid import STANDARD_AXES, GridAxis, Sweep
from runner.sweeps.op import OpSweep

NAMES = tuple(shape.name for shape in (*SHAPES, *FEATURE_SHAPES))


@dataclass(frozen=True, kw_only=True)
class RealModelsSweep(Sweep):
    """Shapes of `results.levels.real_shapes` in the given domains, optionally only the named ones."""

    LEVEL = "op"
    AXES = (
        GridAxis("domain", "text", DOMAINS + FEATURE_DOMAINS, first=True),
        dataclasses.replace(STANDARD_AXES["dtype"], first=True),
        GridAxis("shape", "text", NAMES, about="Empty: all shapes of the domains.", of_a_cell="one"),
        next(axis for axis in OpSweep.AXES if axis.name == "modes"),
        STANDARD_AXES["timings"],
    )
    FOLDED = "Single shapes, modes and timings"
    FOLDED_OF_A_CELL = ""

    domain: tuple[str, ...] = DOMAINS
    shape: tuple[str, ...] = ()  # names; empty: all shapes of the domains
    dtype: tuple[str, ...] = ("bfloat16",)
    modes: tuple[str, ...] = ("fwd", "bwd", "fwd_bwd")
    baseline: str = "torch_sdpa_auto"

    def _cases(self) -> Iterator[Case]:
        for shape in (*SHAPES, *FEATURE_SHAPES):
            if shape.domain in self.domain and (not self.shape or shape.name in self.shape):
                yield from map(shape.in_dtype, self.dtype)


REAL_MODELS = RealModelsSweep(
    name="real_models",
    description=f"{len(SHAPES)} shapes of attention in language, vision, image, video, speech and protein models",
    implementations=(
        "torch_sdpa_auto",
        "torch_sdpa_flash",
        "torch_sdpa_cudnn",
        "torch_sdpa_efficient",
        "triton_fa2",
        "gluon_hopper",
        *OpSweep.PEERS,
    ),
)
FEATURES = RealModelsSweep(
    name="features",
    description=f"{len(FEATURE_SHAPES)} shapes of models with softcap, sinks, ALiBi, prefixes, documents and the like",
    domain=FEATURE_DOMAINS,
    baseline="torch_flex",
    implementations=(
        "torch_naive",
        "torch_sdpa_auto",
        "torch_sdpa_cudnn",
        "torch_sdpa_efficient",
        "torch_flex",
        "torch_varlen",
        "triton_fa2",
        "gluon_hopper",
        *OpSweep.PEERS,
    ),
)
