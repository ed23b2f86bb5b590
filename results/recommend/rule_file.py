"""The rule file of a GPU, which `kernels.choice` reads: measured problems, the implementation for each, its evidence.

An implementation is beaten if it is certainly slower than the fastest one by more than 2 %, or if it is incorrect. The
reader keeps its built-in choice unless that is beaten, so ties and what was not measured change nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.files.durable import replace_file, take_lock
from results.gpus import find
from results.implementations import facts_of
from results.recommend.contest import JUDGED_WITHIN, Contender, Contest, Rival, decide
from results.recommend.doubt import doubts_of
from results.records import Measurement, Run, Status
from results.slice import Filters, SliceError, level_in

if TYPE_CHECKING:
    from results.store.database import Store

FORMAT, VERSION = "attnbench rule", 1
DIRECTIONS = {"fwd": "forward", "fwd_bwd": "training", "decode": "forward"}  # by mode
# What computes calls over a cache, where only the device knows the lengths: decoding, and more query tokens over pages.
OVER_CACHES, _FEW_QUERIES = {True: ("triton_split_kv",), False: ("triton_varlen", "triton_paged")}, 16
REGIMES = {"eager": "eager", "kernel": "captured"}  # by timing
_LOCK_S = 10.0
_DRIVER_S = 10.0  # that nvidia-smi may take
_VERSIONS = ("driver", "cuda", "torch", "triton", "kernel_hash", "git_commit", "created", "protocol")
_CHIP = ("device_type", "compute_capability", "sm_count", "l2_mb")


class RuleError(SliceError):
    """No rule follows from the results. The message says why."""


def rule_file(store: Store, filters: Filters) -> dict[str, Any]:
    """Return the rule of a GPU from all runs in a slice, of every mode and timing that the slice does not exclude.

    Raises RuleError if no implementation is certain to beat another one.
    """
    from results.recommend.winners import with_doubts  # needs a database, which a bare GPU node lacks

    modes = ("decode",) if level_in(filters).name == "decode" else ("fwd", "fwd_bwd")
    points = [
        point
        for mode in modes
        for timing in REGIMES
        if filters.mode in (None, mode) and filters.timing in (None, timing)
        for point in _points(*with_doubts(store, replace(filters, mode=mode, timing=timing)))
    ]
    if not points:
        raise RuleError(
            f"No rule follows from the numbers of {filters.gpu}: it takes times of fwd or fwd_bwd with their spread, "
            "and one implementation that is certainly slower than another."
        )
    runs = sorted({point["evidence"]["run"] for point in points})
    facts = store.rows(f"SELECT run_id, {', '.join((*_CHIP, *_VERSIONS))} FROM runs WHERE run_id = ANY(?)", [runs])
    known = {run_id: dict(zip((*_CHIP, *_VERSIONS), values, strict=True)) for run_id, *values in facts}
    return _rule(str(filters.gpu), known, points)


def rule_of_run(run: Run, measurements: Iterable[Measurement]) -> dict[str, Any]:
    """Return the rule that follows from one run, without a store. Raises RuleError as `rule_file`."""
    contests: dict[tuple, dict[str, Contender]] = {}
    rows = [m for m in measurements if m.metric == "latency_ms" and m.mode in DIRECTIONS and m.timing in REGIMES]
    for row in rows:
        precision = facts_of(row.implementation, run.implementations).precision
        contender = Contender(row, None, run.source, run.protocol, "", "", precision)
        contests.setdefault((row.case, row.mode, row.timing), {})[row.implementation] = contender
    points = list(_points(list(contests.values()), doubts_of([run], rows)))
    if not points:
        raise RuleError(
            f"No rule follows from run {run.run_id}: no implementation is certainly slower than another one, so what "
            "`kernels.attention` chooses today stays."
        )
    return _rule(str(run.gpu_name), {run.run_id: {name: getattr(run, name) for name in (*_CHIP, *_VERSIONS)}}, points)


def _rule(gpu: str, known: Mapping[str, Mapping[str, Any]], points: list[dict[str, Any]]) -> dict[str, Any]:
    newest = max(known.values(), key=lambda run: str(run["created"]))
    gpu = "CPU" if newest["device_type"] == "cpu" else gpu
    versions = {run_id: {name: run[name] and str(run[name]) for name in _VERSIONS} for run_id, run in known.items()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "gpu": gpu,
        "chip": _chip(gpu, newest),
        "runs": versions,
        "points": points,
    }


def install(rule: Mapping[str, Any], path: Path | None = None) -> Path:
    """Write a rule where `kernels.choice` looks, or elsewhere, together with what is there for other problems.

    Two writers wait for each other, and a reader sees a whole file. Returns its path. Raises RuleError.
    """
    path = path or installed_at(rule)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w") as lock:
            if not take_lock(lock.fileno(), fcntl.LOCK_EX, _LOCK_S):
                raise RuleError(f"Another process has been writing {path} for {_LOCK_S:g} s; install the rule later.")
            replace_file(path, as_text(_with_others(rule, read(path))))
    except OSError as fault:
        raise RuleError(
            f"{path} cannot be written: {fault.strerror}; name another folder in $ATTNBENCH_RULES."
        ) from fault
    return path


def read(path: Path) -> dict[str, Any] | None:
    """Return a rule of this version; None if there is none that is whole."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        whole = (found["format"], found["version"]) == (FORMAT, VERSION) and found["runs"].keys() is not None
        return found if whole and all(point["problem"]["mask"] for point in found["points"]) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _with_others(rule: Mapping[str, Any], installed: Mapping[str, Any] | None) -> dict[str, Any]:
    if installed is None or installed["gpu"] != rule["gpu"]:
        return dict(rule)
    new = [point["problem"] for point in rule["points"]]
    kept = [point for point in installed["points"] if point["problem"] not in new]
    runs = {point["evidence"]["run"] for point in kept if point.get("evidence")}
    others = {run_id: facts for run_id, facts in installed["runs"].items() if run_id in runs}
    return {**rule, "runs": {**others, **rule["runs"]}, "points": [*kept, *rule["points"]]}


