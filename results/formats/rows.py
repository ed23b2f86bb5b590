"""Rows of text as measurements: each cell is checked, each fault kept with its line, column, value and reason."""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

from results.formats import values
from results.formats.errors import CellError, UploadError, wall
from results.formats.headers import PARSERS, UNITS, NumberColumn
from results.formats.mapping import TableMapping, check_constants
from results.formats.tables import Sheet
from results.formats.upload import Column, Taken, Understanding, Upload
from results.grouping import grouped
from results.levels import flops
from results.metrics import METRICS
from results.records import CASE_FIELDS, Case, Measurement, RecordError, Run, Status, case_to_json
from results.render.markdown import plain
from results.schema import LARGEST, SMALLEST, magnitude_fits

MAX_RUNS = 100
_WITH_UNIT = re.compile(r"([+-]?[\d.,' \u00a0\u202f]*\d)\s*([A-Za-zµμ/%×]{1,9})")  # a number with a unit in its cell
_CELL_UNITS = {
    "µs": "us", "μs": "us", "%": "peakpercent", "x": "speedup", "×": "speedup", "gb/s": "gbps", "tflop/s": "tflops",
}  # fmt: skip
_CHECKS = {"latency_ms": values.milliseconds, "speedup": values.ratio}
_ASKED = {
    "gpu_name": "The file does not name a GPU. Which one was it?",
    "num_heads": "The file does not say the number of heads.",
    "causal": "The file does not say whether the attention is causal.",
}


@dataclass
class ReadRows(Taken):
    """The measurements and faults of the rows of one sheet."""

    decimal: str = "."  # how its numbers are written, see `values.localised`
    derived: int = 0  # times that follow from printed TFLOP/s
    empty: int = 0  # cells without a number and without a word
    unsaid: int = 0  # speedups over something that the table does not name


def understand_rows(upload: Upload, sheet: Sheet, *, format: str, mapping: TableMapping) -> Understanding:
    """Read a table whose columns are known, as runs (one for each GPU it names) and measurements."""
    fields, numbers = mapping.fields, mapping.numbers(sheet.header)
    constants = check_constants(mapping.constants)
    _check_names(numbers)
    reading = ReadRows(upload, _runs(upload, sheet, fields.get("gpu_name")), decimal=mapping.decimal)
    cases: dict[tuple[str, ...], Case] = {}
    for line, row in sheet.rows:
        if len(row) != len(sheet.header):
            text = f"has {len(row)} cells where the header has {len(sheet.header)}"
            reading.reject(line, "", ", ".join(row), text)
            continue
        with wall(f"{upload.filename}, line {line},"):
            said = _fields(reading, sheet, line, row, fields, constants)
            case = None if said is None else _case(reading, cases, line, row, fields, said)
            if case is not None:
                _numbers(reading, numbers, line, row, said, case)
    _name_baseline(reading)
    return _understanding(sheet, format, mapping, reading)


def _name_baseline(reading: ReadRows) -> None:
    """Name what speedups of rows are over: the one implementation whose own are all 1. Without one, none stay."""
    open_ = [m for m in reading.measurements if m.metric == "speedup" and m.baseline is None]
    ratios = {name: {m.value for m in rows} for name, rows in grouped(open_, attrgetter("implementation")).items()}
    bases = [name for name, found in ratios.items() if found == {1.0}]
    named = [replace(m, baseline=bases[0]) for m in open_ if m.implementation != bases[0]] if len(bases) == 1 else []
    reading.unsaid = 0 if len(bases) == 1 else len(open_)
    reading.measurements[:] = [m for m in reading.measurements if m.metric != "speedup" or m.baseline] + named


def _check_names(numbers: Sequence[NumberColumn]) -> None:
    """Raise UploadError if the name of an implementation in a header has markup."""
    for number in numbers:
        try:
            values.name(number.implementation or "")
        except CellError as error:
            raise UploadError(f"The implementation of column {number.header[:80]!r} {error}.") from error


