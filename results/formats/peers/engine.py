"""The one importer of other tools' files. A tool is declared as a `Peer`: columns, units, statuses, names and facts.

What a table can express is in the TOML file next to the tool's module, which `PeerFile` reads.

A file becomes entries (`sources`), an entry becomes rows (`Peer.split`), and a row becomes one measurement for each
declared `Number`. Only what a table cannot express is a function of the declaration.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

from results.formats import values
from results.formats.errors import CellError
from results.formats.peers import sources
from results.formats.peers.collected import AGREES, MAX_NOTE, Collected
from results.formats.peers.sources import Entry, Found, Row
from results.formats.upload import Column, Understanding, Upload
from results.paths import toml_of
from results.records import Case, Status

# The same for all rows, a function of the row, or the words of a column.
Choice = str | None | Callable[[Row], str | None] | Mapping[str, Any]
MAX_SAMPLES = 10_000
_DTYPES = {"fp8": "float8_e4m3fn", "mxfp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn"}
_NOT_FINITE = ("inf", "-inf", "+inf", "nan", "infinity", "-infinity")
_PART = re.compile(r"\{(\w+)!?(\w*)\}")
_TELLING = re.compile(r"\w*(?:Error|Exception)\b|NOT_SUPPORTED|out of memory|SKIPPED|[Tt]ime(?:d )?out")


@dataclass(frozen=True)
class Number:
    """A column of numbers: its metric, its unit, and the columns of its spread.

    Of several columns, the first that is filled counts, with the statistic at the same index.
    """

    metric: Choice
    columns: tuple[str, ...]
    statistics: tuple[str, ...] = ("printed",)
    scale: float = 1.0  # from the unit of the column to the unit of the metric
    per: float = 1.0  # the same as a divisor, because 1e-6 is not exact
    unit: str = ""  # appended to the printed text
    mean: str = ""
    std: str = ""
    p20: str = ""
    p80: str = ""
    samples: str = ""
    mode: Choice = ""  # "" means the mode of the row
    timing: Choice = None
    baseline: Choice = None
    required: bool = False  # an empty cell is a fault
    zero_is_none: bool = False  # 0 means no number; otherwise 0 is a fault
    is_rate: bool = False  # compared with the rate that the time of the same row gives
    failures: Mapping[str, str] = field(default_factory=dict)  # statuses by words in place of a number, in lower case

    @property
    def spread(self) -> dict[str, str]:
        """Return the columns of the spread."""
        return {name: column for name in ("mean", "std", "p20", "p80") if (column := getattr(self, name))}

    def chosen(self, row: Row) -> tuple[str, str]:
        """Return the column that counts in this row, and its statistic."""
        pairs = list(zip(self.columns, self.statistics, strict=True))
        return next((pair for pair in pairs if row.text(pair[0])), pairs[-1])

    def read(self, row: Row) -> dict[str, Any] | None:
        """Return the fields of the measurement, None if the row has no such number. Raises CellFault."""
        column, statistic = self.chosen(row)
        text = row.text(column)
        if choice(self.metric, row) is None or not (text or self.required):
            return None
        found = {"printed": row.said.get("printed") or f"{text}{self.unit}"}
        if status := self.failures.get(text.lower()):
            return found | {"status": Status(status), "note": f"the file says {text}"}
        value = row.need(column, values.number_from_0 if self.zero_is_none else values.positive)
        if not value:
            return None
        spread = {name: row.read(column, values.number_from_0) for name, column in self.spread.items()}
        spread = {name: number * self.scale / self.per for name, number in spread.items() if number is not None}
        samples = self._samples(row)
        return found | spread | {
            "value": value * self.scale / self.per,
            "statistic": statistic,
            "samples": samples,
            "n": len(samples) or None,
        }  # fmt: skip

    def fields(self, row: Row) -> dict[str, Any]:
        """Return what distinguishes the measurement from the others of its row."""
        mode = {} if self.mode == "" else {"mode": choice(self.mode, row)}
        distinct = {name: choice(getattr(self, name), row) for name in ("metric", "timing", "baseline")}
        return distinct | mode

    def _samples(self, row: Row) -> tuple[float, ...]:
        found = row.value(self.samples) if self.samples else None
        if not isinstance(found, list):
            return ()
        if len(found) > MAX_SAMPLES:
            raise row.fault(self.samples, f"has {len(found)} numbers; at most {MAX_SAMPLES} are taken")
        try:
            return tuple(values.positive(sources.text_of(value)) * (self.scale / self.per) for value in found)
        except CellError as error:
            raise row.fault(self.samples, f"has a sample that {error}") from error


class Failure(NamedTuple):
    """A result without a number."""

    number: Number
    status: Status
    note: str
    printed: str | None = None


@dataclass(frozen=True)
class Peer:
    """One tool's file format. The functions receive one row, unless their comments say otherwise."""

    name: str
    description: str
    source: str  # appended to the names of implementations
    counted: str  # the plural name of the entries, for the description of an upload
    numbers: tuple[Number, ...]
    columns: tuple[str, ...] = ()  # the required header of a table
    json: Mapping[str, Any] = field(default_factory=dict)  # how `sources.objects` recognizes JSON, if it is not a table
    find: Callable[[Upload], Found | None] = lambda upload: None  # recognizes other files
    split: Callable[[Entry], Iterable[Row | str]] = lambda entry: (entry.value,)  # a text describes what is left out
    shared: Callable[[Sequence[Row]], Callable[[Row], Mapping[str, Any]]] | None = None  # all rows -> values for one
    others: tuple[str, Callable[[Row], str | None]] | None = None  # a description, and the name of a row left out
    needs: Mapping[str, str] = field(default_factory=dict)  # fields of a case that every row has, by column
    takes: Mapping[str, str] = field(default_factory=dict)  # fields of a case that a row may have, by column
    facts: Mapping[str, Any] = field(default_factory=dict)  # fields of a case that are the same for every row
    case: Callable[[Row], Mapping[str, Any]] = lambda row: {}  # the other fields of a case
    # Parts of the name before the source, see `_part`, or a function.
    implementation: tuple[str, ...] | Callable[[Row], Iterable[str | None]] = ()
    mode: Choice = None
    # Fields and title of the run, by column or as text with columns; or a function that also returns another key.
    run: Mapping[str, str] | Callable[[Row], Mapping[str, Any]] = field(default_factory=dict)
    # Note, time and config of the measurements.
    extras: Callable[[Row], Mapping[str, Any]] = lambda row: {"note": row.said.get("note")}
    fails: Callable[[Row], Sequence[Failure]] = lambda row: ()  # replaces the numbers of the row
    meanings: Mapping[str, Sequence[str]] = field(default_factory=dict)  # meaning -> columns that functions read
    assumptions: tuple[str, ...] = ()

    def reason_against(self, upload: Upload) -> str | None:
        """Return None for such a file, the missing columns if it nearly is one, "" otherwise."""
        if self._found(upload) is not None:
            return None
        return sources.lacking(upload, self.columns) if self.columns else ""

    def understand(self, upload: Upload) -> Understanding:
        """Return the measurements of every entry, or why the entry is refused or left out."""
        found = self._found(upload)
        assert found is not None  # reason_against has found it
        collected = Collected(upload, unit=found.unit)
        others: Counter[str] = Counter()
        kept: list[tuple[Entry, list[Row]]] = []
        taken: dict[str, str] = dict(found.meanings)
        for entry in found.entries:
            with collected.row(entry.place, entry.text):
                if entry.fault:
                    raise CellError(entry.fault)
                if self.others and (name := self.others[1](entry.value)) is not None:
                    others[name] += 1
                else:
                    parts = list(self.split(entry))
                    collected.left_out.update(part for part in parts if isinstance(part, str))
                    kept.append((entry, [part for part in parts if isinstance(part, Row)]))
        more = self.shared([row for _, rows in kept for row in rows]) if self.shared else lambda row: {}
        for entry, rows in kept:
            with collected.row(entry.place, entry.text):
                for row in rows:
                    self._take(collected, row.having(**more(row)) if self.shared else row, taken)
        if self.others and others:
            named = ", ".join(sorted(others)[:60])
            collected.left_out[f"{self.others[0]}: {named}"[:1000]] = others.total()
        description = f"{found.description}{len(found.entries):,} {self.counted}"
        assumptions = (*self.assumptions, *found.assumptions)
        return collected.collected(self.name, description, self._columns(found, taken), assumptions)

    def _found(self, upload: Upload) -> Found | None:
        found = sources.table(upload, self.columns) if self.columns else self.find(upload)
        return found or (sources.objects(upload, **self.json) if self.json else None)

    def _take(self, collected: Collected, row: Row, taken: dict[str, str]) -> None:
        """Take the failures of a row, or its numbers, and note the columns of the numbers in `taken`."""
        run = dict(self.run(row)) if callable(self.run) else {name: _said(row, of) for name, of in self.run.items()}
        key = run.pop("key", None) or tuple(run.values())
        known: dict[str, Any] = {"run_id": collected.run(key, **run), "case": self._case(row)}
        known |= {"implementation": self._implementation(row), "mode": choice(self.mode, row), **self.extras(row)}
        if failures := self.fails(row):
            for number, status, note, printed in failures:
                column = row.column(number.chosen(row)[0])
                told = {"status": status, "note": note, "printed": printed}
                collected.add(row.place, column, **known | number.fields(row) | told)
            return
        latency = None
        for number in self.numbers:
            read = number.read(row)
            if read is None:
                continue
            column, fields = row.column(number.chosen(row)[0]), known | number.fields(row) | read
            taken |= {row.column(name): f"{spread} of {column}" for spread, name in number.spread.items()}
            taken[column] = fields["metric"]
            if number.is_rate and latency:
                collected.add_rate(row.place, column, latency_ms=latency, **fields)
            else:
                collected.add(row.place, column, **fields)
            latency = latency or (fields.get("value") if fields["metric"] == "latency_ms" else None)

    def _case(self, row: Row) -> Case:
        fields: dict[str, Any] = dict(self.facts)
        fields |= {name: row.need(column, _PARSERS.get(name, values.whole)) for name, column in self.needs.items()}
        for name, column in self.takes.items():
            if (value := row.read(column, _PARSERS.get(name, values.whole))) is not None:
                fields[name] = value
        return Case(**{**fields, **self.case(row)})

    def _implementation(self, row: Row) -> str:
        source = f"({self.source})" if self.source else None
        said = self.implementation
        parts = said(row) if callable(said) else (_part(row, part) for part in said)
        return values.words(" ".join(filter(None, (*parts, source))))

    def _columns(self, found: Found, taken: Mapping[str, str]) -> Iterable[Column]:
        """Yield each column with the fields or the metric that are read from it; `taken` has the columns of numbers."""
        said: dict[str, list[str]] = {column: [meaning] for column, meaning in taken.items()}
        pairs = [(meaning, column) for meaning, columns in self.meanings.items() for column in columns]
        for meaning, column in (*self.needs.items(), *self.takes.items(), *pairs):
            said.setdefault(column, []).append(meaning)
        for header, name in zip(found.header, found.names or found.header, strict=True):
            yield Column(header, " and ".join(dict.fromkeys(said.get(name, ()))) or None)


