"""A run on one page of Markdown, for an issue or a pull request: environment, winners, ranking, failures."""

from collections.abc import Iterator, Mapping
from typing import Any

from results.query import speedups
from results.recommend.winners import winners
from results.render.markdown import NOT_FOR_IMPORT, escape, markdown_table
from results.render.slice import cell_text, ranking_table, slice_words, winner_tables
from results.render.text import SOURCE_WORDS, missing
from results.slice import BASELINES, ORDER, Filters, level_in
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)

_FACTS = (
    "source", "created", "gpu_name", "power_limit_w", "driver", "cuda", "cudnn", "torch", "triton", "python", "os",
    "git_commit", "git_dirty", "protocol", "tf32",
)  # fmt: skip
_MOST_REASONS = 20
_SLICES = _SQL("slices")
_REASONS = _SQL("reasons")


def render(store: Store, run: Mapping[str, Any]) -> str:
    """Return a run as one page; `run` has the fields of its record."""
    run_id = str(run["run_id"])
    title = run_id if missing(run.get("title")) else str(run["title"])
    parts = [f"# {escape(title)}", NOT_FOR_IMPORT, "## Environment", _facts(run)]
    if not missing(run.get("command")):
        parts.append(f"`{' '.join(str(run['command']).replace('`', ' ').split())}`")
    slices = _slices(store, run_id)
    for chosen in slices:
        parts += [f"## Fastest: {slice_words(chosen)}", *winner_tables(winners(store, chosen), level_in(chosen))]
    if slices:
        ranking = speedups.ranking(store, slices[0])
        parts += [f"## Every implementation against {slices[0].baseline}", slice_words(slices[0]) + "."]
        parts.append(ranking_table(ranking, level_in(slices[0])))
    return "\n\n".join([*parts, *_reasons(store, run_id)]) + "\n"


def _slices(store: Store, run_id: str) -> list[Filters]:
    """Return the modes of the workload and mask with the most latencies, with kernel times if there are any."""
    rows = store.rows(_SLICES, [run_id])
    if not rows:
        return []
    leading, timings = rows[0][:4], {row[5] for row in rows}
    timing = next((name for name in ORDER["timing"] if name in timings), rows[0][5])
    found = {row[4]: row[7] for row in rows if row[:4] == leading and row[5] == timing}
    gpu, level, workload, mask = leading
    modes = sorted(found, key=lambda mode: (ORDER["mode"].index(mode) if mode in ORDER["mode"] else 99, mode))
    common = {"gpu": gpu, "level": level, "workload": workload, "mask": mask, "timing": timing, "run": (run_id,)}
    first = {mode: next((name for name in BASELINES if name in found[mode]), min(found[mode])) for mode in modes}
    return [Filters(**common, mode=mode, baseline=first[mode]) for mode in modes]


def _facts(run: Mapping[str, Any]) -> str:
    known = {name: run.get(name) for name in _FACTS}
    known["source"] = SOURCE_WORDS.get(str(run.get("source")), run.get("source"))
    return markdown_table(
        ["fact", "value"], [[name, cell_text(str(value))] for name, value in known.items() if not missing(value)]
    )


def _reasons(store: Store, run_id: str) -> Iterator[str]:
    rows = store.rows(_REASONS, [run_id])
    if not rows:
        return
    yield "## What has no number, and why"
    table = [[name, status, str(number), cell_text(note[:200])] for name, status, note, number in rows[:_MOST_REASONS]]
    yield markdown_table(["implementation", "status", "numbers", "for example"], table)
    if len(rows) > _MOST_REASONS:
        yield f"{len(rows) - _MOST_REASONS} more reasons are left out."
