"""A guide's benchmark tables: FlashAttention 1 to 3 against standard attention, on several GPUs and models."""

from __future__ import annotations

from results.records import Measurement, Run
from results.reports.cells import ReportError
from results.reports.claims import parse_claims
from results.reports.layout import parse_grid
from results.reports.notes import Note, notes_of
from results.reports.performance_guide_tables import CLAIMS, GRIDS
from results.reports.rendering import Runs, render_report
from results.reports.tables import tables

NAME = "performance_guide"
TITLE = "Performance Benchmarks"
SOURCE = (
    "Performance Benchmarks: references/benchmarks.md of a flash-attention skill, as vendored in "
    "https://github.com/zhuangbiaowei/smart_bot (author unknown, no code)"
)
IMPLEMENTATIONS = {"standard": "torch_naive", "flash_attn_2": "triton_fa2"}

_RUN_NOTES = (
    "Causal, versions and, where not printed, dtype are not said; FP8 is read as float8_e4m3fn, the format of "
    "FlashAttention-3 (arXiv 2407.08608). MB is read as MiB, GB as 1024 MiB, K as 1024 tokens. Rows of models have "
    "the printed context length as seqlen_q and seqlen_k. The report prints some GPUs with and some without their "
    "memory, and some tables without a GPU: each is a run of its own. Its figures contradict each other in places "
    "and are kept as printed."
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
    """One run for each GPU the report names and one for the tables without, with every printed number.

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
    """What the report says besides its numbers."""
    return notes_of(text, GRIDS)


def render(runs: Runs) -> str:
    """The report's tables: as printed, or those of them that an own run has the numbers for."""
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