class PeerFile:
    """The peers of the TOML file next to a module: their words, columns, units and numbers."""

    def __init__(self, module_file: str) -> None:
        self._read = toml_of(module_file)
        self.words: Mapping[str, Any] = _frozen(self._read.pop("words", {}), {})  # tables for the module's functions

    def peers(self, functions: Mapping[str, Any]) -> Iterator[Peer]:
        """Yield the peers in their order.

        "@NAME" is the function of that name in their module, or else the value of that column.
        """
        for name, said in self._read.items():
            numbers = (Number(**_frozen(each, functions)) for each in said.pop("numbers"))
            yield Peer(name=name, numbers=tuple(numbers), **_frozen(said, functions))


def _frozen(value: Any, functions: Mapping[str, Any]) -> Any:
    """Return a value of TOML with functions in place of their names, and tuples in place of lists."""
    if isinstance(value, dict):
        return {key: _frozen(inner, functions) for key, inner in value.items()}
    if isinstance(value, str) and value.startswith("@"):
        return functions.get(value[1:], methodcaller("value", value[1:]))
    return tuple(_frozen(inner, functions) for inner in value) if isinstance(value, list) else value


def choice(of: Choice, row: Row) -> str | None:
    """Return the value of a choice for a row. Raises CellFault for a text that is none of a column's words."""
    if isinstance(of, Mapping):
        return of["words"][row.one_of(of["column"], of["words"])]
    return of(row) if callable(of) else of


