"""Latencies in other tools' files: Liger-Kernel's CSV, cuDNN frontend's, flashinfer-bench traces, ClickBench JSON.

Each file has the latencies of one timing per run: kernel time if the run has it, otherwise eager time. Numbers that the
layout has no columns for are left out. A failure is written as that tool writes it. Numbers read back equal.
"""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO

from results.levels import flops
from results.paths import toml_of
from results.records import CASE_FIELDS
from results.render.text import guard

Fields = Mapping[str, Any]
Runs = Iterable[tuple[Fields, Iterable[Fields]]]  # each run with its measurements, both by the names of their fields

_READ = toml_of(__file__)
_COLUMNS, _LIGER, _TRACES = _READ["columns"], _READ["words"]["liger"], _READ["words"]["traces"]
TAKES: dict[str, str] = _READ["takes"]  # the contents of a layout; other numbers are left out
SUFFIXES: dict[str, str] = _READ["suffixes"]
_MASKS = {(True, True): "top_left", (True, False): "bottom_right", (False, True): "no_mask", (False, False): "no_mask"}
_REFERENCE = "torch_naive"  # the baseline of the speedups in traces

# Values of the columns that peers.toml declares as "@NAME", from a run and a measurement.
_COMPUTED: dict[str, Callable[[Fields, Fields], Any]] = {
    "kernel": lambda run, m: m["subject"] if "attention" in (m["subject"] or "") else f"attention {m['subject']}",
    "operation": lambda run, m: _LIGER["modes"][m["mode"]],
    "quantity": lambda run, m: _LIGER["metrics"][m["metric"]][0],
    "unit": lambda run, m: _LIGER["metrics"][m["metric"]][1],
    "low": lambda run, m: m["p20"] or m["value"],
    "high": lambda run, m: m["p80"] or m["value"],
    "extra": lambda run, m: json.dumps(_liger_extra(m)),
    "timestamp": lambda run, m: m["time"] or run.get("created"),
    "dtype": lambda run, m: "fp8" if m["dtype"] == "float8_e4m3fn" else m["dtype"],
    "mask": lambda run, m: _MASKS[bool(m["causal"]), m["seqlen_q"] == m["seqlen_k"]],
    "time": lambda run, m: m["value"] if _is_ok(m) else "inf",
    "rate": lambda run, m: _tflops(m) if _is_ok(m) else 0.0,
    "window": lambda run, m: m["window_size"] or None,
    "success": lambda run, m: _is_ok(m),
    "skipped": lambda run, m: m["status"] in ("unsupported", "skipped"),
    "error": lambda run, m: None if _is_ok(m) else f"{m['status']}: {m['note'] or 'no reason given'}",
}


def _value(said: str, run: Fields, m: Fields) -> Any:
    """Return what a column holds: "=TEXT", "@NAME" of `_COMPUTED`, "run.FIELD", or a field of the measurement."""
    if said[:1] in ("=", "@"):
        return said[1:] if said[0] == "=" else _COMPUTED[said[1:]](run, m)
    return run.get(said.removeprefix("run.")) if said.startswith("run.") else m[said]


def flashinfer_trace(runs: Runs, file: BinaryIO) -> int:
    """Write flashinfer-bench's traces: one evaluation a line, of decoding and of forward passes."""
    count = 0
    for run, measured in runs:
        for trace in _traces(run, list(measured)):
            file.write(json.dumps(trace).encode() + b"\n")
            count += 1
    return count


def clickbench(runs: Runs, file: BinaryIO) -> int:
    """Write ClickBench's JSON: an entry for each run and implementation, a query a case, null where there is none.

    Each result is in seconds: the 20 % quantile, the median and the 80 % quantile.
    """
    entries: list[Fields] = []
    count = 0
    for run, measured in runs:
        latencies = _latencies(list(measured))
        entries += _clickbench(run, latencies)
        count += len({(m["implementation"], _key(m)) for m in latencies})
    file.write(json.dumps(entries, indent=1).encode() + b"\n")
    return count


def _write_csv(
    runs: Runs, file: BinaryIO, *, tool: str, selected: Callable[[Iterable[Fields]], Iterator[Fields]]
) -> int:
    """Write a header and a row for each selected measurement; return the number of rows."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(_COLUMNS[tool])
    count = 0
    for run, measured in runs:
        for m in selected(measured):
            cells = (_value(said, run, m) for said in _COLUMNS[tool].values())
            writer.writerow(guard(cell) if isinstance(cell, str) and cell else cell for cell in cells)
            count += 1
    text.detach()
    return count


def _latencies(measured: list[Fields]) -> list[Fields]:
    """Return the latencies of one timing: the kernel's if there are such."""
    found = [m for m in measured if m["metric"] == "latency_ms"]
    return [m for m in found if m["timing"] == "kernel"] or found


def _of_liger(measured: Iterable[Fields]) -> Iterator[Fields]:
    """Yield the numbers that Liger-Kernel's table has room for."""
    found = list(measured)
    for m in (*_latencies(found), *(m for m in found if m["metric"] == "peak_memory_mb")):
        if _is_ok(m) and m["level"] == "op" and m["mode"] in _LIGER["modes"] and m["seqlen_q"]:
            yield m


