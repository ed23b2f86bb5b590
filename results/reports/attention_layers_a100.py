"""Attention layers (fused and separate MHA, GQA, MQA, MLA) with PyTorch, Triton and Flash inside, on an A100."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from results.records import Case, compatible
from results.reports.claims import Answer, Claim, span_by_dtype
from results.reports.layout import Best, Facts, Grid, Labels
from results.reports.own import OwnNumbers, case_fields

NAME = "attention_layers_a100"
LABEL = "Attention layers, A100 40 GB"
TITLE = "Attention Layers Benchmark"
SOURCE = "Attention Layers Benchmark, A100-SXM4-40GB, 45 configurations (author and address unknown)"
IMPLEMENTATIONS = {"torch": "torch_naive", "triton": "triton_fa2", "flash": "torch_sdpa_flash"}

_FIELDS = {
    "Batch": "batch",
    "SeqLen": "seqlen",
    "Heads": "num_heads",
    "KVHeads": "num_kv_heads",
    "HeadDim": "head_dim",
    "LatentDim": "latent_dim",
}
_MHA = (
    "Configuration 1: Batch=2, SeqLen=2048, Heads=12, HeadDim=64",
    "Configuration 2: Batch=1, SeqLen=4096, Heads=32, HeadDim=128",
    "Configuration 3: Batch=1, SeqLen=2048, Heads=40, HeadDim=128",
)
_GQA = (
    "Configuration 1: Batch=2, SeqLen=2048, Heads=32, KVHeads=8, HeadDim=64",
    "Configuration 2: Batch=1, SeqLen=4096, Heads=32, KVHeads=8, HeadDim=128",
    "Configuration 3: Batch=1, SeqLen=2048, Heads=40, KVHeads=8, HeadDim=128",
)
_MLA = (
    "Configuration 1: Batch=2, SeqLen=2048, Heads=32, HeadDim=128, LatentDim=512",
    "Configuration 2: Batch=1, SeqLen=4096, Heads=64, HeadDim=128, LatentDim=1024",
    "Configuration 3: Batch=1, SeqLen=2048, Heads=128, HeadDim=128, LatentDim=2048",
)
_MQA = ("Configuration 1: Batch=2, SeqLen=2048, Heads=16, HeadDim=64", *_MHA[1:])
_LAYERS = {  # heading of the report -> subject, configurations
    "Multi-Head Self-Attention (Fused QKV)": ("mha_fused", _MHA),
    "Multi-Head Attention (Separate Q/K/V)": ("mha", _MHA),
    "Grouped Query Attention (GQA)": ("gqa", _GQA),
    "Multi-Query Attention (MQA)": ("mqa", _MQA),
    "Multi-Head Latent Attention": ("mla", _MLA),
}
_PASSES = {"Forward": "fwd", "Backward": "bwd", "Total": "fwd_bwd"}
_COLUMNS: dict[str, Any] = {
    "PyTorch (ms)": {"implementation": "torch", "metric": "latency_ms"},
    "Triton (ms)": {"implementation": "triton", "metric": "latency_ms"},
    "Flash (ms)": {"implementation": "flash", "metric": "latency_ms"},
    "Best Speedup": Best({"Triton": "triton", "Flash": "flash"}, {"metric": "speedup", "baseline": "torch"}),
}
_AXES = ("subject", "batch", "seqlen", "heads", "head_dim", "latent_dim")  # axes that select one layer of the sweep


def _row(labels: Labels) -> Facts:
    return {"mode": _PASSES[labels[0]]}


def _grid(heading: str, subject: str, configuration: str) -> Grid:
    pairs = (pair.split("=") for pair in configuration.partition(": ")[2].split(", "))
    facts: dict[str, Any] = {_FIELDS[name]: int(value) for name, value in pairs}
    if subject.startswith("mha"):
        facts["num_kv_heads"] = facts["num_heads"]
    elif subject == "mqa":
        facts["num_kv_heads"] = 1
    heads = f"{facts['num_heads']}/{facts['num_kv_heads']}" if subject == "gqa" else str(facts["num_heads"])
    return Grid(
        section=f"{heading} > {configuration}",
        header=("Pass", *_COLUMNS),
        row=_row,
        rows=tuple((word,) for word in _PASSES),
        columns=_COLUMNS,
        facts={"level": "layer", "subject": subject, **facts, "heads": heads},
        measured_by=("attention_layers", {axis: axis for axis in _AXES}),
    )


GRIDS = tuple(
    _grid(heading, subject, configuration)
    for heading, (subject, configurations) in _LAYERS.items()
    for configuration in configurations
)


def _cases(numbers: OwnNumbers) -> set[Case]:
    """Return the own cases that are one of the report's layers."""
    wanted = [Case(**case_fields(grid.facts)) for grid in GRIDS]
    own = {m.case for m in numbers.measurements}
    return {case for case in own if any(compatible(layer, case) for layer in wanted)}


def _fastest(*passes: str) -> Answer:
    """Answer for each pass in how many layers of the report each backend takes the least time."""

    def answer(numbers: OwnNumbers) -> str | None:
        parts = []
        for word in passes:
            wins: Counter[str] = Counter()
            for case in _cases(numbers):
                times = {
                    own: m.value
                    for own in map(numbers.own, IMPLEMENTATIONS)
                    if (m := numbers.found.get((case, own, _PASSES[word], "latency_ms"))) and m.value
                }
                if len(times) == len(IMPLEMENTATIONS):
                    wins[min(times, key=times.__getitem__)] += 1
            if wins:
                counts = ", ".join(f"{name} {count} of {wins.total()}" for name, count in wins.most_common())
                parts.append(f"{word.lower()}: {counts}")
        return "; ".join(parts) or None

    return answer


def _tests(numbers: OwnNumbers) -> str | None:
    """Return how many passes of layers have times, in how many kinds of layers. Dtypes are not counted apart."""
    cases = _cases(numbers)
    passes = {
        (replace(m.case, dtype=None), m.mode)
        for m in numbers.measurements
        if m.metric == "latency_ms" and m.value and m.mode in _PASSES.values() and m.case in cases
    }
    return f"{len(passes)} across {len({case.subject for case, _ in passes})} attention types" if passes else None


_OF_LAYERS = {"case": {"level": "layer"}}
CLAIMS = (
    Claim("Summary / Flash Forward Speedup", span_by_dtype("speedup", "flash", "torch", mode="fwd", **_OF_LAYERS)),
    Claim("Summary / Triton Backward Speedup", span_by_dtype("speedup", "triton", "torch", mode="bwd", **_OF_LAYERS)),
    Claim("Summary / Best Backend", _fastest("Forward", "Backward"), "Flash Attention (forward), Triton (backward)"),
    Claim("Summary / Best Overall", _fastest("Total"), "Flash Attention for forward-heavy workloads"),
    Claim("Summary / Total Tests", _tests, "45 configurations across 5 attention types"),
)
