"""Compare an imported table with one of our runs: the same cases row by row, and how their methods differ.

Names of implementations differ between sources, so nothing is judged: every implementation of both is a column. Where
the other run has it with another batch, other heads or a length within a factor of two, only TFLOP/s are compared.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from results.grouping import grouped
from results.implementations import facts_of
from results.levels import flops
from results.records import Case, Measurement, Run, Status, case_to_json, compatible

OTHER_SIZES = ("batch", "num_heads", "num_kv_heads", "inputs", "page_size")  # fields in which a similar case may differ
_NOT_STATED = "not stated"
Rows = Sequence[Measurement]


@dataclass(frozen=True)
class BesideCell:
    """What one implementation reached in a case, or why it reached nothing."""

    implementation: str
    ours: bool
    same: bool  # whether it is the very case; else one of other batch or heads
    status: Status
    latency_ms: float | None
    tflops: float | None
    case: Case
    reduced: bool = False  # whether it computes in another precision than the dtype, and so wins nothing


@dataclass(frozen=True)
class BesideRow:
    """A case and mode of the imported run with everything that both runs have of it."""

    case: Case
    mode: str | None
    cells: tuple[BesideCell, ...]

    @property
    def same(self) -> bool:
        """Tell whether ours has the very case."""
        return any(cell.ours and cell.same for cell in self.cells)

    @property
    def fastest(self) -> BesideCell | None:
        """Return the cell of the highest TFLOP/s, or of the shortest time where no rate is known."""
        fair = [cell for cell in self.cells if not cell.reduced]
        rated = [cell for cell in fair if cell.tflops]
        if rated:
            return max(rated, key=lambda cell: cell.tflops)
        timed = [cell for cell in fair if cell.latency_ms and cell.same]
        return min(timed, key=lambda cell: cell.latency_ms, default=None)


def rows(theirs: Rows, ours: Rows, most: int | None = None) -> list[BesideRow]:
    """Return the first cases of `theirs` that `ours` has too, the very same first, then those of other sizes."""
    found = sorted(_shared(theirs, ours), key=lambda shared: not shared[2])[:most]
    return [
        BesideRow(of[0].case, of[0].mode, (*_cells(of, same=True, ours=False), *_cells(like, same=same, ours=True)))
        for of, like, same in found
    ]


def _shared(theirs: Rows, ours: Rows) -> Iterator[tuple[list[Measurement], list[Measurement], bool]]:
    """Yield the rows of each shared case: theirs, ours, and whether ours are of the very same case."""
    known = _latencies(ours)
    own, kinds = grouped(known, _shape), grouped(known, _kind)
    for (case, _), measured in grouped(_latencies(theirs), attrgetter("case", "mode")).items():
        rivals = own.get(_shape(measured[0]), [])
        same = [m for m in rivals if compatible(case, m.case, but=("inputs",))]
        like = same or [m for m in rivals if compatible(case, m.case, but=OTHER_SIZES)]
        like = like or _of_nearest_length(measured[0], kinds.get(_kind(measured[0]), []))
        if like:
            yield measured, like, bool(same)


def partners(theirs: tuple[Run, Rows], others: Iterable[tuple[Run, Rows]]) -> list[tuple[str, int, int]]:
    """Return the runs that share cases with an imported one: id, same cases, like cases; the best first."""
    run, measured = theirs
    ranked = []
    places: dict[str | None, int] = {}  # GPUs in the order given
    for other, numbers in others:
        places.setdefault(other.gpu_name, len(places))
        if other.run_id == run.run_id or other.source in ("upload", "published"):
            continue
        found = [same for _, _, same in _shared(measured, numbers)]
        if found:
            place = other.gpu_name != run.gpu_name, places[other.gpu_name]
            ranked.append((*place, -sum(found), -len(found), other.run_id))
    return [(name, -same, -found + same) for _, _, same, found, name in sorted(ranked)]


def differences(theirs: tuple[Run, Rows], ours: tuple[Run, Rows]) -> list[tuple[str, str, str]]:
    """Return what differs in how the two were measured: the fact, theirs, ours. Equal facts are left out."""
    sides = [dict(_facts(*side)) for side in (theirs, ours)]
    return [(name, sides[0][name], sides[1][name]) for name in sides[0] if sides[0][name] != sides[1][name]]


def words(row: BesideRow) -> str:
    """Return the case of a row in a few words: shape, heads, mask and dtype."""
    case = row.case
    heads = str(case.num_heads or "?")
    heads += f"/{case.num_kv_heads}" if case.num_kv_heads not in (None, case.num_heads) else ""
    lengths = f"{case.seqlen_q}" if case.seqlen_k in (None, case.seqlen_q) else f"{case.seqlen_q} × {case.seqlen_k}"
    mask = {True: "causal", False: "full", None: "mask not stated"}[case.causal]
    window = f", window {case.window_size}" if case.window_size else ""
    sizes = f"B{case.batch or '?'} H{heads} {lengths} d{case.head_dim or '?'}"
    return f"{sizes} {mask}{window} {case.dtype or 'dtype not stated'}"


def _facts(run: Run, measured: Rows) -> Iterator[tuple[str, str]]:
    latencies = _latencies(measured)
    timings = {m.timing for m in latencies}
    words = {"kernel": "device time of the kernels", "eager": "a plain call, host included", None: _NOT_STATED}
    yield "timing method", ", ".join(sorted(words[timing] for timing in timings)) or _NOT_STATED
    yield "cache", _cache(run, timings)
    yield "SM clock", _clock(latencies)
    yield "statistic", ", ".join(sorted({m.statistic or _NOT_STATED for m in latencies if m.value})) or _NOT_STATED
    for label, name in (("GPU", "gpu_name"), ("cuDNN", "cudnn"), ("CUDA", "cuda"), ("driver", "driver")):
        yield label, getattr(run, name) or _NOT_STATED
    yield "torch", run.torch or _NOT_STATED
    yield "power limit", f"{run.power_limit_w:g} W" if run.power_limit_w else _NOT_STATED


def _cache(run: Run, timings: set[str | None]) -> str:
    """Return the state of the L2 cache, as the run's notes or its timing say."""
    if run.source in ("upload", "published"):
        return "L2 flushed before each call" if "L2 flush" in (run.notes or "") else _NOT_STATED
    return "L2 flushed before each call" if timings == {"kernel"} else "as the call before left it"


