"""Report performance_guide: FlashAttention 1 to 3 against standard attention, on several GPUs and models.

This module declares its tables; performance_guide_words has its claims, features and recommendations.
"""

from __future__ import annotations

from typing import Any

from results.records import Measurement
from results.reports import performance_guide_words
from results.reports.layout import Facts, Grid, Labels, Remark, read_seqlen, with_k

NAME = "performance_guide"
LABEL = "Performance guide, A100, H100 and A10G"
TITLE = "Performance Benchmarks"
SOURCE = (
    "Performance Benchmarks: references/benchmarks.md of a flash-attention skill, as vendored in "
    "https://github.com/zhuangbiaowei/smart_bot (author unknown, no code)"
)
IMPLEMENTATIONS = {
    "standard": "torch_naive",
    "flash_attn_1": "flash_attn_1",
    "flash_attn_2": "triton_fa2",
    "flash_attn_3": "gluon_hopper",
    "flash_attn_3_fp16": "gluon_hopper",
    "flash_attn_3_fp8": "gluon_fp8",
    "flash_attn": "triton_fa2",
}
CLAIMS = performance_guide_words.CLAIMS
EVIDENCE = performance_guide_words.EVIDENCE
more_sections = performance_guide_words.more_sections


def _seqlen(labels: Labels) -> Facts:
    return {"seqlen": read_seqlen(labels[0])}


def _plain_seqlen(measurement: Measurement) -> Labels:
    return (str(measurement.case.seqlen_k or 0),)


def _short_seqlen(measurement: Measurement) -> Labels:
    return (with_k(measurement.case.seqlen_k or 0),)


def _short_from_1k(measurement: Measurement) -> Labels:
    return _plain_seqlen(measurement) if measurement.case.seqlen_k == 512 else _short_seqlen(measurement)


def _batch_and_seqlen(labels: Labels) -> Facts:
    batch, _, seqlen = labels[0].partition(" × ")
    return {"batch": int(batch), "seqlen": read_seqlen(seqlen)}


def _batch_and_short_seqlen(measurement: Measurement) -> Labels:
    case = measurement.case
    return (f"{case.batch or 0} × {with_k(case.seqlen_q or 0)}",)


_MODELS = {
    "Llama 2 7B": "llama2-7b",
    "Llama 2 13B": "llama2-13b",
    "Llama 2 70B": "llama2-70b",
    "GPT-2 (124M)": "gpt2",
    "GPT-J (6B)": "gpt-j-6b",
    "GPT-NeoX (20B)": "gpt-neox-20b",
}


def _model(labels: Labels) -> Facts:
    return {"subject": _MODELS[labels[0]]}


def _of(implementation: str, metric: str, **facts: Any) -> Facts:
    return {"implementation": implementation, "metric": metric, **facts}


def _ratio(implementation: str, metric: str = "speedup", **facts: Any) -> Facts:
    return {"implementation": implementation, "metric": metric, "baseline": "standard", **facts}


def _throughput(metric: str, words: str) -> dict[str, Facts]:
    return {
        f"Standard ({words})": _of("standard", metric),
        f"Flash Attn ({words})": _of("flash_attn", metric),
        "Speedup": _ratio("flash_attn"),
    }


# Sweeps that measure the tables: the name, and the fact that each of its axes sets.
_OPS_SWEEP = ("performance_guide", {"seqlen": "seqlen", "batch": "batch"})
_PROMPT_AXES = {"subject": "subject", "context": "seqlen", "batch": "batch"}
_TRAINING_SWEEP = ("training", {"subject": "subject", "seqlen": "seqlen", "train_batch": "batch", "modes": "mode"})
_GENERATION_SWEEP = ("generation", _PROMPT_AXES)

_OWN_SHAPE = {"num_heads": 32, "head_dim": 64}  # our shape in tables that do not state one
_SHAPE = {"batch": 8, **_OWN_SHAPE}
_LLAMA = {"level": "model", "subject": "llama2-7b"}
_OWN_OPS = {**_OWN_SHAPE, "dtype": None}
_OWN_MEMORY = {"mode": "fwd", "dtype": None}
# Our implementations for a published one; on Hopper its own kernel comes first.
_OWN_TRAINING = {"places": {"flash_attn": ("gluon_hopper", "triton_fa2")}}
_OWN_DECODING = {"batch": 1, "places": {"standard": ("torch_naive",), "flash_attn": ("triton_split_kv",)}}
_OWN_PREFILL = {"mode": "prefill", "dtype": None, "places": {"flash_attn_2": ("gluon_hopper", "triton_fa2")}}

