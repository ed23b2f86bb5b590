"""Whether a number can be what it says: every row, published, uploaded or own, against arithmetic, the device and the
other rows.

A finding says its arithmetic in one sentence and never hides or changes a row. A new check is a function that yields
the rows it is about with the facts of a sentence, and one table in checks.toml.
"""

import importlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from results.checks import stolen
from results.checks.finding import DECLARED, DOUBTFUL, IMPOSSIBLE, NOTE, Check, Finding, Numbers
from results.records import Measurement, Run

__all__ = ["DOUBTFUL", "IMPOSSIBLE", "NOTE", "CHECKS", "Finding", "Check", "by_rule", "check"]


def _check_of(name: str, said: dict[str, Any]) -> Check:
    module, _, function = said["look"].partition(".")
    look = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    return Check(name, said["title"], said["weight"], look, said.get("with", ()))


CHECKS = tuple(_check_of(*item) for item in DECLARED.items())  # of checks.toml


def check(
    runs: Iterable[tuple[Run, Sequence[Measurement]]], known: Iterable[tuple[Run, Sequence[Measurement]]] = ()
) -> list[Finding]:
    """Return what is wrong or doubtful in the runs. The runs of one published report are checked together.

    Each run is compared with the others and with the runs that are `known`, which are not checked themselves.
    """
    runs = list(runs)
    elsewhere = stolen.Elsewhere([*runs, *known])
    together: dict[tuple[str, str], list[tuple[Run, Sequence[Measurement]]]] = {}
    for run, measurements in runs:
        whole = run.source == "published" and run.report
        together.setdefault(("report", run.report) if whole else ("run", run.run_id), []).append((run, measurements))
    return [finding for group in together.values() for finding in _check(Numbers(group, elsewhere))]


def by_rule(findings: Sequence[Finding]) -> Iterator[tuple[Check, list[Finding]]]:
    """Yield each rule that found something with its findings, in the order of CHECKS: what is impossible first."""
    for rule in CHECKS:
        if found := [finding for finding in findings if finding.rule == rule.name]:
            yield rule, found


def _check(numbers: Numbers) -> Iterable[Finding]:
    for rule in CHECKS:
        for rows, sentence in rule.look(numbers, *rule.more):
            ids = tuple(row.measurement_id for row in rows)
            yield Finding(rule.name, rule.weight, rows[0].run_id, ids, sentence, rows[0].origin)
