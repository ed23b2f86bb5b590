"""cuDNN frontend's training benchmark (NVIDIA/cudnn-frontend, benchmark/attention_training/results/**/*.csv).

There are three headers. A (2026-02) has one row with `fwd_time_ms` and `bwd_time_ms`; B (2026-04) has one row for each
pass; C (2026-08) adds `skipped` and `peak_mma_tflops`. Times are medians of kernel time from torch.profiler after an L2
flush. Every failure has `success` False and the time `inf`; only `error_message` distinguishes the causes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from results.formats import values
from results.formats.errors import UploadError
from results.formats.peers.engine import Failure, Number, Peer, failure_of, not_finite, telling_line
from results.formats.peers.sources import Entry, Row, only
from results.records import Status

SOURCE = "cudnn-frontend"
KERNEL_TIME = (
    "Times are kernel time: the benchmark of cuDNN frontend sums torch.profiler's device time after an L2 flush and "
    "takes the median."
)
TIME = Number("latency_ms", ("time_ms",), ("median",), timing="kernel", required=True)
TFLOPS = Number("tflops", ("tflops",), is_rate=True, zero_is_none=True)
_TIMES = ("time_ms", "fwd_time_ms")  # of headers B and C, and of header A
_OF_FAILURES = ("gpu_name", "cudnn_version", "cudnn_backend_version")  # columns that failed rows leave empty
_MASKS = ("top_left", "bottom_right", "no_mask")
_PASSES = {"fwd": ("fwd",), "bwd": ("bwd",), "both": ("fwd", "bwd")}


def failed(row: Row) -> list[Failure]:
    """Return the failure of a row of cuDNN frontend. Raises CellFault for a success without a time."""
    text, message = row.text("time_ms"), row.text("error_message")
    if row.need("success", values.boolean):
        if not_finite(text):
            raise row.fault("time_ms", "is no time, although success is True")
        return []
    status = Status.UNSUPPORTED if row.read("skipped", values.boolean) else failure_of(message)
    return [Failure(TIME, status, telling_line(message), text or None)]


def _passes(entry: Entry) -> Iterator[Row]:
    row = entry.value
    if not any(name in row.places for name in _TIMES):
        raise UploadError(f"The file is of cuDNN frontend, but has no column {' or '.join(_TIMES)}.")
    by_pass = "fwd_time_ms" in row.places
    for mode in _PASSES[row.one_of("profile_pass", _PASSES)]:
        yield row.having(f"{mode}_" if by_pass else "", mode=mode)


def _filled(rows: Sequence[Row]) -> Callable[[Row], Mapping[str, Any]]:
    """Fill in the GPU and the versions of failed rows where all other rows have the same."""
    same = {name: only(rows, name) for name in _OF_FAILURES}
    return lambda row: {name: text for name, text in same.items() if not row.text(name)}


def _version(number: str) -> str:
    """Return cuDNN's version for its number: 9.27 for 92700, 9.19.1 for 91901. Raises CellError."""
    whole = values.whole(number.partition(".")[0], minimum=10_000)
    parts = [whole // 10_000, whole % 10_000 // 100, whole % 100]
    return ".".join(map(str, parts if parts[2] else parts[:2]))


def _run(row: Row) -> dict[str, str | None]:
    cudnn = row.read("cudnn_backend_version", _version)
    return {"title": f"cuDNN {cudnn}" if cudnn else "", "gpu_name": row.read("gpu_name"), "cudnn": cudnn}


def _mask(row: Row) -> dict[str, bool]:
    mask = row.one_of("attn_mask", _MASKS)
    if mask == "top_left" and row.text("q_seqlen") != row.text("kv_seqlen"):
        raise row.fault("attn_mask", "is aligned top-left, but causal masks here are bottom-right: lengths differ")
    return {"causal": mask != "no_mask"}


def _implementation(row: Row) -> Iterator[str | None]:
    backend = row.need("backend")
    yield backend
    if backend == "cudnn":
        yield row.read("cudnn_backend_version", _version)
    elif backend == "cudnn_oss":
        yield row.read("cudnn_version")
    yield "mxfp8" if row.text("data_type") == "mxfp8" else None
    yield "deterministic" if row.text("mode") == "bwd" and row.read("deterministic_bwd", values.boolean) else None


PEER = Peer(
    name="cudnn_training",
    description="the CSV of cuDNN frontend's attention training benchmark",
    source=SOURCE,
    counted="rows of cuDNN frontend's training benchmark",
    columns=("backend", "data_type", "attn_mask", "q_seqlen", "kv_seqlen", "num_q_heads", "profile_pass", "success"),
    split=_passes,
    shared=_filled,
    needs={
        "batch": "batch_size",
        "num_heads": "num_q_heads",
        "num_kv_heads": "num_kv_heads",
        "seqlen_q": "q_seqlen",
        "seqlen_k": "kv_seqlen",
        "head_dim": "head_dim_qk",
        "head_dim_v": "head_dim_vo",
        "dtype": "data_type",
    },  # fmt: skip
    takes={"window_size": "sliding_window_size"},
    facts={"window_size": 0, "page_size": 0, "latent_dim": 0},
    case=_mask,
    implementation=_implementation,
    mode=lambda row: row.text("mode"),
    run=_run,
    fails=failed,
    numbers=(TIME, TFLOPS),
    meanings={
        "implementation": ("backend", "deterministic_bwd", "cudnn_version", "cudnn_backend_version"),
        "status": ("success", "skipped", "error_message"),
        "latency_ms": ("fwd_time_ms", "bwd_time_ms"),
        "tflops": ("fwd_tflops", "bwd_tflops"),
        "causal": ("attn_mask",),
        "mode": ("profile_pass",),
        "gpu_name": ("gpu_name",),
    },
    assumptions=(
        KERNEL_TIME,
        "Failed rows name neither GPU nor versions; these are taken from the file's other rows if those agree.",
        "mxfp8 is 8-bit e4m3 with block scales; the name of the implementation says so.",
    ),
)
