"""flashinfer-bench's traces (flashinfer-ai/flashinfer-bench, traces/**/*.jsonl): one evaluation a line.

The shape is split: variable axes stand in `workload.axes`, fixed ones in the name of the definition, such as
`gqa_paged_decode_h32_kv8_d128_ps16`. Sequences differ in length, so only their sum is known. A line without a solution
or evaluation is a workload alone. Times are mean milliseconds and stand only with the status PASSED.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from results.formats.errors import CellError
from results.formats.peers.collected import Collected, checked, json_lines, mapping, telling_line, text, whole
from results.formats.upload import Understanding, Upload
from results.records import Case, Status

NAME = "flashinfer_trace"
DESCRIPTION = "flashinfer-bench's traces, one JSON object a line"
SOURCE = "flashinfer-bench"
MARKERS = ('"definition"', '"workload"', '"axes"', '"uuid"')
STATUSES = {
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
_ASSUMED = (
    "Sequences of a workload differ in length, so its id is part of the subject and keeps workloads apart.",
    "Decoding has the mean context where pages hold one token; a batch of prompts has no length.",
    "Latency is flashinfer-bench's mean; the speedup is over the definition's reference.",
)


def reason_against(upload: Upload) -> str | None:
    """Return None if it is such a file, nothing to say otherwise."""
    lines = json_lines(upload, *MARKERS)
    fits = lines and set(lines[0][1] or ()) >= {"definition", "workload"}
    return None if fits else ""


def understand(upload: Upload) -> Understanding:
    """Return latency and speedup of each evaluation of attention, or its failure."""
    collected = Collected(upload, NAME)
    lines = json_lines(upload, *MARKERS) or []
    for line, found in lines:
        with collected.row(line):
            if found is None:
                raise CellError("is not a JSON object")
            _line(collected, line, found)
    return collected.understanding(f"{len(lines):,} traces of flashinfer-bench", assumptions=_ASSUMED)


def _line(collected: Collected, line: int, found: dict[str, Any]) -> None:
    definition = text(found.get("definition"), "definition")
    shape = _ATTENTION.fullmatch(definition)
    if shape is None:
        collected.left_out["traces of definitions that are neither gqa nor mla, paged or ragged"] += 1
        return
    evaluation = found.get("evaluation")
    if found.get("solution") is None or evaluation is None:
        collected.left_out["lines with a workload and no evaluation"] += 1
        return
    evaluation, workload = mapping(evaluation, "evaluation"), mapping(found.get("workload"), "workload")
    environment = mapping(evaluation.get("environment"), "environment")
    known = {
        "run_id": _run(collected, environment),
        "case": _case(shape, mapping(workload.get("axes"), "axes"), text(workload.get("uuid"), "uuid")[:12]),
        "implementation": f"{text(found['solution'], 'solution')} ({SOURCE})",
        "mode": "decode" if shape["step"] == "decode" else "fwd",
    }
    for number in _numbers(evaluation):
        collected.add(line, number.pop("column"), **number, **known)


def _numbers(evaluation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the latency and the speedup of an evaluation, or its failure."""
    status = text(evaluation.get("status"), "status")
    if status != "PASSED":
        if status not in STATUSES:
            raise CellError(f"has the status {status[:40]!r}, which is not one of PASSED, {', '.join(STATUSES)}")
        note = f"{status}: {telling_line(str(evaluation.get('log', ''))[:20_000])}"[:500]
        yield {"column": "latency_ms", "metric": "latency_ms", "status": STATUSES[status], "note": note}
        return
    performance = mapping(evaluation.get("performance"), "performance")
    latency = checked(performance.get("latency_ms"), "latency_ms")
    yield {
        "column": "latency_ms",
        "metric": "latency_ms",
        "value": latency,
        "mean": latency,
        "statistic": "mean",
        "printed": repr(performance["latency_ms"]),
    }
    speedup = performance.get("speedup_factor")
    if speedup:
        yield {
            "column": "speedup_factor",
            "metric": "speedup",
            "value": checked(speedup, "speedup_factor"),
            "statistic": "printed",
            "printed": repr(speedup),
            "baseline": f"reference ({SOURCE})",
        }


def _run(collected: Collected, environment: dict[str, Any]) -> str:
    hardware = text(environment.get("hardware"), "hardware").replace("_", " ")
    libraries = environment.get("libs")
    libraries = libraries if isinstance(libraries, dict) else {}
    said = {name: text(libraries[name], name) for name in ("torch", "triton", "cuda") if libraries.get(name)}
    return collected.run((hardware, *said.items()), gpu_name=hardware, **said)


def _case(shape: re.Match[str], axes: dict[str, Any], workload: str) -> Case:
    """Return what the definition's name and the workload's axes say of the case."""
    sizes = {name: int(number) for name, number in _SIZE.findall(shape["rest"])}
    decode, latent = shape["step"] == "decode", shape["kind"] == "mla"
    batch = _axis(axes, "batch_size") or (_axis(axes, "len_indptr") or 1) - 1 or None
    page = sizes.get("ps") if shape["layout"] == "paged" else 0
    width, width_v = sizes.get("d"), sizes.get("d")
    if latent and "ckv" in sizes:
        width, width_v = sizes["ckv"] + sizes.get("kpe", 0), sizes["ckv"]
    context = _context(axes, batch, page)
    tokens = _axis(axes, "total_q")
    single = batch == 1 and not decode
    return Case(
        level="decode" if decode else "op",
        subject=f"{'mla' if latent else 'attention'} workload {workload}",
        batch=batch,
        num_heads=sizes.get("h"),
        num_kv_heads=1 if latent else sizes.get("kv"),
        seqlen_q=1 if decode else tokens if single else None,
        seqlen_k=context if decode or single else None,
        head_dim=width,
        head_dim_v=width_v,
        causal=True if decode or "causal" in shape["rest"] else None,
        window_size=0,
        page_size=page,
        latent_dim=(width_v if latent else 0),
    )


def _context(axes: dict[str, Any], batch: int | None, page: int | None) -> int | None:
    """Return the mean keys of a sequence; None if only its pages are known."""
    keys = _axis(axes, "total_kv") or (_axis(axes, "num_kv_indices") if page == 1 else None)
    return keys // batch or None if keys and batch else None


def _axis(axes: dict[str, Any], name: str) -> int | None:
    return whole(axes[name], f"axes.{name}", minimum=0) if name in axes else None