def _clock(latencies: Rows) -> str:
    clocks = [m.sm_clock_mhz for m in latencies if m.sm_clock_mhz]
    return f"{statistics.median_high(clocks):.0f} MHz, median" if clocks else _NOT_STATED


def _latencies(measured: Rows) -> list[Measurement]:
    """Return the latencies; of a run with both timings, the kernel's."""
    found = [m for m in measured if m.metric == "latency_ms"]
    kernel = [m for m in found if m.timing == "kernel"]
    return kernel or found


def _shape(m: Measurement) -> tuple:
    case = m.case
    named = (case.level, case.seqlen_q, case.seqlen_k, case.head_dim, case.dtype, case.causal, case.window_size or 0)
    return (*named, m.mode)


def _kind(m: Measurement) -> tuple:
    """Return what two cases must share so that their rates compare."""
    case = m.case
    return case.level, case.head_dim, case.dtype, case.causal, case.window_size or 0, m.mode


def _of_nearest_length(theirs: Measurement, ours: Rows) -> list[Measurement]:
    """Return the rows of the nearest length, at most a factor of two away; none if a source leaves out a field."""
    seqlen = theirs.case.seqlen_q
    if not seqlen or None in _kind(theirs):
        return []
    lengths = {m.case.seqlen_q for m in ours if m.case.seqlen_q and m.case.seqlen_k == m.case.seqlen_q}
    nearest = min(lengths, key=lambda length: abs(math.log2(length / seqlen)), default=0)
    return [m for m in ours if m.case.seqlen_q == nearest] if seqlen / 2 <= nearest <= 2 * seqlen else []


def _cells(measured: Rows, *, same: bool, ours: bool) -> Iterator[BesideCell]:
    """Yield a cell for each implementation; of several like cases the one of the highest rate."""
    best: dict[str, BesideCell] = {}
    for m in measured:
        work = flops({**case_to_json(m.case), "window_size": m.case.window_size or 0}, m.mode) if m.value else None
        rate = work / m.value / 1e9 if work else None
        reduced = facts_of(m.implementation).reduced
        cell = BesideCell(m.implementation, ours, same, m.status, m.value, rate, m.case, reduced)
        known = best.get(m.implementation)
        if known is None or (rate or 0) > (known.tflops or 0):
            best[m.implementation] = cell
    yield from sorted(best.values(), key=lambda cell: -(cell.tflops or 0))
