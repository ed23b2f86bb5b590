"""Validation of records from uploads: the type and size of every field."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from results import records
from results.files.columns import SCHEMA
from results.formats import values
from results.formats.errors import CellError
from results.metrics import METRICS
from results.records import Measurement, RecordError, Run
from results.schema import Field, fault, time_fault
from results.spread import spread

_MEASUREMENT_ID = Field("measurement_id", "text", nullable=True)
_LINE = {**SCHEMA, "measurement_id": _MEASUREMENT_ID}  # the fields of a line of a journal
_NAMES = ("implementation", "baseline", "subject", "gpu_name", "cpu", "report")  # fields that pages show
_OF_SAMPLES = ("mean", "std", "p20", "p80", "ci_low", "ci_high")
_SAMPLE_DIGITS = 1e-5  # relative to the largest sample: samples are kept with six digits, statistics with all
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}", re.ASCII)


def run_of(record: Any) -> Run:
    """Return the run of a record, as an upload. Raises CellError that names the field and the rule."""
    if not isinstance(record, dict):
        raise CellError("is not an object")
    run_id = str(record.get("run_id") or "")
    if not _RUN_ID.fullmatch(run_id):  # it becomes the name of a folder, on every system
        raise CellError(f"run_id {run_id[:80]!r} is not of letters, digits and . _ - (at most 120, no leading dot)")
    try:
        run = records.run_from_json(record)
    except RecordError as error:
        raise CellError(str(error).rstrip(".")) from error
    for name in _NAMES:
        check_text(name, record.get(name))
    return replace(run, source="upload")


def measurement_of(record: Any) -> Measurement:
    """Return the measurement of a record. Raises CellError that names the field and the rule."""
    if not isinstance(record, dict):
        raise CellError("is not an object")
    for name, value in record.items():
        _check(name, value)
    check_metric(record.get("metric"))
    try:
        return with_its_samples(records.measurement_from_json(record))
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


def check_metric(metric: Any) -> None:
    """Raise CellError if there is no such metric."""
    if metric not in METRICS:
        raise CellError(f"metric {str(metric)[:80]!r} is not one of {', '.join(METRICS)}")


def check_text(name: str, value: Any) -> None:
    """Raise CellError if a time is malformed, or if a name that pages show has markup."""
    if reason := time_fault(name, value):
        raise CellError(f"{name} {reason}")
    if name in _NAMES and value is not None:
        try:
            values.refuse_markup(value)
        except CellError as error:
            raise CellError(f"{name} {error}") from error


def _check(name: str, value: Any) -> None:
    if name not in _LINE:
        raise CellError(f"has the unknown field {name[:80]!r}")
    if value is None and _LINE[name].nullable:
        return
    if reason := fault(_LINE[name], value):
        raise CellError(f"{name} {reason}")
    check_text(name, value)