def _liger_extra(m: Fields) -> dict[str, Any]:
    extra = {word: m[field] for field, word in _LIGER["extra"].items() if m[field] is not None}
    if m["num_heads"] and m["head_dim"]:
        extra["hidden_size"] = m["num_heads"] * m["head_dim"]
    return extra | ({"dtype": f"torch.{m['dtype']}"} if m["dtype"] else {})


def _of_cudnn(measured: Iterable[Fields]) -> Iterator[Fields]:
    """Yield the latencies and failures that cuDNN frontend's table has room for."""
    for m in _latencies(list(measured)):
        if m["level"] == "op" and m["mode"] in ("fwd", "bwd") and m["causal"] is not None and m["batch"]:
            yield m


def _is_ok(m: Fields) -> bool:
    return m["status"] == "ok"


def _tflops(m: Fields) -> float:
    work = flops({name: m[name] for name in CASE_FIELDS}, m["mode"])
    return work / m["value"] / 1e9 if work else 0.0


def _traces(run: Fields, measured: list[Fields]) -> Iterator[dict[str, Any]]:
    latencies = _latencies(measured)
    references = {_key(m): m["value"] for m in latencies if m["implementation"] == _REFERENCE}
    hardware = (run.get("gpu_name") or "not_stated").replace(" ", "_")
    libraries = {name: run[name] for name in ("torch", "triton", "cuda") if run.get(name)}
    for m in latencies:
        if m["mode"] not in ("fwd", "decode") or m["level"] not in ("op", "decode") or not m["seqlen_k"]:
            continue
        yield {
            "definition": _definition(m),
            "workload": {"uuid": _uuid(m), "axes": _axes(m), "inputs": {}},
            "solution": m["implementation"],
            "evaluation": {
                **_evaluated(m, references.get(_key(m))),
                "environment": {"hardware": hardware, "libs": libraries},
                "timestamp": m["time"] or run.get("created"),
            },
        }


def _definition(m: Fields) -> str:
    """Return a name that holds the fixed axes, as flashinfer-bench's definitions do."""
    decode = m["level"] == "decode"
    kind = "paged" if m["page_size"] else "ragged"
    parts = [f"gqa_{kind}_{'decode' if decode else 'prefill'}", None if decode or not m["causal"] else "causal"]
    sizes = {"h": m["num_heads"], "kv": m["num_kv_heads"], "d": m["head_dim"], "ps": m["page_size"]}
    return "_".join([*filter(None, parts), *(f"{name}{size}" for name, size in sizes.items() if size)])


def _axes(m: Fields) -> dict[str, int]:
    batch = m["batch"] or 1
    queries = m["seqlen_q"] or 1
    return {"batch_size": batch, "total_q": batch * queries, "total_kv": batch * m["seqlen_k"]}


def _uuid(m: Fields) -> str:
    sizes = (m["batch"], m["seqlen_q"], m["seqlen_k"], m["window_size"] or 0)
    return f"b{sizes[0]}q{sizes[1]}k{sizes[2]}w{sizes[3]}{(m['dtype'] or '')[:5]}"


def _evaluated(m: Fields, reference: float | None) -> dict[str, Any]:
    if m["status"] != "ok":
        status = _TRACES.get(m["status"], "RUNTIME_ERROR")
        return {"status": status, "log": m["note"] or m["status"], "correctness": None, "performance": None}
    performance = {"latency_ms": m["value"]}
    if reference:
        performance |= {"reference_latency_ms": reference, "speedup_factor": reference / m["value"]}
    return {"status": "PASSED", "log": "", "correctness": None, "performance": performance}


def _clickbench(run: Fields, latencies: list[Fields]) -> Iterator[dict[str, Any]]:
    queries = list(dict.fromkeys(map(_key, latencies)))
    by_name: dict[str, dict[tuple, Fields]] = defaultdict(dict)
    for m in latencies:
        by_name[m["implementation"]].setdefault(_key(m), m)
    for name, found in by_name.items():
        results = [_seconds(found[query]) if query in found else [None] * 3 for query in queries]
        yield {
            "system": name,
            "date": (run.get("created") or "")[:10],
            "machine": run.get("gpu_name"),
            "cluster_size": 1,
            "hardware": "gpu",
            "tuned": "no",
            "comment": f"attnbench run {run.get('run_id')}; quantiles 20 %, 50 %, 80 % in seconds",
            "tags": [tag for tag in (latencies[0]["timing"], run.get("source")) if tag],
            "queries": [_words(query) for query in queries],
            "result": results,
        }


def _seconds(m: Fields) -> list[float | None]:
    if m["status"] != "ok":
        return [None] * 3
    return [(m[name] or m["value"]) / 1e3 for name in ("p20", "value", "p80")]


def _key(m: Fields) -> tuple:
    return (*(m[name] for name in CASE_FIELDS), m["mode"])


def _words(key: tuple) -> str:
    said = dict(zip((*CASE_FIELDS, "mode"), key, strict=True))
    return ", ".join(f"{name} {value}" for name, value in said.items() if value not in (None, 0))


# Each function writes a file and returns how many numbers are in it.
FORMS: dict[str, Callable[[Runs, BinaryIO], int]] = {
    "liger": partial(_write_csv, tool="liger", selected=_of_liger),
    "cudnn": partial(_write_csv, tool="cudnn", selected=_of_cudnn),
    "flashinfer-trace": flashinfer_trace,
    "clickbench": clickbench,
}
