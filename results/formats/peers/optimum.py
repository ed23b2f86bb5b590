"""optimum-benchmark's results (huggingface/optimum-benchmark): benchmark.json, benchmark_report.json or their CSV.

The JSON is nested, the CSV has its paths as columns (`decode.latency.mean`), with `report.` and `config.` before them
in newer versions. Times are seconds, memory is in MB of 10^6 bytes. The CSV of 2023 has `forward.latency(s)` and
`generate.throughput(tokens/s)` instead, where a generation includes its prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from results.formats import values
from results.formats.errors import CellError
from results.formats.peers.collected import (
    CellFault,
    Cells,
    Collected,
    checked,
    columns_of,
    document,
    failure_of,
    places_of,
    positive,
    rows_of,
    sheet_with,
    telling_line,
)
from results.formats.tables import Sheet
from results.formats.upload import Understanding, Upload
from results.records import Case

NAME = "optimum_benchmark"
DESCRIPTION = "optimum-benchmark's JSON or CSV"
SOURCE = "optimum-benchmark"
TARGETS = {"prefill": "prefill", "forward": "prefill", "decode": "decode", "per_token": "decode", "train": "train"}
PREFIXES = ("report.", "config.", "benchmark_report.", "benchmark_config.")
MEGABYTE = 1e6 / 2**20  # in MiB
OLD = ("forward.latency(s)", "generate.latency(s)")
MAX_SAMPLES = 10_000
MAX_DEPTH = 8

_NAMES = re.compile(r"'([^']{1,200})'|\"([^\"]{1,200})\"")
_DTYPES = ("backend.torch_dtype", "backend.dtype")
_ASSUMED = (
    "Rows are whole models. Times are seconds in the file and become milliseconds; MB are 10^6 bytes and become MiB.",
    "The target generate is left out where there is decode: its rate mixes the prompt with the new tokens.",
    "Decoding goes to the end of the new tokens; its context is the prompt and the new tokens.",
)


def reason_against(upload: Upload) -> str | None:
    """Return None if it is such a file, nothing to say otherwise."""
    return None if _sheet(upload) or _report(upload) else ""


def understand(upload: Upload) -> Understanding:
    """Return latency, tokens or samples a second and peak memory of each target."""
    sheet = _sheet(upload)
    collected = Collected(upload, NAME, unit="line" if sheet else "report")
    for place, cells, lists in _rows(collected, sheet):
        with collected.row(place, ", ".join(cells.row)):
            _row(collected, place, cells, lists)
    count = len(sheet.rows) if sheet else 1
    columns = columns_of(sheet, {name: name for name in sheet.header if _measured(_short(name))}) if sheet else ()
    nameless = any(m.case.subject is None for m in collected.measurements)
    return collected.understanding(
        f"{count:,} reports of optimum-benchmark",
        columns=columns,
        assumptions=_ASSUMED,
        questions=("The file names neither the model nor the batch and its lengths.",) if nameless else (),
    )


def _sheet(upload: Upload) -> Sheet | None:
    """Return the table, if the file is a CSV of reports."""
    for target in TARGETS:
        for prefix in ("", *PREFIXES):
            if (sheet := sheet_with(upload, (f"{prefix}{target}.latency.mean",))) is not None:
                return sheet
    return next((sheet for name in OLD if (sheet := sheet_with(upload, (name,))) is not None), None)


def _report(upload: Upload) -> dict[str, Any] | None:
    """Return the document, if the file is a JSON report with or without its configuration."""
    found = document(upload, '"latency"', '"p50"')
    if not isinstance(found, dict):
        return None
    report = found.get("report", found)
    fits = isinstance(report, dict) and any(_has_latency(report.get(target)) for target in TARGETS)
    return found if fits else None


def _has_latency(target: Any) -> bool:
    return isinstance(target, dict) and isinstance(target.get("latency"), dict) and "mean" in target["latency"]


def _rows(collected: Collected, sheet: Sheet | None) -> Iterator[tuple[int, Cells, Mapping[str, Any]]]:
    """Yield each report with its values by short path, as text, and its lists."""
    if sheet is not None:
        names = places_of([_short(name) for name in sheet.header])
        for line, cells in rows_of(collected, sheet):
            yield line, Cells(cells.row, names), {}
        return
    flat = dict(_flat(_report(collected.upload) or {}, "", 0))
    scalars = {name: _text(value) for name, value in flat.items()}
    yield 1, Cells(list(scalars.values()), places_of(list(scalars))), flat


def _short(name: str) -> str:
    """Return a path without what newer versions put before it."""
    return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)


def _flat(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and depth < MAX_DEPTH:
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name), depth + 1)
    else:
        yield _short(path), value


def _text(value: Any) -> str:
    try:
        return "" if value is None else str(value)
    except ValueError:  # a whole number of more digits than Python prints
        return "a very large number"


def _measured(name: str) -> bool:
    return name.partition(".")[0] in (*TARGETS, "generate") and name.count(".") >= 1


def _row(collected: Collected, place: int, cells: Cells, lists: Mapping[str, Any]) -> None:
    known = {"run_id": _run(collected, cells), "implementation": _name(cells)}
    message = cells.text("traceback")
    if message:
        case, mode = _case(cells, "prefill"), "prefill"
        collected.add(
            place, "traceback", metric="latency_ms", status=failure_of(message), note=telling_line(message), case=case,
            mode=mode, **known,
        )  # fmt: skip
        return
    before = len(collected.measurements)
    for target, mode in TARGETS.items():
        if target == "forward" and cells.text("prefill.latency.mean"):
            continue
        _target(collected, place, cells, lists, target, known | {"case": _case(cells, mode), "mode": mode})
    for old, mode in (("forward", "prefill"), ("generate", None)):
        _old(collected, place, cells, old, known | {"case": _case(cells, mode), "mode": mode})
    if len(collected.measurements) == before:
        raise CellError(f"has none of the targets {', '.join(TARGETS)} with a latency")


def _target(
    collected: Collected, place: int, cells: Cells, lists: Mapping[str, Any], target: str, known: dict[str, Any]
) -> None:
    """Take what one target measured: a time, a rate, memory."""
    metric = {"per_token": "time_per_token_ms", "decode": None}.get(target, "latency_ms")
    column = f"{target}.latency.p50" if cells.text(f"{target}.latency.p50") else f"{target}.latency.mean"
    if metric and cells.text(column):
        unit = cells.text(f"{target}.latency.unit") or "s"
        if unit != "s":
            raise CellFault(f"{target}.latency.unit", unit, "is not s")
        mean, spread = (cells.read(f"{target}.latency.{name}", values.number) for name in ("mean", "stdev"))
        samples = _samples(lists.get(f"{target}.latency.values"), target)
        collected.add(
            place, column, metric=metric, value=1000 * cells.need(column, positive),
            mean=1000 * mean if mean else None, std=1000 * spread if spread else None,
            statistic="median" if column.endswith("p50") else "mean", samples=samples, n=len(samples) or None,
            printed=f"{cells.text(column)} s", **known,
        )  # fmt: skip
    rate, unit = f"{target}.throughput.value", cells.text(f"{target}.throughput.unit")
    metric = {"tokens/s": "tokens_per_s", "samples/s": "samples_per_s"}.get(unit)
    if metric and cells.text(rate) and target != "per_token":
        value = cells.need(rate, positive)
        collected.add(place, rate, metric=metric, value=value, statistic="printed", printed=cells.text(rate), **known)
    for column, metric in (("max_allocated", "peak_memory_mb"), ("max_reserved", "reserved_memory_mb")):
        name = f"{target}.memory.{column}"
        if target not in ("per_token", "forward") and (megabytes := cells.read(name, values.number)):
            collected.add(
                place, name, metric=metric, value=megabytes * MEGABYTE, statistic="max",
                printed=f"{cells.text(name)} MB", **known,
            )  # fmt: skip


def _old(collected: Collected, place: int, cells: Cells, target: str, known: dict[str, Any]) -> None:
    """Take what the CSV of 2023 says of one target."""
    note = "the generation with its prompt" if target == "generate" else None
    seconds, rate, memory = (f"{target}.{name}" for name in ("latency(s)", "throughput(tokens/s)", "peak_memory(MB)"))
    if (value := cells.read(seconds, positive)) is not None:
        collected.add(
            place, seconds, metric="latency_ms", value=1000 * value, statistic="mean", mean=1000 * value, note=note,
            printed=f"{cells.text(seconds)} s", **known,
        )  # fmt: skip
    if (value := cells.read(rate, positive)) is not None:
        collected.add(
            place, rate, metric="tokens_per_s", value=value, statistic="printed", note=note,
            printed=cells.text(rate), **known,
        )  # fmt: skip
    if (value := cells.read(memory, positive)) is not None:
        collected.add(
            place, memory, metric="peak_memory_mb", value=value * MEGABYTE, statistic="max", note=note,
            printed=f"{cells.text(memory)} MB", **known,
        )  # fmt: skip


def _samples(found: Any, target: str) -> tuple[float, ...]:
    if not isinstance(found, list):
        return ()
    if len(found) > MAX_SAMPLES:
        raise CellFault(f"{target}.latency.values", f"{len(found)} numbers", f"are more than {MAX_SAMPLES}")
    return tuple(1000 * checked(value, f"{target}.latency.values") for value in found)


def _first(cells: Cells, *names: str) -> str:
    return next((text for name in names if (text := cells.text(name)) and text != "None"), "")


def _run(collected: Collected, cells: Cells) -> str:
    cpu = values.words(_first(cells, "environment.cpu")) or None
    listed = _NAMES.findall(_first(cells, "environment.gpu", "environment.gpus"))
    gpus = list(dict.fromkeys(single or double for single, double in listed))
    device = _first(cells, "backend.device", "device")
    on_cpu = device == "cpu"
    gpu = cpu if on_cpu else values.words(gpus[0]) if len(gpus) == 1 else None
    return collected.run(
        (gpu, device), gpu_name=gpu, cpu=cpu, device_type=device if device in ("cpu", "cuda") else None
    )


def _case(cells: Cells, mode: str | None) -> Case:
    """Return the case of a pass: the prompt, one new token at its end, or a training step."""

    def shape(*names: str) -> int | None:
        path = next((name for name in names if cells.text(name) not in ("", "None")), None)
        return cells.read(path, values.whole) if path else None

    scenario = ("scenario", "benchmark")
    batch = shape(*(f"{part}.input_shapes.batch_size" for part in scenario))
    prompt = shape(*(f"{part}.input_shapes.sequence_length" for part in scenario))
    new = shape(
        *(f"{part}.generate_kwargs.max_new_tokens" for part in scenario),
        *(f"{part}.new_tokens" for part in scenario),
    )
    context = prompt + new if prompt and new else None
    dtype = _first(cells, *_DTYPES)
    return Case(
        level="model",
        subject=values.words(_first(cells, "backend.model", "model")) or None,
        batch=batch,
        seqlen_q=prompt if mode != "decode" else 1,
        seqlen_k=context if mode in ("decode", None) else prompt,
        dtype=values.dtype(dtype) if dtype and dtype != "auto" else None,
    )


def _name(cells: Cells) -> str:
    """Return the backend with its attention, its quantisation and whether it was compiled, and the source."""
    attention = _first(cells, "backend.attn_implementation")
    quantised = _first(cells, "backend.quantization_scheme", "backend.quantization_strategy")
    compiled = _first(cells, "backend.torch_compile") == "True"
    better = _first(cells, "backend.bettertransformer", "backend.to_bettertransformer") == "True"
    parts = (
        _first(cells, "backend.name") or "backend not said",
        attention,
        quantised,
        "compiled" if compiled else "",
        "bettertransformer" if better else "",
        f"({SOURCE})",
    )
    return values.words(" ".join(part for part in parts if part))
