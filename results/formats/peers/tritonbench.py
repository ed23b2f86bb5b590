"""tritonbench's attention results; tritonbench.toml describes the formats."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from results.formats import values
from results.formats.errors import CellError, CellFault, UploadError
from results.formats.peers.engine import Failure, Number, failure_of, peers_of, telling_line
from results.formats.peers.sources import Entry, Found, Row, lines_of, row_with
from results.formats.tables import MAX_COLUMNS, MAX_ROWS
from results.formats.upload import Upload
from results.paths import toml_of
from results.records import Status

_WORDS = toml_of(__file__)["words"]
_SOURCE = "tritonbench"
_SHAPES = _WORDS["shapes"]
_NUMBERS = {"latency": 0, "tflops": 1, "gbps": 2, "speedup": 3}  # metric -> index of its number
_UNNAMED = _WORDS["unnamed"]
_MAX_LINE = 20_000
_LABEL = re.compile(r"^\((?P<names>[A-Za-z_]+(?:, [A-Za-z_]+){2,7})\)?(?: \| Mask Type)?$")
_TUPLE = re.compile(r"^\((?P<numbers>\d{1,9}(?:, \d{1,9}){2,7})\)(?: \| (?P<mask>[\w ]{1,60}))?$", re.ASCII)
_SPREAD = re.compile(r" \(±[\d.]+%\)$")
_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z ?")
_GAP = re.compile(r"\s{2,}")
_PRECISION, _MODES = _WORDS["precision"], _WORDS["modes"]
_TOTALS = ("average", "hashes")  # rows that are no results


def _find(upload: Upload) -> Found | None:
    """Return the rows of the CSV or of all printed tables, each with its header and the options of the command."""
    lines = lines_of(upload, (b"Dhead", b"HeadD", b", N, D)", b"x_val;"))
    if not lines or len(lines) > MAX_ROWS:
        return None
    header = _csv_header(lines)
    try:
        entries = list(_of_csv(header, lines) if header else _of_text(lines))
    except csv.Error as error:
        raise UploadError(f"{upload.filename} is not well-formed CSV: {error}.") from error
    headers = dict.fromkeys(name for entry in entries for name in entry.value[1])
    unnamed = (f"x_val is {header[0]}.",) if upload.data.startswith(b"x_val;") and header else ()
    shapes = {entry.value[1][0]: "the shape" for entry in entries}
    return Found(entries, header=tuple(headers), assumptions=unnamed, meanings=shapes) if entries else None


def _of_csv(header: list[str], lines: list[str]) -> Iterator[Entry]:
    for line, cells in enumerate(csv.reader(lines[1:], delimiter=";"), start=2):
        if cells:
            yield Entry(line, ({}, header, cells), ", ".join(cells))


def _csv_header(lines: list[str]) -> list[str]:
    """Return the cells of the first line if they are the header of a CSV; an empty list otherwise."""
    try:
        cells, *rows = ([*csv.reader([line[:_MAX_LINE]], delimiter=";"), []][0] for line in lines[:2])
    except csv.Error:
        return []
    if cells[:1] == ["x_val"] and rows:  # the operator does not name its shape
        found = _TUPLE.match(rows[0][0]) if rows[0] else None
        cells[0] = _UNNAMED.get(str(found["numbers"].count(",") + 1), "x_val") if found else "x_val"
    return cells if 1 < len(cells) <= MAX_COLUMNS and _fields(cells[0]) else []


def _of_text(lines: list[str]) -> Iterator[Entry]:
    options: dict[str, Any] = {}
    header: list[str] = []
    for number, raw in enumerate(lines, start=1):
        line = _STAMP.sub("", raw[:_MAX_LINE].rstrip())
        cells = _GAP.split(line.strip())
        if "--op " in line:
            options, header = _options(line), []
        elif len(cells) > 1 and _fields(cells[0]):
            header = cells
        elif header and (_TUPLE.match(cells[0]) or cells[0] in _TOTALS):
            yield Entry(number, (options, header, cells), ", ".join(cells))
        elif set(line) - {"-", " "}:
            header = []


def _fields(label: str) -> list[str]:
    """Return the fields of a label; an empty list if it has an unknown name."""
    names = _LABEL.match(label)
    found = [_SHAPES.get(name.lower()) for name in names["names"].split(", ")] if names else []
    return [] if None in found or "head_dim" not in found else [str(name) for name in found]


def _options(line: str) -> dict[str, Any]:
    """Return what a command line of tritonbench says of the case and the pass."""
    words = line.split()
    options = dict(zip(words, words[1:], strict=False))
    mode = "bwd" if "--bwd" in words else "fwd_bwd" if "--fwd-bwd" in words else "fwd"
    return {
        "mode": _MODES.get(options.get("--mode", mode)),
        "causal": "--causal" in words,
        "dtype": _PRECISION.get(options.get("--precision", "")),
        "window_size": 0 if "--window-size" not in words else None,
    }


def _split(entry: Entry) -> Iterator[Row | str]:
    """Yield a row for each backend, with its cells under `<backend>-<metric>`."""
    options, header, cells = entry.value
    if cells[0] in _TOTALS:
        yield f"rows {cells[0]}"
        return
    if len(cells) != len(header):
        raise CellError(f"has {len(cells)} cells where the header has {len(header)}")
    shape = _shape(header[0], cells[0], options)
    backends: dict[str, dict[str, str]] = {}
    for name, cell in zip(header[1:], cells[1:], strict=True):
        backend, _, metric = name.rpartition("-")
        if backend:
            text = _SPREAD.sub("", cell.strip())
            backends.setdefault(backend, {})[metric] = "" if text == "None" else text
    mode = "decode" if shape["level"] == "decode" else options.get("mode")
    known = {"shape": shape, "mode": mode, "baseline": _baseline(backends)}
    for backend, texts in backends.items():
        if not any(texts.values()):
            yield "empty cells of a backend"
        elif any(metric in _NUMBERS for metric in texts):
            said = {f"{backend}-{metric}": text.removesuffix("x") for metric, text in texts.items()}
            more = {**known, **said, "backend": backend, "texts": texts}
            yield row_with(entry.place, more, f"{backend}-")


def _baseline(backends: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return the one backend without a speedup, if the others have one."""
    without = [backend for backend, texts in backends.items() if "speedup" not in texts]
    return f"{without[0]} ({_SOURCE})" if len(without) == 1 and len(backends) > 1 else None


