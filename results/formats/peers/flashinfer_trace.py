"""flashinfer-bench's traces (flashinfer-ai/flashinfer-bench, traces/**/*.jsonl): one evaluation a line.

The shape has two sources: `workload.axes` has the variable axes, the name of the definition the fixed ones, such as
`gqa_paged_decode_h32_kv8_d128_ps16`. Sequences differ in length, so only their sum is known. A line without a solution
or an evaluation is a bare workload. Times are mean milliseconds and exist only with the status PASSED.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from results.formats.peers.engine import Failure, Number, Peer, at_least_none, telling_line
from results.formats.peers.sources import Entry, Row, objects, row_of
from results.records import Status

_SOURCE = "flashinfer-bench"
_STATUSES = {
    "PASSED": Status.OK,
    "INCORRECT_SHAPE": Status.INCORRECT,
    "INCORRECT_NUMERICAL": Status.INCORRECT,
    "INCORRECT_DTYPE": Status.INCORRECT,
    "RUNTIME_ERROR": Status.ERROR,
    "COMPILE_ERROR": Status.ERROR,
    "TIMEOUT": Status.TIMEOUT,
}
_ATTENTION = re.compile(
    r"(?P<kind>gqa|mla)_(?P<layout>paged|ragged)_(?P<step>prefill|decode)(?P<rest>[a-z0-9_]{0,200})"
)
_SIZE = re.compile(r"_(ckv|kpe|kv|ps|h|d)(\d{1,6})(?![a-z0-9])")
_PERFORMANCE, _ENVIRONMENT = "evaluation.performance.", "evaluation.environment."
_TIME = Number("latency_ms", ("latency_ms",), ("mean",), mean="latency_ms", required=True)


def _split(entry: Entry) -> Iterator[Row | str]:
    row = row_of(entry)
    shape = _ATTENTION.fullmatch(row.need("definition"))
    if shape is None:
        yield "traces of definitions that are neither gqa nor mla, paged or ragged"
    elif not row.text("solution") or entry.value.get("evaluation") is None:
        yield "lines with a workload and no evaluation"
    else:
        numbers = {name: row.value(_PERFORMANCE + name) for name in ("latency_ms", "speedup_factor")}
        yield row.having(**shape.groupdict(), **numbers)


def _fails(row: Row) -> list[Failure]:
    status = row.one_of("evaluation.status", _STATUSES)
    note = f"{status}: {telling_line(row.text('evaluation.log')[:20_000])}"[:500]
    return [Failure(_TIME, _STATUSES[status], note)] if status != "PASSED" else []


def _run(row: Row) -> dict[str, str]:
    hardware = row.need(f"{_ENVIRONMENT}hardware").replace("_", " ")
    libraries = {name: row.read(f"{_ENVIRONMENT}libs.{name}") for name in ("torch", "triton", "cuda")}
    return {"gpu_name": hardware, **{name: version for name, version in libraries.items() if version}}


def _case(row: Row) -> dict[str, Any]:
    """Return what the name of the definition and the axes of the workload say."""
    sizes = {name: int(number) for name, number in _SIZE.findall(row.text("rest"))}
    decode, latent = row.text("step") == "decode", row.text("kind") == "mla"
    batch = _axis(row, "batch_size") or (_axis(row, "len_indptr") or 1) - 1 or None
    page = sizes.get("ps") if row.text("layout") == "paged" else 0
    width = width_v = sizes.get("d")
    if latent and "ckv" in sizes:
        width, width_v = sizes["ckv"] + sizes.get("kpe", 0), sizes["ckv"]
    keys = _axis(row, "total_kv") or (_axis(row, "num_kv_indices") if page == 1 else None)
    context = keys // batch or None if keys and batch else None  # the mean of the sequences
    single = batch == 1 and not decode
    return {
        "level": "decode" if decode else "op",
        "subject": f"{'mla' if latent else 'attention'} workload {row.need('workload.uuid')[:12]}",
        "batch": batch,
        "num_heads": sizes.get("h"),
        "num_kv_heads": 1 if latent else sizes.get("kv"),
        "seqlen_q": 1 if decode else _axis(row, "total_q") if single else None,
        "seqlen_k": context if decode or single else None,
        "head_dim": width,
        "head_dim_v": width_v,
        "causal": True if decode or "causal" in row.text("rest") else None,
        "page_size": page,
        "latent_dim": width_v if latent else 0,
    }


def _axis(row: Row, name: str) -> int | None:
    return row.read(f"workload.axes.{name}", at_least_none)


PEER = Peer(
    name="flashinfer_trace",
    description="flashinfer-bench's traces, one JSON object a line",
    source=_SOURCE,
    counted="traces of flashinfer-bench",
    find=lambda upload: objects(upload, ("definition", "workload"), ("axes", "uuid")),
    split=_split,
    facts={"window_size": 0},
    case=_case,
    implementation=lambda row: (row.need("solution"),),
    mode=lambda row: "decode" if row.text("step") == "decode" else "fwd",
    run=_run,
    fails=_fails,
    numbers=(
        _TIME,
        Number("speedup", ("speedup_factor",), baseline=f"reference ({_SOURCE})", zero_is_none=True),
    ),
    assumptions=(
        "Sequences of a workload differ in length, so its id is part of the subject and distinguishes workloads.",
        "Decoding has the mean context if pages hold one token; a batch of prompts has no length.",
        "Latency is flashinfer-bench's mean; the speedup is relative to the definition's reference.",
    ),
)
