"""Published reports: a TOML file for each, and a module for what a table cannot express. Their numbers ship as runs."""

from results.reports.declared import Report, names, read
from results.reports.layout import ReportError

__all__ = ["Report", "ReportError", "get", "names"]


def get(name: str) -> Report:
    """Return a report by its name. Raises ReportError for an unknown name."""
    if name not in names():
        raise ReportError(f"Unknown report {name!r}. Available: {', '.join(names())}.")
    return read(name)
