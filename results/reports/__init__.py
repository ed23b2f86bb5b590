"""Published reports, one module each: `parse` its text into runs and measurements, `render` either in its layout."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from results.reports.layout import Grid, ReportError

__all__ = ["ReportError", "get", "grids", "names"]


@cache
def names() -> tuple[str, ...]:
    """Return the names of all reports, found by listing this folder for modules with a NAME."""
    stems = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    modules = (importlib.import_module(f"{__name__}.{stem}") for stem in stems)
    return tuple(module.NAME for module in modules if hasattr(module, "NAME"))


def get(name: str) -> ModuleType:
    """Return the module of a report: NAME, LABEL (title and GPU), TITLE, SOURCE, parse, notes, render.

    Raises ReportError if there is none.
    """
    if name not in names():
        raise ReportError(f"Unknown report {name!r}. Available: {', '.join(names())}.")
    return importlib.import_module(f"{__name__}.{name}")


def grids(name: str) -> Sequence[Grid]:
    """Return the tables of a report as described by its module. Raises ReportError if there is no such report."""
    report = get(name)
    return report.GRIDS if hasattr(report, "GRIDS") else (report.GRID,)