def _runs(upload: Upload, sheet: Sheet, gpu_at: int | None) -> dict[Hashable, Run]:
    """Return the runs by the name of the GPU in the file."""
    if gpu_at is None:
        return {"": _run(upload, upload.run_id, None)}
    names = dict.fromkeys(plain(row[gpu_at]) for _, row in sheet.rows if len(row) == len(sheet.header))
    if len(names) > MAX_RUNS:
        raise UploadError(f"Column {sheet.header[gpu_at]!r} names {len(names)} GPUs; at most {MAX_RUNS} are taken.")
    ids = [upload.run_id] if len(names) == 1 else [f"{upload.run_id}-{number + 1}" for number in range(len(names))]
    return {name: _run(upload, run_id, name or None) for name, run_id in zip(names, ids, strict=True)}


def _run(upload: Upload, run_id: str, gpu_name: str | None) -> Run:
    return Run(run_id=run_id, source="upload", title=upload.filename[: values.MAX_TEXT], gpu_name=gpu_name)


def _fields(
    reading: ReadRows,
    sheet: Sheet,
    line: int,
    row: Sequence[str],
    fields: Mapping[str, int],
    constants: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Return the fields of a row without its numbers; None if one of the cells is refused."""
    said: dict[str, Any] = dict(constants)
    taken = True
    for name, at in fields.items():
        text = plain(row[at])
        if PARSERS[name] is values.whole:
            text = values.localised(text, reading.decimal)
        if not text and (name != "implementation" or name in constants):
            continue  # not said
        try:
            if not text:
                raise CellError("is empty; every row needs an implementation")
            said[name] = PARSERS[name](text)
        except CellError as error:
            reading.reject(line, sheet.header[at], text, str(error))
            taken = False
    width = said.pop("embed_dim", None)
    if width is not None and taken and "head_dim" not in said:
        said["head_dim"], rest = divmod(width, said.get("num_heads") or width + 1)
        if rest:
            at = fields["embed_dim"]
            reading.reject(line, sheet.header[at], plain(row[at]), "is not head_dim x num_heads of a head_dim")
            taken = False
    return said if taken else None


def _case(
    reading: ReadRows,
    cases: dict[tuple[str, ...], Case],
    line: int,
    row: Sequence[str],
    fields: Mapping[str, int],
    said: Mapping[str, Any],
) -> Case | None:
    key = tuple(row[at] for at in fields.values())  # constants are the same in every row
    if key not in cases:
        case = {name: value for name, value in said.items() if name in CASE_FIELDS}
        if "seqlen" in said:
            case.setdefault("seqlen_q", said["seqlen"])
            case.setdefault("seqlen_k", said["seqlen"])
        if "head_dim" in said:
            case.setdefault("head_dim_v", said["head_dim"])
        try:
            cases[key] = Case(**case)
        except RecordError as error:
            reading.reject(line, "", ", ".join(row), str(error))
            return None
    return cases[key]


def _numbers(
    reading: ReadRows,
    numbers: Sequence[NumberColumn],
    line: int,
    row: Sequence[str],
    said: Mapping[str, Any],
    case: Case,
) -> None:
    for number in numbers:
        text = plain(row[number.at])
        if not text:
            reading.empty += 1
            continue
        try:
            spread = plain(row[number.std_at]) if number.std_at is not None else ""
            values.words(row[number.at].strip())  # it is kept as printed
            status, value, std = _read(number, text, spread, reading.decimal)
        except CellError as error:
            reading.reject(line, number.header, text, str(error))
            continue
        measurement = Measurement(
            run_id=reading.runs[said.get("gpu_name", "")].run_id,
            case=case,
            **_key(number, said),
            status=status,
            value=value,
            statistic=number.statistic if value is not None else None,
            mean=value if number.statistic == "mean" else None,
            std=std,
            note=None if value is not None else f"the file says {text!r}",
            printed=_printed(row[number.at].strip(), number, reading.decimal),
            origin=f"line {line}, {number.header}",
        )
        if first := reading.first(measurement, line):
            reading.reject(line, number.header, text, f"repeats line {first}: the same case, implementation and mode")
            continue
        reading.measurements.append(measurement)
        if number.metric == "tflops" and value and not _has_time(numbers, number):
            _add_time(reading, measurement, said.get("timing"), line)


def _key(number: NumberColumn, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key fields of a number other than its case, from the column and the row."""
    return {
        "implementation": number.implementation or said["implementation"],
        "metric": number.metric,
        "mode": number.mode or said.get("mode"),
        "timing": said.get("timing") if number.metric == "latency_ms" else None,
        "baseline": number.baseline,
    }


def _has_time(numbers: Sequence[NumberColumn], of: NumberColumn) -> bool:
    """Return whether a column of times accompanies a column of TFLOP/s."""
    return any(n.metric == "latency_ms" and (n.implementation, n.mode) == (of.implementation, of.mode) for n in numbers)


def _add_time(reading: ReadRows, rate: Measurement, timing: str | None, line: int) -> None:
    """Add the time that follows from a printed TFLOP/s, if the operations of the case are known."""
    work = flops({**case_to_json(rate.case), "window_size": rate.case.window_size or 0}, rate.mode)
    if not work or not magnitude_fits(work / rate.value / 1e9):
        return
    note = f"from the printed {rate.value:g} TFLOP/s and {work:.6g} operations"
    latency = replace(
        rate, metric="latency_ms", value=work / rate.value / 1e9, timing=timing, note=note, printed=None, mean=None
    )
    if not reading.first(latency, line):
        reading.measurements.append(latency)
        reading.derived += 1


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
        return Status.OK, value, _scaled(number, spread, decimal, partial(values.number, minimum=0))
    except CellError as error:
        raise CellError(f"has the standard deviation {spread!r}, which {error}") from error


def _scaled(number: NumberColumn, text: str, decimal: str, check: Callable[[str], float]) -> float:
    """Return a cell in the unit of the metric, converted from the unit of the cell or else of the column."""
    digits, scale = text, number.scale
    if found := _WITH_UNIT.fullmatch(text):
        metric, own = UNITS.get(_CELL_UNITS.get(found[2].lower(), found[2].lower()), ("", 1.0))
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


def _understanding(sheet: Sheet, format: str, mapping: TableMapping, reading: ReadRows) -> Understanding:
    fields, numbers = mapping.fields, mapping.numbers(sheet.header)
    meanings = {at: name for name, at in fields.items()} | {number.at: number.meaning for number in numbers}
    meanings |= {number.std_at: f"standard deviation of {number.header}" for number in numbers if number.std_at}
    return reading.understanding(
        format,
        f"{sheet.description}, {len(sheet.rows):,} rows",
        if_empty="has a header and no numbers",
        columns=tuple(Column(name, meanings.get(at)) for at, name in enumerate(sheet.header)),
        assumptions=tuple(_assumptions(sheet, fields, reading)),
        left_out=tuple(_left_out(sheet, reading)),
        questions=tuple(q for name, q in _ASKED.items() if name not in fields and name not in mapping.constants),
        sheet=sheet,
        mapping=mapping,
    )


def _assumptions(sheet: Sheet, fields: Mapping[str, int], reading: ReadRows) -> Iterator[str]:
    yield "Every row is attention alone (level op), unless a column says otherwise."
    if "timing" not in fields:
        yield "Timing method unknown: a column timing would say kernel or eager."
    if "seqlen" in fields and "seqlen_k" not in fields:
        yield f"{sheet.header[fields['seqlen']]} is the length of queries and of keys."
    if "embed_dim" in fields and "head_dim" not in fields:
        yield f"{sheet.header[fields['embed_dim']]} is head_dim x num_heads, of queries, keys and values."
    if "head_dim" in fields and "head_dim_v" not in fields:
        yield f"{sheet.header[fields['head_dim']]} is the head dimension of queries, keys and values."
    if reading.derived:
        yield f"{reading.derived:,} times follow from the printed TFLOP/s and the operations of a windowless case."


def _left_out(sheet: Sheet, reading: ReadRows) -> Iterator[str]:
    if reading.empty:
        yield f"{reading.empty:,} empty cells."
    if reading.unsaid:
        yield f"{reading.unsaid:,} speedups over an unknown baseline, as no single implementation has 1 in all rows."
    if sheet.comments:
        yield f"{len(sheet.comments)} lines before the header that begin with #."
