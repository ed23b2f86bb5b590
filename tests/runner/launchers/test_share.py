"""A run that several cards fill, without Ray: dealing, losses, and what a kill between two writes leaves behind."""

from dataclasses import replace
from pathlib import Path

import pytest

from results.compare.cards import differences, neighbours
from results.records import Measurement, Run, Status, measurement_to_json
from runner import sweeps
from runner.cells import ordered_cells
from runner.launchers import share as shares
from runner.launchers.share import LOSSES_OF_CASE, Share
from runner.supervise.job import Job, Refused

NAMES = ("torch_naive", "triton_fa2")
SWEEP = replace(
    sweeps.override(sweeps.get("quick"), {"dtype": "float32", "timings": "kernel", "modes": "fwd"}),
    implementations=NAMES,
)  # three cases


def planned():
    cells = ordered_cells(SWEEP.cases(), NAMES, SWEEP.modes, 0)
    return [replace(cell, seconds=cell.case.seqlen_q / 100) for cell in cells]


def record(run_id="run", **changes) -> Run:
    facts = {"gpu_name": "Test GPU", "torch": "2", "triton": "3", "kernel_hash": "k", "protocol": "quick/1"}
    return Run(run_id=run_id, source="local", sweep=sweeps.to_json(SWEEP), **(facts | changes))


def rows_of(index: int, value: float = 1.0) -> list[dict]:
    case = SWEEP.cases()[index]
    rows = [
        Measurement("run", case, name, "latency_ms", Status.OK, mode="fwd", timing="kernel", value=value)
        for name in NAMES
    ]
    return [measurement_to_json(row) for row in rows]


@pytest.fixture
def share(tmp_path: Path):
    made = new_share(tmp_path)
    yield made
    made.close()


def new_share(home: Path, *, several=True, one_per_host=False, resume=None) -> Share:
    job = Job(SWEEP, device="cpu", implementations=NAMES, protocol="quick", resume=resume)
    return Share(job, home, "run", several=several, one_per_host=one_per_host)


def measured(share: Share, card: str, value: float = 1.0) -> None:
    do, index = share.take(card)
    assert do == "case"
    share.done(card, rows_of(index, value))


def test_seconds_of_cards_at_once_are_added_and_the_wall_time_is_that_of_the_run(tmp_path, monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(shares.time, "monotonic", lambda: now[0])
    share = new_share(tmp_path)
    assert share.costs is None
    share.spent(0, {"total": 4.0, "checks": 1.0})
    share.spent(1, {"total": 3.0})
    share.spent(0, {"total": 5.0, "checks": 1.5})  # what it has spent so far, in place of what it said before
    now[0] = 106.0
    assert share.costs == {"total": 8.0, "checks": 1.5, "wall": 6.0}


def journaled(share: Share):
    return share.folder.read()[0]


def test_the_longest_cases_are_dealt_first_and_each_card_measures_the_calibration_case(share: Share) -> None:
    for card in ("a", "b"):
        share.admit(card, "host", record(), planned())
    taken = [share.take("a"), share.take("b")]
    assert taken == [("case", 1), ("case", 1)], "both begin with the case in the middle"
    for card, value in (("a", 1.0), ("b", 1.1)):
        share.done(card, rows_of(1, value))
    assert [share.take("a"), share.take("b")] == [("case", 2), ("case", 0)]
    rows = journaled(share)
    assert [(row.card, row.value) for row in rows] == [("a", 1.0), ("a", 1.0)], "the second only calibrates"
    assert differences(share.folder.run().cards) == pytest.approx({"a": 1 / 1.05, "b": 1.1 / 1.05})
    assert share.counts == (2, 6)


def test_a_card_without_work_waits_until_the_others_are_done(share: Share) -> None:
    for card in ("a", "b"):
        share.admit(card, "host", record(), planned())
    measured(share, "a")
    measured(share, "a")
    measured(share, "b")
    assert share.take("a") == ("case", 0)
    assert share.take("b") == ("wait", None)
    share.done("a", rows_of(0))
    assert (share.take("a"), share.take("b"), share.over) == (("end", None), ("end", None), True)


def test_a_lost_card_leaves_nothing_of_an_unfinished_case_and_another_measures_it(share: Share) -> None:
    for card in ("a", "b"):
        share.admit(card, "host", record(), planned())
    measured(share, "a")
    _, index = share.take("a")
    share.lost("a", "Its node is gone.")
    assert len(journaled(share)) == 2
    measured(share, "b")
    measured(share, "b")
    measured(share, "b")
    rows = journaled(share)
    assert share.over and len(rows) == 6 == len({row.measurement_id for row in rows})
    assert {row.card for row in rows} == {"a", "b"}
    assert all(len({row.card for row in rows if row.case == case}) == 1 for case in SWEEP.cases())


def test_a_case_that_every_card_is_lost_with_is_given_up_with_the_reason(share: Share) -> None:
    for number in range(LOSSES_OF_CASE):
        card = f"card{number}"
        share.admit(card, "host", record(), planned())
        assert share.take(card) == ("case", 1)
        share.lost(card, "It burns.")
    rows = journaled(share)
    assert [row.status for row in rows] == [Status.ERROR] * 2
    assert all("3 cards were lost with it. It burns." in row.note for row in rows)


def test_a_driver_that_was_killed_in_a_case_measures_it_again(tmp_path: Path) -> None:
    first = new_share(tmp_path)
    first.admit("a", "host", record(), planned())
    measured(first, "a")
    first.take("a")
    first.close()
    second = new_share(tmp_path, resume="run")
    second.admit("b", "host", record(), planned())
    assert len(journaled(second)) == 2 == second.counts[0]
    for _ in range(2):
        measured(second, "b")
    assert second.over and len(journaled(second)) == 6
    second.close()


@pytest.mark.parametrize("change", [{"torch": "9"}, {"kernel_hash": "other"}, {"gpu_name": "Other GPU"}])
def test_a_card_with_other_software_is_refused_in_words(share: Share, change: dict) -> None:
    share.admit("a", "host", record(), planned())
    with pytest.raises(Refused, match=f"Card b has {next(iter(change))}"):
        share.admit("b", "host", record(**change), planned())


def test_one_card_of_a_host_at_a_time_where_that_is_wanted(tmp_path: Path) -> None:
    share = new_share(tmp_path, one_per_host=True)
    for card, host in (("a", "one"), ("b", "one"), ("c", "two")):
        share.admit(card, host, record(), planned())
    assert share.take("a")[0] == "case"
    assert share.take("b") == ("wait", None)
    assert share.take("c")[0] == "case"
    share.done("a", rows_of(1))
    assert share.take("b")[0] == "case"
    share.close()


def test_cards_differ_by_a_shared_calibration_alone_and_those_of_one_host_at_a_time_are_named() -> None:
    assert differences({"a": {"calibration": {"x fwd": 1.0}}, "b": {"calibration": {}}}) == {}
    assert differences({}) == {}
    cards = {"a": {"host": "gpu1"}, "b": {"host": "gpu1"}, "c": {"host": "gpu2"}}
    assert neighbours(cards, "run quick --on ray").startswith("2 cards of gpu1 measured at the same time")
    assert neighbours(cards, "run quick --on ray --one-per-host") is None
    assert neighbours({"a": {"host": "gpu1"}, "c": {"host": "gpu2"}}, None) is None
