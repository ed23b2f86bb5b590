"""The main views of a store as static files: one page with filters, one JSON file, and the published reports.

The page opens from disk without a server or network. Its template, `site_files/index.html`, draws the content of
`data.json`, and `schema.json` documents that file. Filters are in the address, so that a link keeps its view. An
implementation can be hidden in the browser; a winner that was not judged against the shown ones is marked so.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from results import levels
from results.checks.finding import Finding
from results.implementations import facts_of
from results.levels.model_table import model_case
from results.levels.model_table import models as known_models
from results.query import models
from results.query.declared import declared
from results.recommend import model_fit
from results.recommend.winners import Contest, decide, place_in, with_doubts
from results.records import Run
from results.render.html import html_page
from results.slice import BASELINES, Filters
from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)
SCHEMA = 1
_FILES = Path(__file__).parent / "site_files"
_DATA = "/*DATA*/null"  # in the template
_LEVELS = ("op", "decode", "layer")
_CELL = (
    "gpu", "level", "workload", "mask", "mode", "timing", "shape", "dtype", "column", "row", "run", "winner", "times",
    "standings", "failed", "reduced", "impossible",
)  # fmt: skip
_FINDING = ("weight", "rule", "run_id", "sentence", "origin")
_RUN = ("run_id", "source", "gpu_name", "created", "title", "torch", "triton", "git_commit", "command")
_CALL = (
    "subject", "gpu", "mode", "implementation", "batch", "seqlen_k", "dtype", "optimizer", "checkpointing", "compiled",
    "latency_ms", "tokens_per_s", "peak_memory_mb", "source", "run_id",
)  # fmt: skip
_FIT = ("subject", "title", "attention", "step", "batch", "seqlen", "memory_mb", "fits", "longest")
_ATTENTION = "triton_fa2"
_STEPS = ("train", "train, recomputed", "prefill", "decode")
_TRAIN, _SERVE = 8192, 32768  # tokens of a training sequence and of a served context


def write(
    store: Store,
    folder: Path,
    *,
    runs: Sequence[Run],
    findings: Sequence[Finding],
    reports: Mapping[str, tuple[str, str]],
    gpus: Sequence[str] = (),
) -> list[Path]:
    """Write the site and return its files; `reports` has the label and the Markdown of each report by name.

    `gpus` limits the cells and calls; empty: all.
    """
    data = data_of(store, runs=runs, findings=findings, gpus=gpus)
    data["reports"] = [{"name": name, "label": label, "file": f"{name}.html"} for name, (label, _) in reports.items()]
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    template = (_FILES / "index.html").read_text(encoding="utf-8")
    files = {
        "index.html": template.replace(_DATA, text.replace("</", "<\\/")),
        "data.json": text,
        "schema.json": (_FILES / "schema.json").read_text(encoding="utf-8"),
        **{f"{name}.html": html_page(markdown) for name, (_, markdown) in reports.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in files]


def data_of(store: Store, *, runs: Sequence[Run], findings: Sequence[Finding], gpus: Sequence[str]) -> dict[str, Any]:
    """Return the content of data.json but for the reports."""
    axes = {name: [getattr(levels.level_of(name), axis).label for axis in ("columns", "rows")] for name in _LEVELS}
    return {
        "schema": SCHEMA,
        "axes": axes,
        "cells": _table(_CELL, [cell for scope in _scopes(store, gpus) for cell in _cells(store, scope)]),
        "fits": _table(_FIT, list(_fits(store))),
        "calls": _table(_CALL, list(_calls(store, gpus))),
        "findings": _table(_FINDING, [{name: getattr(each, name) for name in _FINDING} for each in findings]),
        "runs": _table(_RUN, [{name: getattr(run, name) for name in _RUN} for run in runs]),
    }


def _table(fields: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"fields": [*fields], "rows": [[row[name] for name in fields] for row in rows]}


def _scopes(store: Store, gpus: Sequence[str]) -> Iterator[Filters]:
    """Yield the slices with latencies, each with the first of the baselines that it has."""
    names = ("gpu", "level", "workload", "mask", "mode", "timing")
    for *scope, implementations in store.rows(_SQL("scopes", names=", ".join(names)), [_LEVELS]):
        found = Filters(**dict(zip(names, scope, strict=True)))
        if not gpus or found.gpu in gpus:
            yield replace(found, baseline=next((name for name in BASELINES if name in implementations), None))


def _cells(store: Store, scope: Filters) -> Iterator[dict[str, Any]]:
    """Yield every case of a slice with the time of each implementation, and the certainty of the winner's lead."""
    found, void = with_doubts(store, scope)
    named = {name: getattr(scope, name) for name in ("gpu", "level", "workload", "mask", "mode", "timing")}
    for contest in found:
        first = next(iter(contest.values()))
        place = place_in(first.measurement.case, levels.level_of(str(scope.level)))
        if place is not None:
            dtype, column, row = place
            at = {"shape": first.shape, "dtype": dtype, "column": column, "row": row, "run": first.measurement.run_id}
            yield named | at | _judged(contest, void)


def _judged(contest: Contest, void: Mapping[str, str]) -> dict[str, Any]:
    result = decide([contest])
    timed = {name: each.measurement for name, each in contest.items() if each.measurement.value}
    return {
        "winner": result.winner,
        "times": {name: float(f"{m.value:.4g}") for name, m in timed.items()},
        "standings": {rival.name: str(rival.standing) for rival in result.rivals},
        "failed": {name: str(each.measurement.status) for name, each in contest.items() if name not in timed},
        "reduced": [name for name, each in contest.items() if each.precision],
        "impossible": [name for name, m in timed.items() if m.measurement_id in void],
    }


def _fits(store: Store) -> Iterator[dict[str, Any]]:
    """Yield the memory of each model by step, the cards that fit it and the longest context of each."""
    law = facts_of(_ATTENTION, declared(store, "model")).memory
    for subject, config in known_models().items():
        longest = levels.level_of("model").longest({"level": "model", "subject": subject})
        for step in _STEPS:
            seqlen = min(_TRAIN if step.startswith("train") else _SERVE, longest or _SERVE)
            mode = step.partition(",")[0]
            sizes: dict[str, Any] = {"seqlen": seqlen, "query_tokens": 1 if mode == "decode" else None}
            if mode == "train":
                sizes |= {"optimizer": "adamw_bf16", "checkpointing": step != mode}
            of = replace(model_case(subject, batch=1, dtype="bfloat16", **sizes), latent_dim=None)
            on_cards = model_fit.on_cards(of, law, mode)
            said = (subject, config.title, _ATTENTION, step, 1, seqlen)
            if on_cards:
                fits = [card.card for card in on_cards if card.fits]
                found = (*said, round(on_cards[0].needs_mb), fits, {card.card: card.longest for card in on_cards})
                yield dict(zip(_FIT, found, strict=True))


def _calls(store: Store, gpus: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the whole-model calls that were measured, without extrapolated ones."""
    for subject in models.subjects(store):
        for gpu in models.gpus(store, subject):
            if not gpus or gpu in gpus:
                table = models.calls(store, subject, gpu)
                table = table[table["latency_ms"].notna() & ~table["extrapolated"].astype(bool)].assign(gpu=gpu)
                yield from table[[*_CALL]].astype(object).where(table[[*_CALL]].notna(), None).to_dict("records")
