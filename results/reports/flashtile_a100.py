"""FlashTile: tiled attention in plain PyTorch and a Triton forward against a naive layer on an A100."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import Any

from results.checks.memory import SHARED_KB
from results.levels.tensors import kv_cache_mb
from results.records import Measurement, Run, attention_case, case_to_json
from results.render.markdown import tables
from results.reports import claims, flashtile_words
from results.reports.layout import (
    Claim,
    Grid,
    Labels,
    Remark,
    ReportError,
    Row,
    Says,
    Section,
    parse_claims,
    parse_grid,
)
from results.reports.notes import Note, shipped_notes
from results.reports.own import OwnNumbers
from results.reports.rendering import Runs, render_report

NAME = "flashtile_a100"
LABEL = "FlashTile, A100 80 GB"
TITLE = "FlashTile performance on an A100"
SOURCE = "FlashTile, docs/PERFORMANCE.md, https://github.com/iamrahulreddy/FlashTile"
IMPLEMENTATIONS = {
    "naive": "torch_naive",
    "flashtile_v1": "tiled_v1",
    "flashtile_v2": "tiled_v2",
    "flashtile_gqa": "tiled_v2",  # on fewer key heads
    "flashtile_triton": "triton_fa2",
}

_FACTS = re.compile(
    r"Validated on (?P<gpu>[\w -]+) \(CUDA (?P<cuda>[\d.]+), PyTorch (?P<torch>[\d.]+), Triton (?P<triton>[\d.]+)\)"
)
_COMMAND = re.compile(
    r"matching our A100 validation\)\s+(?P<command>python .*--batch-size (?P<batch>\d+) "
    r"--embed-dim (?P<embed>\d+) --num-heads (?P<heads>\d+).*)"
)
_RUN_NOTES = (
    "Batch, heads and head dimension come from the command that the report calls its A100 validation; that command "
    "has no --non-causal, so the numbers are read as causal. dtype is not said. Its code says that projections have "
    "biases and that GQA has 3 key heads for 12 heads. MB is MiB: the report's code divides bytes by 1024 twice. The "
    "report's usage examples are left out of the notes, but for how it says that it measures: time as the mean of 10 "
    "calls after 3, between two synchronisations, without gradients; memory as torch's max_memory_allocated."
)


def parse(text: str) -> list[tuple[Run, list[Measurement]]]:
    """Return the report's run and its numbers: memory, time and speedup by seqlen, and what the prose claims.

    Raises ReportError if the text is not this report.
    """
    facts, command = _FACTS.search(text), _COMMAND.search(text)
    if not facts or not command:
        raise ReportError(f"Not report {NAME}: it says 'Validated on' and 'matching our A100 validation'.")
    if (command["batch"], command["embed"], command["heads"]) != ("4", "768", "12"):
        raise ReportError(f"Not report {NAME}: its validation has batch 4, embed-dim 768 and 12 heads.")
    run = Run(
        run_id=f"published-{NAME}",
        source="published",
        report=NAME,
        title=TITLE,
        gpu_name=facts["gpu"],
        gpu_memory_mb=80 * 1024.0,  # the 80GB of its name
        device_type="cuda",
        cuda=facts["cuda"],
        torch=facts["torch"],
        triton=facts["triton"],
        command=command["command"].strip(),
        notes=_RUN_NOTES,
    )
    measurements: list[Measurement] = []
    for grid in GRIDS:
        found = [table for table in tables(text) if table.header == grid.header]
        if len(found) != 1:
            raise ReportError(f"Not report {NAME}: {len(found)} tables have the columns {', '.join(grid.header)}.")
        measurements += parse_grid(grid, found[0], run.run_id)
    return [(run, [*measurements, *parse_claims(text, CLAIMS, run.run_id)])]


def notes(text: str) -> list[Note]:
    """Return what the report says besides its numbers, without its usage examples, whose fences are lost."""
    prose = [Note("", lines=_passage(text, first, last)) for first, last in _PASSAGES]
    words = [table for table in tables(text) if all(table.header != grid.header for grid in GRIDS)]
    return [*prose, *(Note("", header=table.header, rows=table.rows) for table in words)]


def more_sections(printed: Runs, numbers: OwnNumbers) -> list[Section]:
    """Return the claims and the tables of words beside an own run's figures, and what a block needs by formula."""
    rows = [m for _, measurements in printed for m in measurements]
    blocks = {m.case.subject: m.printed or "" for m in rows if m.metric == "shared_memory_kb"}
    figures = claims.section(CLAIMS, rows, numbers, {_SAVINGS: _cache_savings()} if numbers.measurements else None)
    told = claims.with_sentences(figures, flashtile_words.sentences(numbers))
    words = flashtile_words.tables(shipped_notes(NAME), numbers) if rows else []
    return [told, *words, *([_shared_memory(blocks)] if blocks else [])]


