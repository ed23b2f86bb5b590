"""A slice of the results as one Markdown report: winners, speedups, failures and sources.

A run is a page of the same kind, for an issue or a pull request: environment, winners, ranking, failures. So is the
advice for a GPU, with the features of each implementation.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from results.levels import Level
from results.query import pages, speedups
from results.query.pairing import Outdated, outdated
from results.recommend.advice import Advice, advise
from results.recommend.features import RAN, features, memory_growth
from results.recommend.winners import winners
from results.render.markdown import NOT_FOR_IMPORT, escape, markdown_table, table_of
from results.render.text import SOURCE_WORDS, missing, size
from results.slice import BASELINES, ORDER, Filters, SliceError, in_order, is_on_map, leading_shape, level_in
from results.sql import SqlFile
from results.store.database import Store

_SINGLE = ("mode", "timing", "baseline")  # filters with one value
_SEVERAL = ("dtype", "seqlen", "head_dim", "batch", "num_heads", "implementation", "source", "run")
_NAMED = 4  # at most as many runs are named in a sentence
_RUN_FACTS = ("source", "created", "gpu_name", "driver", "cuda", "torch", "triton", "git_commit", "protocol")


def complete(store: Store, filters: Filters) -> Filters:
    """Return the filters with the defaults of the pages. Raises SliceError for an unknown value."""
    gpus = pages.gpus(store)["gpu"].tolist()
    filters = replace(filters, gpu=_known("gpu", filters.gpu, gpus))
    scope: dict[str, Any] = {"gpu": filters.gpu}
    for name in ("workload", "mask"):
        found = _choices(store, name, scope)
        if name == "workload" and filters.workload is None:
            found = [workload for workload in found if is_on_map(workload, filters.level or "op")]
        scope[name] = _known(name, getattr(filters, name), found)
    chosen = {name: _known(name, getattr(filters, name), _choices(store, name, scope)) for name in _SINGLE}
    for name in _SEVERAL:
        possible = _choices(store, name, scope) if getattr(filters, name) else []
        for value in getattr(filters, name):
            _known(name, value, possible)
    return replace(filters, **scope, **chosen, shape=filters.shape or _shape(store, scope))


def render(store: Store, filters: Filters) -> str:
    """Return the slice as Markdown. Raises SliceError if it has no latency."""
    ranking = speedups.ranking(store, filters)
    if ranking.empty:
        raise SliceError(f"No latency is in this slice: {slice_words(filters)}.")
    won, grid, level = winners(store, filters), speedups.grid(store, filters), level_in(filters)
    parts = [f"# Attention on {filters.gpu}", slice_words(filters) + ".", NOT_FOR_IMPORT, _statistic(ranking)]
    parts += ["## Fastest implementation by shape", *winner_tables(won, level)]
    parts += [f"## Every implementation against {filters.baseline}", ranking_table(ranking, level)]
    others = [name for name in ranking["implementation"] if name != filters.baseline]
    parts += [part for name in others for part in _speedup_tables(grid, name, filters)]
    parts += ["## Every number", _cells_table(grid, level), *_failures(grid)]
    parts += ["## Where the numbers come from", *_provenance(pages.provenance(store, filters))]
    older = outdated_words(outdated(store, filters), filters.baseline, escape)
    parts += [f"{older}."] if older else []
    return "\n\n".join(parts) + "\n"


def slice_words(filters: Filters) -> str:
    """Return the slice in one line."""
    several = {name: ", ".join(map(str, getattr(filters, name))) for name in _SEVERAL}
    parts = [
        filters.workload,
        f"{filters.mask} mask",
        f"mode {filters.mode}",
        f"{filters.timing} time",
        filters.shape or "all batch and head counts",
        *(f"{name} {text}" for name, text in several.items() if text),
    ]
    return " · ".join(part for part in parts if part)


def outdated_words(found: Outdated, baseline: str | None, escaped: Callable[[str], str]) -> str | None:
    """Return a sentence on the shapes in which a newer run is not shown; None if there are none."""
    if not found.cases:
        return None
    lacks = f"no time of {escaped(baseline)}" if baseline else "no second time"
    runs = ", ".join(map(escaped, found.runs[:_NAMED])) + " and others" * (len(found.runs) > _NAMED)
    shapes = f"{found.cases} of {found.of} shape{'s' * (found.of != 1)}"
    return f"Newer code was measured in {shapes}, but is not shown: {lacks} with that code ({runs})"


def _known(name: str, value: object, possible: Sequence) -> Any:
    """Return the value, or the first possible one for None. Raises SliceError for an impossible value."""
    if value is None:
        return possible[0] if possible else None
    if value not in possible:
        shown = ", ".join(map(str, possible)) or "none"
        raise SliceError(f"There is no {name} {value!r} in this slice. Possible: {shown}.")
    return value


def _choices(store: Store, name: str, scope: dict) -> list:
    found = pages.options(store, name, **scope)
    return in_order(name, dict(found[["choice", "numbers"]].itertuples(index=False)))


def _shape(store: Store, scope: dict) -> str | None:
    found = pages.options(store, "shape", **scope)
    level = level_in(Filters(workload=scope["workload"]))
    return leading_shape(level, list(found[["choice", "numbers"]].itertuples(index=False)))


def _statistic(ranking: pd.DataFrame) -> str:
    names = sorted({part for text in ranking["statistic"].dropna() for part in text.split(", ")})
    return (
        f"Numbers: {', '.join(names) or 'none'}. Speedups are baseline over implementation within one run, combined by "
        "geometric mean; n of m says in how many of the slice's cases both have a number. ≈ is a tie: no verdict tells "
        "them apart."
    )


def winner_tables(won: pd.DataFrame, level: Level) -> Iterator[str]:
    """Yield a table for each dtype. A cell has the fastest implementation, its speedup and the ties."""

    def cell(row: dict) -> str:
        if missing(row["winner"]):
            return str(row["status"]) if not missing(row["status"]) else "no data"
        tie = f" ≈ {', '.join(row['tied'][1:])}" if len(row["tied"]) > 1 else ""
        number = f"{row['speedup']:.2f}×" if not missing(row["speedup"]) else f"{row['latency_ms']:.3g} ms"
        return f"{row['winner']} {number}{tie}"

    yield from _by_dtype(won, cell, level)


def _speedup_tables(grid: pd.DataFrame, name: str, filters: Filters) -> Iterator[str]:
    def cell(row: dict) -> str:
        if not missing(row["speedup"]):
            return f"{row['speedup']:.2f}×"
        if row["status"] != "ok":
            return str(row["status"])
        return "no baseline" if missing(row["baseline_status"]) else f"baseline {row['baseline_status']}"

    yield f"## Speedup of {name} over {filters.baseline}"
    yield from _by_dtype(grid[grid["implementation"] == name], cell, level_in(filters))


def _by_dtype(table: pd.DataFrame, cell: Callable[[dict], str], level: Level) -> Iterator[str]:
    """Yield a table for each dtype: a row for each length, a column for each value of the level's other axis."""
    down, across = level.columns, level.rows
    for dtype, rows in table.groupby("dtype", dropna=False):
        lengths, others = (sorted(rows[axis.column].dropna().unique()) for axis in (down, across))
        lengths, others = list(lengths), list(others) + [None] * bool(rows[across.column].isna().any())
        places = (level.place(row) for row in rows.to_dict("records"))
        texts = {
            (length, None if missing(other) else other): row
            for (length, other), row in zip(places, rows.to_dict("records"), strict=True)
        }
        lines = [[size(s), *(cell(texts[s, d]) if (s, d) in texts else "no data" for d in others)] for s in lengths]
        header = [
            f"{'dtype not stated' if missing(dtype) else dtype}, {down.label}",
            *(f"{across.label} {_plain(d)}" for d in others),
        ]
        yield markdown_table(header, lines)


