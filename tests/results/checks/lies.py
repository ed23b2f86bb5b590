"""Planted lies, and what finds each: python -m tests.results.checks.lies [made] [audit] [own] [relabeled]

A lie is a run with one thing changed, as a slip, a wrong unit, a boast or a thief would change it. lies.json has them
as data. `made` changes a made-up run of an H100, which has no finding, or makes one claim alone. `audit` changes our
shipped runs as the second audit did, `own` in ways that no audit named. `relabeled` gives each shipped run the name,
facts and peaks of the other of our two chips and moves each time, with and without its source among the runs that are
here. A lie is refused if the import rejects rows, and caught if a check finds something that it does not find without
the lie. What no rule can know to be a lie is planted too, with the reason.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from results import levels
from results.checks import check
from results.files.journal import REPOSITORY, RunFolder, folders_in
from results.formats import understand
from results.records import Measurement, RecordError, Run, measurement_from_json, measurement_to_json, run_to_json

RUN = Run("r1", "upload", gpu_name="NVIDIA H100 80GB HBM3", gpu_memory_mb=81_559.0, power_limit_w=700.0)
DECLARED = json.loads(Path(__file__).with_name("lies.json").read_text())
SEEN_BY_THE_AUDIT, READ_RIGHT = 58, 1  # further lies of the audit, whose data it does not give
NOISE = 0.004  # most that a relabeled run's times are moved by, beyond 1 % of all
_SPREAD = ("mean", "std", "p20", "p80", "ci_low", "ci_high")
Rows = list[Measurement]
Known = Sequence[tuple[Run, Rows]]


@dataclass(frozen=True)
class Lie:
    """The rows and the run that claim it, and what is found in the honest run."""

    name: str
    run: Run
    rows: Rows
    by: Sequence[str] = ()  # the rules that are to find it, or "refused"
    unseen: str = ""  # why no rule can know it to be a lie
    known: Known = ()  # other runs that are here
    honest: Counter[str] = field(default_factory=Counter)


def made(rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Return measurements of which a table says what differs from the common one."""
    return [measurement_from_json({**DECLARED["common"], **row}) for row in rows]


# Changes of rows.


def is_at(m: Measurement, where: Mapping[str, Any]) -> bool:
    """Tell whether a row has these fields, its own or its case's; of a list, one of its values."""
    for name, value in where.items():
        found = getattr(m, name) if hasattr(m, name) else getattr(m.case, name)
        if found not in (value if isinstance(value, list) else [value]):
            return False
    return True


def scaled(m: Measurement, factor: float) -> Measurement:
    """Return a row with all its numbers multiplied."""
    numbers = {name: getattr(m, name) * factor for name in ("value", *_SPREAD) if getattr(m, name) is not None}
    return replace(m, **numbers, samples=tuple(sample * factor for sample in m.samples))


def bare(m: Measurement, value: float, samples: Iterable[float] = ()) -> Measurement:
    """Return a row with a value, perhaps samples, and nothing else about its spread."""
    samples = tuple(samples)
    return replace(m, value=value, samples=samples, round_sizes=(), n=len(samples) or None, **dict.fromkeys(_SPREAD))


def _resampled(m: Measurement, change: Callable[[tuple[float, ...]], Iterable[float]]) -> Measurement:
    return bare(m, median(samples), samples) if len(m.samples) > 8 and (samples := [*change(m.samples)]) else m


def _moved(m: Measurement) -> Measurement:
    """Return a time that is moved with all of its samples, and each of them a little more."""
    chance = random.Random(f"{m.case}{m.implementation}{m.mode}{m.timing}")
    factor = 1.01 + chance.uniform(-NOISE, NOISE)
    samples = [factor * sample * chance.uniform(1 - NOISE, 1 + NOISE) for sample in m.samples]
    return bare(m, median(samples) if samples else factor * m.value, samples) if m.value else m


