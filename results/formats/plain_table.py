"""Tables as people keep them: one case a row, and times in a column of numbers or in one for each implementation.

The meaning of a column is guessed from its header (`mapping.guess`), unless the user has corrected it before. Each cell
is checked, and each fault kept with its line, column, value and reason.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from results.formats import mapping, values
from results.formats.errors import CellError, CellFault, UploadError
from results.formats.mapping import PARSERS, UNITS, NumberColumn, TableMapping, normalise
from results.formats.tables import Sheet
from results.formats.upload import Column, Format, Taken, Understanding, Upload, reason_against_file, sheet_of
from results.grouping import grouped
from results.levels import flops
from results.metrics import METRICS
from results.records import CASE_FIELDS, Case, Measurement, Run, Status, case_to_json
from results.render.markdown import plain
from results.schema import LARGEST, SMALLEST, magnitude_fits

NAME = "plain_table"
DESCRIPTION = "a table with one implementation a row or a column, and numbers with their unit such as latency_ms"
REQUIRED = ("seqlen", "head_dim", "dtype")  # fields of a table without a user's assignment
MAX_RUNS = 100
_WITH_UNIT = re.compile(r"([+-]?[\d.,' \u00a0\u202f]*\d)\s*([A-Za-zµμ/%×]{1,9})")  # a number with a unit in its cell
_CHECKS: dict[str, Callable[[str], float]] = {"latency_ms": values.positive, "speedup": values.ratio}


class UnknownTable(UploadError):
    """A table with columns of unknown meaning, which the user can assign."""

    def __init__(self, message: str, sheet: Sheet) -> None:
        super().__init__(message)
        self.sheet = sheet

    def __reduce__(self) -> "tuple[type[UnknownTable], tuple[str, Sheet]]":
        """Keep the table when the exception comes from another process."""
        return UnknownTable, (str(self), self.sheet)


def reason_against(upload: Upload) -> str | None:
    """Return why the file is not of this format; None if it is."""
    return reason_against_file(upload, lambda sheet: _reason_against(upload, sheet))


def understand(upload: Upload) -> Understanding:
    """Return the rows as runs, one for each GPU that they name, and measurements."""
    sheet = sheet_of(upload, lambda sheet: _reason_against(upload, sheet))
    chosen = upload.mapping_of(sheet) or mapping.guess(sheet)
    runs = _runs(upload, sheet, chosen.fields.get("gpu_name"))
    reading = ReadRows(upload, runs, sheet=sheet, mapping=chosen, constants=mapping.check_constants(chosen.constants))
    for line, row in sheet.rows:
        reading.read(line, row)
    reading.name_baseline()
    return reading.understood()


def unknown(upload: Upload, near: Sequence[str], possible: str) -> UploadError:
    """Return the refusal of a file that no format reads: an UnknownTable if it has a table.

    `near` has a sentence for each format that nearly fits.
    """
    what = " ".join((f"{upload.filename} is of no known format.", *near))
    sheets = upload.sheets if upload.kind in ("text", "a workbook") else []
    tables = [sheet for sheet in sheets if len(sheet.header) > 1 and sheet.rows]
    if not tables:
        return UploadError(f"{what} {possible}")
    sheet = max(tables, key=lambda sheet: len(sheet.rows))
    if said := _other_operation(sheet):
        return UploadError(f"{upload.filename} {said}")
    missing = mapping.guess(sheet).problem() or _reason_against(upload, sheet) or ""
    how = "The page Upload lets you choose what each column is, as does --column of `results import`."
    return UnknownTable(f"{what} {missing} {how}", sheet.beginning())


def _reason_against(upload: Upload, sheet: Sheet) -> str | None:
    if said := _other_operation(sheet):
        return said
    chosen = upload.mapping_of(sheet)
    if chosen:
        return chosen.problem()
    fields = set(mapping.fields_of(sheet.header))
    guessed = mapping.guess(sheet)
    if not guessed.numbers(sheet.header):
        return "No column of times or other numbers with a unit was found, such as latency_ms, fwd (µs) or TFLOP/s."
    if not any(role.implementation for role in guessed.roles) and "implementation" not in fields:
        return mapping.lacking(fields, ("implementation",))
    fields |= {"seqlen"} if "seqlen_q" in fields else set()
    fields |= {"head_dim"} if {"embed_dim", "num_heads"} <= fields else set()
    return mapping.lacking(fields, REQUIRED)


def _other_operation(sheet: Sheet) -> str | None:
    """Return that a table without heads times another operation, such as a normalization; None if it may not."""
    if {"head_dim", "num_heads"} & set(mapping.fields_of(sheet.header)):
        return None
    for operation, starts in values.WORDS["other_operations"].items():
        if column := next((name for name in sheet.header if normalise(name).startswith(tuple(starts))), None):
            return f"has times of {operation} (column {column}), not of attention. A table of attention has head_dim."
    return None


@dataclass(kw_only=True)
class ReadRows(Taken):
    """The measurements and faults of the rows of one sheet whose columns are known."""

    sheet: Sheet
    mapping: TableMapping
    constants: Mapping[str, Any]  # fields that are the same in every row
    derived: int = 0  # times that follow from printed TFLOP/s
    empty: int = 0  # cells without a number and without a word
    unsaid: int = 0  # speedups over something that the table does not name
    cases: dict[tuple[Any, ...], Case] = field(default_factory=dict)  # by their fields

    def __post_init__(self) -> None:
        self.fields, self.numbers = self.mapping.fields, self.mapping.numbers(self.sheet.header)
        for number in self.numbers:
            try:
                values.name(number.implementation or "")
            except CellError as error:
                raise UploadError(f"The implementation of column {number.header[:80]!r} {error}.") from error

    def read(self, line: int, row: Sequence[str]) -> None:
        """Read one row into measurements or rejections."""
        with self.part(line, ", ".join(row)):
            if len(row) != len(self.sheet.header):
                raise CellError(f"has {len(row)} cells where the header has {len(self.sheet.header)}")
            said = self._fields(line, row)
            if said is not None:
                self._numbers(line, row, said, self._case(said))

    def _fields(self, line: int, row: Sequence[str]) -> dict[str, Any] | None:
        """Return the fields of a row without its numbers; None if one of the cells is refused."""
        said: dict[str, Any] = dict(self.constants)
        before = len(self.rejected)
        for name, at in self.fields.items():
            try:
                value = _value(name, row[at], self.mapping.decimal)
                if value is None and name == "implementation" and name not in self.constants:
                    raise CellError("is empty; every row needs an implementation")
            except CellError as error:
                self.reject(line, self.sheet.header[at], plain(row[at]), str(error))
                continue
            if value is not None:
                said[name] = value
        if len(self.rejected) > before:
            return None
        width = said.pop("embed_dim", None)
        if width is not None and "head_dim" not in said:
            said["head_dim"], rest = divmod(width, said.get("num_heads") or width + 1)
            if rest:
                at = self.fields["embed_dim"]
                raise CellFault(self.sheet.header[at], plain(row[at]), "is not head_dim x num_heads of a head_dim")
        return said

    def _case(self, said: Mapping[str, Any]) -> Case:
        key = tuple(map(said.get, ("seqlen", *CASE_FIELDS)))
        if key not in self.cases:
            case = {name: value for name, value in said.items() if name in CASE_FIELDS}
            if "seqlen" in said:
                case.setdefault("seqlen_q", said["seqlen"])
                case.setdefault("seqlen_k", said["seqlen"])
            if "head_dim" in said:
                case.setdefault("head_dim_v", said["head_dim"])
            self.cases[key] = Case(**case)
        return self.cases[key]

    def _numbers(self, line: int, row: Sequence[str], said: Mapping[str, Any], case: Case) -> None:
        timed = {(number.implementation, number.mode) for number in self.numbers if number.metric == "latency_ms"}
        for number in self.numbers:
            text = plain(row[number.at])
            if not text:
                self.empty += 1
                continue
            with self.part(line, text, number.header):
                measurement = self._measurement(line, row, said, case, number)
                self.keep(measurement, line)
                untimed = (number.implementation, number.mode) not in timed
                if number.metric == "tflops" and measurement.value and untimed:
                    self._add_time(measurement, said.get("timing"), line)

    def _measurement(
        self, line: int, row: Sequence[str], said: Mapping[str, Any], case: Case, number: NumberColumn
    ) -> Measurement:
        text, decimal = plain(row[number.at]), self.mapping.decimal
        spread = plain(row[number.std_at]) if number.std_at is not None else ""
        values.words(row[number.at].strip())  # it is kept as printed
        status, value, std = _read(number, text, spread, decimal)
        return Measurement(
            run_id=self.runs[said.get("gpu_name", "")].run_id,
            case=case,
            implementation=number.implementation or said["implementation"],
            metric=number.metric,
            mode=number.mode or said.get("mode"),
            timing=said.get("timing") if number.metric == "latency_ms" else None,
            baseline=number.baseline,
            status=status,
            value=value,
            statistic=number.statistic if value is not None else None,
            mean=value if number.statistic == "mean" else None,
            std=std,
            note=None if value is not None else f"the file says {text!r}",
            printed=_printed(row[number.at].strip(), number, decimal),
            origin=f"line {line}, {number.header}",
        )

    def _add_time(self, rate: Measurement, timing: str | None, line: int) -> None:
        """Add the time that follows from a printed TFLOP/s, if the operations of the case are known."""
        work = flops({**case_to_json(rate.case), "window_size": rate.case.window_size or 0}, rate.mode)
        if not work or not magnitude_fits(work / rate.value / 1e9):
            return
        note = f"from the printed {rate.value:g} TFLOP/s and {work:.6g} operations"
        unprinted = replace(rate, metric="latency_ms", note=note, printed=None, mean=None)
        latency = replace(unprinted, value=work / rate.value / 1e9, timing=timing)
        if not self.repeated(latency):
            self.keep(latency, line)
            self.derived += 1

    def name_baseline(self) -> None:
        """Name what speedups of rows are over: the one implementation whose own are all 1. Without one, none stay."""
        unnamed = [m for m in self.measurements if m.metric == "speedup" and m.baseline is None]
        ratios = {
            name: {m.value for m in rows} for name, rows in grouped(unnamed, attrgetter("implementation")).items()
        }
        bases = [name for name, found in ratios.items() if found == {1.0}]
        base = bases[0] if len(bases) == 1 else None
        named = [replace(m, baseline=base) for m in unnamed if m.implementation != base] if base else []
        self.unsaid = 0 if base else len(unnamed)
        self.measurements[:] = [m for m in self.measurements if m.metric != "speedup" or m.baseline] + named

    def understood(self) -> Understanding:
        """Return everything that was read."""
        meanings = {at: name for name, at in self.fields.items()} | {each.at: each.meaning for each in self.numbers}
        meanings |= {each.std_at: f"standard deviation of {each.header}" for each in self.numbers if each.std_at}
        known = {*self.fields, *self.mapping.constants}
        return self.understanding(
            NAME,
            f"{self.sheet.description}, {len(self.sheet.rows):,} rows",
            if_empty="has a header and no numbers",
            columns=tuple(Column(name, meanings.get(at)) for at, name in enumerate(self.sheet.header)),
            assumptions=tuple(self._assumptions()),
            left_out=tuple(self._left_out()),
            questions=tuple(question for name, question in values.WORDS["asked"].items() if name not in known),
            sheet=self.sheet.beginning(),
            mapping=self.mapping,
        )

    def _assumptions(self) -> Iterator[str]:
        fields, header, chosen = self.fields, self.sheet.header, self.mapping
        if any(role.implementation for role in chosen.roles):
            starts = {normalise(name).partition("_")[0] for name in header}
            systems = values.WORDS["systems"].items()
            yield from (f"{short.upper()} is {long}." for short, long in systems if short in starts)
        for number in self.numbers:
            if number.baseline:
                yield f"{number.header} is {number.baseline} over {number.implementation}."
        if chosen.decimal == ",":
            yield f"Numbers are written as {mapping.DECIMALS[',']}, with a decimal comma."
        yield from (f"{name} is {text} in every row." for name, text in chosen.constants.items())
        yield "Every row is attention alone (level op), unless a column says otherwise."
        if "timing" not in fields:
            yield "Timing method unknown: a column timing would say kernel or eager."
        if "seqlen" in fields and "seqlen_k" not in fields:
            yield f"{header[fields['seqlen']]} is the length of queries and of keys."
        if "embed_dim" in fields and "head_dim" not in fields:
            yield f"{header[fields['embed_dim']]} is head_dim x num_heads, of queries, keys and values."
        if "head_dim" in fields and "head_dim_v" not in fields:
            yield f"{header[fields['head_dim']]} is the head dimension of queries, keys and values."
        if self.derived:
            yield f"{self.derived:,} times follow from the printed TFLOP/s and the operations of a windowless case."

    def _left_out(self) -> Iterator[str]:
        if self.empty:
            yield f"{self.empty:,} empty cells."
        if self.unsaid:
            yield f"{self.unsaid:,} speedups over an unknown baseline, as no single implementation has 1 in all rows."
        if self.sheet.comments:
            yield f"{len(self.sheet.comments)} lines before the header that begin with #."


def _runs(upload: Upload, sheet: Sheet, gpu_at: int | None) -> dict[Hashable, Run]:
    """Return the runs by the name of the GPU in the file."""
    names: dict[str, None] = {"": None}
    if gpu_at is not None:
        names = dict.fromkeys(plain(row[gpu_at]) for _, row in sheet.rows if len(row) == len(sheet.header))
    if len(names) > MAX_RUNS:
        raise UploadError(f"Column {sheet.header[gpu_at]!r} names {len(names)} GPUs; at most {MAX_RUNS} are taken.")
    ids = [upload.run_id] if len(names) == 1 else [f"{upload.run_id}-{number + 1}" for number in range(len(names))]
    title = upload.filename[: values.MAX_TEXT]
    return {
        name: Run(run_id=run_id, source="upload", title=title, gpu_name=name or None)
        for name, run_id in zip(names, ids, strict=True)
    }


@lru_cache(maxsize=65536)  # rows repeat the values of their fields
def _value(name: str, cell: str, decimal: str) -> Any:
    """Return the value of a field; None if the cell does not say it. Raises CellError."""
    text = plain(cell)
    text = values.localised(text, decimal) if PARSERS[name] is values.whole else text
    return PARSERS[name](text) if text else None


def _read(number: NumberColumn, text: str, spread: str, decimal: str) -> tuple[Status, float | None, float | None]:
    status = values.missing(text)
    if status is not None:
        return status, None, None
    check = _CHECKS.get(number.metric, values.number)
    value, metric = _scaled(number, text, decimal, check), METRICS[number.metric]
    if not metric.holds(value):
        raise CellError(f"must be {metric.range}")
    if excess := metric.excess(value):
        raise CellError(excess)
    if not spread or values.missing(spread) is not None:
        return Status.OK, value, None
    try:
        return Status.OK, value, _scaled(number, spread, decimal, values.number_from_0)
    except CellError as error:
        raise CellError(f"has the standard deviation {spread!r}, which {error}") from error


def _scaled(number: NumberColumn, text: str, decimal: str, check: Callable[[str], float]) -> float:
    """Return a cell in the unit of the metric, converted from the unit of the cell or else of the column."""
    digits, scale = text, number.scale
    if found := _WITH_UNIT.fullmatch(text):
        unit = found[2].lower()
        metric, own = UNITS.get(values.WORDS["cell_units"].get(unit, unit), ("", 1.0))
        if metric == number.metric:
            digits, scale = found[1], own
    value = check(values.localised(digits, decimal)) * scale
    if not magnitude_fits(value):
        raise CellError(f"is neither 0 nor between {SMALLEST:g} and {LARGEST:g} in the unit of {number.metric}")
    return value


def _printed(text: str, number: NumberColumn, decimal: str) -> str:
    """Return the digits of a cell with a decimal point, and the unit of the column if it is not the metric's."""
    shown = values.localised(text, decimal) if decimal == "," else text
    if number.scale == 1:
        return shown
    unit = next(name for name, known in UNITS.items() if known == (number.metric, number.scale))
    return f"{shown} {unit}"


FORMAT = Format(NAME, DESCRIPTION, reason_against, understand)
