"""The rule: the best implementation, and the best backend of PyTorch's scaled_dot_product_attention, for each shape.

It follows from stored results and is written as JSON or as a Python file without dependencies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.levels import level_of
from results.recommend import nearest as nearest_module
from results.recommend.contest import Contest, decide
from results.recommend.rule_file import RuleError
from results.recommend.winners import contests
from results.slice import Filters, level_in
from results.store.database import Store

# Names in torch.nn.attention.SDPBackend.
BACKENDS = {
    "torch_sdpa_flash": "FLASH_ATTENTION",
    "torch_sdpa_cudnn": "CUDNN_ATTENTION",
    "torch_sdpa_efficient": "EFFICIENT_ATTENTION",
    "torch_sdpa_math": "MATH",
}
POINT = (
    "mask", "mode", "dtype", "batch", "num_heads", "num_kv_heads", "seqlen", "head_dim",
    "implementation", "latency_ms", "ties", "backend", "backend_ms", "run",
)  # fmt: skip


@dataclass(frozen=True)
class ShapeRule:
    """The winners of a GPU's measured shapes."""

    gpu: str
    timing: str
    sources: tuple[str, ...]  # published, upload, local
    runs: tuple[str, ...]
    points: tuple[Mapping[str, Any], ...]  # one for each shape with a time, with the names of POINT

    @property
    def basis(self) -> str:
        """Return the source of the rule in one sentence."""
        return (
            f"The fastest correct implementation by {self.timing} time of {len(self.points)} shapes on {self.gpu}, "
            f"from {', '.join(self.runs)}; ties are those that a verdict cannot tell from it."
        )


def rule_of(store: Store, filters: Filters) -> ShapeRule:
    """Return the rule of a slice, for all modes and masks if it names none.

    Raises RuleError if nothing has a time, or if the shapes of the level have more sizes than a rule knows.
    """
    level = level_in(filters)
    if level.rows != level_of("op").rows:
        raise RuleError(
            f"A rule chooses by seqlen and head_dim; {filters.workload} has {level.columns.label} and "
            f"{level.rows.label}. Choose a workload of the operator."
        )
    cases = [each for each in contests(store, filters) if not next(iter(each.values())).measurement.case.features]
    points = tuple(point for contest in cases if (point := _point(contest)))
    if not points:
        raise RuleError(f"Nothing has a time on {filters.gpu} in this slice; choose another GPU, mode or timing.")
    sources = sorted({contender.source for contest in cases for contender in contest.values()})
    runs = tuple(sorted({point["run"] for point in points}))
    return ShapeRule(str(filters.gpu), str(filters.timing), tuple(sources), runs, points)


def choose(rule: ShapeRule, *, count: int = 1, **shape: Any) -> list[tuple[float, Mapping[str, Any]]]:
    """Return the nearest measured shapes with their distances. Raises LookupError if no dtype, mask and mode fits."""
    return nearest_module.nearest(rule.points, count=count, **shape)


def as_json(rule: ShapeRule) -> str:
    """Return the rule as data."""
    record = {"gpu": rule.gpu, "timing": rule.timing, "basis": rule.basis, "sources": rule.sources, "runs": rule.runs}
    lines = ",\n  ".join(json.dumps(dict(point)) for point in rule.points)
    return json.dumps(record)[:-1] + f', "weights": {json.dumps(nearest_module.WEIGHTS)}, "points": [\n  {lines}\n]}}\n'


def as_python(rule: ShapeRule) -> str:
    """Return the rule as a Python file with the functions `implementation`, `backend` and `why`."""
    source = Path(nearest_module.__file__).read_text(encoding="utf-8")
    nearest_code = source.partition('"""\n')[2].strip()
    rows = "".join(f"    {tuple(point[name] for name in POINT)!r},\n" for point in rule.points)
    template = Path(__file__).with_name("rule_template.txt").read_text(encoding="utf-8")
    return template.format(
        basis=_docstring(rule.basis), gpu=_docstring(rule.gpu), names=POINT, rows=rows, nearest=nearest_code
    )


def _docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")


def _point(contest: Contest) -> dict[str, Any] | None:
    """Return the point of a case of self-attention; None if nothing has a time or the shape is not stated."""
    result = decide([contest])
    first = next(iter(contest.values()))
    case = first.measurement.case
    if result.winner is None or not case.seqlen_q or not case.head_dim or not case.dtype:
        return None
    if case.seqlen_k not in (None, case.seqlen_q):
        return None
    backends = decide([{name: contender for name, contender in contest.items() if name in BACKENDS}])
    return {
        "mask": first.mask,
        "mode": first.measurement.mode,
        **{name: getattr(case, name) for name in ("dtype", "batch", "num_heads", "num_kv_heads")},
        "seqlen": case.seqlen_q,
        "head_dim": case.head_dim,
        "implementation": result.winner,
        "latency_ms": _rounded(result.latency_ms),
        "ties": result.ties,
        "backend": BACKENDS.get(backends.winner or ""),
        "backend_ms": _rounded(backends.latency_ms),
        "run": first.measurement.run_id,
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.6g}")
