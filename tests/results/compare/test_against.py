"""Two versions of one sweep, on simulated machines: false verdicts are rare, 5 % is found, and noise is no verdict."""

import random
import re
from dataclasses import replace
from itertools import accumulate

import pytest

from results.__main__ import main
from results.compare.against import compare_versions, in_words, leave_open, usual_offset
from results.compare.between_rounds import PairOfRounds, RoundMedians
from results.files.journal import RunFolder
from results.records import Case, Measurement, Run, Status, attention_case
from results.spread import spread
from tests.test_readme import ROOT

RUN = Run("r", "local", protocol="paired/1", torch="2.13.0", against={"label": "abc1234", "torch": "2.13.0"})
ROUNDS, OF_ROUND = 8, 4
CELLS = 300
README = " ".join((ROOT / "results" / "README.md").read_text().split())


def case_of(number: int) -> Case:
    return attention_case(batch=1, num_heads=1, seqlen=number + 1, head_dim=64, dtype="float16", causal=True)


def row(name: str, case: Case, samples: list[float], **fields) -> Measurement:
    plain = Measurement("r", case, name, "latency_ms", Status.ERROR, mode="fwd", timing="kernel")
    sizes = (OF_ROUND,) * (len(samples) // OF_ROUND)
    return replace(plain, status=Status.OK, **{"round_sizes": sizes, **spread(samples), **fields})


def machine(
    slower: float = 1.0,
    *,
    drift: float = 0.02,
    noise: float = 0.004,
    offset: float = 0.0,
    name: str = "triton_fa2",
    walk: float = 0.0,
    follow: float = 1.0,
    count: int = ROUNDS,
) -> list[Measurement]:
    """Both versions of each cell: rounds share the drift of the machine, samples have noise, processes an offset."""
    chance, steps, rows = random.Random(f"{slower}/{drift}/{noise}/{offset}/{name}"), random.Random(walk), []
    for number in range(CELLS):
        length = 10 ** chance.uniform(-1.7, 1)
        rounds = [1 + chance.gauss(0, drift) for _ in range(count)]
        for label, factor in (("@abc1234", 1 + chance.gauss(0, offset)), ("", slower)):
            apart = accumulate((steps.gauss(0, walk) for _ in rounds), lambda x, step: follow * x + step)
            rounds = [at * (1 + beyond) for at, beyond in zip(rounds, apart, strict=True)]
            samples = [
                length * factor * at * (1 + abs(chance.gauss(0, noise))) for at in rounds for _ in range(OF_ROUND)
            ]
            rows.append(row(f"{name}{label}", case_of(number), samples))
    return rows


def share(rows: list[Measurement], *outcomes: str) -> float:
    cells = compare_versions(RUN, rows).cells
    assert len(cells) == len(rows) // 2
    return sum(cell.outcome in outcomes for cell in cells) / len(cells)


@pytest.mark.parametrize("drift", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("offset", [0.0, 0.002, 0.004])
def test_no_change_is_called_a_change_in_one_cell_of_a_hundred_at_most(drift: float, offset: float) -> None:
    assert share(machine(drift=drift, offset=offset), "FASTER", "SLOWER") <= 0.01
    assert share(machine(drift=drift, offset=offset, walk=0.01), "FASTER", "SLOWER") <= 0.01


def test_cells_without_a_verdict_take_more_rounds_and_no_others() -> None:
    chance, cells = random.Random(0), {}
    for number in range(40):
        steps = [chance.gauss(0, 0.002 if number % 2 else 0.08) for _ in range(ROUNDS)]
        cells[number] = RoundMedians(tuple(steps), True), RoundMedians((0.0,) * ROUNDS, True)
    pairs: list[PairOfRounds] = []
    assert set(leave_open(cells, pairs)) == set(range(0, 40, 2)) and len(pairs) == 40


@pytest.mark.parametrize("drift", [0.0, 0.02, 0.1])
def test_5_percent_are_found_whatever_the_machine_drifts_by(drift: float) -> None:
    assert share(machine(1.05, drift=drift, offset=0.002), "SLOWER") >= 0.95
    assert share(machine(0.95, drift=drift, offset=0.002), "FASTER") >= 0.95


@pytest.mark.parametrize("count,found", [(8, 39), (16, 68), (32, 95)])
def test_more_rounds_give_more_verdicts_and_no_false_ones_as_the_readme_says(count: int, found: int) -> None:
    """Rounds differ by 2 %, of which six tenths are of the round before."""
    following = {"walk": 0.016, "follow": 0.6, "count": count}
    assert round(100 * share(machine(1.05, **following), "SLOWER")) == found
    assert share(machine(**following), "FASTER", "SLOWER") <= 0.01
    assert "39, 68 and 95 % of the cells after 8, 16 and 32 rounds" in README


def test_noise_that_no_round_settles_is_unclear_and_a_change_within_the_band_the_same() -> None:
    rows = machine(noise=0.5)
    assert share(rows, "UNCLEAR") >= 0.9
    assert share(rows, "FASTER", "SLOWER") <= 0.01
    assert share(machine(1.005, offset=0.001), "SAME") >= 0.95


def test_processes_that_differ_widen_the_intervals_by_what_pytorch_shows() -> None:
    ours, controls = machine(offset=0.02), machine(offset=0.02, name="torch_sdpa_flash")
    assert share(ours, "FASTER", "SLOWER") > 0.05  # what the constant does not foresee
    found = compare_versions(RUN, ours + controls)
    assert sum(cell.outcome in ("FASTER", "SLOWER") for cell in found.cells) / len(found.cells) <= 0.02
    assert found.cells[0].judgement.apart == pytest.approx(0.02, rel=0.2)
    assert any("PyTorch's own kernels, which did not change" in remark for remark in found.remarks)


def test_pytorch_is_no_control_where_it_is_another_pytorch() -> None:
    other = replace(RUN, against=RUN.against | {"torch": "2.12.0"})
    found = compare_versions(other, machine(offset=0.02) + machine(offset=0.02, name="torch_sdpa_flash"))
    assert all(cell.judgement.apart == usual_offset(cell.second.value).variance ** 0.5 for cell in found.cells)
    assert [change.fact for change in found.changes] == ["torch"]


def test_a_number_that_one_version_lacks_is_lost_or_gained() -> None:
    case, gone = case_of(0), {"status": Status.INCORRECT, "note": "out is wrong"}
    samples = [1.0 + i / 1000 for i in range(ROUNDS * OF_ROUND)]
    fine, old = row("a", case, samples), row("a@abc1234", case, samples)
    bare = Measurement("r", case, "a", "latency_ms", Status.ERROR, mode="fwd", timing="kernel")
    (lost,) = compare_versions(RUN, [replace(bare, **gone), old]).cells
    (gained,) = compare_versions(RUN, [fine, replace(bare, implementation="a@abc1234", **gone)]).cells
    assert (lost.outcome, lost.reason) == ("LOST", "incorrect: out is wrong")
    assert (gained.outcome, gained.judgement) == ("GAINED", None)


def test_rounds_that_do_not_pair_and_what_a_busy_host_may_have_added_are_unclear() -> None:
    case, samples = case_of(0), [1.0 + i / 1000 for i in range(ROUNDS * OF_ROUND)]
    rows = [row("a", case, samples), row("a@abc1234", case, samples[: 4 * OF_ROUND], round_sizes=(OF_ROUND,) * 4)]
    (cell,) = compare_versions(RUN, rows).cells
    assert (cell.outcome, cell.judgement.low) == ("UNCLEAR", None)
    assert "did not take the same rounds" in cell.reason
    rows = [row(name, case, samples[:OF_ROUND], round_sizes=(OF_ROUND,)) for name in ("a", "a@abc1234")]
    (cell,) = compare_versions(RUN, rows).cells
    assert (cell.outcome, "without --quick" in cell.reason) == ("UNCLEAR", True)
    rows = [replace(m, note="Up to 50 % of it is waiting for a core.") for m in machine(1.3)[:40]]
    assert share(machine(1.3)[:40], "SLOWER") == 1 and share(rows, "UNCLEAR") == 1


def test_the_words_name_each_cell_with_its_interval_and_count_the_verdicts() -> None:
    rows = machine(1.1)[:4]
    words = in_words(compare_versions(RUN, rows)).splitlines()
    assert in_words(compare_versions(RUN, rows[:1])) == "No cell of r has a time of both versions."
    assert words[0].startswith("SLOWER  0.9") and "triton_fa2 fwd, kernel time, batch 1, heads 1, seqlen" in words[0]
    assert words[2].startswith("Against r@abc1234, kernel time: 2 SLOWER of 2 cells; 0.9")


def test_the_command_line_judges_the_two_versions_of_a_run(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path))
    RunFolder.create(tmp_path, RUN, machine(1.1)[:4])
    RunFolder.create(tmp_path, replace(RUN, run_id="one", against=None), [])
    assert main(["compare", "r"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["first   r@abc1234", "second  r"]
    assert sum("SLOWER" in line and "triton_fa2" in line for line in lines) >= 2
    assert main(["compare", "one"]) == 1
    assert re.search("measured one version alone.*--against", capsys.readouterr().err)
