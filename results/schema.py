"""The rules of record fields, declared once with `rule` in the declaration of the field. Standard library only.

`results.records` declares the fields and refuses what breaks a rule. Everything that encodes the records another way
is made from `schema_of` or tested against it: the types of an upload (results/formats/validation.py), the cells of our
own CSV (own.py), what the store takes of a line (results/store/ingest.py), its columns (schema.sql).
The names of the fields contain the units.
"""

import json
import unicodedata
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from typing import Any

from results.paths import toml_of

LARGEST_WHOLE = 999_999_999  # the largest whole number that the store takes, but where a field says otherwise
SMALLEST, LARGEST = 1e-99, 1e99  # magnitudes of the other numbers that the store takes; 0 too
MAX_TEXT = 20_000  # characters; notes hold messages of compilers
MAX_ENTRIES = 100_000  # of a list
MAX_OBJECT = 1_000_000  # characters of an object such as a sweep, as JSON
MAX_DEPTH = 20  # nested lists and objects
_TIMES = ("created", "time")  # ISO 8601
_YEARS = (1970, 2200)

KINDS: dict[str, dict[str, Any]] = toml_of(__file__, "kinds.toml")
_KINDS = {annotation: kind for kind, said in KINDS.items() for annotation in said["annotations"]}
LISTS = {kind: said["of"] for kind, said in KINDS.items() if "of" in said}  # kinds of lists, and what their entries are


@dataclass(frozen=True)
class Field:
    """A field of a record: its kind, and which values of that kind are possible."""

    name: str
    kind: str  # a key of KINDS
    nullable: bool  # None says that the source did not say; an empty list or object says so too
    choices: tuple[str, ...] = ()  # allowed texts; all texts if empty
    pattern: str = ""  # regular expression of further allowed texts
    minimum: int | None = None  # smallest whole number
    largest: int = LARGEST_WHOLE  # largest whole number
    least: float | None = None  # smallest number
    only_if_ok: bool = False  # a number that needs the status ok, and must be finite
    later: bool = False  # came after the first records: they lack it, and ids of measurements do not hold its None


def rule(default: Any = None, **rules: Any) -> Any:
    """Return a dataclass field with rules, by the names of `Field`; `default=REQUIRED` makes it a required one."""
    return field(default=default, metadata=rules)


REQUIRED = MISSING


def schema_of(record: type, *, leave_out: str = "") -> Mapping[str, Field]:
    """Return the fields of a record's class by name, in their order."""
    found = {}
    for each in fields(record):
        if each.name != leave_out:
            base = str(each.type).removesuffix(" | None")
            nullable = base != each.type or _KINDS[base] in (*LISTS, "object")
            found[each.name] = Field(each.name, _KINDS[base], nullable, **each.metadata)
    return found


def ruled(schema: Mapping[str, Field]) -> tuple[Field, ...]:
    """Return the fields whose rules are more than their kind: choices, or a least value."""
    return tuple(each for each in schema.values() if each.choices or (each.minimum, each.least) != (None, None))


def magnitude_fits(value: float) -> bool:
    """Tell whether the store takes a number of that magnitude."""
    return value == 0 or SMALLEST <= abs(value) <= LARGEST


def fault(rules: Field, value: Any) -> str | None:
    """Return why a field cannot hold the value; None if it can."""
    if rules.kind == "status":
        return None if value in rules.choices else f"{_shown(value)} is not one of {', '.join(rules.choices)}"
    if rules.kind in LISTS:
        return _list_fault(value, LISTS[rules.kind])
    return _fault(rules.kind, value, rules.largest)


def time_fault(name: str, text: Any) -> str | None:
    """Return why a field cannot hold the text if it is a time; None if it can, or if it is no time."""
    if name not in _TIMES or text is None:
        return None
    try:
        year = datetime.fromisoformat(text).year
    except ValueError:
        return f"is {_shown(text)}, not a time such as 2026-03-04T05:06:07Z"
    if not _YEARS[0] <= year <= _YEARS[1]:
        return f"is {_shown(text)}; years from {_YEARS[0]} to {_YEARS[1]} are taken"
    return None


def _fault(kind: str, value: Any, largest: int) -> str | None:
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
    if len(value) > MAX_ENTRIES:
        return f"has {len(value)} entries; at most {MAX_ENTRIES} are taken"
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
