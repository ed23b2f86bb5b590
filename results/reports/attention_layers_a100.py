"""Attention layers (fused and separate MHA, GQA, MQA, MLA) with PyTorch, Triton and Flash inside, on an A100."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from results.records import Case, Measurement, Run, compatible
from results.render.markdown import tables
from results.reports import claims
from results.reports.layout import (
    Best,
    Claim,
    Grid,
    Labels,
    ReportError,
    Says,
    Section,
    low_and_high,
    parse_claims,
    parse_grid,
)
from results.reports.notes import Note, notes_of
from results.reports.own import OwnNumbers, said_fields
from results.reports.rendering import Runs, render_report

NAME = "attention_layers_a100"
LABEL = "Attention layers, A100 40 GB"
TITLE = "Attention Layers Benchmark"
SOURCE = "Attention Layers Benchmark, A100-SXM4-40GB, 45 configurations (author and address unknown)"
IMPLEMENTATIONS = {"torch": "torch_naive", "triton": "triton_fa2", "flash": "torch_sdpa_flash"}

_FACTS = re.compile(r"\*\*GPU\*\*: (?P<gpu>.+)\s+- \*\*CUDA\*\*: (?P<cuda>.+)\s+- \*\*PyTorch\*\*: (?P<torch>.+)")
_RUN_NOTES = (
    "dtype and causal are not said. Multi-head attention has as many heads of keys as of queries and multi-query "
    "attention has one, by definition. Total is read as forward and backward together. The summary's ranges do not "
    "fit the tables, and one Best Speedup names another winner than the bold cell; all are kept as printed."
)
_SUBJECTS = {
    "Multi-Head Self-Attention (Fused QKV)": "mha_fused",
    "Multi-Head Attention (Separate Q/K/V)": "mha",
    "Grouped Query Attention (GQA)": "gqa",
    "Multi-Query Attention (MQA)": "mqa",
    "Multi-Head Latent Attention": "mla",
}
_FIELDS = {
    "Batch": "batch",
    "SeqLen": "seqlen",
    "Heads": "num_heads",
    "KVHeads": "num_kv_heads",
    "HeadDim": "head_dim",
    "LatentDim": "latent_dim",
}
_CONFIGURATIONS = {
    "Multi-Head Self-Attention (Fused QKV)": (
        "Configuration 1: Batch=2, SeqLen=2048, Heads=12, HeadDim=64",
        "Configuration 2: Batch=1, SeqLen=4096, Heads=32, HeadDim=128",
        "Configuration 3: Batch=1, SeqLen=2048, Heads=40, HeadDim=128",
    ),
    "Multi-Head Attention (Separate Q/K/V)": (
        "Configuration 1: Batch=2, SeqLen=2048, Heads=12, HeadDim=64",
        "Configuration 2: Batch=1, SeqLen=4096, Heads=32, HeadDim=128",
        "Configuration 3: Batch=1, SeqLen=2048, Heads=40, HeadDim=128",
    ),
    "Grouped Query Attention (GQA)": (
        "Configuration 1: Batch=2, SeqLen=2048, Heads=32, KVHeads=8, HeadDim=64",
        "Configuration 2: Batch=1, SeqLen=4096, Heads=32, KVHeads=8, HeadDim=128",
        "Configuration 3: Batch=1, SeqLen=2048, Heads=40, KVHeads=8, HeadDim=128",
    ),
    "Multi-Query Attention (MQA)": (
        "Configuration 1: Batch=2, SeqLen=2048, Heads=16, HeadDim=64",
        "Configuration 2: Batch=1, SeqLen=4096, Heads=32, HeadDim=128",
        "Configuration 3: Batch=1, SeqLen=2048, Heads=40, HeadDim=128",
    ),
    "Multi-Head Latent Attention": (
        "Configuration 1: Batch=2, SeqLen=2048, Heads=32, HeadDim=128, LatentDim=512",
        "Configuration 2: Batch=1, SeqLen=4096, Heads=64, HeadDim=128, LatentDim=1024",
        "Configuration 3: Batch=1, SeqLen=2048, Heads=128, HeadDim=128, LatentDim=2048",
    ),
}


def parse(text: str) -> list[tuple[Run, list[Measurement]]]:
    """Return the report's run and its numbers: 12 a configuration, and the ranges of the summary.

    Raises ReportError if the text is not this report.
    """
    facts = _FACTS.search(text)
    found = [(grid, table) for grid in GRIDS for table in tables(text) if grid.matches(table)]
    if not facts or len(found) != len(GRIDS):
        raise ReportError(f"Not report {NAME}: it has GPU, CUDA and PyTorch lines and {len(GRIDS)} configurations.")
    run = Run(
        run_id=f"published-{NAME}",
        source="published",
        report=NAME,
        title=TITLE,
        gpu_name=facts["gpu"],
        gpu_memory_mb=40 * 1024.0,  # the 40GB of its name
        device_type="cuda",
        cuda=facts["cuda"],
        torch=facts["torch"],
        notes=_RUN_NOTES,
    )
    measurements = [m for grid, table in found for m in parse_grid(grid, table, run.run_id)]
    return [(run, [*measurements, *parse_claims(text, CLAIMS, run.run_id)])]


def notes(text: str) -> list[Note]:
    """Return what the report says besides its numbers."""
    return notes_of(text, GRIDS)


def more_sections(printed: Runs, numbers: OwnNumbers) -> list[Section]:
    """Return the summary beside what an own run's numbers say to each of its lines."""
    ranges = claims.section(CLAIMS, [m for _, measurements in printed for m in measurements], numbers)
    told = tuple((f"Summary / {line}", words, answer(numbers)) for line, words, answer in _SUMMARY)
    return [claims.with_sentences(ranges, told)]


