"""The lies of the second audit on our own shipped runs, and what becomes of each: python -m tests.results.checks.audit

The audit planted 116. Of its first 70 it found 58 caught, refused or read right and named the others; those and its
later ones are rebuilt here from audit.json, on runs of the kind that it used. A lie is refused if its import rejects
rows, and caught if a check finds something that it does not find in the honest run.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from results import levels
from results.checks import check
from results.files.journal import REPOSITORY, RunFolder
from results.formats import understand
from results.records import Measurement, RecordError, Run, measurement_to_json, run_to_json
from tests.results.checks.lies import SWAPPED

SEEN_BY_THE_AUDIT, READ_RIGHT = 58, 1  # of its first 70, whose data it does not give
_SPREAD = ("mean", "std", "p20", "p80", "ci_low", "ci_high")
Rows = list[Measurement]
Samples = tuple[float, ...]


def times(m: Measurement, factor: float) -> Measurement:
    """Return a row with all its numbers multiplied."""
    numbers = {name: getattr(m, name) * factor for name in ("value", *_SPREAD) if getattr(m, name) is not None}
    return replace(m, **numbers, samples=tuple(sample * factor for sample in m.samples))


def bare(m: Measurement, value: float, samples: Iterable[float] = ()) -> Measurement:
    """Return a row with a value, perhaps samples, and nothing else about its spread."""
    samples = tuple(samples)
    return replace(m, value=value, samples=samples, round_sizes=(), n=len(samples) or None, **dict.fromkeys(_SPREAD))


def is_at(m: Measurement, where: Mapping[str, Any]) -> bool:
    """Tell whether a row has these fields, its own or its case's."""
    return all(getattr(m, name, getattr(m.case, name, None)) == value for name, value in where.items())


def is_time(m: Measurement) -> bool:
    """Tell whether a row is a latency with a value."""
    return m.metric == "latency_ms" and bool(m.value)


def _backward_from_forward(rows: Rows) -> Rows:
    forwards = {(m.case, m.implementation, m.timing): m.value for m in rows if m.mode == "fwd" and is_time(m)}
    pairs = [(m, forwards.get((m.case, m.implementation, m.timing))) for m in rows]
    return [bare(m, 2.5 * forward) if m.mode == "bwd" and is_time(m) and forward else m for m, forward in pairs]