def _said(row: Row, of: str) -> str | None:
    return _part(row, of) if "{" in of else row.read(of)


def _part(row: Row, part: str) -> str | None:
    """Return a part of a name: "column" must be filled, "=text" is itself, and "text {column}" may be left out.

    It is left out where a column in it is empty. `{column!other}` also counts as empty if it is "other", or equals it.
    """
    if not (names := _PART.findall(part)):
        return part[1:] if part.startswith("=") else row.need(part)
    if any(row.text(name) in ("", other, row.text(other)) for name, other in names):
        return None
    return _PART.sub(lambda match: row.text(match[1]).removeprefix("torch."), part)


whole_from_0 = partial(values.whole, minimum=0)


def dtype(text: str) -> str:
    """Return a data type by one of the names that the tools print. Raises CellError."""
    return _DTYPES.get(text) or values.dtype(text)


def failure_of(message: str) -> Status:
    """Return the status for an error message."""
    lowered = message.lower()
    found = (status for status, signs in values.WORDS["failures"].items() if any(sign in lowered for sign in signs))
    return Status(next(found, "error"))


def telling_line(message: str) -> str:
    """Return the most informative line of a message or traceback, printable and bounded."""
    lines = [line for raw in message.splitlines() if (line := "".join(c for c in raw if c.isprintable()).strip())]
    telling = [line for line in lines if _TELLING.search(line)]
    return (telling or lines or ["no reason given"])[-1][:MAX_NOTE]


def not_finite(text: str) -> bool:
    """Return whether a cell holds inf or nan."""
    return text.lower() in _NOT_FINITE


def refuse_unless_near(row: Row, column: str, expected: float, of: str) -> None:
    """Raise CellFault if a rate differs by more than a tenth from the rate that other columns give."""
    if not 1 / AGREES <= row.need(column, values.positive) / expected <= AGREES:
        raise row.fault(column, f"is not what {of} give")


_PARSERS: Mapping[str, Callable[[str], Any]] = {  # by field of a case; the others are whole numbers above 0
    "subject": values.words,
    "dtype": dtype,
    "causal": values.boolean,
    "window_size": whole_from_0,
    "page_size": whole_from_0,
}
