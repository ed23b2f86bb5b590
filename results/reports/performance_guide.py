"""Report performance_guide: FlashAttention 1 to 3 against standard attention, on several GPUs and models.

Its tables and claims are described by what each row and column says of a cell.
"""

from __future__ import annotations

from typing import Any

from results.records import Measurement, Run
from results.render.markdown import tables
from results.reports import performance_guide_words
from results.reports.layout import (
    Claim,
    Grid,
    Labels,
    Remark,
    ReportError,
    Says,
    Section,
    low_and_high,
    parse_claims,
    parse_grid,
    read_seqlen,
    with_k,
)
from results.reports.notes import Note, notes_of, shipped_notes
from results.reports.own import OwnNumbers
from results.reports.rendering import Runs, render_report


def _seqlen(labels: Labels) -> Says:
    return {"seqlen": read_seqlen(labels[0])}


def _plain_seqlen(measurement: Measurement) -> Labels:
    return (str(measurement.case.seqlen_k or 0),)


def _short_seqlen(measurement: Measurement) -> Labels:
    return (with_k(measurement.case.seqlen_k or 0),)


def _batch_and_seqlen(labels: Labels) -> Says:
    batch, _, seqlen = labels[0].partition(" × ")
    return {"batch": int(batch), "seqlen": read_seqlen(seqlen)}


def _batch_and_short_seqlen(measurement: Measurement) -> Labels:
    case = measurement.case
    return (f"{case.batch or 0} × {with_k(case.seqlen_q or 0)}",)


def _model(labels: Labels) -> Says:
    return {"subject": _MODELS[labels[0]]}


_MODELS = {
    "Llama 2 7B": "llama2-7b",
    "Llama 2 13B": "llama2-13b",
    "Llama 2 70B": "llama2-70b",
    "GPT-2 (124M)": "gpt2",
    "GPT-J (6B)": "gpt-j-6b",
    "GPT-NeoX (20B)": "gpt-neox-20b",
}
_NO_BASELINE = "no ratio, because the baseline ran out of memory"
_FA3_FP16 = {"implementation": "flash_attn_3_fp16", "dtype": "float16"}
_FA3_FP8 = {"implementation": "flash_attn_3_fp8", "dtype": "float8_e4m3fn"}


def _of(implementation: str, metric: str, **says: Any) -> Says:
    return {"implementation": implementation, "metric": metric, **says}


def _ratio(implementation: str, metric: str = "speedup", **says: Any) -> Says:
    says.setdefault("baseline", "standard")
    return {"implementation": implementation, "metric": metric, "why": _NO_BASELINE, **says}


def _forward(gpu: str, caption: str, columns: dict[str, Says], run: str, **says: int) -> Grid:
    return Grid(
        section=f"{gpu} > {caption}",
        header=("Seq Length", *columns),
        row=_seqlen,
        name=_plain_seqlen,
        columns=columns,
        says={"level": "op", "mode": "fwd", "metric": "latency_ms", **says},
        run=run,
        own={**_OWN_SHAPE, "dtype": None},
        measured_by=_OF_OPS,
    )


def _models(section: str, header: Labels, columns: dict[str, Says], names: tuple[Labels, ...], run: str) -> Grid:
    """Return a table by model: of training where it is of a run, of generation where it is of none."""
    if run:
        says, own = {"level": "model", "batch": 4, "seqlen": 2048}, {"mode": "train", "places": _TRAINING}
        sweep = _OF_TRAINING
    else:
        sweep = ("generation", _OF_PROMPTS)
        says = {"level": "model", "seqlen": 1024}
        own = {"seqlen_q": 1, "batch": 1, "mode": "decode", "places": _DECODING}
    return Grid(
        section=section,
        header=header,
        row=_model,
        rows=names,
        columns=columns,
        says=says,
        run=run,
        own=own,
        measured_by=sweep,
    )


def _throughput(metric: str, words: str) -> dict[str, Says]:
    return {
        f"Standard ({words})": _of("standard", metric),
        f"Flash Attn ({words})": _of("flash_attn", metric),
        "Speedup": _ratio("flash_attn"),
    }