FUNCTIONS: dict[str, Callable[[Measurement], Measurement]] = {  # of a row
    "rounded": lambda m: _resampled(m, lambda samples: [round(sample, 1) or 0.1 for sample in samples]),
    "sorted": lambda m: _resampled(m, sorted),
    "repeated": lambda m: _resampled(m, lambda samples: samples[:8] * 4),
    "first": lambda m: _resampled(m, lambda samples: (100 * samples[0], *samples[1:])),
    "fastest": lambda m: _resampled(m, lambda samples: sorted(samples)[: max(6, len(samples) // 3)]),
    "warm": lambda m: bare(m, 1.5 * m.value) if m.value else m,
    "least": lambda m: bare(m, min(m.samples or (m.value,))) if m.value else m,
    "minimum": lambda m: replace(m, value=min(m.samples)) if m.samples else m,
    "noisy": lambda m: bare(m, _moved(m).value / 1.01) if m.value else m,
    "moved": _moved,
    "no_spread": lambda m: replace(bare(m, m.value), std=0.0) if m.value else m,
    "p20_is_p80": lambda m: replace(m, std=None, p20=m.value, p80=m.value),
    "as_mha": lambda m: replace(m, case=replace(m.case, num_kv_heads=m.case.num_heads)),
    "full_rate": lambda m: replace(bare(m, 2 * levels.flops(m.case, m.mode) / m.value / 1e9), metric="tflops"),
    "tokens": lambda m: replace(bare(m, 1300 * m.case.batch * m.case.seqlen_q / m.value), metric="tokens_per_s"),
}
ONE: dict[str, Callable[[Measurement, Any], Measurement]] = {
    "scale": lambda m, factor: scaled(m, factor) if m.value else m,
    "put": lambda m, value: bare(m, value) if m.value else m,
    "case": lambda m, fields: replace(m, case=replace(m.case, **fields)),
    "set": lambda m, fields: replace(m, **{name: tuple(x) if x == [] else x for name, x in fields.items()}),
    "rename": lambda m, names: replace(m, implementation=names.get(m.implementation, m.implementation)),
    "rows": lambda m, name: FUNCTIONS[name](m),
}


def changed(rows: Rows, steps: Iterable[tuple[str, Any, Mapping[str, Any]]]) -> Rows:
    """Return the rows after all steps, each a change, its argument, and the fields of the rows that it is of."""
    for do, what, where in steps:
        there = [m for m in rows if is_at(m, where)]
        if do == "keep":
            rows = there
        elif do == "also":
            rows = [*rows, *changed(there, what)]
        elif do == "copy":  # the values of rows that differ in the fields of `what` alone
            sources = {_place(m, what): m.value for m in rows if is_at(m, {"metric": "latency_ms", **what})}
            rows = [bare(m, sources.get(_place(m, what), m.value)) if is_at(m, where) else m for m in rows]
        else:
            rows = [ONE[do](m, what) if is_at(m, where) else m for m in rows]
    return rows


def _place(m: Measurement, but: Iterable[str]) -> tuple[object, ...]:
    names = ("case", "implementation", "mode", "timing", "metric")
    return tuple(getattr(m, name) for name in names if name not in but)


@cache
def shipped() -> dict[str, tuple[Run, Rows]]:
    """Return our runs that ship, by their names."""
    folders = folders_in(REPOSITORY / "results" / "published")
    return {run.run_id: (run, folder.read()[0]) for folder in folders if not (run := folder.run()).report}


@cache
def _honest(base: str) -> tuple[Run, Rows, Counter[str]]:
    """Return a shipped run, its rows of some head_dims, and what is found in them."""
    folder = RunFolder(REPOSITORY / "results" / "published" / base)
    run, rows = folder.run(), [m for m in folder.read()[0] if m.case.head_dim in (None, 128, 576)]
    return run, rows, Counter(finding.rule for finding in check([(run, rows)]))


def planted(group: str) -> Iterator[Lie]:
    """Yield the lies of a group of lies.json. A lie whose rows cannot be made is refused by the records."""
    if group == "relabeled":
        yield from relabeled(shipped())
        return
    for said in DECLARED[group]:
        base = said.get("base")
        run, rows, found = _honest(base) if base else (RUN, [], Counter())
        rows = rows or made(said.get("rows", DECLARED["sound"]))
        told = replace(run, run_id="told", source="upload", **said.get("facts", {}))
        known = ((run, rows),) if said.get("known") else ()
        expected = {name: said[name] for name in ("by", "unseen") if name in said}
        try:
            new = [replace(m, run_id="told") for m in changed(rows, said.get("do", ()))]
        except RecordError:
            new = []
        yield Lie(said["name"], told, new, known=known, honest=found if base else Counter(), **expected)


def relabeled(names: Iterable[str]) -> Iterator[Lie]:
    """Yield shipped runs as of the other chip, with and without their source among the runs that are here."""
    said = DECLARED["relabeled"]
    for run, rows in map(shipped().__getitem__, names):
        (other,) = (facts for name, facts in said["chips"].items() if name != run.gpu_name)
        peaks = {"measured_tflops": None, "measured_gbs": None} if not run.measured_tflops else {}
        facts = {**other, **peaks, "gpu_uuid": None, "title": None, "created": "2027-01-01T00:00:00Z"}
        new = [replace(m, run_id="told") for m in changed(rows, [("rows", "moved", {"metric": "latency_ms"})])]
        told, honest = replace(run, run_id="told", source="upload"), [(replace(run, run_id="told"), new)]
        before = Counter(finding.rule for finding in check(honest) if finding.rule != "off_ticks")  # it sees the move
        others = [pair for pair in shipped().values() if pair[0].run_id != run.run_id]
        for words, known in (("", [(run, rows), *others]), (", its source not here", others)):
            why = said["unseen"].get(run.run_id, said["unseen"]["alone"] if known is others else "")
            name = f"{run.run_id} as of {other['gpu_name']}{words}"
            yield Lie(name, replace(told, **facts), new, unseen=why, known=known, honest=before)


def fate(lie: Lie) -> list[str]:
    """Return the rules that find more than in the honest run, or "refused" where that is expected or none does."""
    found = sorted(Counter(finding.rule for finding in check([(lie.run, lie.rows)], lie.known)) - lie.honest)
    return ["refused"] if ("refused" in lie.by or not found) and _is_refused(lie) else found


def _is_refused(lie: Lie) -> bool:
    records = [{n: x for n, x in measurement_to_json(m).items() if n != "measurement_id"} for m in lie.rows]
    export = json.dumps({"runs": [run_to_json(lie.run)], "measurements": records}).encode()
    return not lie.rows or bool(understand("told.json", export).rejected)


def table(group: str) -> Iterator[str]:
    """Yield the lines of a group's table, and the sum."""
    yield "| planted lie | caught by |"
    yield "| --- | --- |"
    fates = []
    for lie in planted(group):
        fates.append(fate(lie))
        yield f"| {lie.name} | {', '.join(fates[-1]) or f'**missed**: {lie.unseen}'} |"
    caught = sum(map(bool, fates))
    yield ""
    yield f"{caught} of {len(fates)} planted lies ({group}) are caught."
    if group == "audit":
        seen = caught + SEEN_BY_THE_AUDIT, len(fates) + SEEN_BY_THE_AUDIT + READ_RIGHT
        yield f"With the {SEEN_BY_THE_AUDIT} others that the audit saw caught: {seen[0]} of {seen[1]}."


if __name__ == "__main__":
    for named in sys.argv[1:] or ("made", "audit", "own", "relabeled"):
        for line in table(named):
            print(line, flush=True)
