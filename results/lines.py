"""A measurement as one line of a journal, and back. Standard library only."""

from __future__ import annotations

import json

from results.records import Measurement, RecordError, measurement_from_json, measurement_to_json


def parse_line(line: bytes) -> Measurement:
    """The measurement of one journal line. Raises RecordError saying what is wrong with it."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # neither UTF-8 nor JSON
        raise RecordError(f"Not a complete JSON line: {line[:40]!r}.") from None
    if not isinstance(record, dict):
        raise RecordError(f"Not a JSON object: {line[:40]!r}.")
    if missing := {"run_id", "implementation", "metric", "status"} - set(record):
        raise RecordError(f"Missing fields {sorted(missing)}.")
    try:
        return measurement_from_json(record)
    except OverflowError as error:
        raise RecordError(f"A number is out of range: {error}.") from error


def line_of(measurement: Measurement) -> str:
    """The journal line of a measurement, newline included. Raises RecordError if a sample is not finite."""
    try:
        return json.dumps(measurement_to_json(measurement), allow_nan=False, separators=(",", ":")) + "\n"
    except ValueError as error:  # NaN or infinity
        what = f"{measurement.metric} of {measurement.implementation}"
        raise RecordError(f"{what} has a sample that is not finite; give it a status instead.") from error
