"""Published reports: a TOML file for each, and a module for what a table cannot express. Their numbers ship as runs."""

from results.reports.declared import Report, get, names
from results.reports.layout import ReportError

__all__ = ["Report", "ReportError", "get", "names"]
