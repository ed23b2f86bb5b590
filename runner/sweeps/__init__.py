"""Sweeps as data, one module per level. A new sweep is one table in the TOML file of its level.

Sweeps that are not grids are in `real_models` (shapes of existing models) and `given` (the cases of a table).
"""

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results.records import LEVELS
from runner.sweeps import given
from runner.sweeps.given import GivenSweep
from runner.sweeps.grid import GridAxis, Sweep, SweepError
from runner.sweeps.real_models import FEATURES, REAL_MODELS, RealModelsSweep

__all__ = (
    "SWEEPS", "GridAxis", "Sweep", "SweepError", "axes_of", "changes_of", "from_json", "get", "override", "to_json",
)  # fmt: skip


_MODULES = {path.stem for path in Path(__file__).parent.glob("[!_]*.py")}
_CLASSES: dict[str, type[Sweep]] = {  # by level, in the order of the levels
    name: importlib.import_module(f"{__name__}.{name}").SWEEP for name in LEVELS if name in _MODULES
}
_NO_GRIDS: dict[str, type[Sweep]] = {"given": GivenSweep, "domain": RealModelsSweep}  # by a field that only they have
SWEEPS: dict[str, Sweep] = {
    sweep.name: sweep for level in _CLASSES for sweep in importlib.import_module(f"{__name__}.{level}").SWEEPS
} | {sweep.name: sweep for sweep in (REAL_MODELS, FEATURES, *given.SWEEPS)}


def get(name: str) -> Sweep:
    """Return the sweep of that name. Raises SweepError with the names that exist."""
    if name not in SWEEPS:
        raise SweepError(f"Unknown sweep {name!r}. Available: {', '.join(sorted(SWEEPS))}.")
    return SWEEPS[name]


def axes_of(sweep: Sweep) -> dict[str, GridAxis]:
    """Return the axes of a sweep by name."""
    return {axis.name: axis for axis in sweep.AXES}


def changes_of(texts: Sequence[str]) -> dict[str, str]:
    """Return the changes for `override` from texts such as "seqlen=1024,2048". Raises SweepError for other texts."""
    found: dict[str, str] = {}
    for text in texts:
        axis, equals, values = text.partition("=")
        axis = axis.strip()
        if not equals:
            raise SweepError(f"--set {text!r} is not AXIS=VALUES, such as seqlen=1024,2048.")
        if axis in found:
            raise SweepError(
                f"--set {axis} is given twice; give all its values at once: {axis}={found[axis]},{values}."
            )
        found[axis] = values
    return found


def override(sweep: Sweep, changes: dict[str, str]) -> Sweep:
    """Return the sweep with axes replaced by comma-separated lists as typed: {"seqlen": "1024,2048"}.

    Raises SweepError for an unknown axis or value.
    """
    values: dict[str, Any] = {}
    axes = axes_of(sweep)
    for name, text in changes.items():
        if name not in axes:
            raise SweepError(f"Unknown axis {name!r}. Possible: {', '.join(axes)}.")
        parts = [] if axes[name].optional and not text.strip() else text.split(",")
        values[name] = tuple(dict.fromkeys(axes[name].parse(part.strip()) for part in parts))
    without = {rule: None for axis, rule in sweep.RULES.items() if axis in values}  # rules that derived these values
    changed = dataclasses.replace(sweep, **values, **without)
    changed.cases()
    return changed


def to_json(sweep: Sweep) -> dict[str, Any]:
    """Return the sweep as plain data, for the run's record; `from_json` is its inverse."""
    return {"level": sweep.level, **dataclasses.asdict(sweep)}


def from_json(record: dict[str, Any]) -> Sweep:
    """Return the sweep of a run's record; fields that the record lacks have their defaults.

    Records of the first runs have the fields of all levels; those of other levels are ignored. Raises TypeError if a
    field without a default is missing, and KeyError for a level without sweeps.
    """
    apart = (kind for name, kind in _NO_GRIDS.items() if name in record)
    kind = next(apart, None) or _CLASSES[record.get("level", "op")]
    own = {field.name for field in dataclasses.fields(kind)}
    found: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record.items() if name in own
    }
    return kind(**found)