def _shared_memory(printed: Mapping[str, str]) -> Section:
    """Return by block size and head_dim what q, k, v, out and scores of a block take in float32, and where that fits.

    `printed` is what the report says, by the subject of its rows.
    """
    rows = []
    for block, head_dim in product((32, 64, 128), (64, 128)):
        needed = (4 * block * head_dim + block**2) * _FLOAT32_BYTES / 1024
        fits = [f"{name} ({limit} KiB)" for name, limit in SHARED_KB.items() if needed <= limit]
        own = f"{needed:g} KiB; fits {', '.join(fits) or 'none'}"
        rows.append(Row((str(block), str(head_dim)), (printed.get(f"block_size {block}", ""),), (own,)))
    labels = ("Block Size", "head_dim")
    return Section(_SHARED_MEMORY, "", labels, ("SRAM Required",), (None,), tuple(rows), by_formula=True)


def _cache_savings() -> str:
    """Return by formula how much smaller the cache of the report's GQA is: 2 key heads for 8 query heads."""
    sizes = {"batch": 1, "num_heads": 8, "seqlen": 1024, "head_dim": 64, "dtype": "float32", "causal": True}
    whole, fewer = (
        kv_cache_mb(case_to_json(attention_case(**sizes, num_kv_heads=heads))) for heads in (sizes["num_heads"], 2)
    )
    return f"{whole / fewer:.1f}x, by formula"


def render(runs: Runs) -> str:
    """Return the report's tables: as printed, or with the numbers of an own run of layers with these shapes."""
    return render_report(runs, name=NAME, title=TITLE, source=SOURCE, grids=GRIDS, implementations=IMPLEMENTATIONS)


def _passage(text: str, first: str, last: str) -> tuple[str, ...]:
    """Return the lines of a passage, those of code within the fences that the text lost."""
    start = text.find(first)
    end = text.find(last, start)
    if min(start, end) < 0:
        raise ReportError(f"Not report {NAME}: it lacks the passage from {first!r} to {last!r}.")
    lines = text[start : end + len(last)].splitlines()
    return ("```", *lines, "```") if first.startswith(_CODE) else tuple(lines)


_SYSTEMS = {
    "Naive": "naive",
    "Flash V1": "flashtile_v1",
    "Flash V2": "flashtile_v2",
    "GQA": "flashtile_gqa",
    "Triton": "flashtile_triton",
}
_LAYER: dict[str, Any] = {
    "level": "layer",
    "batch": 4,
    "num_heads": 12,
    "head_dim": 64,  # embed-dim 768 over 12 heads
    "causal": True,
    "mode": "fwd",
}
_FLOAT32_BYTES = 4
_FORMATS = {"latency_ms": {"format": "{:.2f} ms"}}  # the columns of times name no unit, the cells do
_SHARED_MEMORY = "Shared memory: by formula, (4 x block x head_dim + block x block) x 4 bytes, and where it fits"
_MHA = {"subject": "mha_fused_bias", "num_kv_heads": 12}
_GQA = {"subject": "gqa_bias", "num_kv_heads": 3}
_TRITON = {**_LAYER, **_MHA, "implementation": "flashtile_triton", "baseline": "naive"}


def _row(labels: Labels) -> Says:
    return {"seqlen": int(labels[0].replace(",", ""))}


def _name(measurement: Measurement) -> Labels:
    return (f"{measurement.case.seqlen_q or 0:,}",)


def _block(labels: Labels) -> Says:
    return {"subject": f"block_size {labels[0]}"}


def _layer_of(implementation: str) -> Says:
    """Return the layer by FlashTile's code: biases in the projections, 3 key heads in GQA."""
    return _GQA if implementation == "flashtile_gqa" else _MHA


