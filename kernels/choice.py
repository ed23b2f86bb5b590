"""Which implementation a rule names for a problem: rules are JSON files that `python -m results rule` writes.

A rule is looked up in the user's file for this chip, then in the file that ships for it, then in the shipped file of
the nearest chip. Whatever is wrong with a rule, the built-in tables of `kernels.routes` decide instead, and one warning
says why. The files are read once per process.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from . import problem as problems
from . import registry
from .problem import TRAINING, Chip, Problem

FORMAT, VERSION = "attnbench rule", 1
SHIPPED = Path(__file__).parent / "tuned"
FOLDER, IMPLEMENTATION = "ATTNBENCH_RULES", "ATTNBENCH_ATTENTION"  # environment variables
_NEIGHBORS, _NEAR, _MARGIN = 6, 0.3, 0.02  # how many decide, the distance that quarters a weight, what a winner gains
DEFAULT = "default"  # as an implementation's name: the built-in tables
_WARNED: set[str] = set()


@dataclass(frozen=True)
class Measured:
    """A measured problem of a rule, and the implementation to use for it."""

    problem: Problem
    implementation: str
    beaten: tuple[str, ...] | None  # wrong, or certainly slower by more than 2 %; None: every other one
    evidence: Mapping[str, Any]
    behind: Mapping[str, float] = field(default_factory=dict)  # logarithms of times over the least, by implementation

    @property
    def tried(self) -> set[str]:
        """Return the implementations whose times are known, and those that were wrong."""
        return {*self.behind, *(self.beaten or ())}

    def keeps(self, today: Iterable[str]) -> bool:
        """Return whether the built-in choice stays: it won, it ties, or it was not measured."""
        return self.implementation in today or (self.beaten is not None and not set(today) <= set(self.beaten))

    def among(self, usable: Callable[[str], bool]) -> Measured:
        """Return it with the fastest usable implementation, or as it is if its own is usable or none is known."""
        known = {name: cost for name, cost in self.behind.items() if usable(name)}
        if usable(self.implementation) or not known:
            return self
        evidence = {"run": self.evidence.get("run"), "missing": self.implementation}
        return replace(self.led_by(known), evidence=evidence)

    def led_by(self, costs: Mapping[str, float]) -> Measured:
        """Return it with the implementation of the least cost; costs are logarithms of times."""
        best = min(costs, key=lambda name: (costs[name], name))
        slower = {name for name in costs if costs[name] > costs[best] + math.log(1 + _MARGIN)}
        wrong = set(self.beaten or ()) - set(self.behind)
        return replace(self, implementation=best, beaten=tuple(sorted(slower | wrong)))


@dataclass(frozen=True)
class Rule:
    """The measured problems of a file. `source` is how the file was found."""

    path: Path
    chip: Chip
    points: tuple[Measured, ...]
    source: str

    def nearest(self, problem: Problem, usable: Callable[[str], bool]) -> tuple[float, Measured] | None:
        """Return the distance and the nearest measured problem of the same class; None if there is none.

        It names usable implementations where their times are known. What it names for another problem is the fastest
        in the mean over it and its neighbors, the near ones first. Neighbors that did not try its implementation do
        not count, and what was wrong in a neighbor is not named.
        """
        found = ((problem.distance(point.problem), at) for at, point in enumerate(self.points))
        ranked = sorted((distance, at) for distance, at in found if distance is not None)
        if not ranked:
            return None
        near = [(distance, self.points[at]) for distance, at in ranked]
        least, point = near[0][0], near[0][1].among(usable)
        count = [(distance, each) for distance, each in near if point.implementation in each.tried][:_NEIGHBORS]
        known = set(filter(usable, point.behind)).intersection(*(each.behind for _, each in count))
        if not least or not known:
            return least, point
        shares = [((distance + _NEAR) ** -2, each.behind) for distance, each in count]
        whole = sum(share for share, _ in shares)
        return least, point.led_by({name: sum(share * it[name] for share, it in shares) / whole for name in known})


@dataclass(frozen=True)
class Decision:
    """An implementation by name, None for the built-in choice, and the reason."""

    implementation: str | None
    why: str


class RuleFault(ValueError):
    """A rule file that cannot be used; the message says why."""


def decide(device: torch.device, problem: Problem, today: tuple[str, ...]) -> Decision:
    """Decide by the environment variable or by the rules; `today` names the implementations of the built-in choice.

    The variable names implementations of level op, so that it decides nothing over a cache.
    """
    named = os.environ.get(IMPLEMENTATION)
    if named == DEFAULT:
        return Decision(None, f"built-in table, as {IMPLEMENTATION}={DEFAULT} says")
    if named and problem.operator == "attention":
        reason = _reason_against(named, device, problem, IMPLEMENTATION)
        return Decision(None, f"built-in table: {reason}") if reason else Decision(named, f"{IMPLEMENTATION}={named}")
    for rule in rules_of(device):
        if (found := rule.nearest(problem, lambda name: _is_usable(name, device, problem))) is not None:
            return _by_rule(device, problem, today, rule, *found)
    return Decision(None, f"built-in table: no rule has a problem of this class within {problems.REACH:g} doublings")


def _by_rule(
    device: torch.device, problem: Problem, today: tuple[str, ...], rule: Rule, distance: float, point: Measured
) -> Decision:
    near = " and its neighbors" if distance and point.behind else ""
    place = f"{rule.source} {rule.path}, measured at {point.problem.words}{near} (distance {distance:.2g})"
    if point.keeps(today):
        return Decision(None, f"built-in choice, which is not beaten in {place}")
    reason = _reason_against(point.implementation, device, problem, f"The rule {rule.path}")
    if not reason and distance and _matrix_grows(point, problem):
        reason = f"{point.implementation} keeps the scores in memory and was measured with fewer of them."
    if "[" in point.implementation:
        held, there = problems.chip_of(device).shared_memory, rule.chip.shared_memory
        if not reason and held and there and held < there:
            reason = f"{point.implementation} was measured with {there:g} bytes of shared memory, not with {held:g}."
        if reason and reason not in _WARNED:
            warn_once(f"The rule {rule.path} is not followed: {reason} The built-in choice is used.")
    if reason:
        return Decision(None, f"built-in table: {reason} ({place})")
    told = {"run": "run {}", "runner_up": "next {}", "missing": "{} was faster and cannot be used here"}
    said = (words.format(point.evidence[name]) for name, words in told.items() if point.evidence.get(name))
    return Decision(point.implementation, "; ".join((place, *said)))


def _reason_against(name: str, device: torch.device, problem: Problem, source: str) -> str | None:
    """Return why an implementation cannot be used; warn if the fault is that of the rule, not of the problem."""
    fault = _fault_of(name, device, problem)
    return warn_once(f"{source} names {fault}") if fault else _refusal_of(name, device, problem)


def _is_usable(name: str, device: torch.device, problem: Problem) -> bool:
    return not (_fault_of(name, device, problem) or _refusal_of(name, device, problem))


def _fault_of(name: str, device: torch.device, problem: Problem) -> str | None:
    """Return the name with the reason if an implementation cannot be used here for any problem."""
    try:
        implementation = registry.get(name, problem.case.level)
    except KeyError:
        return f"{name!r}, which is no implementation here."
    if implementation.unavailable:
        return f"{name}: {implementation.unavailable}"
    if implementation.precision:
        return f"{name}, which rounds to {implementation.precision}."
    if device.type == "cpu" and implementation.interpreted_on_cpu:
        return f"{name}, which runs on a CPU only to be checked."
    return None


def _refusal_of(name: str, device: torch.device, problem: Problem) -> str | None:
    implementation = registry.get(name, problem.case.level)
    if problem.direction == TRAINING and not implementation.backward:
        return f"{name} has no backward."
    return implementation.reason_against(problem.case, registry.describe_device(device))


def _matrix_grows(point: Measured, problem: Problem) -> bool:
    def scores(x: Problem) -> float:
        sizes = (x.batch, x.num_heads, x.seqlen_q, x.seqlen_k)
        return math.prod(sizes) if all(sizes) else 0

    named = registry.get(point.implementation, problem.case.level)
    return named.materialises_scores and scores(problem) > scores(point.problem)


def anything_named(device: torch.device) -> bool:
    """Return whether a rule or the environment variable may name an implementation for this device."""
    return IMPLEMENTATION in os.environ or bool(rules_of(device))


def overridden() -> bool:
    """Return whether the program has set what outranks a rule: backends of SDPA, or deterministic algorithms."""
    every = (
        torch._C._get_flash_sdp_enabled()
        and torch._C._get_mem_efficient_sdp_enabled()
        and torch._C._get_math_sdp_enabled()
        and torch._C._get_cudnn_sdp_enabled()
    )
    return not every or torch._C._get_deterministic_algorithms()


def rules_of(device: torch.device) -> tuple[Rule, ...]:
    """Return the rules for a device, the first to be asked first."""
    return _rules_of(problems.chip_of(device), os.environ.get(FOLDER) or "~/.config/attnbench/rules", SHIPPED)


@cache
def _rules_of(chip: Chip, folder: str, shipped: Path) -> tuple[Rule, ...]:
    name = file_name(chip.name)
    found = [_of_chip(Path(os.path.expanduser(folder)) / name, chip, "your rule")]
    found.append(_of_chip(shipped / name, chip, "the shipped rule"))
    if chip.compute_capability and found[1] is None:
        found.append(_of_nearest_chip(shipped, chip))
    return tuple(rule for rule in found if rule)


def _of_chip(path: Path, chip: Chip, source: str) -> Rule | None:
    rule = _read(path, source)
    if rule and rule.chip.name != chip.name:
        warn_once(f"The rule {path} is for {rule.chip.name}, not for {chip.name}, and is not used.")
        return None
    return rule


def _of_nearest_chip(shipped: Path, chip: Chip) -> Rule | None:
    paths = (path for path in sorted(shipped.glob("*.json")) if not path.name.startswith("sm_"))  # those hold forms
    rules = [rule for path in paths if (rule := _read(path, "")) and rule.chip.sms]
    nearest = min(rules, key=lambda rule: chip.distance(rule.chip), default=None)
    if nearest is None:
        return None
    ours, other = (".".join(map(str, each.compute_capability)) for each in (chip, nearest.chip))
    why = f"compute capability {other} for {ours}, {nearest.chip.sms:g} SMs for {chip.sms}"
    return Rule(nearest.path, nearest.chip, nearest.points, f"the rule of the nearest chip {nearest.chip.name} ({why})")


def _read(path: Path, source: str) -> Rule | None:
    """Return the rule of a file; None, with a warning, if it cannot be used; None if there is no such file."""
    try:
        return parsed(path, json.loads(path.read_text(encoding="utf-8")), source)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except RuleFault as fault:
        warn_once(f"The rule {path} is not used: {fault}")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
        said = " ".join(str(fault).split())
        warn_once(f"The rule {path} is not used, because it cannot be read ({type(fault).__name__}: {said}).")
    return None


def parsed(path: Path, record: Any, source: str) -> Rule:
    """Return the rule of a file's content. Raises RuleFault and what a wrong field raises."""
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RuleFault("it is no rule of attnbench.")
    if record.get("version") != VERSION:
        raise RuleFault(
            f"its format has version {record.get('version')!r}, and this attnbench reads version {VERSION}. "
            "Write it again with `python -m results rule --install`."
        )
    points = tuple(_point(point) for point in record["points"])
    return Rule(path, _chip(str(record["gpu"]), **(record.get("chip") or {})), points, source)