def _fails(row: Row) -> list[Failure]:
    """Return the failure of a backend whose only text is an error, or whose accuracy is 0."""
    texts = row.value("texts")
    metrics = [metric for metric in _NUMBERS if metric in texts]
    first, message = next(iter(texts.items()))
    if [metric for metric, text in texts.items() if text] == [first] and _is_error(message):
        number = Number(PEER.numbers[_NUMBERS[metrics[0]]].metric, (first,))
        return [Failure(number, failure_of(message), telling_line(message), message[: values.MAX_TEXT])]
    if texts.get("accuracy") in ("0", "0.0", "False"):
        filled = [metric for metric in metrics if texts[metric]]
        note = "tritonbench says accuracy 0"
        return [Failure(PEER.numbers[_NUMBERS[metric]], Status.INCORRECT, note, texts[metric]) for metric in filled]
    return []


def _is_error(cell: str) -> bool:
    """Return whether a cell holds an error message instead of a number, a list or nothing."""
    return bool(re.search(r"[A-Za-z]{3}", cell)) and cell.lower() not in ("none", "nan", "inf", "true", "false")


def _shape(label: str, text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the case of a tuple such as (4, 48, 1024, 1024, 128)."""
    fields, found = _fields(label), _TUPLE.match(text.strip())
    numbers: Sequence[str] = found["numbers"].split(", ") if found else []
    if found is None or len(numbers) != len(fields):
        raise CellFault(label, text[:80], f"is not a tuple of {len(fields)} whole numbers")
    said: dict[str, Any] = {name: values.whole(number) for name, number in zip(fields, numbers, strict=True) if name}
    said.setdefault("seqlen_k", said.get("seqlen_q"))
    said.setdefault("num_kv_heads", said.get("num_heads"))
    said |= {name: options.get(name) for name in ("causal", "dtype", "window_size")}
    said |= {"head_dim_v": said["head_dim"], "level": "op", "page_size": 0}
    if mask := found["mask"]:
        said["causal"] = {"noop": False, "causal": True}.get(mask.strip())
        said["window_size"] = 0 if said["causal"] is not None else None
        said["subject"] = "attention" if said["causal"] is not None else values.words(f"attention {mask.strip()}")
    if "maxlenkv" in label.lower():
        said |= {"level": "decode", "page_size": None, "causal": True if said.get("seqlen_q") == 1 else None}
    return said


(PEER,) = peers_of(__file__, globals())
