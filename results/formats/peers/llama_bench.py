"""llama-bench's results (ggml-org/llama.cpp, tools/llama-bench): -o csv, json, jsonl or md.

A row is one test of one model: `pp` processes n_prompt tokens, `tg` generates n_gen tokens one by one, both after
n_depth tokens that are in the cache. Its columns change with the version, so they are taken by name and others passed
over. Times are nanoseconds of the whole test, rates tokens a second, both means with standard deviations. Tokenising
and sampling are not part of them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from typing import Any

from results.formats import values
from results.formats.errors import CellError, UploadError
from results.formats.peers.collected import (
    CellFault,
    Cells,
    Collected,
    checked,
    columns_of,
    document,
    json_lines,
    mapping,
    places_of,
    positive,
    rows_of,
    sheet_with,
)
from results.formats.tables import MARKDOWN, Sheet, decode
from results.formats.upload import Understanding, Upload
from results.records import Case

NAME = "llama_bench"
DESCRIPTION = "llama-bench's CSV, JSON, JSON lines or Markdown"
COLUMNS = ("model_type", "n_prompt", "n_gen", "avg_ns", "avg_ts")
TABLE = ("model", "backend", "test", "t/s")
SETTINGS = (  # what may differ between the rows of one file and changes the speed, by column and short name
    ("n_gpu_layers", "ngl"),
    ("ngl", "ngl"),
    ("n_batch", "batch"),
    ("n_ubatch", "ubatch"),
    ("n_threads", "threads"),
    ("threads", "threads"),
    ("type_k", "k"),
    ("type_v", "v"),
    ("split_mode", "split"),
    ("sm", "split"),
    ("n_cpu_moe", "cpu_moe"),
    ("no_kv_offload", "no_kv_offload"),
    ("tensor_split", "tensor_split"),
    ("use_mmap", "mmap"),
    ("mmap", "mmap"),
)
MAX_SAMPLES = 1000

_TEST = re.compile(r"^(?:pp ?(?P<pp>\d{1,9}))?\+?(?:tg ?(?P<tg>\d{1,9}))?(?: @ d ?(?P<d>\d{1,9}))?$", re.ASCII)
_RATE = re.compile(r"^(?P<mean>[\d.]{1,20})(?: ± (?P<std>[\d.]{1,20}))?$", re.ASCII)
_DEVICE = re.compile(r"(?:Device \d+: ([^,]{1,120}), compute capability|^ggml_vulkan: \d+ = (.{1,120}?) \([^()]*\) \|)")
_BUILD = re.compile(r"^build: (?P<commit>[0-9a-f]{6,40}) \((?P<number>\d{1,9})\)", re.ASCII)
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
_MEANINGS = {
    "build_number": "implementation",
    "backends": "implementation",
    "flash_attn": "implementation",
    "gpu_info": "gpu_name",
    "cpu_info": "cpu",
    "model_type": "subject and dtype",
    "n_prompt": "seqlen_q",
    "n_gen": "mode",
    "n_depth": "seqlen_k",
    "test_time": "time",
    "avg_ns": "latency_ms of a prompt",
    "stddev_ns": "latency_ms of a prompt",
    "avg_ts": "tokens_per_s",
    "stddev_ts": "tokens_per_s",
    **{column: "implementation, where rows differ" for column, _ in SETTINGS},
}
_ASSUMED = (
    "Rows are whole models with one sequence: pp is prefill, tg decode. Tokenising and sampling are not timed.",
    "seqlen_k is the tokens in the cache at the end of the test: the depth and what the test adds.",
)


def reason_against(upload: Upload) -> str | None:
    """Return None if it is such a file, nothing to say otherwise."""
    return None if _sheets(upload) or _objects(upload) else ""


def understand(upload: Upload) -> Understanding:
    """Return tokens a second of each test and the latency of prompts."""
    collected = Collected(upload, NAME)
    rows = list(_rows(collected))
    names = _differing([cells for _, cells, _ in rows])
    for line, cells, samples in rows:
        with collected.row(line, ", ".join(cells.row)):
            _row(collected, line, cells, samples, names)
    sheets = _sheets(upload)
    columns = columns_of(sheets[0], _MEANINGS) if sheets else ()
    return collected.understanding(f"{len(rows):,} tests of llama-bench", columns=columns, assumptions=_ASSUMED)


def _sheets(upload: Upload) -> list[Sheet]:
    """Return the tables of llama-bench: one of a CSV, any number of a Markdown text."""
    if (sheet := sheet_with(upload, COLUMNS)) is not None:
        return [sheet]
    if upload.kind != "text" or not all(name.encode() in upload.data for name in TABLE):
        return []
    try:
        sheets = upload.sheets
    except (UploadError, csv.Error):
        return []
    return [sheet for sheet in sheets if sheet.description == MARKDOWN and set(TABLE) <= set(sheet.header)]


def _objects(upload: Upload) -> list[tuple[int, Any]]:
    """Return the results of a JSON array, or of JSON lines, with their places."""
    found = document(upload, *(f'"{name}"' for name in COLUMNS))
    if isinstance(found, list) and found and isinstance(found[0], dict) and set(COLUMNS) <= set(found[0]):
        return list(enumerate(found, start=1))
    lines = json_lines(upload, *(f'"{name}"' for name in COLUMNS)) or []
    return lines if lines and set(COLUMNS) <= set(lines[0][1] or ()) else []


def _rows(collected: Collected) -> Iterator[tuple[int, Cells, dict[str, Any]]]:
    """Yield the place, the columns and the object, if it is one, of each test."""
    upload = collected.upload
    sheets = _sheets(upload)
    lines = decode(upload.data).split("\n") if sheets else []
    for sheet in sheets:
        if "test" in sheet.header:
            yield from ((line, cells, {}) for line, cells in _printed(collected, sheet, lines))
        else:
            yield from ((line, cells, {}) for line, cells in rows_of(collected, sheet))
    for place, entry in _objects(upload):
        with collected.row(place):
            said = mapping(entry, "entry")
            scalars = {name: _text(value) for name, value in said.items() if not isinstance(value, list | dict)}
            yield place, Cells(list(scalars.values()), places_of(list(scalars))), said


def _text(value: Any) -> str:
    if value is None:
        return ""
    try:
        return str(int(value)) if isinstance(value, bool) else str(value)
    except ValueError:  # a whole number of more digits than Python prints
        return "a very large number"


def _printed(collected: Collected, sheet: Sheet, lines: Sequence[str]) -> Iterator[tuple[int, Cells]]:
    """Yield the rows of a Markdown table under the names that the other outputs have."""
    around = _around(lines, sheet)
    for line, cells in rows_of(collected, sheet):
        with collected.row(line, ", ".join(cells.row)):
            test, rate = _TEST.match(cells.text("test")), _RATE.match(cells.text("t/s"))
            if test is None or not any(test.groups()):
                raise CellFault("test", cells.text("test"), "is not a test such as pp512, tg128 or tg128 @ d512")
            if rate is None:
                raise CellFault("t/s", cells.text("t/s"), "is not a rate such as 132.19 ± 0.55")
            said = {name: cells.text(name) for name in sheet.header} | {
                "model_type": cells.text("model"),
                "backends": cells.text("backend"),
                "flash_attn": cells.text("fa"),
                "n_prompt": test["pp"] or "0",
                "n_gen": test["tg"] or "0",
                "n_depth": test["d"] or "0",
                "avg_ts": rate["mean"],
                "stddev_ts": rate["std"] or "",
                **around,
            }
            yield line, Cells(list(said.values()), places_of(list(said)))


def _around(lines: Sequence[str], sheet: Sheet) -> dict[str, str]:
    """Return what llama-bench prints around a table: the devices before it, the build after it, and its line."""
    first = min((line for line, _ in sheet.rows), default=1)
    last = max((line for line, _ in sheet.rows), default=1)
    before = first - 3
    while before > 0 and not lines[before - 1].lstrip().startswith("|"):
        before -= 1
    devices = [found for line in lines[before : first - 1] for found in _DEVICE.findall(line[:1000])]
    after = lines[last : last + 10]
    following = next((at for at, line in enumerate(after) if line.lstrip().startswith("|")), len(after))
    build = next((found for line in after[:following] if (found := _BUILD.match(line.strip()))), None)
    return {
        "gpu_info": ", ".join(dict.fromkeys(nvidia or vulkan for nvidia, vulkan in devices)),
        "build_commit": build["commit"] if build else "",
        "build_number": build["number"] if build else "",
        "table": str(first - 2),
    }


def _differing(rows: Sequence[Cells]) -> list[tuple[str, str]]:
    """Return the settings that differ between rows."""
    return [setting for setting in SETTINGS if len({cells.text(setting[0]) for cells in rows}) > 1]


def _row(collected: Collected, line: int, cells: Cells, said: dict[str, Any], names: Sequence[tuple[str, str]]) -> None:
    counts = {name: cells.read(name, lambda text: values.whole(text, minimum=0)) or 0 for name in ("n_prompt", "n_gen")}
    if counts["n_prompt"] and counts["n_gen"]:
        collected.left_out["tests of a prompt and a generation together (pg)"] += 1
        return
    prefill = counts["n_prompt"] > 0
    time = cells.text("test_time")
    known = {
        "run_id": _run(collected, cells),
        "case": _case(cells, counts),
        "implementation": _name(cells, names),
        "mode": "prefill" if prefill else "decode",
        "time": time if _ISO.fullmatch(time) else None,
    }
    rate = cells.need("avg_ts", positive)
    spread = cells.read("stddev_ts", lambda text: values.number(text, minimum=0))
    nanoseconds = cells.read("avg_ns", positive)
    if nanoseconds and not 1 / 1.1 <= rate * nanoseconds / 1e9 / sum(counts.values()) <= 1.1:
        raise CellFault("avg_ts", cells.text("avg_ts"), "is not what avg_ns and the tokens of the test give")
    samples = _samples(said, "samples_ts", 1.0)
    collected.add(
        line, "avg_ts", metric="tokens_per_s", value=rate, mean=rate, std=spread, statistic="mean", samples=samples,
        n=len(samples) or None, printed=cells.text("avg_ts"), **known,
    )  # fmt: skip
    if prefill and nanoseconds:
        std = cells.read("stddev_ns", lambda text: values.number(text, minimum=0))
        samples = _samples(said, "samples_ns", 1e-6)
        collected.add(
            line, "avg_ns", metric="latency_ms", value=nanoseconds / 1e6, mean=nanoseconds / 1e6,
            std=None if std is None else std / 1e6, statistic="mean", samples=samples, n=len(samples) or None,
            printed=f"{cells.text('avg_ns')} ns", **known,
        )  # fmt: skip


def _samples(said: dict[str, Any], name: str, scale: float) -> tuple[float, ...]:
    found = said.get(name)
    if not isinstance(found, list):
        return ()
    if len(found) > MAX_SAMPLES:
        raise CellFault(name, f"{len(found)} numbers", f"are more than {MAX_SAMPLES}")
    return tuple(checked(value, name) * scale for value in found)


def _run(collected: Collected, cells: Cells) -> str:
    gpu, cpu = cells.read("gpu_info", values.words), cells.read("cpu_info", values.words)
    backends = cells.read("backends", values.words) or ""
    device = "cpu" if backends in ("CPU", "BLAS") else "cuda" if "CUDA" in backends else None
    build = cells.read("build_commit", values.words)
    return collected.run(
        (gpu, cpu, backends, build, table := cells.text("table")),
        title=" ".join(part for part in (build and f"llama.cpp {build}", table and f"table of line {table}") if part),
        gpu_name=(cpu if device == "cpu" else gpu) or None,
        cpu=cpu,
        device_type=device,
    )


def _case(cells: Cells, counts: dict[str, int]) -> Case:
    tokens = sum(counts.values())
    if not tokens:
        raise CellError("has neither a prompt nor a generation")
    depth = cells.read("n_depth", lambda text: values.whole(text, minimum=0)) or 0
    model = cells.need("model_type", values.words)
    return Case(
        level="model",
        subject=model,
        batch=1,
        seqlen_q=counts["n_prompt"] or 1,
        seqlen_k=depth + tokens,
        dtype=_DTYPES.get(model.rpartition(" ")[2]),
    )


def _name(cells: Cells, names: Sequence[tuple[str, str]]) -> str:
    """Return llama.cpp with build and backends, whether flash attention was on, and the settings that differ."""
    build, flash = cells.text("build_number"), cells.text("flash_attn")
    settings = [f"{short} {text}" for column, short in names if (text := cells.text(column))]
    parts = ("llama.cpp", build and f"b{build}", cells.text("backends"), flash and f"flash_attn {flash}", *settings)
    return values.words(" ".join([*filter(None, parts), "(llama-bench)"]))