_FA3_FP16 = {"implementation": "flash_attn_3_fp16", "dtype": "float16"}
_FA3_FP8 = {"implementation": "flash_attn_3_fp8", "dtype": "float8_e4m3fn"}
_SEQLENS: dict[str, Facts] = {text: {"seqlen": read_seqlen(text)} for text in ("512", "1K", "2K", "4K", "8K", "16K")}
_PER_TOKEN: dict[str, Facts] = {
    "Standard": _of("standard", "time_per_token_ms"),
    "Flash Attn 2": _of("flash_attn_2", "time_per_token_ms"),
    "Speedup": _ratio("flash_attn_2"),
}
_VERSION_ROWS: dict[str, Facts] = {
    "Forward time (ms)": {"metric": "latency_ms"},
    "Memory (GB)": {"metric": "peak_memory_mb", "unit": "GB"},
    "TFLOPS": {"metric": "tflops"},
    "GPU util %": {"metric": "utilization_percent", "own_metric": "peak_percent"},
}
_VERSIONS: dict[str, Facts] = {
    "FA1": {"implementation": "flash_attn_1"},
    "FA2": {"implementation": "flash_attn_2"},
    "FA3 (FP16)": _FA3_FP16,
    "FA3 (FP8)": _FA3_FP8,
}
_STANDARD: dict[str, Facts] = {"Standard": {"implementation": "standard"}}
_FA2: dict[str, Facts] = {"Flash Attn 2": {"implementation": "flash_attn_2"}}
_SAMPLES = _throughput("samples_per_s", "samples/sec")
_TOKENS = _throughput("tokens_per_s", "tokens/sec")
_MEMORY = "GPU memory consumption (batch=8, heads=32, dim=64)"


def _forward(section: str, columns: dict[str, Facts], **facts: int) -> Grid:
    """Return a table of forward times of the operator by sequence length."""
    return Grid(
        section=section,
        header=("Seq Length", *columns),
        row=_seqlen,
        name=_plain_seqlen,
        columns=columns,
        facts={"level": "op", "mode": "fwd", "metric": "latency_ms", **facts},
        own=_OWN_OPS,
        measured_by=_OPS_SWEEP,
    )


def _memory(title: str, implementation: str, first: str, last: dict[str, Any]) -> Grid:
    """Return a table of the operator's memory by sequence length."""
    columns = {
        first: {"metric": "attention_memory_mb"},
        "KV Cache": {"metric": "kv_cache_mb"},
        "Total": {"metric": "peak_memory_mb"},
        **last,
    }
    return Grid(
        section=f"{_MEMORY} > {title}",
        header=("Seq Length", *columns),
        row=_seqlen,
        name=_plain_seqlen,
        columns=columns,
        facts={"level": "op", "implementation": implementation, **_SHAPE},
        own=_OWN_MEMORY,
        measured_by=_OPS_SWEEP,
    )