def ranking_table(ranking: pd.DataFrame, level: Level) -> str:
    """Return a row for each implementation: its mean speedup and its number of shapes."""
    columns = {
        "implementation": lambda row: row["implementation"],
        **{name: _ratio(name) for name in ("speedup", "lowest", "highest")},
        "compared": lambda row: f"{row['compared']} of {row['cases']}",
        "failures": lambda row: str(int(row["failures"])),
        f"longest {level.columns.label}": _text("longest"),
    }
    return table_of(ranking.to_dict("records"), columns)


def _cells_table(grid: pd.DataFrame, level: Level) -> str:
    names = {"implementation": "implementation", "dtype": "dtype"}
    names |= {axis.label: axis.column for axis in (level.columns, level.rows)}
    columns = {
        **{label: _text(name) for label, name in names.items()},
        **{name: _ratio(name, ".5g", "") for name in ("latency_ms", "p20", "p80")},
        "n": _text("n"),
        "speedup": _ratio("speedup"),
        "status": lambda row: row["status"],
    }
    return table_of(grid.to_dict("records"), columns)


def _failures(grid: pd.DataFrame) -> Iterator[str]:
    failed = grid[grid["status"] != "ok"].fillna({"note": ""})
    if failed.empty:
        return
    found = failed.groupby(["implementation", "status", "note"]).size().reset_index(name="cells")
    rows = [[r["implementation"], r["status"], str(r["cells"]), cell_text(r["note"])] for r in found.to_dict("records")]
    yield "## What has no number, and why"
    yield markdown_table(["implementation", "status", "cells", "for example"], rows)