def _chip(name: str, compute_capability: list[int] | None = None, **figures: float | None) -> Chip:
    if compute_capability is not None:
        major, minor = map(int, compute_capability)
        return Chip(name, (major, minor), **{key: value and float(value) for key, value in figures.items()})
    return Chip(name)


def _point(record: Mapping[str, Any]) -> Measured:
    name, beaten = record["implementation"], record.get("beaten")
    if not isinstance(name, str) or not isinstance(beaten, (list, type(None))):
        raise TypeError(f"an implementation is a name and beaten ones are a list, not {name!r} and {beaten!r}")
    evidence = dict(record.get("evidence") or {})
    behind = {other: math.log(ratio) for other, ratio in (record.get("ratios") or {}).items()}
    told = None if beaten is None else tuple(beaten), evidence, behind
    return Measured(problems.of_record(record["problem"]), name, *told)


def file_name(gpu: str) -> str:
    """Return the name of the file with the rule of a GPU."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".json"


def warn_once(text: str) -> str:
    """Warn with a text that this process has not warned with yet; returns the text."""
    if text not in _WARNED:
        _WARNED.add(text)
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        except RuntimeWarning:  # warnings are errors in this program, and a rule must not break it
            print(text, file=sys.stderr)
    return text


def forget() -> None:
    """Forget the files, so that the next new shape reads them again."""
    _rules_of.cache_clear()
    _WARNED.clear()
