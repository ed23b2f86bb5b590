"""Validation of records from uploads: the type and size of every field."""

from __future__ import annotations

import json
import re
import statistics
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from results.formats import values
from results.formats.errors import CellError
from results.metrics import METRICS
from results.records import (
    CASE_SCHEMA,
    MEASUREMENT_SCHEMA,
    RUN_SCHEMA,
    Measurement,
    RecordError,
    Run,
    Status,
    measurement_from_json,
    run_from_json,
)
from results.schema import LARGEST, LARGEST_WHOLE, LISTS, SMALLEST, Field, magnitude_fits
from results.spread import spread

MAX_TEXT = 20_000  # notes hold messages of compilers
MAX_SAMPLES = 100_000
MAX_OBJECT = 1_000_000  # characters of an object such as a sweep, as JSON
MAX_DEPTH = 20  # nested lists and objects
_STATUSES = tuple(map(str, Status))
_MEASUREMENT_ID = Field("measurement_id", "text", nullable=True)
_LINE = {**MEASUREMENT_SCHEMA, **CASE_SCHEMA, "measurement_id": _MEASUREMENT_ID}  # the fields of a line of a journal
_NAMES = ("implementation", "baseline", "subject", "gpu_name", "cpu", "report")  # fields that pages show
_TIMES = ("created", "time")  # ISO 8601
_YEARS = (1970, 2200)
_OF_SAMPLES = ("mean", "std", "p20", "p80", "ci_low", "ci_high")
_SAMPLE_DIGITS = 1e-5  # relative to the largest sample: samples are kept with six digits, statistics with all
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}", re.ASCII)


def run_of(record: Any) -> Run:
    """Return the run of a record, as an upload. Raises CellError that names the field and the rule."""
    if not isinstance(record, dict):
        raise CellError("is not an object")
    for name, value in record.items():
        _check(name, value, RUN_SCHEMA)
    check_run_id(str(record.get("run_id") or ""))
    try:
        run = run_from_json(record)
    except RecordError as error:
        raise CellError(str(error).rstrip(".")) from error
    return replace(run, source="upload")


def measurement_of(record: Any) -> Measurement:
    """Return the measurement of a record. Raises CellError that names the field and the rule."""
    if not isinstance(record, dict):
        raise CellError("is not an object")
    for name, value in record.items():
        _check(name, value, _LINE)
    check_metric(record.get("metric"))
    try:
        return with_its_samples(measurement_from_json(record))
    except RecordError as error:
        raise CellError(str(error).rstrip(".")) from error


def with_its_samples(measurement: Measurement) -> Measurement:
    """Return the measurement with missing statistics filled in from its samples.

    Raises CellError if a stated statistic contradicts the samples, or if a time is too long.
    """
    numbers = (measurement.value, measurement.mean, *measurement.samples)
    if excess := METRICS[measurement.metric].excess(max((n for n in numbers if n is not None), default=0.0)):
        raise CellError(f"{measurement.metric} {excess}")
    if not measurement.samples or measurement.value is None or not METRICS[measurement.metric].repeats:
        return measurement
    found = spread(measurement.samples)
    middle = {"median": found["value"], "mean": found["mean"], "max": max(measurement.samples)}
    gives = {name: found[name] for name in _OF_SAMPLES} | {"value": middle.get(measurement.statistic or "median")}
    wrong = {
        name: number
        for name, number in gives.items()
        if None not in (getattr(measurement, name), number)
        and not _agree(getattr(measurement, name), number, measurement.samples)
    }
    if "std" in wrong and _agree(measurement.std, statistics.pstdev(measurement.samples), measurement.samples):
        measurement = replace(measurement, std=wrong.pop("std"))  # their standard deviation divides by n
    for name, number in wrong.items():
        said, count = getattr(measurement, name), len(measurement.samples)
        raise CellError(f"{name} is {said:.6g}, but its {count} samples give {number:.6g}")
    missing = {name: number for name, number in gives.items() if getattr(measurement, name) is None}
    return replace(measurement, **missing, n=len(measurement.samples))


def _agree(said: float, number: float, samples: Sequence[float]) -> bool:
    return abs(said - number) <= _SAMPLE_DIGITS * max(samples)


