"""Latencies in other tools' files: Liger-Kernel's CSV, cuDNN frontend's, flashinfer-bench traces, ClickBench JSON.

Each takes the latencies of one timing a run, the kernel's where there are such, and leaves out what the layout cannot
say. A failure is written as that tool writes it. Numbers are written so that they read back equal.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from results.levels import flops
from results.records import CASE_FIELDS
from results.render.text import guard

Fields = Mapping[str, Any]
Runs = Iterable[tuple[Fields, Iterable[Fields]]]  # each run with its measurements, both by the names of their fields

LIGER = (
    *("kernel_name", "kernel_provider", "kernel_operation_mode", "metric_name", "metric_unit", "x_name", "x_label"),
    *("x_value", "y_value_50", "y_value_20", "y_value_80", "extra_benchmark_config_str", "gpu_name", "timestamp"),
    "liger_version",
)
CUDNN = (
    *("config_name", "model_name", "backend", "data_type", "attn_mask", "batch_size", "q_seqlen", "kv_seqlen"),
    *("num_q_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo", "profile_pass", "deterministic_bwd", "time_ms"),
    *("tflops", "max_diff", "num_iterations", "sliding_window_size", "success", "skipped", "error_message"),
    *("gpu_name", "cudnn_version", "cudnn_backend_version", "peak_mma_tflops"),
)
_LIGER_MODES = {"fwd": "forward", "bwd": "backward", "fwd_bwd": "full"}
_LIGER_METRICS = {"latency_ms": ("speed", "ms"), "peak_memory_mb": ("memory", "MB")}
_LIGER_EXTRA = {"batch": "B", "num_heads": "num_heads", "num_kv_heads": "num_kv_heads", "causal": "causal"}
_LIGER_EXTRA |= {"window_size": "window_size", "head_dim_v": "head_dim_v"}
_TRACES = {"unsupported": "COMPILE_ERROR", "incorrect": "INCORRECT_NUMERICAL", "timeout": "TIMEOUT"}
_REFERENCE = "torch_naive"  # what the traces' speedups refer to


def liger(runs: Runs, file: BinaryIO) -> int:
    """Write Liger-Kernel's long form: a row a number, with its quantiles. A failure is a missing row, as there."""
    return _write_csv(file, LIGER, (row for run, measured in runs for row in _liger(run, list(measured))))


def cudnn(runs: Runs, file: BinaryIO) -> int:
    """Write the header that cuDNN frontend's training benchmark has since August 2026: forward and backward."""
    return _write_csv(file, CUDNN, (row for run, measured in runs for row in _cudnn(run, list(measured))))


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
    entries = [entry for run, measured in runs for entry in _clickbench(run, list(measured))]
    file.write(json.dumps(entries, indent=1).encode() + b"\n")
    return sum(len(entry["result"]) for entry in entries)


# Each writes a file and returns how many numbers are in it.
FORMS: dict[str, Callable[[Runs, BinaryIO], int]] = {
    "liger": liger,
    "cudnn": cudnn,
    "flashinfer-trace": flashinfer_trace,
    "clickbench": clickbench,
}
TAKES = {  # what a layout has room for, in words; all else is left out
    "liger": "measured latencies and peak memory of attention (level op), forward, backward and both",
    "cudnn": "latencies and failures of attention (level op), forward or backward, with mask and batch stated",
    "flashinfer-trace": "latencies and failures of forward attention (level op) and of decoding",
    "clickbench": "latencies and failures of any level",
}
SUFFIXES = {"liger": "csv", "cudnn": "csv", "flashinfer-trace": "jsonl", "clickbench": "json"}


def _write_csv(file: BinaryIO, header: tuple[str, ...], rows: Iterable[Fields]) -> int:
    """Write a header and rows; return how many rows."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    count = 0
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in header])
        count += 1
    text.detach()
    return count


def _cell(value: Any) -> Any:
    return guard(value) if isinstance(value, str) and value else value


def _latencies(measured: list[Fields]) -> list[Fields]:
    """Return the latencies of one timing: the kernel's if there are such."""
    found = [m for m in measured if m["metric"] == "latency_ms"]
    return [m for m in found if m["timing"] == "kernel"] or found


def _liger(run: Fields, measured: list[Fields]) -> Iterator[dict[str, Any]]:
    memory = [m for m in measured if m["metric"] == "peak_memory_mb"]
    for m in (*_latencies(measured), *memory):
        if m["status"] != "ok" or m["level"] != "op" or m["mode"] not in _LIGER_MODES or not m["seqlen_q"]:
            continue
        name, unit = _LIGER_METRICS[m["metric"]]
        extra = {word: m[field] for field, word in _LIGER_EXTRA.items() if m[field] is not None}
        if m["num_heads"] and m["head_dim"]:
            extra["hidden_size"] = m["num_heads"] * m["head_dim"]
        if m["dtype"]:
            extra["dtype"] = f"torch.{m['dtype']}"
        yield {
            "kernel_name": m["subject"] if "attention" in (m["subject"] or "") else f"attention {m['subject']}",
            "kernel_provider": m["implementation"],
            "kernel_operation_mode": _LIGER_MODES[m["mode"]],
            "metric_name": name,
            "metric_unit": unit,
            "x_name": "seq_len",
            "x_label": "sequence length",
            "x_value": m["seqlen_q"],
            "y_value_50": m["value"],
            "y_value_20": m["p20"] or m["value"],
            "y_value_80": m["p80"] or m["value"],
            "extra_benchmark_config_str": json.dumps(extra),
            "gpu_name": run.get("gpu_name"),
            "timestamp": m["time"] or run.get("created"),
            "liger_version": "",
        }


def _cudnn(run: Fields, measured: list[Fields]) -> Iterator[dict[str, Any]]:
    for m in _latencies(measured):
        if m["level"] != "op" or m["mode"] not in ("fwd", "bwd") or m["causal"] is None or not m["batch"]:
            continue
        ok, work = m["status"] == "ok", flops({name: m[name] for name in CASE_FIELDS}, m["mode"])
        mask = "no_mask" if not m["causal"] else "top_left" if m["seqlen_q"] == m["seqlen_k"] else "bottom_right"
        yield {
            "config_name": run.get("run_id"),
            "model_name": m["subject"],
            "backend": m["implementation"],
            "data_type": "fp8" if m["dtype"] == "float8_e4m3fn" else m["dtype"],
            "attn_mask": mask,
            "batch_size": m["batch"],
            "q_seqlen": m["seqlen_q"],
            "kv_seqlen": m["seqlen_k"],
            "num_q_heads": m["num_heads"],
            "num_kv_heads": m["num_kv_heads"],
            "head_dim_qk": m["head_dim"],
            "head_dim_vo": m["head_dim_v"],
            "profile_pass": m["mode"],
            "deterministic_bwd": False,
            "time_ms": m["value"] if ok else "inf",
            "tflops": work / m["value"] / 1e9 if ok and work else 0.0,
            "max_diff": 0.0,
            "num_iterations": m["n"],
            "sliding_window_size": m["window_size"] or None,
            "success": ok,
            "skipped": m["status"] in ("unsupported", "skipped"),
            "error_message": None if ok else f"{m['status']}: {m['note'] or 'no reason given'}",
            "gpu_name": run.get("gpu_name"),
            "cudnn_version": None,
            "cudnn_backend_version": None,
            "peak_mma_tflops": None,
        }


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


def _clickbench(run: Fields, measured: list[Fields]) -> Iterator[dict[str, Any]]:
    latencies = _latencies(measured)
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