SAMPLES: dict[str, Callable[[Samples], Iterable[float]]] = {
    "rounded": lambda samples: [round(sample, 1) or 0.1 for sample in samples],
    "sorted": sorted,
    "repeated": lambda samples: samples[:8] * 4,
    "first": lambda samples: (100 * samples[0], *samples[1:]),
    "fastest": lambda samples: sorted(samples)[: max(6, len(samples) // 3)],
}
VALUES: dict[str, Callable[[Measurement], float]] = {
    "warm": lambda m: 1.5 * m.value,
    "minimum": lambda m: min(m.samples or (m.value,)),
    "noisy": lambda m: m.value * (1 + 0.003 * (int(m.value * 1e7) % 101 / 50 - 1)),
}
ROWS: dict[str, Callable[[Rows], Rows]] = {
    "causal_as_full": lambda rows: [replace(m, case=replace(m.case, causal=False)) for m in rows if m.case.causal],
    "full_rate": lambda rows: [
        replace(bare(m, 2 * levels.flops(m.case, m.mode) / m.value / 1e9), metric="tflops") for m in rows if m.value
    ],
    "as_mha": lambda rows: [replace(m, case=replace(m.case, num_kv_heads=m.case.num_heads)) for m in rows],
    "minimum": lambda rows: [replace(m, value=min(m.samples)) if m.samples else m for m in rows],
    "backward_from_forward": _backward_from_forward,
    "swapped": lambda rows: [replace(m, implementation=SWAPPED.get(m.implementation, m.implementation)) for m in rows],
    "tokens": lambda rows: [
        *rows,
        *(
            replace(bare(m, 1300 * m.case.batch * m.case.seqlen_q / m.value), metric="tokens_per_s")
            for m in rows
            if is_time(m)
        ),
    ],
    "ours": lambda rows: [m for m in rows if not m.implementation.startswith("torch_")],
    "plain_as_kernel": lambda rows: [replace(m, timing="kernel") for m in rows if m.timing == "eager"],
    "half_of_kernels": lambda rows: [
        *(m for m in rows if m.timing != "eager"),
        *(replace(bare(m, m.value / 2), timing="eager") for m in rows if m.timing == "kernel" and is_time(m)),
    ],
    "no_spread": lambda rows: [replace(bare(m, m.value), std=0.0) if is_time(m) else m for m in rows],
}


def changed(rows: Rows, do: str = "", what: Any = None, where: Mapping[str, Any] | None = None) -> Rows:
    """Return the rows as a lie of audit.json changes them."""
    given = dict(where or {})
    if do == "also":
        new = changed([m for m in rows if is_at(m, given)], *what)
        return rows + [m for m in new if m not in rows]
    if do == "rows":
        return ROWS[what](rows)
    place = {"metric": "latency_ms", **given} if do == "scale" else given
    makers: dict[str, Callable[[Measurement], Measurement]] = {
        "": lambda m: m,
        "scale": lambda m: times(m, what) if m.value else m,
        "put": lambda m: bare(m, what) if m.value else m,
        "cased": lambda m: replace(m, case=replace(m.case, **what)),
        "fields": lambda m: replace(m, **{name: tuple(x) if x == [] else x for name, x in what.items()}),
        "values": lambda m: bare(m, VALUES[what](m)) if is_time(m) else m,
        "samples": lambda m: _resampled(m, SAMPLES[what]) if len(m.samples) > 8 and m.mode == "fwd" else m,
    }
    return [makers[do](m) if is_at(m, place) else m for m in rows]


def _resampled(m: Measurement, change: Callable[[Samples], Iterable[float]]) -> Measurement:
    samples = tuple(change(m.samples))
    return bare(m, median(samples), samples)


@cache
def honest(base: str) -> tuple[Run, Rows, Counter[str]]:
    """Return a shipped run, the rows of some head_dims, and what the checks find in it."""
    folder = RunFolder(REPOSITORY / "results" / "published" / base)
    run, rows = folder.run(), [m for m in folder.read()[0] if m.case.head_dim in (None, 128, 576)]
    return run, rows, Counter(finding.rule for finding in check([(run, rows)]))


def fate(lie: Mapping[str, Any]) -> str:
    """Return what becomes of a lie: refused, caught by which rules, or not caught."""
    run, rows, before = honest(lie["base"])
    told = replace(run, run_id="told", source="upload", **lie.get("facts", {}))
    try:
        new = [replace(m, run_id="told") for m in changed(rows, *lie.get("do", ()))]
    except RecordError as error:
        return f"refused: {error}"
    records = [{n: x for n, x in measurement_to_json(m).items() if n != "measurement_id"} for m in new]
    taken = understand("told.json", json.dumps({"runs": [run_to_json(told)], "measurements": records}).encode())
    if taken.rejected:
        return f"refused: {len(taken.rejected)} rows, first {taken.rejected[0].reason[:80]}"
    known = [(run, rows)] if lie.get("known") else []
    found = Counter(finding.rule for finding in check([(told, new)], known)) - before
    return f"caught: {', '.join(f'{rule} {count}' for rule, count in found.items())}" if found else "not caught"


def table() -> Iterable[str]:
    """Yield a line for each lie, and the sum with those that the audit saw caught."""
    lies, fates = json.loads(Path(__file__).with_name("audit.json").read_text()), []
    for lie in lies:
        fates.append(fate(lie))
        yield f"{lie['name']}: {fates[-1]}"
    found, whole = len(fates) - fates.count("not caught"), len(fates) + SEEN_BY_THE_AUDIT + READ_RIGHT
    yield f"{found} of {len(fates)} rebuilt lies are caught or refused, {found + SEEN_BY_THE_AUDIT} of {whole} in all."


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)
