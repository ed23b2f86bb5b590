"""Records that somebody else wrote: every field's type and size is checked before it becomes a Run or a Measurement."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from results.formats.errors import CellError
from results.formats.values import LARGEST, LARGEST_WHOLE, SMALLEST, fits
from results.metrics import METRICS
from results.records import (
    Case,
    Measurement,
    RecordError,
    Run,
    Status,
    measurement_from_json,
    run_from_json,
)

MAX_TEXT = 20_000  # notes hold messages of compilers
MAX_SAMPLES = 100_000
RUN_TYPES = {f.name: str(f.type) for f in fields(Run)}
CASE_TYPES = {f.name: str(f.type) for f in fields(Case)}
MEASUREMENT_TYPES = {f.name: str(f.type) for f in fields(Measurement) if f.name != "case"}

_STATUSES = tuple(map(str, Status))
_MAY_BE_NONE = ("| None", "]")  # lists and objects too: empty then
_BIG = {"seed"}  # whole numbers of 64 bits in the store; the others less
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}", re.ASCII)


def run_of(record: Any) -> Run:
    """The run of a record, as an upload. Raises CellError saying which field breaks which rule."""
    if not isinstance(record, dict):
        raise CellError("is not an object")
    for name, value in record.items():
        _check(name, value, RUN_TYPES)
    check_run_id(str(record.get("run_id") or ""))
    try:
        run = run_from_json(record)
    except RecordError as error:
        raise CellError(str(error).rstrip(".")) from error
    return replace(run, source="upload")


def measurement_of(record: Any) -> Measurement:
    """The measurement of a record. Raises CellError saying which field breaks which rule."""
    if not isinstance(record, dict):
        raise CellError("is not an object")
    types = MEASUREMENT_TYPES | CASE_TYPES | {"measurement_id": "str | None"}
    for name, value in record.items():
        _check(name, value, types)
    check_metric(record.get("metric"))
    try:
        return measurement_from_json(record)
    except RecordError as error:
        raise CellError(str(error).rstrip(".")) from error


def check_run_id(run_id: str) -> None:
    """Raises CellError if the id cannot be the name of a folder everywhere."""
    if not _RUN_ID.fullmatch(run_id):
        raise CellError(f"run_id {run_id[:80]!r} is not of letters, digits and . _ - (at most 120, no leading dot)")


def check_metric(metric: Any) -> None:
    """Raises CellError if there is no such metric."""
    if metric not in METRICS:
        raise CellError(f"metric {str(metric)[:80]!r} is not one of {', '.join(METRICS)}")


def fault(name: str, value: Any, kind: str) -> str | None:
    """Why the value of a field is not of that kind (a type as records.py writes it); None if it is."""
    base = kind.partition(" |")[0]
    if base == "Status":
        return None if value in _STATUSES else f"{_shown(value)} is not one of {', '.join(_STATUSES)}"
    if base == "str":
        return _text_fault(value)
    if base == "bool":
        return None if isinstance(value, bool) else f"is {_shown(value)}; possible are true and false"
    if base in ("int", "float"):
        return _number_fault(value, base, 2**63 - 1 if name in _BIG else LARGEST_WHOLE)
    if base.startswith("tuple"):
        return _list_fault(value, next(kind for kind in ("str", "int", "float") if kind in base))
    return None if isinstance(value, dict) else f"is {_shown(value)}, not an object"


def _check(name: str, value: Any, types: Mapping[str, str]) -> None:
    if name not in types:
        raise CellError(f"has the unknown field {name[:80]!r}")
    if value is None and types[name].endswith(_MAY_BE_NONE):
        return
    reason = fault(name, value, types[name])
    if reason:
        raise CellError(f"{name} {reason}")


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
    if isinstance(value, bool) or not isinstance(value, int | float if kind == "float" else int):
        return f"is {_shown(value)}, not a {'whole ' if kind == 'int' else ''}number"
    if kind == "int":
        return None if abs(value) <= largest else "is too large"
    return None if fits(value) else f"is {value!r:.40}; numbers are 0 or between {SMALLEST:g} and {LARGEST:g}"


def _list_fault(value: Any, kind: str) -> str | None:
    if not isinstance(value, list | tuple):
        return f"is {_shown(value)}, not a list"
    if len(value) > MAX_SAMPLES:
        return f"has {len(value)} entries; at most {MAX_SAMPLES} are taken"
    return next((f"holds one that {reason}" for entry in value if (reason := fault("", entry, kind))), None)


def _shown(value: Any) -> str:
    return repr(value)[:80]