def check_run_id(run_id: str) -> None:
    """Raise CellError if the id cannot be the name of a folder on every system."""
    if not _RUN_ID.fullmatch(run_id):
        raise CellError(f"run_id {run_id[:80]!r} is not of letters, digits and . _ - (at most 120, no leading dot)")


def check_metric(metric: Any) -> None:
    """Raise CellError if there is no such metric."""
    if metric not in METRICS:
        raise CellError(f"metric {str(metric)[:80]!r} is not one of {', '.join(METRICS)}")


def check_text(name: str, value: Any) -> None:
    """Raise CellError if a time is malformed, or if a name that pages show has markup."""
    if name in _TIMES:
        _check_time(name, value)
    if name in _NAMES:
        try:
            values.refuse_markup(value)
        except CellError as error:
            raise CellError(f"{name} {error}") from error


def fault(rules: Field, value: Any) -> str | None:
    """Return why a field cannot hold the value; None if it can."""
    if rules.kind in LISTS:
        return _list_fault(value, LISTS[rules.kind])
    return _fault(rules.kind, value, rules.largest)


def _check(name: str, value: Any, schema: Mapping[str, Field]) -> None:
    if name not in schema:
        raise CellError(f"has the unknown field {name[:80]!r}")
    if value is None and schema[name].nullable:
        return
    reason = fault(schema[name], value)
    if reason:
        raise CellError(f"{name} {reason}")
    check_text(name, value)


def _check_time(name: str, text: str) -> None:
    try:
        year = datetime.fromisoformat(text).year
    except ValueError:
        raise CellError(f"{name} is {_shown(text)}, not a time such as 2026-03-04T05:06:07Z") from None
    if not _YEARS[0] <= year <= _YEARS[1]:
        raise CellError(f"{name} is {_shown(text)}; years from {_YEARS[0]} to {_YEARS[1]} are taken")


def _fault(kind: str, value: Any, largest: int) -> str | None:
    if kind == "status":
        return None if value in _STATUSES else f"{_shown(value)} is not one of {', '.join(_STATUSES)}"
    if kind == "text":
        return _text_fault(value)
    if kind == "boolean":
        return None if isinstance(value, bool) else f"is {_shown(value)}; possible are true and false"
    if kind in ("whole", "number"):
        return _number_fault(value, kind, largest)
    return _object_fault(value)


def _text_fault(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"is {_shown(value)}, not text"
    if len(value) > MAX_TEXT:
        return f"has {len(value)} characters; at most {MAX_TEXT} are taken"
    if value.isprintable():
        return None
    for character in value:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs") and character not in "\n\t\r":
            return f"has the control character U+{ord(character):04X}"
    return None


def _number_fault(value: Any, kind: str, largest: int) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float if kind == "number" else int):
        return f"is {_shown(value)}, not a {'whole ' if kind == 'whole' else ''}number"
    if kind == "whole":
        return None if abs(value) <= largest else "is too large"
    return None if magnitude_fits(value) else f"is {value!r:.40}; numbers are 0 or between {SMALLEST:g} and {LARGEST:g}"


def _list_fault(value: Any, kind: str) -> str | None:
    if not isinstance(value, list | tuple):
        return f"is {_shown(value)}, not a list"
    if len(value) > MAX_SAMPLES:
        return f"has {len(value)} entries; at most {MAX_SAMPLES} are taken"
    return next((f"holds one that {reason}" for entry in value if (reason := _fault(kind, entry, LARGEST_WHOLE))), None)


def _object_fault(value: Any) -> str | None:
    if not isinstance(value, dict):
        return f"is {_shown(value)}, not an object"
    inside: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inside = [entry for node in inside for entry in (node.values() if isinstance(node, dict) else node)]
        inside = [entry for entry in inside if isinstance(entry, dict | list)]
        if not inside:
            size = len(json.dumps(value))
            return f"has {size:,} characters; at most {MAX_OBJECT:,} are taken" if size > MAX_OBJECT else None
    return f"holds more than {MAX_DEPTH} lists and objects in one another"


def _shown(value: Any) -> str:
    return repr(value)[:80]
