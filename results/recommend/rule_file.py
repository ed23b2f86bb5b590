"""The rule file of a GPU, which `kernels.choice` reads: measured problems, the implementation for each, its evidence.

An implementation is beaten if it is certainly slower than the fastest one by more than 2 %, or if it is incorrect. The
reader keeps its built-in choice unless that is beaten, so ties and what was not measured change nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from results.gpus import find
from results.recommend.doubt import doubts
from results.recommend.rule import RuleError
from results.recommend.winners import JUDGED_WITHIN, Contest, Rival, contests, decide
from results.records import Status
from results.slice import Filters
from results.store.database import Store

FORMAT, VERSION = "attnbench rule", 1
DIRECTIONS = {"fwd": "forward", "fwd_bwd": "training"}  # by mode
REGIMES = {"eager": "eager", "kernel": "captured"}  # by timing
_VERSIONS = ("driver", "cuda", "torch", "triton", "kernel_hash", "git_commit", "created", "protocol")
_CHIP = ("device_type", "compute_capability", "sm_count", "l2_mb")


def rule_file(store: Store, filters: Filters) -> dict[str, Any]:
    """Return the rule of a GPU from all runs in a slice, of every mode and timing that the slice does not exclude.

    Raises RuleError if no implementation is certain to beat another one.
    """
    points = [
        point
        for mode in DIRECTIONS
        for timing in REGIMES
        if filters.mode in (None, mode) and filters.timing in (None, timing)
        for point in _points(store, replace(filters, mode=mode, timing=timing))
    ]
    if not points:
        raise RuleError(
            f"No rule follows from the numbers of {filters.gpu}: it takes times of fwd or fwd_bwd with their spread, "
            "and one implementation that is certainly slower than another."
        )
    runs = sorted({point["evidence"]["run"] for point in points})
    facts = store.rows(f"SELECT run_id, {', '.join((*_CHIP, *_VERSIONS))} FROM runs WHERE run_id = ANY(?)", [runs])
    known = {run_id: dict(zip((*_CHIP, *_VERSIONS), values, strict=True)) for run_id, *values in facts}
    newest = max(known.values(), key=lambda run: str(run["created"]))
    gpu = "CPU" if newest["device_type"] == "cpu" else str(filters.gpu)
    versions = {run_id: {name: run[name] and str(run[name]) for name in _VERSIONS} for run_id, run in known.items()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "gpu": gpu,
        "chip": _chip(gpu, newest),
        "runs": versions,
        "points": points,
    }


def as_text(rule: Mapping[str, Any]) -> str:
    """Return a rule as JSON with one point on a line."""
    head = json.dumps({name: value for name, value in rule.items() if name != "points"}, indent=1)
    lines = ",\n  ".join(map(json.dumps, rule["points"]))
    return f'{head[:-2]},\n "points": [\n  {lines}\n ]\n}}\n'


def installed_at(rule: Mapping[str, Any]) -> Path:
    """Return where `kernels.choice` looks for the rule of this GPU."""
    folder = Path(os.environ.get("ATTNBENCH_RULES") or "~/.config/attnbench/rules").expanduser()
    return folder / (re.sub(r"[^a-z0-9]+", "-", rule["gpu"].lower()).strip("-") + ".json")


def summary(rule: Mapping[str, Any]) -> str:
    """Return how many problems of each regime a rule holds."""
    numbers = {regime: 0 for regime in REGIMES.values()}
    for point in rule["points"]:
        numbers[point["problem"]["regime"]] += 1
    eager, captured = numbers.values()
    needs = "" if eager else " Eager programs need times of `--timing eager`, and this rule has none."
    return f"{eager} problems timed eagerly and {captured} by device time, from {len(rule['runs'])} runs.{needs}"


def _points(store: Store, filters: Filters) -> Iterator[dict[str, Any]]:
    found = contests(store, filters)
    void = doubts(store, (contender.measurement for contest in found for contender in contest.values()))
    for contest in found:
        sound = {name: c for name, c in contest.items() if c.measurement.measurement_id not in void}
        if sound and (point := _point(sound)):
            yield point


def _point(contest: Contest) -> dict[str, Any] | None:
    """Return the point of a case; None where nothing is certainly slower, or the source did not state the shape."""
    result = decide([contest])
    first = next(iter(contest.values())).measurement
    case = first.case
    sizes = (case.seqlen_q, case.seqlen_k, case.head_dim, case.dtype)
    if result.winner is None or not all(sizes) or case.causal is None or case.level not in (None, "op"):
        return None
    slower = [rival for rival in result.rivals if _certainly_slower(rival)]
    if not slower:
        return None
    incorrect = [name for name, status in result.failed if status == Status.INCORRECT]
    next_one = result.rivals[0]
    winner = contest[result.winner].measurement
    return {
        "problem": _problem(first),
        "implementation": result.winner,
        "beaten": [rival.name for rival in slower] + incorrect,
        "evidence": {
            "run": winner.run_id,
            "latency_ms": winner.value,
            "interval_ms": [winner.ci_low, winner.ci_high],
            "samples": winner.n,
            "runner_up": next_one.name,
            "ratio": _rounded((next_one.ratio,))[0],
            "interval": _rounded((next_one.low, next_one.high)),
        },
    }


def _certainly_slower(rival: Rival) -> bool:
    """Return whether a rival is behind by more than 2 %; a close number without a spread proves nothing."""
    return not rival.ties and rival.certain and (rival.low is not None or rival.ratio > JUDGED_WITHIN)


def _problem(measurement: Any) -> dict[str, Any]:
    case = measurement.case
    words = (("causal", case.causal), ("window", case.window_size))
    sizes = ("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim")
    head_dim_v = case.head_dim_v or case.head_dim
    return {
        "operator": "attention",
        "direction": DIRECTIONS[measurement.mode],
        "regime": REGIMES[measurement.timing],
        "dtype": case.dtype,
        "mask": " ".join(word for word, there in words if there) or "full",
        "window_size": case.window_size or 0,
        "features": ["head_dim_v"] if head_dim_v != case.head_dim else [],
        **{name: getattr(case, name) for name in sizes},
        "head_dim_v": head_dim_v,
    }


def _chip(gpu: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures by which `kernels.choice` finds the nearest chip; the shared memory is the data sheet's."""
    if gpu == "CPU" or not run["compute_capability"]:
        return {}
    sheet = find(gpu)
    return {
        "compute_capability": [int(part) for part in str(run["compute_capability"]).split(".")],
        "sms": run["sm_count"],
        "shared_memory": sheet and sheet.shared_kb << 10,
        "l2": run["l2_mb"] and run["l2_mb"] * 2**20,
    }


def _rounded(numbers: Sequence[float | None]) -> list[float | None]:
    return [None if number is None else round(number, 4) for number in numbers]
