"""tritonbench's attention results: its CSV, separated by semicolons, or the table that it prints.

The first column names the shape, such as `(Batch, Heads, SeqLen, SeqLen_KV, Dhead)`, and holds tuples; the others are
`<backend>-<metric>`. Latency is a median in milliseconds. A backend that failed has the text of its error in its first
column and nothing in the rest. A row `average` ends the table. Pass, mask and dtype are options of the command: they
are taken from the command line where one stands before the table, and are not said otherwise.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from results.formats import values
from results.formats.errors import CellError, UploadError
from results.formats.peers.collected import CellFault, Collected, failure_of, positive, telling_line
from results.formats.tables import MAX_BYTES, MAX_COLUMNS, MAX_ROWS, decode
from results.formats.upload import Column, Understanding, Upload
from results.records import Case, Status

NAME = "tritonbench"
DESCRIPTION = "tritonbench's CSV or printed table of an attention operator"
SOURCE = "tritonbench"
SHAPES = {  # names in the first header cell, lower case, to fields
    "batch": "batch",
    "b": "batch",
    "heads": "num_heads",
    "hq": "num_heads",
    "headq": "num_heads",
    "hkv": "num_kv_heads",
    "headkv": "num_kv_heads",
    "seqlen": "seqlen_q",
    "m": "seqlen_q",
    "seqlenq": "seqlen_q",
    "seqlen_kv": "seqlen_k",
    "seqlenkv": "seqlen_k",
    "n": "seqlen_k",
    "maxlenkv": "",  # room in the cache, not what is read
    "dhead": "head_dim",
    "headd": "head_dim",
    "d": "head_dim",
}
METRICS = {"latency": "latency_ms", "tflops": "tflops", "gbps": "gb_per_s", "speedup": "speedup"}
UNNAMED = {  # by how many numbers it has, what a shape under the header x_val is taken for
    4: "(Batch, Heads, SeqLen, Dhead)",
    5: "(Batch, Heads, SeqLen, SeqLen_KV, Dhead)",
}
MAX_LINE = 20_000

_LABEL = re.compile(r"^\((?P<names>[A-Za-z_]+(?:, [A-Za-z_]+){2,7})\)?(?: \| Mask Type)?$")
_TUPLE = re.compile(r"^\((?P<numbers>\d{1,9}(?:, \d{1,9}){2,7})\)(?: \| (?P<mask>[\w ]{1,60}))?$", re.ASCII)
_SPREAD = re.compile(r" \(±[\d.]+%\)$")
_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z ?")
_GAP = re.compile(r"\s{2,}")
_PRECISION = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
_ASSUMED = (
    "Rows are attention alone (level op), or decoding where the shape has the lengths of a cache.",
    "Latency is the median of triton's do_bench, outliers removed. A backend of accuracy 0 is incorrect and has no "
    "speed.",
)


@dataclass
class _MetricTable:
    """One table: what its command said, its columns and its rows with their lines."""

    said: dict[str, Any]
    header: Sequence[str]
    rows: list[tuple[int, Sequence[str]]]


def reason_against(upload: Upload) -> str | None:
    """Return None if it is such a CSV or text, nothing to say otherwise."""
    if upload.kind != "text" or len(upload.data) > MAX_BYTES or b"-" not in upload.data:
        return ""
    if not any(name in upload.data for name in (b"Dhead", b"HeadD", b", N, D)", b"x_val;")):
        return ""
    try:
        return None if next(_tables(decode(upload.data)), None) else ""
    except (UploadError, csv.Error):
        return ""


def understand(upload: Upload) -> Understanding:
    """Return latency, TFLOP/s, GB/s and speedup of each backend and shape, or its failure."""
    collected = Collected(upload, NAME)
    columns: list[Column] = []
    count = 0
    try:
        for table in _tables(decode(upload.data)):
            count += 1
            columns += [Column(name, _meaning(name, at)) for at, name in enumerate(table.header)]
            for line, row in table.rows:
                with collected.row(line, ", ".join(row)):
                    _row(collected, line, table, row)
    except csv.Error as error:
        raise UploadError(f"{upload.filename} is not well-formed CSV: {error}.") from error
    unique = tuple(dict.fromkeys(columns))
    unnamed = (f"x_val is {columns[0].header}.",) if upload.data.startswith(b"x_val;") else ()
    said = f"{count} tables of tritonbench"
    return collected.understanding(said, columns=unique, assumptions=(*_ASSUMED, *unnamed))


def _tables(text: str) -> Iterator[_MetricTable]:
    lines = text.split("\n")
    if len(lines) > MAX_ROWS:
        raise UploadError(f"The text has {len(lines):,} lines; at most {MAX_ROWS:,} are taken. Split it.")
    if (header := _csv_header(lines)) is not None:
        rows = enumerate(csv.reader(lines[1:], delimiter=";"), start=2)
        yield _MetricTable({}, header, [(line, row) for line, row in rows if row])
        return
    said: dict[str, Any] = {}
    table: _MetricTable | None = None
    for number, raw in enumerate(lines, start=1):
        line = _STAMP.sub("", raw[:MAX_LINE].rstrip())
        cells = _GAP.split(line.strip())
        if "--op " in line:
            said = _command(line)
        elif len(cells) > 1 and _LABEL.match(cells[0]) and _named(cells[0]):
            if table:
                yield table
            table = _MetricTable(said, cells, [])
        elif table and (_TUPLE.match(cells[0]) or cells[0] == "average"):
            table.rows.append((number, cells))
        elif table and set(line) <= {"-", " "}:
            continue
        elif table:
            yield table
            table = None
    if table:
        yield table


def _csv_header(lines: list[str]) -> list[str] | None:
    """Return the cells of the first line if that is the header of a CSV."""
    cells = next(csv.reader([lines[0][:MAX_LINE]], delimiter=";"), [])
    if cells[:1] == ["x_val"] and len(lines) > 1:  # an operator that does not name its shape
        found = _TUPLE.match(next(csv.reader([lines[1][:MAX_LINE]], delimiter=";"), [""])[0])
        cells[0] = UNNAMED.get(found["numbers"].count(",") + 1, "x_val") if found else "x_val"
    fits = 1 < len(cells) <= MAX_COLUMNS and _LABEL.match(cells[0]) and _named(cells[0])
    return cells if fits else None


def _named(label: str) -> list[str]:
    """Return the fields of a label; nothing if it has a name that is not known."""
    names = _LABEL.match(label)
    found = [SHAPES.get(name.lower()) for name in names["names"].split(", ")] if names else []
    return [] if None in found or "head_dim" not in found else [str(name) for name in found]


def _command(line: str) -> dict[str, Any]:
    """Return what a command line of tritonbench says of the case and the pass."""
    words = line.split()
    mode = "bwd" if "--bwd" in words else "fwd_bwd" if "--fwd-bwd" in words else "fwd"
    options = dict(zip(words, words[1:], strict=False))
    mode = {"bwd": "bwd", "fwd_bwd": "fwd_bwd", "fwd": "fwd", "fwd_no_grad": "fwd"}.get(options.get("--mode", mode))
    return {
        "mode": mode,
        "causal": "--causal" in words,
        "dtype": _PRECISION.get(options.get("--precision", "")),
        "window_size": 0 if "--window-size" not in words else None,
    }


def _meaning(name: str, at: int) -> str | None:
    if at == 0:
        return "the shape"
    backend, _, metric = name.rpartition("-")
    return f"{metric} of {backend}" if backend and metric in (*METRICS, "accuracy") else None


def _row(collected: Collected, line: int, table: _MetricTable, row: Sequence[str]) -> None:
    if row[0] in ("average", "hashes"):
        collected.left_out[f"rows {row[0]}"] += 1
        return
    if len(row) != len(table.header):
        raise CellError(f"has {len(row)} cells where the header has {len(table.header)}")
    case = _case(table, row[0])
    by_backend: dict[str, dict[str, str]] = {}
    for name, cell in zip(table.header[1:], row[1:], strict=True):
        backend, _, metric = name.rpartition("-")
        if backend:
            by_backend.setdefault(backend, {})[metric] = _SPREAD.sub("", cell.strip())
    known = {"run_id": collected.run(None), "case": case, "mode": table.said.get("mode")}
    if case.level == "decode":
        known["mode"] = "decode"
    baseline = _baseline(by_backend)
    for backend, cells in by_backend.items():
        of_backend = known | {"implementation": values.words(f"{backend} ({SOURCE})")}
        _backend(collected, line, backend, cells, of_backend, f"{baseline} ({SOURCE})" if baseline else None)


def _baseline(by_backend: dict[str, dict[str, str]]) -> str | None:
    """Return the one backend without a speedup, if the others have one."""
    without = [backend for backend, cells in by_backend.items() if "speedup" not in cells]
    return without[0] if len(without) == 1 and len(by_backend) > 1 else None


def _backend(
    collected: Collected, line: int, backend: str, cells: dict[str, str], known: dict[str, Any], baseline: str | None
) -> None:
    """Take the numbers of one backend, or its failure: a text in its first column and nothing in the others."""
    metrics = [metric for metric in METRICS if metric in cells]
    filled = {metric: text for metric, text in cells.items() if text not in ("", "None")}
    first, said = next(iter(cells.items()))
    if not metrics:
        return
    if not filled:
        collected.left_out["empty cells of a backend"] += 1
    elif list(filled) == [first] and _is_text(said):
        collected.add(
            line, f"{backend}-{first}", metric=METRICS[metrics[0]], status=failure_of(said), note=telling_line(said),
            printed=said[: values.MAX_TEXT], **known,
        )  # fmt: skip
    else:
        for metric in metrics:
            if metric in filled:
                of = {"baseline": baseline} if metric == "speedup" else {}
                _number(collected, line, f"{backend}-{metric}", cells, known | of)


def _number(collected: Collected, line: int, column: str, cells: dict[str, str], known: dict[str, Any]) -> None:
    """Take one number of a backend; a backend whose accuracy is 0 has none."""
    metric = column.rpartition("-")[2]
    text = cells[metric]
    known = known | {"metric": METRICS[metric], "printed": text}
    if cells.get("accuracy") in ("0", "0.0", "False"):
        collected.add(line, column, status=Status.INCORRECT, note="tritonbench says accuracy 0", **known)
        return
    value = _positive(column, text.removesuffix("x"))
    if metric in ("tflops", "gbps") and cells.get("latency"):
        collected.add_rate(line, column, latency_ms=_positive(column, cells["latency"]), value=value, **known)
    else:
        statistic = "median" if metric == "latency" else "printed"
        collected.add(line, column, value=value, statistic=statistic, **known)


def _is_text(cell: str) -> bool:
    """Return whether a cell holds an error in place of a number, a list or nothing."""
    return bool(re.search(r"[A-Za-z]{3}", cell)) and cell.lower() not in ("none", "nan", "inf", "true", "false")


def _case(table: _MetricTable, text: str) -> Case:
    """Return the case of a tuple such as (4, 48, 1024, 1024, 128)."""
    fields, found = _named(table.header[0]), _TUPLE.match(text.strip())
    numbers = found["numbers"].split(", ") if found else []
    if found is None or len(numbers) != len(fields):
        raise CellFault(table.header[0], text[:80], f"is not a tuple of {len(fields)} whole numbers")
    said: dict[str, Any] = {name: values.whole(number) for name, number in zip(fields, numbers, strict=True) if name}
    decode_level = "maxlenkv" in table.header[0].lower()
    said.setdefault("seqlen_k", said.get("seqlen_q"))
    said.setdefault("num_kv_heads", said.get("num_heads"))
    mask = found["mask"]
    options = {name: table.said.get(name) for name in ("causal", "dtype", "window_size")}
    if mask:
        options["causal"] = {"noop": False, "causal": True}.get(mask.strip())
        options["window_size"] = 0 if options["causal"] is not None else None
    if decode_level:
        options["causal"] = True if said["seqlen_q"] == 1 else None
    plain = mask is None or options["causal"] is not None
    return Case(
        level="decode" if decode_level else "op",
        subject="attention" if plain else values.words(f"attention {mask.strip()}"),
        head_dim_v=said["head_dim"],
        latent_dim=0,
        page_size=None if decode_level else 0,
        **said,
        **options,
    )


def _positive(column: str, text: str) -> float:
    try:
        return positive(text)
    except CellError as error:
        raise CellFault(column, text, str(error)) from error
