"""The sweeps over attention shapes of existing models, by domain or individually."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from results.levels.real_shapes import DOMAINS, FEATURE_DOMAINS, FEATURE_SHAPES, SHAPES
from results.records import Case
from runner.sweeps.grid import STANDARD_AXES, GridAxis, Sweep, SweepFile
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


REAL_MODELS, FEATURES = (
    dataclasses.replace(sweep, description=f"{len(shapes)} {sweep.description}", domain=domains)
    for sweep, shapes, domains in zip(
        SweepFile(__file__).sweeps(RealModelsSweep), (SHAPES, FEATURE_SHAPES), (DOMAINS, FEATURE_DOMAINS), strict=True
    )
)
