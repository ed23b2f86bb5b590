"""The one importer of other tools' files. A tool is declared as a `Peer`: columns, units, statuses, names and facts.

What a table can express is in the TOML file next to the tool's module, which `peers_of` reads.

A file becomes entries (`sources`), an entry becomes rows (`Peer.split`), and a row becomes one measurement for each
declared `Number`. Only what a table cannot express is a function of the declaration.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

from results.files.columns import SCHEMA
from results.formats import values
from results.formats.errors import CellError, CellFault
from results.formats.peers import sources
from results.formats.peers.sources import Entry, Found, Row
from results.formats.upload import Column, Taken, Understanding, Upload
from results.formats.validation import check_text, with_its_samples
from results.levels import bytes_moved, flops
from results.metrics import METRICS
from results.paths import toml_of
from results.records import CASE_SCHEMA, Case, Measurement, Run, Status
from results.schema import fault

# The same for all rows, a function of the row, or the words of a column.
Choice = str | None | Callable[[Row], str | None] | Mapping[str, Any]
MAX_RUNS = 100
MAX_NOTE = 500
AGREES = 1.1  # the largest accepted ratio between a printed rate and the rate derived from the time
_RATIOS = {"speedup": "latency_ms", "memory_reduction": "peak_memory_mb"}  # ratio -> the metric it divides
_RATES = {"tflops": (flops, 1e9), "gb_per_s": (bytes_moved, 1e6)}  # rate -> its work, and the work per unit and ms
_MOST_SEQUENCES = 1_000_000  # rates of larger batches are not checked: the work of a batch lists its lengths
MAX_SAMPLES = 10_000
_DTYPES = {"fp8": "float8_e4m3fn", "mxfp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn"}
_NOT_FINITE = ("inf", "-inf", "+inf", "nan", "infinity", "-infinity")
_EXTRAS = ("note", "time", "config")
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


@dataclass
class Collected(Taken):
    """The runs and measurements of one file, and every refused row.

    A CellError inside `row` becomes a Rejection that names the line; the other rows are unaffected.
    """

    unit: str = "line"  # the unit of row numbers: lines, or entries of a JSON document
    disagreeing: Counter[str] = field(default_factory=Counter)  # by metric: printed rates that the times contradict
    left_out: Counter[str] = field(default_factory=Counter)  # by description: rows that are left out

    def run(self, key: Hashable, *, title: str | None = "", **fields: str | None) -> str:
        """Return the id of the run with that key, and create the run at first use."""
        if key not in self.runs:
            if len(self.runs) >= MAX_RUNS:
                raise CellError(f"would need one run more than the {MAX_RUNS} that a file may have")
            number = len(self.runs) + 1
            name = ", ".join(filter(None, (self.upload.filename[:120], title)))[: values.MAX_TEXT]
            values.words(name)
            for text in fields.values():
                values.name(text or "")
            run_id = self.upload.run_id if number == 1 else f"{self.upload.run_id}-{number}"
            facts: dict[str, Any] = dict(fields)
            self.runs[key] = Run(run_id=run_id, source="upload", title=name, **facts)
        return self.runs[key].run_id

    def row(self, line: int, text: str = "") -> AbstractContextManager[None]:
        """Turn an error of a row into a rejection, and drop all numbers of that row."""
        return self.part(line, text, where=f"{self.upload.filename}, {self.unit} {line},")

    def add(self, line: int, column: str, *, case: Case, implementation: str, metric: str, **rest: Any) -> None:
        """Take one number (`value`) or failure (`status`). Raises CellError if the row has it twice."""
        origin = f"{self.unit} {line}, {column}"
        rest.setdefault("status", Status.OK)
        name = values.name(implementation)
        m = with_its_samples(Measurement(case=case, implementation=name, metric=metric, origin=origin, **rest))
        for name, rules in SCHEMA.items():
            value = getattr(case if name in CASE_SCHEMA else m, name)
            if value is not None:
                if reason := fault(rules, value):
                    raise CellFault(column, str(value), f"{name} {reason}")
                check_text(name, value)
        if reason := self.repeated(m):
            raise CellFault(column, m.printed or "", reason)
        self.keep(m, line)

    def add_rate(self, line: int, column: str, *, latency_ms: float, metric: str, value: float, **known: Any) -> None:
        """Take a printed rate, with a note if the time gives another rate by more than a tenth."""
        work_of, per_unit = _RATES[metric]
        bounded = (known["case"].batch or 0) <= _MOST_SEQUENCES
        work = work_of(known["case"], known["mode"]) if bounded else None
        derived = work and work / latency_ms / per_unit
        if derived and not 1 / AGREES <= value / derived <= AGREES:
            self.disagreeing[metric] += 1
            note = f"as printed; the time gives {derived:.4g} {METRICS[metric].unit}"
            known["note"] = f"{note}; {known['note']}" if known.get("note") else note
        self.add(line, column, metric=metric, value=value, **known)

    def collected(
        self, format: str, description: str, columns: Iterable[Column], assumptions: Sequence[str]
    ) -> Understanding:
        """Return everything collected. Raises UploadError if there is nothing to take and nothing was refused."""
        self._note_wrong_ratios()
        self.rejected.sort(key=lambda rejection: rejection.line)
        left_out = [f"{count:,} {what}" for what, count in self.left_out.items()]
        printed = [f"{count:,} printed values of {METRICS[name].label}" for name, count in self.disagreeing.items()]
        noted = (f"{those} differ by over a tenth from what the numbers give: noted." for those in printed)
        return self.understanding(
            format,
            description,
            if_empty=". Left out: ".join(["has no numbers to take", *left_out]),
            columns=tuple(columns),
            assumptions=(*assumptions, *noted),
            left_out=tuple(f"{line}." for line in left_out),
            questions=tuple(self._questions()),
        )

    def _questions(self) -> Iterator[str]:
        used = {measurement.run_id for measurement in self.measurements}
        if not all(run.gpu_name for run in self.runs.values() if run.run_id in used):
            yield "The file does not name a GPU. Which one was it?"
        if any(m.case.subject is None for m in self.measurements):
            yield "The file names neither the model nor the batch and its lengths."

    def _note_wrong_ratios(self) -> None:
        """Add a note to each printed ratio that differs by more than a tenth from the ratio of the numbers."""
        numbers = {
            (m.run_id, m.case, m.mode, m.metric, m.implementation): m.value for m in self.measurements if m.value
        }
        for at, m in enumerate(self.measurements):
            of = _RATIOS.get(m.metric)
            pair = [numbers.get((m.run_id, m.case, m.mode, of, name)) for name in (m.baseline, m.implementation)]
            if m.value and None not in pair and not 1 / AGREES <= m.value * pair[1] / pair[0] <= AGREES:
                self.disagreeing[m.metric] += 1
                note = f"as printed; the numbers give {pair[0] / pair[1]:.4g}"
                self.measurements[at] = replace(m, note=f"{note}. {m.note}" if m.note else note)


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
    # Note, time and config of the measurements, by default those that other functions have added to the row.
    extras: Callable[[Row], Mapping[str, Any]] = lambda row: {name: row.said.get(name) for name in _EXTRAS}
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


def peers_of(module_file: str, functions: Mapping[str, Any]) -> Iterator[Peer]:
    """Yield the peers of the TOML file next to a module in their order.

    "@NAME" is the function of that name in their module, or else the value of that column. The table `words` is for the
    module's functions.
    """
    for name, said in toml_of(module_file).items():
        if name != "words":
            numbers = (Number(**_called(each, functions)) for each in said.pop("numbers"))
            yield Peer(name=name, numbers=tuple(numbers), **_called(said, functions))


def _called(value: Any, functions: Mapping[str, Any]) -> Any:
    """Return a value of TOML with functions in place of their names."""
    if isinstance(value, dict):
        return {key: _called(inner, functions) for key, inner in value.items()}
    if isinstance(value, str) and value.startswith("@"):
        return functions.get(value[1:], methodcaller("value", value[1:]))
    return tuple(_called(inner, functions) for inner in value) if isinstance(value, tuple) else value


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