def render(runs: Runs) -> str:
    """Return the report's tables: as printed, or with the numbers of an own run of layers with these configurations."""
    return render_report(runs, name=NAME, title=TITLE, source=SOURCE, grids=GRIDS, implementations=IMPLEMENTATIONS)


_MODES = {"Forward": "fwd", "Backward": "bwd", "Total": "fwd_bwd"}
_COLUMNS: dict[str, Any] = {
    "PyTorch (ms)": {"implementation": "torch", "metric": "latency_ms"},
    "Triton (ms)": {"implementation": "triton", "metric": "latency_ms"},
    "Flash (ms)": {"implementation": "flash", "metric": "latency_ms"},
    "Best Speedup": Best({"Triton": "triton", "Flash": "flash"}, {"metric": "speedup", "baseline": "torch"}),
}


def _row(labels: Labels) -> Says:
    return {"mode": _MODES[labels[0]]}


def _grid(layer: str, configuration: str) -> Grid:
    pairs = (pair.split("=") for pair in configuration.partition(": ")[2].split(", "))
    says: dict[str, Any] = {_FIELDS[name]: int(value) for name, value in pairs}
    subject = _SUBJECTS[layer]
    if subject.startswith("mha"):
        says["num_kv_heads"] = says["num_heads"]
    elif subject == "mqa":
        says["num_kv_heads"] = 1
    return Grid(
        section=f"{layer} > {configuration}",
        header=("Pass", *_COLUMNS),
        row=_row,
        rows=tuple((word,) for word in _MODES),
        columns=_COLUMNS,
        says={"level": "layer", "subject": subject, **says, "heads": _heads(subject, says)},
        measured_by=("attention_layers", {axis: axis for axis in _AXES}),
    )


def _heads(subject: str, says: Says) -> str:
    """Return query heads, of GQA over key heads, as the sweep's axis has them."""
    return f"{says['num_heads']}/{says['num_kv_heads']}" if subject == "gqa" else str(says["num_heads"])


_AXES = ("subject", "batch", "seqlen", "heads", "head_dim", "latent_dim")  # that leave one layer of the sweep's
GRIDS = [_grid(layer, configuration) for layer, found in _CONFIGURATIONS.items() for configuration in found]
CLAIMS = tuple(
    Claim(
        pattern=rf"\*\*{words}\*\* \| (?P<low>[\d.]+)-(?P<high>[\d.]+x) \|",
        origin=f"Summary / {words}",
        says={"level": "layer", "subject": None, "implementation": system, "baseline": "torch", "mode": mode},
        figures=low_and_high("speedup"),
    )
    for words, system, mode in (
        ("Flash Forward Speedup", "flash", "fwd"),
        ("Triton Backward Speedup", "triton", "bwd"),
    )
)


def _fastest(numbers: OwnNumbers, modes: Sequence[str]) -> str | None:
    """Say by pass in how many layers of the report each backend takes the least time."""
    parts = []
    for mode in modes:
        wins: Counter[str] = Counter()
        for case in _cases(numbers):
            times = {
                theirs: m.value
                for theirs in IMPLEMENTATIONS
                if (m := numbers.found.get((case, numbers.own(theirs), mode, "latency_ms"))) and m.value
            }
            if len(times) == len(IMPLEMENTATIONS):
                wins[numbers.own(min(times, key=times.__getitem__))] += 1
        if wins:
            said = ", ".join(f"{name} {count} of {wins.total()}" for name, count in wins.most_common())
            parts.append(f"{_PASSES[mode]}: {said}")
    return "; ".join(parts) or None


def _best_backend(numbers: OwnNumbers) -> str | None:
    return _fastest(numbers, ("fwd", "bwd"))


def _best_overall(numbers: OwnNumbers) -> str | None:
    return _fastest(numbers, ("fwd_bwd",))


def _tests(numbers: OwnNumbers) -> str | None:
    """Say how many passes of layers have times, in how many kinds of layers; a dtype more is no further one."""
    passes = {
        (replace(m.case, dtype=None), m.mode)
        for m in numbers.measurements
        if m.metric == "latency_ms" and m.value and m.mode in _PASSES and m.case in _cases(numbers)
    }
    return f"{len(passes)} across {len({case.subject for case, _ in passes})} attention types" if passes else None


def _cases(numbers: OwnNumbers) -> set[Case]:
    """Return the own cases that are one of the report's layers."""
    wanted = [Case(**said_fields(grid.says)) for grid in GRIDS]
    own = {m.case for m in numbers.measurements}
    return {case for case in own if any(compatible(layer, case) for layer in wanted)}


_PASSES = {mode: word.lower() for word, mode in _MODES.items()}
_SUMMARY = (
    ("Best Backend", "Flash Attention (forward), Triton (backward)", _best_backend),
    ("Best Overall", "Flash Attention for forward-heavy workloads", _best_overall),
    ("Total Tests", "45 configurations across 5 attention types", _tests),
)
