"""cuDNN frontend's inference benchmark (NVIDIA/cudnn-frontend, benchmark/attention_inference/results/**/*.csv).

A row of phase `generation` is decoding, one of phase `context` a forward pass over a prompt. `page_size` is a setting
of the paged backends; the cuDNN and FlashAttention backends read a contiguous cache whatever it says. `tflops` counts
no window and, for several query tokens, the whole rectangle; `gbps` is 10^9 bytes a second.
"""

from __future__ import annotations

from collections.abc import Mapping

from results.formats import values
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
from results.formats.peers.cudnn_training import KERNEL_TIME, SOURCE, dtype, window
from results.formats.upload import Understanding, Upload
from results.records import Case

NAME = "cudnn_inference"
DESCRIPTION = "the CSV of cuDNN frontend's attention inference benchmark"
Masks = Mapping[tuple[str, str], bool]  # by config and model, whether its prompts are causal
COLUMNS = ("phase", "backend", "kv_cache_dtype", "q_tokens", "kv_len", "num_q_heads", "kind", "time_ms", "success")
PAGED = ("flashinfer", "flash_mla", "b12x")  # in generation

_MEANINGS = {
    "phase": "level and mode",
    "backend": "implementation",
    "data_type": "dtype",
    "kv_cache_dtype": "implementation",
    "batch_size": "batch",
    "q_tokens": "seqlen_q",
    "kv_len": "seqlen_k",
    "num_q_heads": "num_heads",
    "num_kv_heads": "num_kv_heads",
    "head_dim_qk": "head_dim",
    "head_dim_vo": "head_dim_v",
    "kind": "subject",
    "sliding_window_size": "window_size",
    "page_size": "page_size of paged backends",
    "time_ms": "latency_ms",
    "tflops": "tflops",
    "gbps": "gb_per_s",
    "success": "status",
    "error_message": "status",
    "gpu_name": "gpu_name",
    "backend_detail": "implementation and config",
}
_MASK = (
    "The header has no mask. Decoding is causal, aligned bottom-right. A prompt is causal if its printed TFLOP/s count "
    "half of the rectangle, or those of a prompt of the same model do; otherwise its mask is not said."
)


def reason_against(upload: Upload) -> str | None:
    """Return None if it is such a table, otherwise which columns it lacks, or "" if it lacks most of them."""
    return lacking(upload, COLUMNS)


def understand(upload: Upload) -> Understanding:
    """Return each row as a latency with the printed rates, or as a failure with its reason."""
    sheet = sheet_with(upload, COLUMNS)
    assert sheet is not None  # reason_against has seen it
    collected = Collected(upload, NAME)
    rows = list(rows_of(collected, sheet))
    masks = _masks(rows)
    gpu = only(rows, "gpu_name")  # failed rows leave it empty, and the version
    detail = only([(line, cells) for line, cells in rows if cells.text("backend") == "cudnn"], "backend_detail")
    for line, cells in rows:
        with collected.row(line, ", ".join(cells.row)):
            _row(collected, line, cells, masks, gpu, detail)
    pages = "The backends other than " + ", ".join(PAGED) + " read a contiguous cache; their page_size is not used."
    return collected.understanding(
        f"{sheet.description}, {len(sheet.rows):,} rows of cuDNN frontend's inference benchmark",
        columns=columns_of(sheet, _MEANINGS),
        assumptions=(KERNEL_TIME, _MASK, pages),
    )


def _masks(rows: list[tuple[int, Cells]]) -> Masks:
    """Return whether the prompts of a model are causal, where square ones say so by their TFLOP/s."""
    found: dict[tuple[str, str], set[bool]] = {}
    for _, cells in rows:
        if cells.text("phase") == "context" and cells.text("q_tokens") == cells.text("kv_len"):
            try:
                share = _counted(cells)
            except ValueError:
                continue
            causal = True if 0.45 < share < 0.55 else False if 0.9 < share < 1.1 else None
            if causal is not None:
                found.setdefault(_model(cells), set()).add(causal)
    return {model: masks.pop() for model, masks in found.items() if len(masks) == 1}


