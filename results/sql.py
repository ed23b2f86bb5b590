"""Queries that are written in a .sql file next to the module that asks them.

A query begins at a line `-- name: NAME`. A name in braces is one of FRAGMENTS, or is given by the module.
"""

import re
from pathlib import Path

from results import slice as parts
from results.counting import MEASURED, compared_run
from results.records import CASE_FIELDS

_NAMED = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_OF_SLICE = (
    "RESULTS", "WORKLOAD", "MASK", "LEVEL", "SEQLEN", "SHAPE", "TIMING", "MODE", "GPU", "CASE_KEY", "NOT_STATED",
    "NEWEST_FIRST",
)  # fmt: skip
FRAGMENTS = {name: getattr(parts, name) for name in _OF_SLICE} | {
    "CASE_FIELDS": ", ".join(CASE_FIELDS),
    "MEASURED": MEASURED.format(of=parts.CASE_KEY),
    "COMPARED_RUN": compared_run(parts.CASE_KEY),
}


class SqlFile:
    """The queries of a module by name."""

    def __init__(self, module_file: str) -> None:
        text = Path(module_file).with_suffix(".sql").read_text(encoding="utf-8")
        _, *found = _NAMED.split(text)
        self._texts = dict(zip(found[::2], found[1::2], strict=True))

    def __call__(self, name: str, **given: object) -> str:
        """Return a query with its fragments filled in."""
        return self._texts[name].format(**FRAGMENTS, **given).strip()

    def filled(self, **given: object) -> dict[str, str]:
        """Return every query by name, all with the same fragments."""
        return {name: self(name, **given) for name in self._texts}
