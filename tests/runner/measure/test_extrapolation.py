"""Extrapolation: exact on a line, trusted only where a model that fits says so, and never a latency."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from results.records import Measurement, Status
from runner.cells import Cell
from runner.measure import extrapolation
from runner.measure.extrapolation import METRIC, extrapolate, extrapolated
from runner.sweeps.model import model_case

CASE = model_case("llama2-7b", batch=1, seqlen=512, query_tokens=1, dtype="bfloat16")
CELL = Cell(CASE, "torch_naive", "decode")


def test_a_line_is_followed_exactly() -> None:
    assert extrapolated(5.0, 9.0, (4, 8), 32) == pytest.approx(33.0)
    assert extrapolated(5.0, 9.0, (4, 8), 8) == pytest.approx(9.0)


class LineStopwatch:
    """Says that a call takes as long as its depth wants."""

    def sample(self, call, count: int) -> list[float]:
        return [call()] * count


@dataclass
class FakeRun:
    """A case under measurement whose models take 20 ms and `of_a_layer` a layer, and the whole of it `whole` ms."""

    whole: float | None = None
    depths: tuple[int, ...] = (4, 8)
    of_a_layer: float = 0.5  # ms
    errors: dict = field(default_factory=dict)
    rows: list[Measurement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.case = CASE
        self.latencies = {(CELL, "eager"): self.whole} if self.whole else {}
        self.level = SimpleNamespace(
            call=lambda attention, inputs, mode: lambda: 20 + self.of_a_layer * inputs.num_layers
        )
        self.bench = SimpleNamespace(
            depths=self.depths,
            extrapolation_errors=self.errors,
            timings=("eager",),
            stopwatches={"eager": LineStopwatch()},
            device="cpu",
            seed=0,
        )

    def implementation(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(attention=None)

    def attempt(self, cell, charged, step, action) -> None:
        action()

    def emit(self, cell: Cell, metric: str, *, status: Status = Status.OK, **fields) -> None:
        self.rows.append(
            Measurement(run_id="r", case=cell.case, implementation="x", metric=metric, status=status, **fields)
        )


@pytest.fixture(autouse=True)
def inputs_are_their_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extrapolation, "make_inputs", lambda case, device, seed: case)
    monkeypatch.setattr(extrapolation, "_WARM_UP_S", 0.001)


def test_a_model_that_fits_tells_how_far_the_method_is_off() -> None:
    run = FakeRun(whole=36.72)
    extrapolate(run, [CELL], [CELL])
    (row,) = run.rows
    assert (row.metric, row.status, row.value) == (METRIC, Status.OK, pytest.approx(36.0))
    assert "1.96% off" in row.note
    assert run.errors[CELL.implementation, "decode"] == [pytest.approx(0.0196, abs=1e-4)]


def test_a_model_that_does_not_fit_needs_one_that_does() -> None:
    run = FakeRun()
    extrapolate(run, [CELL], [])
    (row,) = run.rows
    assert (row.status, row.value) == (Status.SKIPPED, None)
    assert "no model that fits" in row.note


@pytest.mark.parametrize(("error", "trusted"), [(0.029, True), (0.031, False)])
def test_an_error_above_three_percent_ends_the_trust(error: float, trusted: bool) -> None:
    run = FakeRun(errors={("torch_naive", "decode"): [0.001, error]})
    extrapolate(run, [CELL], [])
    (row,) = run.rows
    assert row.status == (Status.OK if trusted else Status.SKIPPED)
    assert trusted or "off by 3.1% in this run (allowed 3%)" in row.note


def test_depths_that_scatter_more_than_they_differ_or_fail_give_no_number() -> None:
    run = FakeRun(whole=17.0, of_a_layer=-2.0)
    extrapolate(run, [CELL], [CELL])
    (row,) = run.rows
    assert (row.status, row.value) == (Status.SKIPPED, None)
    assert "scatter more than they differ" in row.note
    run = FakeRun(whole=17.0)
    run.attempt = lambda cell, charged, step, action: (Status.OOM, "Out of memory.")
    extrapolate(run, [CELL], [CELL])
    assert [(row.status, row.note) for row in run.rows] == [(Status.OOM, "Out of memory.")]


def test_parts_of_training_and_shallow_models_are_not_extrapolated() -> None:
    run = FakeRun(whole=17.0)
    extrapolate(run, [Cell(CASE, "torch_naive", "step")], [])
    assert run.rows == []
    for depths in ((), (16, 32)):
        run = FakeRun(whole=17.0, depths=depths)
        extrapolate(run, [CELL], [CELL])
        assert run.rows == []
