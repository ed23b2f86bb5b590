"""A sweep over runs: a planted regression is marked where it is, noise is not, whatever the kernels' hash."""

from dataclasses import replace

import pytest

from results.compare.history import chains, changes, histories
from results.records import Measurement, Run, Status
from tests.builders import STANDARD, latency, sampled, small_case

CASES = [replace(small_case(), seqlen_q=n, seqlen_k=n) for n in (128, 256, 512, 1024)]
NAMES = ("ours", "torch_a", "torch_b", "torch_c")


def run(day: int, **fields) -> Run:
    given = {"gpu_name": "NVIDIA H200", "torch": "2.13.0", "protocol": STANDARD, "sweep": {"name": "quick"}} | fields
    return Run(
        f"run-{day:02d}",
        "local",
        created=f"2026-{1 + day // 28:02d}-{1 + day % 28:02d}T00:00:00",
        kernel_hash=f"hash {day}",
        **given,
    )


def rows(day: int, factor: float = 1.0) -> list[Measurement]:
    """Latencies of the four implementations at the four lengths; `factor` is how much longer ours takes at 512."""
    found = []
    for at, case in enumerate(CASES):
        for of, name in enumerate(NAMES):
            longer = factor if (name, case.seqlen_q) == ("ours", 512) else 1.0
            seed = 1000 * day + 10 * at + of
            found.append(
                replace(sampled((1 + at) * longer, case=case, implementation=name, seed=seed), run_id=f"{day}")
            )
    return found


@pytest.mark.parametrize("days", [2, 50])
def test_a_planted_regression_is_marked_in_its_run_and_noise_in_none(days):
    slow_from = days // 2 + 1
    found = histories([(run(day), rows(day, 1.1 if day >= slow_from else 1.0)) for day in range(1, days + 1)])
    assert len(found) == len(CASES) * len(NAMES)
    told = [(h.implementation, h.case.seqlen_q, p.run.run_id, p.outcome) for h, p in changes(found)]
    assert told == [("ours", 512, f"run-{slow_from:02d}", "SLOWER")]
    assert found[0].regressed and not found[1].regressed
    assert len(found[0].points) == days
    assert found[0].points[0].outcome is None


def test_a_cell_is_judged_against_the_latest_run_that_tried_it():
    other = [replace(m, implementation="peer") for m in rows(2)]
    found = histories([(run(1), rows(1)), (run(2), other), (run(3), rows(3, 1.2))])
    ((history, point),) = changes(found)
    assert [p.run.run_id for p in history.points] == ["run-01", "run-03"]
    assert (point.outcome, point.against.first.value) == ("SLOWER", pytest.approx(3.0, rel=0.02))
    assert {h.implementation for h in found} == set(NAMES)


def test_a_lost_number_is_a_regression_and_the_newest_run_is_told_first():
    first, *rest = rows(2)
    lost = [latency(first.implementation, Status.OOM, first.case), *rest]
    found = histories([(run(1), rows(1)), (run(2), lost), (run(3), rows(3))])
    assert [(p.run.run_id, p.outcome) for _, p in changes(found)] == [("run-03", "GAINED"), ("run-02", "LOST")]


def test_runs_of_a_sweep_on_one_gpu_are_chained_in_time_and_no_others():
    runs = [run(3), run(1), run(4, gpu_name="Other GPU"), run(5, sweep={"name": "other"}), run(6, sweep={})]
    (chain,) = chains(runs)
    assert (chain.sweep, chain.gpu) == ("quick", "NVIDIA H200")
    assert [each.run_id for each in chain.runs] == ["run-01", "run-03"]
    assert chains([run(1)]) == []
