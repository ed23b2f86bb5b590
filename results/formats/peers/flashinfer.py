"""FlashInfer's benchmark table (flashinfer-ai/flashinfer, benchmarks/flashinfer_benchmark.py --output_path).

About 90 columns for all routines, four of them twice under one name, so columns are taken by their first place. Times
are median milliseconds, TB are 10^12 bytes. With `random_actual_seq_len` the lengths are drawn up to `s_kv` and
`avg_actual_seq_len` is their mean. Latent attention prints num_kv_heads although its cache has one head.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from results.formats import values
from results.formats.peers.collected import Cells, Collected, columns_of, lacking, positive, rows_of, sheet_with
from results.formats.upload import Understanding, Upload
from results.records import Case

NAME = "flashinfer"
DESCRIPTION = "FlashInfer's benchmark table"
SOURCE = "flashinfer"
COLUMNS = ("routine", "median_time", "std_time", "tflops", "tb_per_sec", "backend", "s_qo", "s_kv", "q_dtype")
ROUTINES = {  # level, subject
    "BatchDecodeWithPagedKVCacheWrapper": ("decode", "attention"),
    "BatchPrefillWithPagedKVCacheWrapper": ("op", "attention"),
    "BatchPrefillWithRaggedKVCacheWrapper": ("op", "attention"),
    "BatchMLAPagedAttentionWrapper": ("decode", "mla"),
}

_MEANINGS = {
    "routine": "level and subject",
    "median_time": "latency_ms",
    "std_time": "standard deviation of median_time",
    "tflops": "tflops",
    "tb_per_sec": "gb_per_s, from TB/s",
    "backend": "implementation",
    "resolved_backend": "implementation",
    "s_qo": "seqlen_q",
    "s_kv": "seqlen_k",
    "avg_actual_seq_len": "seqlen_k where lengths are random",
    "random_actual_seq_len": "seqlen_k",
    "head_dim_qk": "head_dim",
    "head_dim_vo": "head_dim_v",
    "head_dim_ckv": "latent_dim",
    "head_dim_kpe": "head_dim",
    "causal": "causal",
    "q_dtype": "dtype",
    "kv_dtype": "implementation",
    "batch_size": "batch",
    "num_qo_heads": "num_heads",
    "num_kv_heads": "num_kv_heads",
    "page_size": "page_size",
    "use_cupti": "timing",
}
_ASSUMED = (
    "Rows with use_cupti True are kernel time, measured by CUPTI; the others have no timing.",
    "Where lengths are random, decoding has the mean length as its context, and a batch of prompts has no length, "
    "for its work does not follow from the mean.",
    "TFLOP/s and TB/s are FlashInfer's own counts for the lengths it drew.",
)


def reason_against(upload: Upload) -> str | None:
    """Return None if it is such a table, otherwise which columns it lacks, or "" if it lacks most of them."""
    return lacking(upload, COLUMNS)


def understand(upload: Upload) -> Understanding:
    """Return the rows of attention routines; the others are counted and left out."""
    sheet = sheet_with(upload, COLUMNS)
    assert sheet is not None  # reason_against has seen it
    collected = Collected(upload, NAME)
    others: Counter[str] = Counter()
    for line, cells in rows_of(collected, sheet):
        routine = cells.text("routine")
        if routine not in ROUTINES:
            others[routine] += 1
            continue
        with collected.row(line, ", ".join(cells.row)):
            _row(collected, line, cells)
    if others:
        named = ", ".join(sorted(others)[:60])
        what = f"rows of routines that are no attention: {named}"[:1000]
        collected.left_out[what] = others.total()
    return collected.understanding(
        f"{sheet.description}, {len(sheet.rows):,} rows of FlashInfer's benchmark",
        columns=columns_of(sheet, _MEANINGS),
        assumptions=_ASSUMED,
    )


def _row(collected: Collected, line: int, cells: Cells) -> None:
    case, note = _case(cells)
    timed = cells.read("use_cupti", values.boolean)
    known = {
        "run_id": collected.run(None),
        "case": case,
        "implementation": _name(cells),
        "mode": "decode" if case.level == "decode" else "fwd",
        "note": note,
    }
    latency = cells.need("median_time", positive)
    collected.add(
        line, "median_time", metric="latency_ms", timing="kernel" if timed else None, value=latency,
        std=cells.read("std_time", lambda text: values.number(text, minimum=0)), statistic="median",
        printed=cells.text("median_time"), **known,
    )  # fmt: skip
    for column, metric, scale in (("tflops", "tflops", 1), ("tb_per_sec", "gb_per_s", 1000)):
        rate = cells.read(column, values.number)
        if rate and rate > 0:
            collected.add_rate(
                line, column, latency_ms=latency, metric=metric, value=rate * scale, printed=cells.text(column), **known
            )


def _name(cells: Cells) -> str:
    """Return the backend, what it resolved to, the dtype of its cache where it is another one, and the source."""
    backend, resolved = cells.need("backend", values.words), cells.read("resolved_backend", values.words)
    q_dtype, kv_dtype = cells.text("q_dtype"), cells.text("kv_dtype")
    parts = (
        backend,
        f"as {resolved}" if resolved and resolved != backend else None,
        f"kv {kv_dtype.removeprefix('torch.')}" if kv_dtype and kv_dtype != q_dtype else None,
        f"({SOURCE})",
    )
    return " ".join(part for part in parts if part)


def _case(cells: Cells) -> tuple[Case, str | None]:
    """Return the case of a row and what to know about its lengths."""
    level, subject = ROUTINES[cells.text("routine")]
    batch, tokens = cells.need("batch_size", values.whole), cells.need("s_qo", values.whole)
    context = cells.need("s_kv", values.whole)
    lengths: tuple[int | None, int | None] = tokens, context
    note = None
    if cells.read("random_actual_seq_len", values.boolean):
        mean = cells.need("avg_actual_seq_len", values.whole)
        note = f"lengths are random up to {context}, {mean} on average"
        lengths = (tokens, mean) if level == "decode" else (mean, mean) if batch == 1 else (None, None)
    causal = cells.read("causal", values.boolean)
    case = Case(
        level=level,
        subject=subject,
        batch=batch,
        num_heads=cells.need("num_qo_heads", values.whole),
        seqlen_q=lengths[0],
        seqlen_k=lengths[1],
        dtype=cells.need("q_dtype", values.dtype),
        causal=True if level == "decode" and tokens == 1 else causal,
        window_size=0,
        page_size=cells.read("page_size", lambda text: values.whole(text, minimum=0)),
        **_widths(cells, subject),
    )
    return case, note


def _widths(cells: Cells, subject: str) -> dict[str, Any]:
    if subject == "attention":
        return {
            "num_kv_heads": cells.need("num_kv_heads", values.whole),
            "head_dim": cells.need("head_dim_qk", values.whole),
            "head_dim_v": cells.need("head_dim_vo", values.whole),
            "latent_dim": 0,
        }
    latent, rope = cells.need("head_dim_ckv", values.whole), cells.need("head_dim_kpe", values.whole)
    return {"num_kv_heads": 1, "head_dim": latent + rope, "head_dim_v": latent, "latent_dim": latent}
