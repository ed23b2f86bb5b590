"""Files of run folders that came one by one, put together again: a record and its journal belong to each other."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import PurePath

Files = Sequence[tuple[str, bytes]]

_BESIDE = ("state.json", "log.txt", "run.lock", "cancel")  # what else lies in a run folder and holds no numbers


def bundled(files: Files) -> list[tuple[str, bytes]]:
    """The files, each pair of run.json and measurements.jsonl of one run as one archive under the run's name."""
    records = {run_id: at for at, file in enumerate(files) if (run_id := _of_record(*file))}
    journals = {run_id: at for at, file in enumerate(files) if (run_id := _of_journal(*file))}
    pairs = {run_id: (records[run_id], journals[run_id]) for run_id in records if run_id in journals}
    if not pairs:
        return list(files)
    taken = {at for pair in pairs.values() for at in pair}
    rest = [file for at, file in enumerate(files) if at not in taken and PurePath(file[0]).name.lower() not in _BESIDE]
    return [*((f"{name}.zip", _zip(files[a][1], files[b][1])) for name, (a, b) in pairs.items()), *rest]


def _of_record(name: str, data: bytes) -> str | None:
    """The run that a run.json is of."""
    return _run_id(data) if PurePath(name).name.lower() == "run.json" else None


def _of_journal(name: str, data: bytes) -> str | None:
    """The run that a journal is of, by its first line."""
    return _run_id(data.split(b"\n", 1)[0]) if name.lower().endswith(".jsonl") else None


def _run_id(text: bytes) -> str | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    run_id = record.get("run_id") if isinstance(record, dict) else None
    return run_id if isinstance(run_id, str) and run_id else None


def _zip(record: bytes, journal: bytes) -> bytes:
    """The same bytes each time, so that the same files are the same upload."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (("run.json", record), ("measurements.jsonl", journal)):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()
