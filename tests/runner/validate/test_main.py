"""The experiments on the verdicts: shares with their goals, and a slowdown that is really there."""

import itertools
import json
import time
from dataclasses import replace

import pytest
import torch

from kernels.attention.torch_naive import attention as naive
from results.compare.against import compare_versions
from results.compare.compare import Comparison, Side, compare
from results.files.journal import RunFolder
from results.records import Measurement, Run, Status, attention_case
from results.spread import spread
from runner.measure.stopwatch import KernelStopwatch
from runner.validate import __main__, slow_worker, tuned
from runner.validate.__main__ import LEAST_AGAINST_MS, ON_CPU, ON_GPU, delays_ms, false_verdicts, found_slowdowns
from runner.validate.slow_worker import key_of

RUN = Run("a", "local", protocol="standard/1", torch="2", cudnn="9", driver="1", cuda="13")


def side(run_id: str, factor: float = 1.0, cells: int = 200, base_ms: float = 1.0) -> Side:
    """A run of so many cells, whose samples scatter by a thousandth, beside as many of PyTorch's that never change."""
    return Side(replace(RUN, run_id=run_id), [*rows_of(run_id, "x", factor, cells, base_ms), *controls(run_id, cells)])


def controls(run_id: str, cells: int) -> list[Measurement]:
    return rows_of(run_id, "torch_naive", 1.0, cells, 1.0)


def rows_of(run_id: str, name: str, factor: float, cells: int, base_ms: float) -> list[Measurement]:
    rows = []
    for number in range(cells):
        case = attention_case(batch=1, num_heads=1, seqlen=number + 1, head_dim=64, dtype="float16", causal=True)
        samples = [base_ms * factor * (1 + 0.001 * ((i * 7 + number) % 5 - 2)) for i in range(30)]
        row = Measurement(run_id, case, name, "latency_ms", Status.ERROR, mode="fwd", timing="kernel")
        rows.append(replace(row, status=Status.OK, round_sizes=(10, 10, 10), **spread(samples)))
    return rows


@pytest.mark.parametrize("sweep", [ON_GPU, ON_CPU], ids=["gpu", "cpu"])
def test_the_grids_have_enough_forwards(sweep) -> None:
    assert len(sweep.cases()) * len(sweep.implementations) >= 200
    assert sweep.modes == ("fwd",)


def test_a_change_that_is_none_is_refused_and_nothing_is_measured(at_home, capsys) -> None:
    assert __main__.main(("both", "--device", "cpu", "--set", "seqlen")) == 2
    assert capsys.readouterr().err == "--set 'seqlen' is not AXIS=VALUES, such as seqlen=1024,2048.\n"


def test_the_same_code_twice_reaches_the_goal_and_another_does_not() -> None:
    same = false_verdicts(compare(side("a"), side("b")))
    assert same.reached and "0 of 400 cells" in same.words and "0.0%" in same.words
    other = false_verdicts(compare(side("a"), side("b", factor=1.1)))
    assert not other.reached and "200 of 400 cells" in other.words
    assert not false_verdicts(compare(side("a", cells=99), side("b", cells=99))).reached  # too few to say


def test_a_slowdown_that_is_there_is_found_and_short_calls_are_not_asked() -> None:
    found = found_slowdowns(compare(side("a"), side("b", factor=1.05)))
    assert found.reached and "5.0% as measured" in found.words and "200 of 200" in found.words
    assert not found_slowdowns(compare(side("a"), side("b"))).reached
    short = compare(side("a", base_ms=0.01), side("b", 1.05, base_ms=0.01))
    assert "0 of 0 cells" in found_slowdowns(short).words


def test_each_forward_is_delayed_by_its_own_share_and_nothing_else_is() -> None:
    delays = delays_ms(side("a", cells=2, base_ms=4.0).measurements)
    wanted = {key_of("x", "fwd", (1, 1, n, 64), (1, 1, n, 64), "float16", True) for n in (1, 2)}
    assert set(delays) == wanted
    assert list(delays.values()) == pytest.approx([0.2, 0.2], rel=0.01)

    waited: list[float] = []
    attention = slow_worker.slowed("x", naive, delays, waited.append)
    tensors = {n: torch.zeros(1, 1, n, 64, dtype=torch.float16) for n in (1, 3)}
    attention(*[tensors[3]] * 3, causal=True)
    attention(*[tensors[1]] * 3, causal=False)
    assert waited == []
    assert torch.equal(attention(*[tensors[1]] * 3, causal=True), naive(*[tensors[1]] * 3, causal=True))
    assert waited == pytest.approx([0.2], rel=0.01)


def test_a_backward_is_delayed_apart_from_its_forward() -> None:
    rows = [replace(m, mode=mode) for m in side("a", cells=1, base_ms=4.0).measurements for mode in ("fwd", "bwd")]
    waited: list[float] = []
    attention = slow_worker.slowed("x", naive, delays_ms([rows[1]], 0.02), waited.append)
    q, k, v = (torch.zeros(1, 1, 1, 64, dtype=torch.float16, requires_grad=True) for _ in range(3))
    out = attention(q, k, v, causal=True)
    assert waited == []
    out.sum().backward()
    assert waited == pytest.approx([0.08], rel=0.01)