def _provenance(runs: pd.DataFrame) -> Iterator[str]:
    for row in runs.to_dict("records"):
        facts = {name: row[name] for name in _RUN_FACTS if not missing(row[name])}
        facts["source"] = SOURCE_WORDS[row["source"]]
        lines = [f"- **{row['run_id']}**, {row['numbers']} numbers of this slice"]
        lines += [f"  - {name}: {escape(str(value))}" for name, value in facts.items()]
        lines += [f"  - `{' '.join(row['command'].replace('`', ' ').split())}`"] if not missing(row["command"]) else []
        yield "\n".join(lines)


def cell_text(text: str) -> str:
    """Return a text of a file for a table: escaped, except the bars, which the table escapes."""
    return " ".join(escape(text).replace("\\|", "|").split())


def _ratio(name: str, form: str = ".2f", unit: str = "×") -> Callable[[dict], str]:
    return lambda row: "" if missing(row[name]) else f"{row[name]:{form}}{unit}"


def _text(name: str) -> Callable[[dict], str]:
    return lambda row: _plain(row[name])


def _plain(value: object) -> str:
    if missing(value):
        return "not stated"
    return str(int(value)) if isinstance(value, float) else str(value)


_SQL = SqlFile(__file__)

_FACTS = (
    "source", "created", "gpu_name", "power_limit_w", "driver", "cuda", "cudnn", "torch", "triton", "python", "os",
    "git_commit", "git_dirty", "protocol", "tf32",
)  # fmt: skip
_MOST_REASONS = 20


def render_run(store: Store, run: Mapping[str, Any]) -> str:
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
    rows = store.rows(_SQL("slices"), [run_id])
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
    rows = store.rows(_SQL("reasons"), [run_id])
    if not rows:
        return
    yield "## What has no number, and why"
    table = [[name, status, str(number), cell_text(note[:200])] for name, status, note, number in rows[:_MOST_REASONS]]
    yield markdown_table(["implementation", "status", "numbers", "for example"], table)
    if len(rows) > _MOST_REASONS:
        yield f"{len(rows) - _MOST_REASONS} more reasons are left out."


_OF_ADVICE: dict[str, Callable[[Advice], str]] = {
    "use case": lambda one: one.use_case,
    "shapes": lambda one: one.about,
    "take": lambda one: one.implementation,
    "of fastest": lambda one: f"{one.behind:.2f}×",
    "worst": lambda one: f"{one.worst:.2f}×",
    "wins": lambda one: str(one.wins),
    "ties": lambda one: str(one.ties),
    "cases": lambda one: f"{one.covered} of {one.cases}",
    "speedup": lambda one: f"{one.speedup:.2f}×" if one.speedup else "",
    "less memory": lambda one: f"{one.memory_reduction:.1f}×" if one.memory_reduction else "",
    "SDPA": lambda one: f"{one.backend} {one.backend_behind:.2f}×" if one.backend else "",
}


def render_advice(store: Store, filters: Filters) -> str:
    """Return the advice for the GPU of the filters, and the features of each implementation there."""
    found = advise(store, filters)
    parts = [f"# What to use when on {filters.gpu}"]
    parts.append(table_of(found, _OF_ADVICE) if found else "No use case was measured here.")
    if found:
        parts.append(
            "Recommended: the implementation closest to the fastest one on average (of fastest, a geometric mean). "
            f"Missing numbers count as {filters.baseline}. Speedup and less memory are over {filters.baseline}, "
            "geometric means of the shapes that both have. SDPA: the best SDPA backend of PyTorch."
        )
        parts.append(f"Runs: {', '.join(sorted({run for one in found for run in one.runs}))}.")
    parts += ["## Features by implementation", _features_table(store, features(store, filters))]
    parts.append("A number is how many latencies there are; the words say how every try ended.")
    return "\n\n".join(parts) + "\n"


def _features_table(store: Store, table: pd.DataFrame) -> str:
    names = list(dict.fromkeys(table["implementation"]))
    growth = memory_growth(store, names)
    cells = {
        (row["feature"], row["implementation"]): str(row["numbers"]) if row["seen"] == RAN else row["seen"]
        for row in table.to_dict("records")
    }
    rows = [[feature, *(cells[feature, name] for name in names)] for feature in dict.fromkeys(table["feature"])]
    return markdown_table(["feature", *names], [*rows, ["memory grows", *growth.values()]])
