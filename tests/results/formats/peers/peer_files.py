"""Excerpts of other tools' files; SOURCES.md lists where each is from, `recorded.json` what the importers read in them.

    python -m tests.results.formats.peers.peer_files

writes `recorded.json` again after an intended change; its difference is to be read line by line.
"""

import json
from pathlib import Path
from typing import Any

from results.formats import Understanding, understand
from results.records import Measurement, measurement_to_json, run_to_json

EXCERPTS = Path(__file__).parent / "excerpts"
RECORDED = Path(__file__).parent / "recorded.json"
NAMES = tuple(path.name for path in sorted(EXCERPTS.iterdir()) if path.name != "SOURCES.md")


def excerpt(name: str) -> bytes:
    return (EXCERPTS / name).read_bytes()


def understood(name: str, data: bytes | None = None) -> Understanding:
    """The excerpt under a neutral name, so that only its content can identify it."""
    return understand("file.txt", excerpt(name) if data is None else data)


def numbers(found: Understanding, metric: str) -> list[Measurement]:
    return [measurement for measurement in found.measurements if measurement.metric == metric]


def record(name: str) -> dict[str, Any]:
    """Everything that the importer reads in an excerpt, one line of text for each run and number."""
    found = understood(name)
    return {
        "format": found.format,
        "left out": list(found.left_out),
        "columns": [f"{column.header}: {column.meaning}" for column in found.columns if column.meaning],
        "questions": list(found.questions),
        "runs": [_line(run_to_json(run)) for run in found.runs],
        "numbers": [_line(measurement_to_json(measurement)) for measurement in found.measurements],
    }


def _line(fields: dict[str, Any]) -> str:
    given = {name: value for name, value in fields.items() if value not in (None, (), [], {}) and name != "run_id"}
    return json.dumps({name: given[name] for name in sorted(given) if name not in ("measurement_id", "source")})


if __name__ == "__main__":
    RECORDED.write_text(json.dumps({name: record(name) for name in NAMES}, indent=1) + "\n")
