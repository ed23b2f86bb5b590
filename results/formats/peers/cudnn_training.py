"""cuDNN frontend's training benchmark (NVIDIA/cudnn-frontend, benchmark/attention_training/results/**/*.csv).

Three headers of three ages. A (2026-02) has one row with `fwd_time_ms` and `bwd_time_ms`; B (2026-04) has one row for
each pass; C (2026-08) adds `skipped` and `peak_mma_tflops`. Times are medians of kernel time from torch.profiler after
an L2 flush. A failure has `success` False and `inf` for its time, whatever its cause: `error_message` tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results.formats import values
from results.formats.errors import UploadError
from results.formats.peers.collected import (
    CellFault,
    Cells,
    Collected,
    columns_of,
    failure_of,
    lacking,
    not_finite,
    only,
    positive,
    rows_of,
    sheet_with,
    telling_line,
)
from results.formats.upload import Understanding, Upload
from results.records import Case, Status

NAME = "cudnn_training"
DESCRIPTION = "the CSV of cuDNN frontend's attention training benchmark"
SOURCE = "cudnn-frontend"
COMMON = ("backend", "data_type", "attn_mask", "q_seqlen", "kv_seqlen", "num_q_heads", "profile_pass", "success")
TIMES = ("time_ms", "fwd_time_ms")  # of B and C, of A
KERNEL_TIME = (
    "Times are kernel time: the benchmark of cuDNN frontend sums torch.profiler's device time after an L2 flush and "
    "takes the median."
)

_FAILED = "Failed rows name neither GPU nor versions; they take those of the file's other rows where these are one."
_MXFP8 = "mxfp8 is 8-bit e4m3 with block scales; it stands in the implementation's name."
_OF_FAILURES = ("gpu_name", "cudnn_version", "cudnn_backend_version")  # which failed rows leave empty
_WIDTHS = {"fp8": "float8_e4m3fn", "mxfp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn"}
_MEANINGS = {
    **dict.fromkeys(("backend", "deterministic_bwd", "cudnn_version", "cudnn_backend_version"), "implementation"),
    "data_type": "dtype",
    "attn_mask": "causal",
    "batch_size": "batch",
    "q_seqlen": "seqlen_q",
    "kv_seqlen": "seqlen_k",
    "num_q_heads": "num_heads",
    "num_kv_heads": "num_kv_heads",
    "head_dim_qk": "head_dim",
    "head_dim_vo": "head_dim_v",
    "sliding_window_size": "window_size",
    "profile_pass": "mode",
    "time_ms": "latency_ms",
    "fwd_time_ms": "latency_ms fwd",
    "bwd_time_ms": "latency_ms bwd",
    "tflops": "tflops",
    "fwd_tflops": "tflops fwd",
    "bwd_tflops": "tflops bwd",
    "gpu_name": "gpu_name",
    **dict.fromkeys(("success", "skipped", "error_message"), "status"),
}


def reason_against(upload: Upload) -> str | None:
    """Return None if it is such a table, otherwise which columns it lacks, or "" if it lacks most of them."""
    return lacking(upload, COMMON)


def understand(upload: Upload) -> Understanding:
    """Return each pass of each row as a latency with the printed TFLOP/s, or as a failure with its reason."""
    sheet = sheet_with(upload, COMMON)
    assert sheet is not None  # reason_against has seen it
    if not any(name in sheet.header for name in TIMES):
        raise UploadError(f"{upload.filename} is of cuDNN frontend, but has no column {' or '.join(TIMES)}.")
    collected = Collected(upload, NAME)
    rows = list(rows_of(collected, sheet))
    ones = {name: only(rows, name) for name in _OF_FAILURES}
    for line, cells in rows:
        with collected.row(line, ", ".join(cells.row)):
            _row(collected, line, cells, ones)
    return collected.understanding(
        f"{sheet.description}, {len(sheet.rows):,} rows of cuDNN frontend's training benchmark",
        columns=columns_of(sheet, _MEANINGS),
        assumptions=(KERNEL_TIME, _FAILED, _MXFP8),
    )


def dtype(text: str) -> str:
    """Return the dtype of a name that cuDNN frontend prints. Raises CellError."""
    return _WIDTHS.get(text) or values.dtype(text)


def window(text: str) -> int:
    """Return a window such as 128 or 128.0."""
    return values.whole(text, minimum=0)


def version(number: str) -> str:
    """Return cuDNN's version of its number: 9.27 of 92700, 9.19.1 of 91901. Raises CellError."""
    whole = values.whole(number.partition(".")[0], minimum=10_000)
    parts = [whole // 10_000, whole % 10_000 // 100, whole % 100]
    return ".".join(map(str, parts if parts[2] else parts[:2]))


def _row(collected: Collected, line: int, cells: Cells, ones: Mapping[str, str]) -> None:
    """Take the passes of a row."""
    case = _case(cells)
    passed = cells.need("profile_pass", str)
    if passed not in ("fwd", "bwd", "both"):
        raise CellFault("profile_pass", passed, "is not one of fwd, bwd, both")
    said = {name: values.words(cells.text(name) or ones[name]) for name in _OF_FAILURES}
    number = said["cudnn_backend_version"]
    cudnn = version(number) if number else None
    run_id = collected.run(
        (said["gpu_name"], cudnn),
        title=f"cuDNN {cudnn}" if cudnn else "",
        gpu_name=said["gpu_name"] or None,
        cudnn=cudnn,
    )
    by_pass = "fwd_time_ms" in cells.places
    for mode in ("fwd", "bwd") if passed == "both" else (passed,):
        versions = {"cudnn": cudnn, "cudnn_oss": said["cudnn_version"]}
        known = {"run_id": run_id, "case": case, "implementation": _name(cells, mode, versions), "mode": mode}
        _number(collected, line, cells, f"{mode}_" if by_pass else "", known)


def _case(cells: Cells) -> Case:
    seqlen_q, seqlen_k = (cells.need(name, values.whole) for name in ("q_seqlen", "kv_seqlen"))
    mask = cells.need("attn_mask", str)
    if mask not in ("top_left", "bottom_right", "no_mask"):
        raise CellFault("attn_mask", mask, "is not one of top_left, bottom_right, no_mask")
    if mask == "top_left" and seqlen_q != seqlen_k:
        raise CellFault("attn_mask", mask, "is aligned top-left, a causal mask here bottom-right: lengths differ")
    return Case(
        batch=cells.need("batch_size", values.whole),
        num_heads=cells.need("num_q_heads", values.whole),
        num_kv_heads=cells.need("num_kv_heads", values.whole),
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        head_dim=cells.need("head_dim_qk", values.whole),
        head_dim_v=cells.need("head_dim_vo", values.whole),
        dtype=cells.need("data_type", dtype),
        causal=mask != "no_mask",
        window_size=cells.read("sliding_window_size", window) or 0,
        page_size=0,
        latent_dim=0,
    )


def _number(collected: Collected, line: int, cells: Cells, prefix: str, known: dict[str, Any]) -> None:
    """Take the latency of a pass with its printed TFLOP/s, or its failure."""
    column = f"{prefix}time_ms"
    text = cells.text(column)
    known_time = known | {"metric": "latency_ms", "timing": "kernel", "printed": text or None}
    if not cells.need("success", values.boolean):
        message = cells.text("error_message")
        status = Status.UNSUPPORTED if cells.read("skipped", values.boolean) else failure_of(message)
        collected.add(line, column, status=status, note=telling_line(message), **known_time)
        return
    if not_finite(text):
        raise CellFault(column, text, "is no time, although success is True")
    latency = cells.need(column, positive)
    collected.add(line, column, value=latency, statistic="median", **known_time)
    rate = cells.read(f"{prefix}tflops", values.number)
    if rate and rate > 0:
        printed = cells.text(f"{prefix}tflops")
        collected.add_rate(
            line, f"{prefix}tflops", latency_ms=latency, metric="tflops", value=rate, printed=printed, **known
        )


def _name(cells: Cells, mode: str, versions: Mapping[str, str | None]) -> str:
    """Return the backend with its version, what it does otherwise than the rest, and the source."""
    backend = cells.need("backend", values.words)
    parts = (
        backend,
        versions.get(backend),
        "mxfp8" if cells.text("data_type") == "mxfp8" else None,
        "deterministic" if mode == "bwd" and cells.read("deterministic_bwd", values.boolean) else None,
        f"({SOURCE})",
    )
    return " ".join(part for part in parts if part)