def versions(factor: float) -> Comparison:
    """The same cells under another version's name, so much slower, in paired rounds."""
    ours, other = (rows_of("a", "x", each, 200, 1.0) for each in (1.0, factor))
    ours = [replace(m, round_sizes=(10, 10, 10)) for m in ours]
    rows = [*ours, *(replace(m, implementation="x@old") for m in other)]
    return compare_versions(replace(RUN, against={"label": "old"}), rows)


def test_two_versions_in_one_sweep_have_goals_of_their_own() -> None:
    same = false_verdicts(versions(1.0), least=1)
    assert same.reached and "0 of 200 cells" in same.words
    assert not false_verdicts(versions(1.1), least=1).reached
    rule = {"outcome": "FASTER", "least_ms": LEAST_AGAINST_MS}
    slow = found_slowdowns(versions(1.05), 0.05, **rule)
    assert slow.reached and "200 of 200 cells" in slow.words and "(5.0% as measured)" in slow.words
    assert not found_slowdowns(versions(1.0), 0.05, **rule).reached
    assert found_slowdowns(versions(1.0), 0.02, **rule).reached  # within the band: only told


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a CPU")
def test_the_delay_of_a_cpu_takes_its_time() -> None:
    start = time.perf_counter()
    slow_worker.delay(2.0)
    assert time.perf_counter() - start >= 0.002


@pytest.mark.gpu
def test_the_delay_of_a_gpu_is_on_the_device_and_its_launch_is_in_it() -> None:
    stopwatch, x = KernelStopwatch("cuda:0"), torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    plain = sorted(stopwatch.sample(lambda: x @ x, 20))[10]
    longer = sorted(stopwatch.sample(lambda: (x @ x, slow_worker.delay(0.02)), 20))[10]
    assert longer - plain == pytest.approx(0.02, abs=0.004)


def test_a_tune_finds_a_hidden_rule_again_from_made_up_times() -> None:
    def hidden(case) -> str:  # what is fastest by how much there is to compute, with another border for each head_dim
        return "triton_fa2" if case.seqlen_q * case.head_dim < 1 << 17 else "torch_sdpa_auto"

    rows = []
    for number, name in itertools.product(range(120), ("triton_fa2", "torch_sdpa_auto", "torch_naive")):
        sizes = {"seqlen": 128 << number % 8, "head_dim": (32, 64, 128)[number % 3], "batch": 1 + number // 24}
        case = attention_case(num_heads=8, dtype="float16", causal=number % 2 > 0, **sizes)
        rows += [replace(row, case=case) for row in rows_of("a", name, 1.0 if name == hidden(case) else 1.3, 1, 1.0)]
    made = tuned.Tuned(RUN, rows)
    for found in map(made.of_half, range(tuned.HALVES)):
        assert sum(name == hidden(case) for (case, _, _), (name, _) in found.items()) >= 0.97 * len(found) >= 55
    assert all(name == hidden(case) for (case, _, _), (name, _) in made.of_each().items())
    assert tuned.judged(RUN, rows)[1]
    rule = tuned.rule_of(RUN, rows)
    other, *same = rule.points
    other = replace(other, implementation="torch_naive")
    assert tuned.agreed(rule, rule) == (
        "Of 120 problems that both tunes decide, 0 are decided differently, 0 of them within ties (goal: all).",
        True,
    )
    assert not tuned.agreed(rule, replace(rule, points=(other, *same)))[1]
    tied = replace(other, beaten=("another",)), replace(rule.points[0], beaten=())
    assert tuned.agreed(*(replace(rule, points=(point, *same)) for point in tied))[1]


def test_existing_runs_are_judged_again_without_measuring(at_home, tmp_path, monkeypatch, capsys) -> None:
    for name, factor in (("a", 1.0), ("b", 1.0), ("c", 1.05)):
        made = side(name, factor)
        RunFolder.create(tmp_path, made.run, made.measurements)
    assert __main__.main(["both", "--first", "a", "--second", "b", "--slowed", "c"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert __main__.main(["slowdown", "--first", "a", "--slowed", "b"]) == 1
    assert __main__.main(["slowdown", "--first", "nobody"]) == 2
    monkeypatch.setattr(tuned, "SHIPPED", ("b", "c"))
    monkeypatch.setattr(tuned, "judged", lambda run, rows, _: (f"{len(rows)} rows of {run.run_id}", run.run_id != "c"))
    capsys.readouterr()
    assert [__main__.main(["tune", *words]) for words in (("--first", "a"), ())] == [0, 1]
    assert capsys.readouterr().out == "a: 400 rows of a\nb: 400 rows of b\nc: 400 rows of c\n"
    assert json.loads((tmp_path / "runs" / "a" / "run.json").read_text())["protocol"] == "standard/1"
