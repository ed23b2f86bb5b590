"""The rounds of a case and what is written of them: sizes, clocks, retries, the errors where nothing is timed."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from kernels import registry
from kernels.attention.torch_naive import attention as naive
from results.compare.between_rounds import RoundMedians
from results.records import Measurement, Status, attention_case
from runner.cells import Cell
from runner.machine.telemetry import Findings
from runner.measure.case import Bench
from runner.measure.energy import Energy
from runner.measure.passes import run_case
from runner.measure.stopwatch import EagerStopwatch
from runner.overhead import SAMPLING
from runner.protocol import Protocol

CASE = attention_case(batch=1, num_heads=1, seqlen=32, head_dim=16, dtype="float32", causal=True, inputs="normal")
BRIEF = Protocol("brief", rounds=3, cap_ms=0.0)
HELD = Findings(("throttled",), "The GPU was held back.", 1500.0)
FREE = Findings((), None, 1980.0)


class Watch:
    """Telemetry that answers with prepared findings, one for each look at a cell's windows."""

    gpu = None

    def __init__(self, *answers: Findings) -> None:
        self.answers = list(answers)
        self.windows: list[int] = []
        self.looks = 0

    def settle(self, device: str) -> None: ...

    def look(self, since: float) -> None:
        self.looks += 1

    def paused(self):
        return nullcontext()

    def findings(self, windows) -> Findings:
        self.windows.append(len(windows))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def measured(cells, watch: Watch, **changes) -> list[Measurement]:
    found: list[Measurement] = []
    bench = Bench(
        run_id="r",
        device="cpu",
        protocol=BRIEF,
        timings=("eager",),
        seed=0,
        emit=found.append,
        begin=lambda cell, step: None,
        telemetry=watch,
        stopwatches={"eager": EagerStopwatch()},
    )
    run_case(replace(bench, **changes), cells[0].case, cells)
    return found


def latencies(found: list[Measurement]) -> list[Measurement]:
    return [m for m in found if m.metric == "latency_ms"]


def test_the_sizes_of_the_rounds_cut_the_samples_and_the_clock_is_kept() -> None:
    watch = Watch(FREE)
    (row,) = latencies(measured([Cell(CASE, "torch_naive", "fwd")], watch))
    assert len(row.round_sizes) == BRIEF.rounds == watch.looks, "plain calls alone are watched too"
    assert sum(row.round_sizes) == len(row.samples) == row.n
    assert (row.sm_clock_mhz, row.flags) == (1980.0, ())


class Turns:
    """Turns that were taken; the given cells take more rounds where the rounds so far are reported."""

    def __init__(self, *more: Cell) -> None:
        self.taken: list[tuple[int, float]] = []
        self.more = more

    def __call__(self, at, so_far):
        self.taken.append(at)
        assert set(self.more) <= {cell for cell, _ in so_far} or not so_far
        return self.more if so_far else ()


@pytest.mark.parametrize(
    ("answers", "flags", "rounds"),
    [
        ((FREE,), (), 3),
        ((HELD, FREE), ("retried",), 6),
        ((HELD, HELD, FREE), ("retried",), 9),
        ((HELD,), ("throttled", "retried"), 9),
    ],
)
def test_what_was_throttled_is_taken_again_at_most_twice_and_the_last_is_kept(answers, flags, rounds) -> None:
    steps: list[str] = []
    watch = Watch(*answers)
    found = measured([Cell(CASE, "torch_naive", "fwd")], watch, begin=lambda cell, step: steps.append(step))
    (row,) = latencies(found)
    assert row.flags == flags
    assert sum(step.startswith("timing") for step in steps) == rounds
    assert set(watch.windows) == {3}  # each try is judged by its own rounds
    assert row.n == sum(row.round_sizes)


def test_the_samples_of_a_throttled_attempt_are_kept_with_their_flag() -> None:
    found = measured([Cell(CASE, "torch_naive", "fwd")], Watch(HELD, HELD, FREE))
    kept = [m for m in found if m.metric == "throttled_latency_ms"]
    assert [m.origin for m in kept] == ["attempt 1", "attempt 2"]
    assert [m.flags for m in kept] == [("throttled",)] * 2
    assert all(m.n == len(m.samples) > 0 and m.sm_clock_mhz == 1500.0 for m in kept)
    assert len({m.measurement_id for m in found}) == len(found)
    assert latencies(found)[0].flags == ("retried",)


def test_beside_another_version_every_round_of_a_cell_waits_for_its_turn_and_none_is_retried() -> None:
    cells = [Cell(CASE, "torch_naive", mode) for mode in ("fwd", "bwd")]
    again, turns, alone = Turns(*cells[:1]), Turns(), Turns()
    found = measured(cells, Watch(HELD), turn=turns)
    assert [number for number, _ in turns.taken] == [0, 0, 1, 1, 2, 2, 3, 6, 12]
    assert turns.taken == sorted(turns.taken)
    assert {row.flags for row in latencies(found)} == {("throttled",)}
    measured(cells[:1], Watch(FREE), turn=alone)
    assert set(alone.taken) < set(turns.taken)  # the ranks are the same whatever else takes part
    found = latencies(measured(cells, Watch(FREE), turn=again, protocol=replace(BRIEF, more_s=1e9)))
    assert [number for number, _ in again.taken] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, *range(6, 13)]
    assert {row.mode: len(row.round_sizes) for row in found} == {"fwd": 12, "bwd": 3}


class Steady(EagerStopwatch):
    """A stopwatch without a clock, which reads a millisecond."""

    def sample(self, call, count: int) -> list[float]:
        call()
        return [1 + 1e-5 * at for at in range(count)]


