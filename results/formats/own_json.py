"""The project's own JSON export: {"runs": [...], "measurements": [...]}, both as in a run folder."""

from __future__ import annotations

import json
from typing import Any

from results.formats.errors import CellError, UploadError, wall
from results.formats.tables import MAX_ROWS, check_size, decode
from results.formats.upload import Format, Rejection, Understanding, Upload
from results.formats.validation import measurement_of, run_of
from results.formats.values import strict_json
from results.records import Measurement, Run

NAME = "own_json"
DESCRIPTION = "the JSON that attnbench exports, with any number of runs"


def reason_against(upload: Upload) -> str | None:
    """Return why the file is not of this format; None if it is."""
    if upload.kind != "JSON" or upload.filename.lower().endswith(".jsonl"):
        return "It is not a JSON object with runs and measurements."
    return None


def understand(upload: Upload) -> Understanding:
    """Return the runs and measurements as they were; a rejected one is named by its number in the list."""
    check_size(upload.data)
    record = _load(upload)
    runs = _runs(record["runs"])
    measurements: dict[str, Measurement] = {}
    rejected = []
    for number, entry in enumerate(record["measurements"], start=1):
        with wall(f"{upload.filename}, measurement {number},"):
            try:
                measurement = measurement_of(entry)
                if measurement.run_id not in runs:
                    raise CellError(f"is of run {measurement.run_id[:80]!r}, which is not among the runs")
                if measurement.measurement_id in measurements:
                    raise CellError("is there twice")
            except CellError as error:
                rejected.append(Rejection(number, "measurements", json.dumps(entry)[:80], str(error)))
                continue
            measurements[measurement.measurement_id] = measurement
    if not measurements and not rejected:
        raise UploadError(f"{upload.filename} has no measurements.")
    used = {measurement.run_id for measurement in measurements.values()}
    return Understanding(
        upload=upload,
        format=NAME,
        description=f"JSON, {len(record['measurements']):,} measurements of {len(runs)} run{'s' * (len(runs) != 1)}",
        runs=tuple(run for run_id, run in runs.items() if run_id in used),
        measurements=tuple(measurements.values()),
        rejected=tuple(rejected),
    )


def _load(upload: Upload) -> dict[str, Any]:
    try:
        record = strict_json(decode(upload.data))
    except CellError as error:
        raise UploadError(f"{upload.filename} {error}.") from error
    lists = {name: record.get(name) for name in ("runs", "measurements")} if isinstance(record, dict) else {}
    if not lists or not all(isinstance(value, list) for value in lists.values()):
        raise UploadError(f"{upload.filename} is JSON, but not an object with the lists runs and measurements.")
    if len(lists["measurements"]) > MAX_ROWS:
        raise UploadError(f"{upload.filename} has {len(lists['measurements']):,} measurements; at most {MAX_ROWS:,}.")
    return lists


def _runs(records: list[Any]) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    for number, record in enumerate(records, start=1):
        try:
            run = run_of(record)
        except CellError as error:
            raise UploadError(f"Run number {number}: {error}.") from error
        if run.run_id in runs:
            raise UploadError(f"Run {run.run_id} is in the file twice.")
        runs[run.run_id] = run
    return runs


FORMAT = Format(NAME, DESCRIPTION, reason_against, understand)