_FORWARD = (
    _forward(
        "A100 80GB (Ampere) > Forward pass time (milliseconds, batch=8, heads=32, dim=64)",
        {
            **_STANDARD,
            **_FA2,
            "Flash Attn 3": {"implementation": "flash_attn_3"},
            "Speedup (FA2)": _ratio("flash_attn_2"),
        },
        **_SHAPE,
    ),
    _forward(
        "H100 80GB (Hopper) > Forward pass time (milliseconds, same config)",
        {
            **_STANDARD,
            **_FA2,
            "Flash Attn 3 (FP16)": _FA3_FP16,
            "Flash Attn 3 (FP8)": _FA3_FP8,
            "Best Speedup": {**_ratio("flash_attn_3_fp8"), **_FA3_FP8},  # the printed figures are those of FP8
        },
        **_SHAPE,
    ),
    _forward(
        "A10G 24GB (Ampere) > Forward pass time (milliseconds, batch=4)",
        {**_STANDARD, **_FA2, "Speedup": _ratio("flash_attn_2")},
        batch=4,
    ),
)
_BY_FORMULA = (
    _memory("Standard attention memory", "standard", "Attention Matrix", {"Notes": Remark()}),
    _memory(
        "Flash Attention 2 memory",
        "flash_attn_2",
        "Attention (on-chip)",
        {"Reduction": _ratio("flash_attn_2", "memory_saved_percent")},
    ),
    Grid(
        section="Memory scaling comparison > Llama 2 7B model memory (float16, batch=1)",
        header=("Context Length", "Standard Attention", "Flash Attention 2", "Can Fit 24GB GPU?"),
        row=_seqlen,
        name=_short_seqlen,
        columns={
            "Standard Attention": _of("standard", "peak_memory_mb"),
            "Flash Attention 2": _of("flash_attn_2", "peak_memory_mb"),
            "Can Fit 24GB GPU?": Remark(performance_guide_words.fits_24_gb),
        },
        facts={**_LLAMA, "batch": 1, "dtype": "float16"},
        own=_OWN_PREFILL,
        measured_by=("prefill", _PROMPT_AXES),
    ),
    Grid(
        section="Training memory (Llama 2 7B, batch=4)",
        header=("Context", "Standard (GB)", "Flash Attn (GB)", "Reduction"),
        row=_seqlen,
        name=_short_seqlen,
        columns={
            "Standard (GB)": _of("standard", "peak_memory_mb", unit="GB"),
            "Flash Attn (GB)": _of("flash_attn", "peak_memory_mb", unit="GB"),
            "Reduction": _ratio("flash_attn", "memory_saved_percent"),
        },
        facts={**_LLAMA, "batch": 4, "mode": "train"},
        own=_OWN_TRAINING,
        measured_by=_TRAINING_SWEEP,
    ),
    Grid(
        section="Memory per token (MB)",
        header=("Sequence", *_SEQLENS),
        row=lambda labels: {**_PER_TOKEN[labels[0]], "metric": "memory_per_token_mb"},
        rows=(("Standard",), ("Flash Attn 2",)),
        columns=_SEQLENS,
        facts={"level": "op"},
        own={**_OWN_SHAPE, "batch": 1, **_OWN_MEMORY},
        measured_by=_OPS_SWEEP,
    ),
)
_RATES = (
    Grid(
        section="Training (forward + backward, Llama 2 7B, A100)",
        header=("Batch × Seq", *_SAMPLES),
        row=_batch_and_seqlen,
        name=_batch_and_short_seqlen,
        columns=_SAMPLES,
        facts={**_LLAMA, "mode": "train"},
        own=_OWN_TRAINING,
        measured_by=_TRAINING_SWEEP,
    ),
    Grid(
        section="Inference (generation, Llama 2 7B, A100)",
        header=("Context Length", *_TOKENS),
        row=_seqlen,
        name=_short_from_1k,
        columns=_TOKENS,
        facts={**_LLAMA, "mode": "decode", "seqlen_q": 1},
        own=_OWN_DECODING,
        measured_by=_GENERATION_SWEEP,
    ),
    Grid(
        section="Flash Attention 1 vs 2 vs 3 (H100, seq=4096, batch=8)",
        header=("Metric", *_VERSIONS),
        row=lambda labels: _VERSION_ROWS[labels[0]],
        rows=tuple((name,) for name in _VERSION_ROWS),
        columns=_VERSIONS,
        facts={"level": "op", "mode": "fwd", "seqlen": 4096, "batch": 8},
        own=_OWN_OPS,
        measured_by=_OPS_SWEEP,
    ),
    Grid(
        section="Llama 2 models (A100 80GB, batch=4, seq=2048)",
        header=("Model", "Params", *_SAMPLES),
        row=_model,
        rows=tuple((f"Llama 2 {size}", size) for size in ("7B", "13B", "70B")),
        columns=_SAMPLES,
        facts={"level": "model", "batch": 4, "seqlen": 2048},
        own={"mode": "train", **_OWN_TRAINING},
        measured_by=_TRAINING_SWEEP,
    ),
    Grid(
        section="GPT-style models (seq=1024)",
        header=("Model", *_TOKENS),
        row=_model,
        rows=(("GPT-2 (124M)",), ("GPT-J (6B)",), ("GPT-NeoX (20B)",)),
        columns=_TOKENS,
        facts={"level": "model", "seqlen": 1024},
        own={"seqlen_q": 1, "mode": "decode", **_OWN_DECODING},
        measured_by=_GENERATION_SWEEP,
    ),
)
_TIME_PER_TOKEN = Grid(
    section="Empirical scaling (A100, batch=1, heads=32, dim=64) > Time per token (milliseconds)",
    header=("Sequence", *_SEQLENS),
    row=lambda labels: _PER_TOKEN[labels[0]],
    rows=tuple((name,) for name in _PER_TOKEN),
    columns=_SEQLENS,
    facts={"level": "op", "batch": 1, **_OWN_SHAPE},
    own=_OWN_MEMORY,
    measured_by=_OPS_SWEEP,
)
GRIDS = (*_FORWARD, *_BY_FORMULA[:-1], _TIME_PER_TOKEN, _BY_FORMULA[-1], *_RATES)
GRIDS_BY_FORMULA = _BY_FORMULA
