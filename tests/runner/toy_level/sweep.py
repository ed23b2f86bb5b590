"""Sweeps of level softmax. A made-up level, copied to runner/sweeps/softmax.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from results.levels.softmax import softmax_case
from results.records import Case
from runner.sweeps.grid import STANDARD_AXES, GridAxis, Sweep


@dataclass(frozen=True, kw_only=True)
class SoftmaxSweep(Sweep):
    LEVEL = "softmax"
    AXES = (GridAxis("rows"), GridAxis("columns"), STANDARD_AXES["dtype"], STANDARD_AXES["timings"])
    FOLDED = FOLDED_OF_A_CELL = ""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    dtype: tuple[str, ...] = ("float32",)
    modes: tuple[str, ...] = ("fwd",)

    def _cases(self) -> Iterator[Case]:
        for sizes in product(self.rows, self.columns, self.dtype):
            yield softmax_case(*sizes)


SWEEP = SoftmaxSweep
SWEEPS = (
    SoftmaxSweep(
        name="softmax",
        description="The softmax of small matrices",
        rows=(16, 32),
        columns=(8,),
        implementations=("torch_naive", "by_exp", "unscaled"),
    ),
)
