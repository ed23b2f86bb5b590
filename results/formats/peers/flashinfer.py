"""FlashInfer's benchmark table (flashinfer-ai/flashinfer, benchmarks/flashinfer_benchmark.py --output_path).

It has about 90 columns for all routines, four of them twice, so the first column of a name counts. Times are median
milliseconds, TB are 10^12 bytes. With `random_actual_seq_len` the lengths are drawn up to `s_kv`, and
`avg_actual_seq_len` is their mean. Latent attention prints num_kv_heads although its cache has one head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from results.formats import values
from results.formats.peers.engine import Number, Peer
from results.formats.peers.sources import Row

_ROUTINES = {  # level, subject
    "BatchDecodeWithPagedKVCacheWrapper": ("decode", "attention"),
    "BatchPrefillWithPagedKVCacheWrapper": ("op", "attention"),
    "BatchPrefillWithRaggedKVCacheWrapper": ("op", "attention"),
    "BatchMLAPagedAttentionWrapper": ("decode", "mla"),
}


def _level(row: Row) -> str:
    return _ROUTINES[row.text("routine")][0]


def _implementation(row: Row) -> Iterator[str | None]:
    backend, resolved, kv_dtype = row.need("backend"), row.text("resolved_backend"), row.text("kv_dtype")
    yield backend
    yield f"as {resolved}" if resolved not in ("", backend) else None
    yield f"kv {kv_dtype.removeprefix('torch.')}" if kv_dtype not in ("", row.text("q_dtype")) else None


def _is_random(row: Row) -> bool:
    return bool(row.read("random_actual_seq_len", values.boolean))


def _note(row: Row) -> dict[str, str | None]:
    said = f"lengths are random up to {row.text('s_kv')}, {row.text('avg_actual_seq_len')} on average"
    return {"note": said if _is_random(row) else None}


def _case(row: Row) -> dict[str, Any]:
    level, subject = _ROUTINES[row.text("routine")]
    tokens, keys = row.need("s_qo", values.whole), row.need("s_kv", values.whole)
    said: dict[str, Any] = {"level": level, "subject": subject, "seqlen_q": tokens, "seqlen_k": keys}
    if _is_random(row):
        mean = row.need("avg_actual_seq_len", values.whole)
        single = mean if row.text("batch_size") == "1" else None
        said |= {"seqlen_k": mean} if level == "decode" else {"seqlen_q": single, "seqlen_k": single}
    if level == "decode" and tokens == 1:
        said["causal"] = True
    return said | _widths(row, subject)


def _widths(row: Row, subject: str) -> dict[str, int]:
    if subject == "attention":
        columns = {"num_kv_heads": "num_kv_heads", "head_dim": "head_dim_qk", "head_dim_v": "head_dim_vo"}
        return {name: row.need(column, values.whole) for name, column in columns.items()} | {"latent_dim": 0}
    latent, rope = row.need("head_dim_ckv", values.whole), row.need("head_dim_kpe", values.whole)
    return {"num_kv_heads": 1, "head_dim": latent + rope, "head_dim_v": latent, "latent_dim": latent}


PEER = Peer(
    name="flashinfer",
    description="FlashInfer's benchmark table",
    source="flashinfer",
    counted="rows of FlashInfer's benchmark",
    columns=("routine", "median_time", "std_time", "tflops", "tb_per_sec", "backend", "s_qo", "s_kv", "q_dtype"),
    others=(
        "rows of routines that are no attention",
        lambda row: None if row.text("routine") in _ROUTINES else row.text("routine"),
    ),
    needs={"batch": "batch_size", "num_heads": "num_qo_heads", "dtype": "q_dtype"},
    takes={"causal": "causal", "page_size": "page_size"},
    facts={"window_size": 0},
    case=_case,
    implementation=_implementation,
    mode=lambda row: "decode" if _level(row) == "decode" else "fwd",
    extras=_note,
    numbers=(
        Number(
            "latency_ms",
            ("median_time",),
            ("median",),
            std="std_time",
            timing=lambda row: "kernel" if row.read("use_cupti", values.boolean) else None,
            required=True,
        ),
        Number("tflops", ("tflops",), is_rate=True, zero_is_none=True),
        Number("gb_per_s", ("tb_per_sec",), scale=1000, is_rate=True, zero_is_none=True),
    ),
    meanings={
        "implementation": ("backend", "resolved_backend", "kv_dtype"),
        "seqlen_k of random lengths": ("avg_actual_seq_len", "random_actual_seq_len"),
        "level and subject": ("routine",),
        "seqlen_q": ("s_qo",),
        "seqlen_k": ("s_kv",),
        "num_kv_heads": ("num_kv_heads",),
        "head_dim": ("head_dim_qk", "head_dim_kpe"),
        "head_dim_v": ("head_dim_vo",),
        "latent_dim": ("head_dim_ckv",),
        "timing": ("use_cupti",),
    },
    assumptions=(
        "Rows with use_cupti True are kernel time, measured by CUPTI; the others have no timing.",
        "Where lengths are random, decoding has the mean length as its context. A batch of prompts has no length, "
        "because its work does not follow from the mean.",
        "TFLOP/s and TB/s are FlashInfer's own counts for the lengths it drew.",
    ),
)