def as_text(rule: Mapping[str, Any]) -> str:
    """Return a rule as JSON with one point on a line."""
    head = json.dumps({name: value for name, value in rule.items() if name != "points"}, indent=1)
    lines = ",\n  ".join(map(json.dumps, rule["points"]))
    return f'{head[:-2]},\n "points": [\n  {lines}\n ]\n}}\n'


def gpu_here() -> str:
    """Return the name of this machine's GPU, as the driver tells it. Raises RuleError without one or with two kinds."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_DRIVER_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):  # no driver, or one that does not answer
        said = ""
    names = sorted({name.strip() for name in said.splitlines()})
    if len(names) == 1:
        return names[0]
    found = f"This machine has {' and '.join(names)}" if names else "nvidia-smi finds no GPU on this machine"
    raise RuleError(
        f"{found}, so name the card whose rule is installed: --install --gpu NAME. `python -m results runs` lists the "
        "cards with results, and --export FILE writes a rule for another machine."
    )


def installed_at(rule: Mapping[str, Any]) -> Path:
    """Return where `kernels.choice` looks for the rule of this GPU; $ATTNBENCH_HOME moves results only."""
    folder = Path(os.environ.get("ATTNBENCH_RULES") or "~/.config/attnbench/rules").expanduser()
    return folder / (re.sub(r"[^a-z0-9]+", "-", rule["gpu"].lower()).strip("-") + ".json")


def summary(rule: Mapping[str, Any]) -> str:
    """Return whose rule it is and how many problems of each regime it holds."""
    found = [point["problem"]["regime"] for point in rule["points"]]
    eager, captured = map(found.count, REGIMES.values())
    needs = "" if eager else " Eager programs need times of `--timing eager`, and this rule has none."
    regimes = f"{eager} problems timed eagerly and {captured} by device time"
    return f"rule of {rule['gpu']}, {regimes}, from {len(rule['runs'])} runs.{needs}"


def _points(contests: Iterable[Contest], void: Container[str]) -> Iterator[dict[str, Any]]:
    for contest in contests:
        first = next(iter(contest.values())).measurement
        over_cache = first.mode == "decode"
        if over_cache and first.timing != "kernel":  # the host's time is the same for all of them
            continue
        served = OVER_CACHES[(first.case.seqlen_q or 1) <= _FEW_QUERIES] if over_cache else ()
        sound = {name: c for name, c in contest.items() if c.measurement.measurement_id not in void}
        sound = {name: c for name, c in sound.items() if not over_cache or name.partition("[")[0] in served}
        if sound and (point := _point(sound)):
            yield point


def _point(contest: Contest) -> dict[str, Any] | None:
    """Return the point of a case; None where nothing is certainly slower, or the source did not state the shape."""
    result = decide([contest])
    first = next(iter(contest.values())).measurement
    case = first.case
    sizes = (case.seqlen_q, case.seqlen_k, case.head_dim, case.dtype)
    if result.winner is None or not all(sizes) or case.causal is None or case.level not in (None, "op", "decode"):
        return None
    slower = [rival for rival in result.rivals if certainly_slower(rival)]
    if not slower:
        return None
    incorrect = [name for name, status in result.failed if status == Status.INCORRECT]
    next_one = result.rivals[0]
    winner = contest[result.winner].measurement
    return {
        "problem": _problem(first),
        "implementation": result.winner,
        "beaten": [rival.name for rival in slower] + incorrect,
        "ratios": {result.winner: 1.0} | {rival.name: round(rival.ratio, 4) for rival in result.rivals},
        "evidence": {
            "run": winner.run_id,
            "latency_ms": winner.value,
            "interval_ms": [winner.ci_low, winner.ci_high],
            "samples": winner.n,
            "runner_up": next_one.name,
            "ratio": round(next_one.ratio, 4),
            "interval": [end and round(end, 4) for end in (next_one.low, next_one.high)],
        },
    }


def certainly_slower(rival: Rival) -> bool:
    """Return whether a rival is behind by more than 2 %; a close number without a spread proves nothing."""
    return not rival.ties and rival.certain and (rival.low is not None or rival.ratio > JUDGED_WITHIN)


def _problem(measurement: Measurement) -> dict[str, Any]:
    case, over_cache = measurement.case, measurement.case.level == "decode"
    causal = case.causal and not (over_cache and case.seqlen_q == 1)  # whose one query sees every key
    words = (("causal", causal), ("window", case.window_size))
    sizes = ("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim")
    head_dim_v = case.head_dim_v or case.head_dim
    features = [*(["head_dim_v"] if head_dim_v != case.head_dim else []), *case.asked]
    if over_cache:
        held = (("paged", case.page_size), ("latent", case.latent_dim))
        features = [name for name, there in held if there]
        features += [f"cache {case.cache_dtype}"] if case.cache_dtype not in (None, case.dtype) else []
    return {
        "operator": "decode" if over_cache else "attention",
        "direction": DIRECTIONS[str(measurement.mode)],
        "regime": REGIMES[str(measurement.timing)],
        "dtype": case.dtype,
        "mask": " ".join(word for word, there in words if there) or "full",
        "window_size": case.window_size or 0,
        "features": features,
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