def _counted(cells: Cells) -> float:
    """Return the share of the full rectangle that the printed TFLOP/s count. Raises CellError."""
    sizes = [cells.need(name, values.whole) for name in ("batch_size", "num_q_heads", "q_tokens", "kv_len")]
    width = sum(cells.need(name, values.whole) for name in ("head_dim_qk", "head_dim_vo"))
    full = 2.0 * sizes[0] * sizes[1] * sizes[2] * sizes[3] * width
    return cells.need("tflops", positive) * cells.need("time_ms", positive) * 1e9 / full


def _model(cells: Cells) -> tuple[str, str]:
    return cells.text("config_name"), cells.text("model_name").partition("-tp")[0]


def _row(collected: Collected, line: int, cells: Cells, masks: Masks, gpu: str, cudnn: str) -> None:
    """Take a row; `gpu` and `cudnn` are what the file's other rows say of GPU and cuDNN."""
    case = _case(cells, masks)
    gpu = values.words((cells.text("gpu_name") or gpu).replace(";", ","))
    detail = cells.text("backend_detail") or (cudnn if cells.text("backend") == "cudnn" else "")
    known = {
        "run_id": collected.run(gpu, gpu_name=gpu or None),
        "case": case,
        "implementation": _name(cells, detail),
        "mode": "decode" if case.level == "decode" else "fwd",
        "config": values.words(detail[: values.MAX_TEXT]) if " plan=" in detail else None,
    }
    text = cells.text("time_ms")
    known_time = known | {"metric": "latency_ms", "timing": "kernel", "printed": text or None}
    if not cells.need("success", values.boolean):
        message = cells.text("error_message")
        collected.add(line, "time_ms", status=failure_of(message), note=telling_line(message), **known_time)
        return
    if not_finite(text):
        raise CellFault("time_ms", text, "is no time, although success is True")
    latency = cells.need("time_ms", positive)
    collected.add(line, "time_ms", value=latency, statistic="median", **known_time)
    for column, metric in (("tflops", "tflops"), ("gbps", "gb_per_s")):
        rate = cells.read(column, values.number)
        if rate and rate > 0:
            printed = cells.text(column)
            collected.add_rate(line, column, latency_ms=latency, metric=metric, value=rate, printed=printed, **known)


def _name(cells: Cells, detail: str) -> str:
    """Return the backend with cuDNN's version, the dtype of its cache where it is another one, and the source."""
    backend, kv_dtype = cells.need("backend", values.words), cells.text("kv_cache_dtype")
    number = detail.removeprefix("cudnn ").removesuffix(".0") if detail.startswith("cudnn ") else None
    other = kv_dtype if kv_dtype != cells.text("data_type") else None
    parts = (backend, number, other and f"kv {other}", f"({SOURCE})")
    return " ".join(part for part in parts if part)


def _case(cells: Cells, masks: Masks) -> Case:
    phase, kind = cells.need("phase", str), cells.need("kind", str)
    if phase not in ("context", "generation"):
        raise CellFault("phase", phase, "is neither context nor generation")
    if kind not in ("gqa", "mla_absorbed"):
        raise CellFault("kind", kind, "is neither gqa nor mla_absorbed")
    decode, head_dim_v = phase == "generation", cells.need("head_dim_vo", values.whole)
    paged = decode and cells.text("backend") in PAGED
    return Case(
        level="decode" if decode else "op",
        subject="attention" if kind == "gqa" else "mla",
        batch=cells.need("batch_size", values.whole),
        num_heads=cells.need("num_q_heads", values.whole),
        num_kv_heads=cells.need("num_kv_heads", values.whole),
        seqlen_q=cells.need("q_tokens", values.whole),
        seqlen_k=cells.need("kv_len", values.whole),
        head_dim=cells.need("head_dim_qk", values.whole),
        head_dim_v=head_dim_v,
        dtype=cells.need("data_type", dtype),
        causal=True if decode else masks.get(_model(cells)),
        window_size=cells.read("sliding_window_size", window) or 0,
        page_size=cells.read("page_size", window) if paged else 0,
        latent_dim=head_dim_v if kind == "mla_absorbed" else 0,
    )