_OF_OPS = ("performance_guide", {"seqlen": "seqlen", "batch": "batch"})
_OF_PROMPTS = {"subject": "subject", "context": "seqlen", "batch": "batch"}
_OF_TRAINING = (
    "training",
    {"subject": "subject", "seqlen": "seqlen", "train_batch": "batch", "modes": "mode"},
)
_SEQLENS: dict[str, Says] = {text: {"seqlen": read_seqlen(text)} for text in ("512", "1K", "2K", "4K", "8K", "16K")}
_PER_TOKEN: dict[str, Says] = {
    "Standard": _of("standard", "time_per_token_ms"),
    "Flash Attn 2": _of("flash_attn_2", "time_per_token_ms"),
    "Speedup": _ratio("flash_attn_2", note="of the time per token"),
}
_VERSION_ROWS: dict[str, Says] = {
    "Forward time (ms)": {"metric": "latency_ms"},
    "Memory (GB)": {"metric": "peak_memory_mb", "unit": "GB"},
    "TFLOPS": {"metric": "tflops"},
    "GPU util %": {"metric": "utilization_percent", "own_metric": "peak_percent"},
}
_SHAPE = {"batch": 8, "num_heads": 32, "head_dim": 64}
_OWN_SHAPE = {"num_heads": 32, "head_dim": 64}  # of the tables that leave it open
_DECODING = {"standard": ("torch_naive",), "flash_attn": ("triton_split_kv",)}  # the attention alone
_TRAINING = {"flash_attn": ("gluon_hopper", "triton_fa2")}  # on Hopper the former is what one trains with
_PREFILL = {"flash_attn_2": ("gluon_hopper", "triton_fa2")}
_MEMORY = "GPU memory consumption (batch=8, heads=32, dim=64)"
_BY_FORMULA = (_MEMORY, "Memory scaling comparison", "Training memory", "Memory per token")
_LLAMA = {"level": "model", "subject": "llama2-7b"}

