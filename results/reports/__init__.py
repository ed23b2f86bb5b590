"""Published reports, one module each: its tables and claims as data. Their numbers ship as runs."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

from results.reports.layout import ReportError

__all__ = ["ReportError", "get", "names"]


@cache
def names() -> tuple[str, ...]:
    """Return the names of all reports: the modules of this folder that have a NAME."""
    stems = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    modules = (importlib.import_module(f"{__name__}.{stem}") for stem in stems)
    return tuple(module.NAME for module in modules if hasattr(module, "NAME"))


def get(name: str) -> ModuleType:
    """Return the module of a report: NAME, LABEL, TITLE, SOURCE, IMPLEMENTATIONS, GRIDS and CLAIMS.

    A module can also have more_sections, EVIDENCE and GRIDS_BY_FORMULA. Raises ReportError for an unknown name.
    """
    if name not in names():
        raise ReportError(f"Unknown report {name!r}. Available: {', '.join(names())}.")
    return importlib.import_module(f"{__name__}.{name}")
