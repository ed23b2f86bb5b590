"""The rules of record fields, declared once with `rule` in the declaration of the field. Standard library only.

`results.records` declares the fields and refuses what breaks a rule. Everything that encodes the records another way
is made from `schema_of` or tested against it: the types of an upload (results/formats/validation.py), the cells of our
own CSV (own_csv.py), the pattern of a journal's line (results/store/ingest.py), the columns of the store (schema.sql).
The names of the fields contain the units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

LARGEST_WHOLE = 999_999_999  # the largest whole number that the store takes, but where a field says otherwise
SMALLEST, LARGEST = 1e-99, 1e99  # magnitudes of the other numbers that the store takes; 0 too

# How a field's annotation is called by everything that is made from it.
_KINDS = {
    "str": "text",
    "Status": "status",
    "int": "whole",
    "float": "number",
    "bool": "boolean",
    "tuple[float, ...]": "numbers",
    "tuple[str, ...]": "texts",
    "tuple[int, ...]": "wholes",
    "dict[str, Any]": "object",
    "dict[str, float]": "object",
    "dict[str, dict[str, Any]]": "object",
}
LISTS = {"numbers": "number", "texts": "text", "wholes": "whole"}  # kinds of lists, and what their entries are


@dataclass(frozen=True)
class Field:
    """A field of a record: its kind, and which values of that kind are possible."""

    name: str
    kind: str  # one of the values of _KINDS
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