GRIDS = [
    _forward(
        "A100 80GB (Ampere)",
        "Forward pass time (milliseconds, batch=8, heads=32, dim=64)",
        {
            "Standard": {"implementation": "standard"},
            "Flash Attn 2": {"implementation": "flash_attn_2"},
            "Flash Attn 3": {"implementation": "flash_attn_3"},
            "Speedup (FA2)": _ratio("flash_attn_2"),
        },
        "a100-80gb",
        **_SHAPE,
    ),
    _forward(
        "H100 80GB (Hopper)",
        "Forward pass time (milliseconds, same config)",
        {
            "Standard": {"implementation": "standard"},
            "Flash Attn 2": {"implementation": "flash_attn_2"},
            "Flash Attn 3 (FP16)": _FA3_FP16,
            "Flash Attn 3 (FP8)": _FA3_FP8,
            "Best Speedup": {**_ratio("flash_attn_3_fp8", note="best is read as FP8, which it fits"), **_FA3_FP8},
        },
        "h100-80gb",
        **_SHAPE,
    ),
    _forward(
        "A10G 24GB (Ampere)",
        "Forward pass time (milliseconds, batch=4)",
        {
            "Standard": {"implementation": "standard"},
            "Flash Attn 2": {"implementation": "flash_attn_2"},
            "Speedup": _ratio("flash_attn_2"),
        },
        "a10g-24gb",
        batch=4,
    ),
    Grid(
        section=f"{_MEMORY} > Standard attention memory",
        header=("Seq Length", "Attention Matrix", "KV Cache", "Total", "Notes"),
        row=_seqlen,
        name=_plain_seqlen,
        columns={
            "Attention Matrix": {"metric": "attention_memory_mb"},
            "KV Cache": {"metric": "kv_cache_mb"},
            "Total": {"metric": "peak_memory_mb"},
            "Notes": Remark(),
        },
        says={"level": "op", "implementation": "standard", **_SHAPE},
        own={"mode": "fwd", "dtype": None},
        measured_by=_OF_OPS,
    ),
    Grid(
        section=f"{_MEMORY} > Flash Attention 2 memory",
        header=("Seq Length", "Attention (on-chip)", "KV Cache", "Total", "Reduction"),
        row=_seqlen,
        name=_plain_seqlen,
        columns={
            "Attention (on-chip)": {"metric": "attention_memory_mb"},
            "KV Cache": {"metric": "kv_cache_mb"},
            "Total": {"metric": "peak_memory_mb"},
            "Reduction": _ratio("flash_attn_2", "memory_saved_percent"),
        },
        says={"level": "op", "implementation": "flash_attn_2", **_SHAPE},
        own={"mode": "fwd", "dtype": None},
        measured_by=_OF_OPS,
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
        says={**_LLAMA, "batch": 1, "dtype": "float16"},
        own={"mode": "prefill", "dtype": None, "places": _PREFILL},  # of 16 bits either
        measured_by=("prefill", _OF_PROMPTS),
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
        says={**_LLAMA, "batch": 4, "mode": "train"},
        own={"places": _TRAINING},
        measured_by=_OF_TRAINING,
    ),
    Grid(
        section="Empirical scaling (A100, batch=1, heads=32, dim=64) > Time per token (milliseconds)",
        header=("Sequence", *_SEQLENS),
        row=lambda labels: _PER_TOKEN[labels[0]],
        rows=tuple((name,) for name in _PER_TOKEN),
        columns=_SEQLENS,
        says={"level": "op", "batch": 1, "num_heads": 32, "head_dim": 64},
        run="a100",
        own={"mode": "fwd", "dtype": None},
        measured_by=_OF_OPS,
    ),
    Grid(
        section="Memory per token (MB)",
        header=("Sequence", *_SEQLENS),
        row=lambda labels: {**_PER_TOKEN[labels[0]], "metric": "memory_per_token_mb"},
        rows=(("Standard",), ("Flash Attn 2",)),
        columns=_SEQLENS,
        says={"level": "op"},
        own={**_OWN_SHAPE, "batch": 1, "mode": "fwd", "dtype": None},
        measured_by=_OF_OPS,
    ),
    Grid(
        section="Training (forward + backward, Llama 2 7B, A100)",
        header=("Batch × Seq", *_throughput("samples_per_s", "samples/sec")),
        row=_batch_and_seqlen,
        name=_batch_and_short_seqlen,
        columns=_throughput("samples_per_s", "samples/sec"),
        says={**_LLAMA, "mode": "train"},
        run="a100",
        own={"places": _TRAINING},
        measured_by=_OF_TRAINING,
    ),
    Grid(
        section="Inference (generation, Llama 2 7B, A100)",
        header=("Context Length", *_throughput("tokens_per_s", "tokens/sec")),
        row=_seqlen,
        name=lambda m: _plain_seqlen(m) if m.case.seqlen_k == 512 else _short_seqlen(m),
        columns=_throughput("tokens_per_s", "tokens/sec"),
        says={**_LLAMA, "mode": "decode", "seqlen_q": 1},
        run="a100",
        own={"batch": 1, "places": _DECODING},
        measured_by=("generation", _OF_PROMPTS),
    ),
    Grid(
        section="Flash Attention 1 vs 2 vs 3 (H100, seq=4096, batch=8)",
        header=("Metric", "FA1", "FA2", "FA3 (FP16)", "FA3 (FP8)"),
        row=lambda labels: _VERSION_ROWS[labels[0]],
        rows=tuple((name,) for name in _VERSION_ROWS),
        columns={
            "FA1": {"implementation": "flash_attn_1"},
            "FA2": {"implementation": "flash_attn_2"},
            "FA3 (FP16)": _FA3_FP16,
            "FA3 (FP8)": _FA3_FP8,
        },
        says={"level": "op", "mode": "fwd", "seqlen": 4096, "batch": 8},
        run="h100",
        own={**_OWN_SHAPE, "dtype": None},
        measured_by=_OF_OPS,
    ),
    _models(
        "Llama 2 models (A100 80GB, batch=4, seq=2048)",
        ("Model", "Params", *_throughput("samples_per_s", "samples/sec")),
        _throughput("samples_per_s", "samples/sec"),
        tuple((f"Llama 2 {size}", size) for size in ("7B", "13B", "70B")),
        "a100-80gb",
    ),
    _models(
        "GPT-style models (seq=1024)",
        ("Model", *_throughput("tokens_per_s", "tokens/sec")),
        _throughput("tokens_per_s", "tokens/sec"),
        (("GPT-2 (124M)",), ("GPT-J (6B)",), ("GPT-NeoX (20B)",)),
        "",
    ),
]


EVIDENCE = performance_guide_words.EVIDENCE
GRIDS_BY_FORMULA = [grid for grid in GRIDS if grid.section.startswith(_BY_FORMULA)]


def _expected(origin: str, pattern: str, **says: Any) -> Claim:
    words = {"implementation": "flash_attn", "baseline": "standard", "subject": None, **says}
    return Claim(pattern, f"Recommendations by use case / {origin}", words, low_and_high(words.pop("metric")))


