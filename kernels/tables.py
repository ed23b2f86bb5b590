"""Decisions as data: `kernels/tuned/sm_*.json`, one file per family of chips, and the row that decides a problem.

A table names its conditions ("when"), its results ("then"), where it comes from ("source"), and has rows of both. The
first row whose conditions all hold decides. A condition is a value, null for any value, or a range: "16..64", "..64"
and "200.." include their ends. A row without results says that there is nothing to use. Where a file
has no table, that of the file named by "like" holds; a name in place of a table is the file that has it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

FORMAT, VERSION = "attnbench forms", 1
FOLDER = Path(__file__).parent / "tuned"
Row = tuple[Any, ...]
_SMALLEST = "sm_86"  # the family for a chip that holds less than any other


@dataclass(frozen=True)
class Form:
    """One way to compute: the results of a row, such as a tile with its warps, stages and programs that split walks."""

    table: str
    asked: Row  # the plain conditions, such as the kernel and the padded head_dim
    result: Row
    names: tuple[str, ...] = field(compare=False)  # of the results
    source: str = field(compare=False)  # where the row comes from
    flags: Mapping[str, bool] = field(compare=False)  # what the problem says in addition to sizes, such as causal

    @property
    def text(self) -> str:
        """Return the form as part of an implementation's name, see `kernels.forms`."""
        kernel = ".".join(map(str, (*self.table.split()[1:], *self.asked)))
        return " ".join((kernel, *(f"{name}={x}" for name, x in zip(self.names, self.result, strict=False))))

    def near(self) -> Iterator[Form]:
        """Yield this form, and those that differ in one number and need no more shared memory."""
        yield self
        for at, (name, value) in enumerate(zip(self.names, self.result, strict=False)):
            for number in (int(value * factor) for factor in _FACTORS.get(name, ())):
                if number >= (16 if name.startswith("block") else 1):  # 16: the least rows of a matrix product
                    yield replace(self, result=(*self.result[:at], number, *self.result[at + 1 :]))

    def others(self, shared_memory_bytes: int) -> list[Form]:
        """Return what the tables of all families that need no more shared memory have for other sizes."""
        found = rows(self.table, self.asked, self.flags, shared_memory_bytes)
        return [form for form in dict.fromkeys(found) if form != self]


_FACTORS = {"block_m": (0.5,), "block_n": (0.5,), "num_warps": (0.5, 2), "num_stages": (2 / 3,)}
_ASKED: list[list[Form]] = []  # lists that take down the forms which decide
_USED: ContextVar[tuple[Form, ...]] = ContextVar("forms in use", default=())  # they decide in place of the tables


@contextmanager
def asked() -> Iterator[list[Form]]:
    """Take down the forms that decide within, each once, in the order of the questions."""
    found: list[Form] = []
    _ASKED.append(found)
    try:
        yield found
    finally:
        _ASKED.pop()


@contextmanager
def using(*forms: Form) -> Iterator[None]:
    """Let plans that are made within take forms; `kernels.plans.forget` forgets those that were made before."""
    before = _USED.set((*forms, *_USED.get()))
    try:
        yield
    finally:
        _USED.reset(before)


def in_use() -> tuple[Form, ...]:
    """Return the forms that plans take now, for parts of a plan that are made later."""
    return _USED.get()


@dataclass(frozen=True)
class Table:
    """Rows of a table, grouped by the conditions that are plain values in every row."""

    name: str
    when: tuple[str, ...]
    then: tuple[str, ...]
    source: str
    plain: tuple[str, ...]
    groups: Mapping[Row, tuple[tuple[tuple[tuple[str, Any, Any], ...], Row], ...]]  # names with bounds, and results

    @classmethod
    def of(cls, name: str, record: Mapping[str, Any]) -> Table:
        """Return the table of a record of the file."""
        when, then, rows = tuple(record["when"]), tuple(record["then"]), record["rows"]
        plain = [name for at, name in enumerate(when) if not any(_is_open(row[at]) for row in rows)]
        groups: dict[Row, list[tuple[tuple[tuple[str, Any, Any], ...], Row]]] = {}
        for row in rows:
            asked = dict(zip(when, row, strict=False))
            key = tuple(asked.pop(name) for name in plain)
            conditions = tuple((name, *_bounds(cell)) for name, cell in asked.items() if cell is not None)
            groups.setdefault(key, []).append((conditions, tuple(row[len(when) :])))
        grouped = {key: tuple(found) for key, found in groups.items()}
        return cls(name, when, then, record["source"], tuple(plain), grouped)

    def every(self, **facts: Any) -> Iterator[Row]:
        """Yield the results of all rows whose conditions hold, in their order; () where a row has none."""
        key = tuple([facts[name] for name in self.plain])
        for form in _USED.get():
            if (form.table, form.asked) == (self.name, key):
                yield form.result
                return
        for conditions, result in self.groups.get(key, ()):
            for name, low, high in conditions:
                if (fact := facts[name]) != low and (low is high or not low <= fact <= high):
                    break
            else:
                if _ASKED:
                    self._take_down(key, result, facts)
                yield result

    def first(self, **facts: Any) -> Row:
        """Return the results of the row that decides; () if there is none, or if it says that there is nothing."""
        return next(self.every(**facts), ())

    def forms(self, asked: Row, flags: Mapping[str, Any]) -> Iterator[Form]:
        """Yield the forms of all rows with these plain conditions that no flag contradicts, whatever the sizes."""
        for conditions, result in self.groups.get(asked, ()):
            if all(flags.get(name, low) == low for name, low, _ in conditions):
                yield Form(self.name, asked, result, self.then, self.source, flags)

    def _take_down(self, key: Row, result: Row, facts: Mapping[str, Any]) -> None:
        flags = {name: fact for name, fact in facts.items() if isinstance(fact, bool)}
        form = Form(self.name, key, result, self.then, self.source, flags)
        for found in _ASKED:
            if form not in found:
                found.append(form)