@pytest.mark.parametrize(
    ("earlier", "changes", "rounds"),
    [
        ((0.0, 0.01, 0.02), {}, 6),
        ((0.0, 1e-4, 2e-4), {}, 3),  # the interval decides all the same
        ((0.0, 0.01, 0.0), {}, 3),  # rounds do not follow each other
        ((0.0, 0.01, 0.02), {"protocol": BRIEF}, 3),
        ((0.0, 0.01, 0.02), {"turn": Turns()}, 3),
    ],
)
def test_rounds_that_follow_each_other_are_doubled_where_they_leave_a_verdict_open(earlier, changes, rounds) -> None:
    pairs = {"eager": [(1.0, RoundMedians(earlier, True), RoundMedians((0.0,) * 3, True))] * 12}
    cells = [Cell(CASE, name, "fwd") for name in ("torch_naive", "torch_sdpa_math")]
    made_up = {"protocol": replace(BRIEF, more_s=1e9), "stopwatches": {"eager": Steady()}, "pairs": pairs}
    found = latencies(measured(cells, Watch(FREE), **(made_up | changes)))
    assert [len(row.round_sizes) for row in found] == [rounds] * 2


class Meter:
    """An energy meter that answers, or breaks."""

    def __init__(self, answer) -> None:
        self.answer = answer

    def measure(self, call, call_ms: float, least_s: float) -> Energy:
        call()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "status", "value", "note"),
    [
        (Energy(0.25, 40, 500.0), Status.OK, 0.25, None),
        (RuntimeError("no counter"), Status.ERROR, None, "RuntimeError: no counter (in its energy)"),
    ],
)
def test_joules_come_after_the_latency_and_cannot_cost_it(monkeypatch, answer, status, value, note) -> None:
    monkeypatch.setattr("runner.measure.energy.LEAST_MS", 0.0)
    protocol = replace(BRIEF, energy_s=0.01)
    cells = [Cell(CASE, "torch_naive", mode) for mode in ("fwd", "bwd")]
    clocks = {"kernel": EagerStopwatch()}
    options = {"protocol": protocol, "timings": ("kernel",), "stopwatches": clocks, "energy": Meter(answer)}
    found = measured(cells, Watch(FREE), **options)
    assert [m.status for m in latencies(found)] == [Status.OK, Status.OK]
    (row,) = [m for m in found if m.metric == "energy_j"]  # of the forward alone
    assert (row.mode, row.status, row.value, row.note) == ("fwd", status, value, note)
    assert found.index(row) > max(found.index(m) for m in latencies(found))


def test_the_time_of_the_samples_is_charged_to_sampling() -> None:
    def emit(measurement: Measurement) -> None: ...

    bench = Bench("r", "cpu", BRIEF, ("eager",), 0, emit, lambda *_: None, Watch(FREE), {"eager": EagerStopwatch()})
    run_case(bench, CASE, [Cell(CASE, "torch_naive", "fwd")])
    bench_costs = bench.costs.take()
    assert bench_costs[SAMPLING] > 0
    assert {"reference", "checks", "timing"} <= set(bench_costs)


def test_where_nothing_is_timed_every_pass_has_its_errors_and_nothing_else() -> None:
    cells = [Cell(CASE, name, mode) for name in ("torch_naive", "torch_sdpa_math") for mode in ("fwd", "bwd")]
    found = measured(cells, Watch(FREE), timings=())
    rows = {(m.implementation, m.mode, m.metric) for m in found if m.metric.startswith(("error_", "max_error_"))}
    for name in ("torch_naive", "torch_sdpa_math"):
        assert (name, "fwd", "error_out") in rows
        assert {(name, "bwd", f"{kind}_{t}") for kind in ("error", "max_error") for t in ("dq", "dk", "dv")} <= rows
    assert {m.metric for m in found} - {metric for *_, metric in rows} == {"compile_ms"}


def test_an_error_too_large_to_be_timed_is_kept_with_its_flag_where_only_errors_are_wanted(monkeypatch) -> None:
    plain = registry.get("torch_sdpa_math")
    wrong = replace(plain, attention=lambda q, k, v, **options: naive(q, k, v, **options) * 1.01)
    monkeypatch.setitem(registry.implementations(), "torch_sdpa_math", wrong)
    cells = [Cell(CASE, "torch_sdpa_math", mode) for mode in ("fwd", "bwd")]
    found = {m.metric: m for m in measured(cells, Watch(FREE), timings=())}
    assert found["error_out"].status is Status.OK
    assert found["error_out"].value == pytest.approx(0.01, rel=0.01)
    assert found["error_out"].flags == found["error_dq"].flags == ("incorrect",)
    assert "out is wrong" in found["error_out"].note
    timed = {m.metric: m for m in measured([cells[0]], Watch(FREE))}
    assert timed["latency_ms"].status is Status.INCORRECT


def test_long_rows_wait_for_a_gpu_where_only_errors_are_wanted() -> None:
    long = replace(CASE, seqlen_q=16384, seqlen_k=16384)
    found = measured([Cell(long, "torch_naive", mode) for mode in ("fwd", "bwd")], Watch(FREE), timings=())
    assert [m.metric for m in found] == ["error_out", "error_dq", "error_dk", "error_dv"]
    assert {m.status for m in found} == {Status.SKIPPED}
    assert "run this case on a GPU" in found[0].note


def test_a_trace_without_a_gpu_is_of_wall_time_and_of_nothing_but_the_rate() -> None:
    found = measured([Cell(CASE, "torch_naive", "fwd")], Watch(FREE), protocol=replace(BRIEF, trace_s=0.6))
    rows = {m.metric: m for m in found if m.metric.startswith(("sustained_", "burst_"))}
    assert set(rows) == {"burst_tflops", "sustained_tflops"}
    assert {row.status for row in rows.values()} == {Status.OK}
    assert rows["sustained_tflops"].n >= 1