_RANGE = r"(?P<low>[\d.]+)-(?P<high>[\d.]+x)"
CLAIMS = (
    Claim(
        pattern=r"FP8 achieves (?P<tflops>~[\d.]+ PFLOPS) \((?P<percent>\d+%) of theoretical max\)",
        origin="H100 80GB (Hopper) / Key insight",
        says={"mode": "fwd", **_FA3_FP8},
        figures={"tflops": {"metric": "tflops"}, "percent": {"metric": "peak_percent"}},
        run="h100-80gb",
    ),
    *(
        Claim(
            pattern=rf"- {words}: (?P<speedup>[\d.]+x) faster than {than}",
            origin=f"Key improvements / {words}",
            says={"baseline": baseline, "metric": "speedup", **says},
            figures={"speedup": {}},
            run="h100",
        )
        for words, than, baseline, says in (
            ("FA2", "FA1", "flash_attn_1", {"implementation": "flash_attn_2"}),
            (r"FA3 \(FP16\)", "FA2", "flash_attn_2", _FA3_FP16),
            (r"FA3 \(FP8\)", "FA2", "flash_attn_2", _FA3_FP8),
        )
    ),
    _expected(
        "training", rf"maximum speed\s+- Expected: {_RANGE} speedup", metric="speedup", level="model", mode="train"
    ),
    _expected("long context", rf"Expected: {_RANGE} speedup, ", metric="speedup", level="model"),
    _expected("long context, memory", rf"speedup, {_RANGE} memory reduction", metric="memory_reduction", level="model"),
    _expected("short sequences", rf"provides {_RANGE} speedup", metric="speedup", level="model"),
)


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

_RUN_NOTES = (
    "Causal, versions and, where not printed, dtype are not said; FP8 is read as float8_e4m3fn, the format of "
    "FlashAttention-3 (arXiv 2407.08608). MB is read as MiB, GB as 1024 MiB, K as 1024 tokens. Rows of models have "
    "the printed context length as seqlen_q and seqlen_k; generation has one query token. The report prints some GPUs "
    "with and some without their memory, and some tables without a GPU: each is a run of its own. Its figures "
    "contradict each other in places and are kept as printed."
)
# run id suffix -> GPU as printed, memory in GB as printed
_GPUS: dict[str, tuple[str | None, int | None]] = {
    "a100-80gb": ("A100 80GB", 80),
    "h100-80gb": ("H100 80GB", 80),
    "a10g-24gb": ("A10G 24GB", 24),
    "a100": ("A100", None),
    "h100": ("H100", None),
    "": (None, None),
}


def parse(text: str) -> list[tuple[Run, list[Measurement]]]:
    """Return one run for each GPU the report names and one for the tables without, with every printed number.

    Raises ReportError if the text is not this report.
    """
    found = [(grid, [table for table in tables(text) if grid.matches(table)]) for grid in GRIDS]
    if missing := [grid.section for grid, matching in found if len(matching) != 1]:
        raise ReportError(f"Not report {NAME}: it has one table each of {'; '.join(missing)}.")
    runs = []
    for key, (gpu, memory) in _GPUS.items():
        run = _run(key, gpu, memory)
        measurements = [
            m for grid, matching in found if grid.run == key for m in parse_grid(grid, matching[0], run.run_id)
        ]
        claims = [claim for claim in CLAIMS if claim.run == key]
        runs.append((run, [*measurements, *parse_claims(text, claims, run.run_id)]))
    return runs


def notes(text: str) -> list[Note]:
    """Return what the report says besides its numbers."""
    return notes_of(text, GRIDS)


def more_sections(printed: Runs, numbers: OwnNumbers) -> list[Section]:
    """Return the claims, features by version and recommendations, each beside what own numbers say."""
    return performance_guide_words.sections(CLAIMS, printed, shipped_notes(NAME), numbers)


def render(runs: Runs) -> str:
    """Return the report's tables: as printed, or those of them that an own run has the numbers for."""
    return render_report(runs, name=NAME, title=TITLE, source=SOURCE, grids=GRIDS, implementations=IMPLEMENTATIONS)


def _run(key: str, gpu: str | None, memory: int | None) -> Run:
    return Run(
        run_id="-".join(part for part in ("published", NAME, key) if part),
        source="published",
        report=NAME,
        title=f"{TITLE}, {gpu or 'GPU not said'}",
        gpu_name=gpu,
        gpu_memory_mb=1024.0 * memory if memory else None,
        device_type="cuda",
        notes=_RUN_NOTES,
    )