@dataclass(frozen=True)
class Family:
    """The tables of a family of chips, and the shared memory of a block on each compute capability (90 for 9.0)."""

    name: str
    chips: Mapping[int, int]
    tables: Mapping[str, Table]

    def __getitem__(self, table: str) -> Table:
        return self.tables[table]


@cache
def family(name: str) -> Family:
    """Return the tables of a family by its name, such as "sm_90"."""
    record = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    if (record["format"], record["version"]) != (FORMAT, VERSION):
        raise ValueError(f"{name}.json has format {record['format']!r}, version {record['version']!r}.")
    tables = dict(family(record["like"]).tables) if record["like"] else {}
    for table, rows in record["tables"].items():
        tables[table] = family(rows)[table] if isinstance(rows, str) else Table.of(table, rows)
    return Family(name, {int(chip): size for chip, size in record["chips"].items()}, tables)


class Machine(NamedTuple):
    """What the tables ask of a GPU."""

    family: str
    multiprocessors: int
    capability: int  # 90 for 9.0
    l2_bytes: int  # 0 if unknown

    @property
    def words(self) -> str:
        """Return which chip's forms are used, and whether they are the chip's own."""
        if self.capability in family(self.family).chips:
            return f"forms of {self.family}"
        return f"forms of {self.family}, the nearest chip with a file to compute capability {self.capability / 10}"


@cache
def machine_of(device: torch.device) -> Machine:
    """Return the machine of a CUDA device."""
    found = torch.cuda.get_device_properties(device)
    capability = found.major * 10 + found.minor
    most_shared = found.shared_memory_per_block_optin  # type: ignore[attr-defined]  # not in PyTorch's stubs
    l2_bytes = getattr(found, "L2_cache_size", 0)
    return Machine(family_of(capability, most_shared), found.multi_processor_count, capability, l2_bytes)


@cache
def families() -> tuple[Family, ...]:
    """Return all families."""
    return tuple(family(path.stem) for path in sorted(FOLDER.glob("sm_*.json")))


def rows(table: str, asked: Row, flags: Mapping[str, Any], limit: float = math.inf) -> Iterator[Form]:
    """Yield the forms that a table has for plain conditions and flags in families of at most `limit` shared memory."""
    fitting = (each for each in families() if table in each.tables and min(each.chips.values()) <= limit)
    return (form for each in fitting for form in each[table].forms(asked, flags) if form.result)


@cache
def shared_memory() -> dict[int, int]:
    """Return the bytes that a block may use, by compute capability (CUDA C++ Programming Guide, technical table)."""
    return {chip: size for each in families() for chip, size in each.chips.items()}


@cache
def family_of(capability: int, shared_memory_bytes: int) -> str:
    """Return the name of the family for a chip: the largest tiles that it holds, then the nearest older chip."""
    fitting = [
        (size, -abs(capability - chip), each.name)
        for each in families()
        for chip, size in each.chips.items()
        if size <= shared_memory_bytes and chip <= capability
    ]
    return max(fitting, default=(0, 0, _SMALLEST))[2]


def _is_open(cell: Any) -> bool:
    return cell is None or isinstance(cell, str) and ".." in cell


def _bounds(cell: Any) -> tuple[Any, Any]:
    """Return the ends of a range; the value twice where the cell is no range."""
    if not _is_open(cell):
        return cell, cell
    low, high = cell.split("..")
    return float(low or -math.inf), float(high or math.inf)