def _columns(metric: str, suffix: str) -> dict[str, Any]:
    return {
        f"{words}{suffix}": {
            "implementation": system,
            **_layer_of(system),
            "metric": metric,
            **_FORMATS.get(metric, {}),
        }
        for words, system in _SYSTEMS.items()
    }


GRIDS = [
    Grid(
        section=section,
        header=("Sequence Length", *columns),
        row=_row,
        name=_name,
        columns=columns,
        says=_LAYER,
        measured_by=("flashtile", {"subject": "subject", "seqlen": "seqlen"}),
    )
    for section, columns in (
        ("Memory", _columns("peak_memory_mb", " Memory")),
        ("Time", _columns("latency_ms", "")),
        ("Triton speedup", {"Speedup": {**_TRITON, "metric": "speedup", "note": "read as Triton over Naive"}}),
    )
]
GRIDS.append(
    Grid(
        section="Shared memory",
        header=("Block Size", "SRAM Required", "Best For"),
        row=_block,
        rows=(("32",), ("64",), ("128",)),
        columns={
            "SRAM Required": {"implementation": "flashtile", "metric": "shared_memory_kb", "level": None},
            "Best For": Remark(),
        },
    )
)
_SAVINGS = "GroupedQueryAttention(512, 8, num_kv_heads=2)"
_AT_8K = {**_LAYER, "seqlen": 8192}
CLAIMS = (
    *(
        Claim(
            pattern=rf"- {words}: (?P<reduction>[\d.]+x)",
            origin=f"Memory reduction at 8K vs Naive / {words}",
            says={**_AT_8K, **_layer_of(system), "implementation": system, "baseline": "naive"},
            figures={"reduction": {"metric": "memory_reduction"}},
        )
        for words, system in _SYSTEMS.items()
        if system != "naive"
    ),
    *(
        Claim(
            pattern=pattern + r" Fast \((?P<speedup>[\d.]+x) at 8K\) \|",
            origin=origin,
            says={**_TRITON, "seqlen": 8192},
            figures={"speedup": {"metric": "speedup"}},
        )
        for pattern, origin in (
            (r"\| Triton Kernel \| O\(N\) forward \|", "Implementation / Triton Kernel / Speed"),
            (r"\| Speed \| .*? \| .*? \|", "Aspect / Speed / Triton Kernel"),
        )
    ),
    Claim(
        pattern=r"Max numerical error of (?P<error>[\d.e-]+) across all implementations",
        origin="Correctness",
        says={"level": "layer", "subject": None, "implementation": "all", "metric": "max_error_out", "mode": "fwd"},
        figures={"error": {}},
        note="the largest over all implementations; what they were compared with is not said",
    ),
    Claim(
        pattern=r"num_kv_heads=2\)\s*# (?P<savings>\dx) KV cache savings",
        origin=_SAVINGS,
        says={
            "level": "layer",
            "subject": "gqa_bias",
            "num_heads": 8,
            "num_kv_heads": 2,
            "implementation": "flashtile_gqa",
        },
        figures={"savings": {"metric": "memory_reduction", "note": "of the KV cache, against as many as 8 heads"}},
    ),
)

# The report's prose, as first and last words of each passage: its fences are lost, so code cannot be told by form.
_PASSAGES = (
    ("Benchmarking methodology", "A100 GPU testing."),
    ("def benchmark(model, x, warmup=3, runs=10):", "/ runs * 1000 # ms"),
    ("Validated on NVIDIA", "Triton 3.4.0)."),
    ("Memory reduction at 8K vs Naive", "- Triton: 78.8x"),
    ("FlashTile's Python implementations are", "fastest path on GPU."),
    ("The Python V1/V2/GQA implementations use", "(machine epsilon)"),
    ("# Reset stats", "(1024 ** 2)"),
    ("# With custom settings (matching our A100 validation)", "--theme dark"),
    ("In practice, PyTorch native", "the production path."),
    ("# Saves ~50% compute", "causal=True)"),
    ("Pitfall: Custom autograd", "for best results."),
    ("model = GroupedQueryAttention(512", "KV cache savings"),
    ("Choose FlashTile Python when:", "low-level details"),
)
_CODE = ("def ", "# ", "model = ")  # that passages of code begin with
