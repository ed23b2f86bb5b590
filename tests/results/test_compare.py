"""Verdicts that hold under noise, and comparisons that say what they rest on."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from results import journal
from results.__main__ import main
from results.compare import Side, as_json, compare
from results.journal import RunFolder
from results.records import Measurement, Run, Status, attention_case
from results.verdicts import BAND, INTERLEAVED, SINGLE, Verdict, judge, usual_spread
from runner.protocol import PROTOCOLS
from runner.spread import spread

CASE = attention_case(batch=1, num_heads=2, seqlen=128, head_dim=64, dtype="float16", causal=True)
STANDARD = "standard/1"


def row(ms: float, **fields) -> Measurement:
    """A latency with a value and whatever spread is given."""
    given = {"mode": "fwd", "timing": "kernel", "status": Status.OK} | fields
    name = given.pop("implementation", "x")
    return Measurement("r1", given.pop("case", CASE), name, "latency_ms", value=ms, **given)


def sampled(ms: float, *, rounds: tuple[float, ...] = (1.0, 1.0, 1.0), noise: float = 0.004, seed: int = 0, **fields):
    """A latency of ten samples a round; a round is so many times slower than the first."""
    rng = random.Random(seed)
    samples = [ms * factor * math.exp(abs(rng.gauss(0, noise))) for factor in rounds for _ in range(10)]
    found = spread(samples)
    return replace(row(found["value"], **fields), **found)


def scaled(measurement: Measurement, factor: float) -> Measurement:
    numbers = ("value", "mean", "std", "p20", "p80", "ci_low", "ci_high")
    changed = {name: getattr(measurement, name) * factor for name in numbers}
    return replace(measurement, **changed, samples=tuple(sample * factor for sample in measurement.samples))


def verdict(first: Measurement, second: Measurement, **how) -> str:
    return str(judge(first, second, **how).verdict)


@pytest.mark.parametrize(
    "times,expected", [(0.9, "SLOWER"), (0.97, "SLOWER"), (1.0, "SAME"), (1.005, "SAME"), (1.05, "FASTER")]
)
@pytest.mark.parametrize("paired", [True, False])
def test_a_quiet_difference_gets_its_verdict(times, expected, paired):
    first, second = sampled(times, seed=1), sampled(1.0, seed=2)
    found = judge(first, second, protocol=STANDARD, paired=paired)
    assert found.verdict == expected
    assert found.low <= times <= found.high
    assert found.speedup == pytest.approx(times, rel=0.005)


def test_a_difference_at_the_edge_of_the_band_is_unclear():
    assert verdict(sampled(1 + BAND, seed=1), sampled(1.0, seed=2)) == "UNCLEAR"


def test_the_other_way_round_the_verdict_is_the_mirror_image():
    first, second = sampled(1.08, rounds=(1, 1.01, 1.02), seed=1), sampled(1.0, noise=0.02, seed=2)
    there, back = judge(first, second), judge(second, first)
    assert (there.verdict, back.verdict) == (Verdict.FASTER, Verdict.SLOWER)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))
    assert there.detectable == pytest.approx(back.detectable)


def test_rounds_that_differ_make_a_difference_unclear_that_the_samples_alone_would_show():
    steady, jumping = sampled(1.06, seed=1), sampled(1.0, rounds=(1.0, 1.05, 1.1), seed=2)
    without_rounds = [replace(m, samples=()) for m in (steady, sampled(1.0, seed=2))]
    assert verdict(*without_rounds) == "FASTER"
    assert verdict(steady, jumping) == "UNCLEAR"


def test_a_drift_that_both_share_cancels_in_paired_rounds_only():
    drift = (1.0, 1.06, 1.12)
    first, second = sampled(1.15, rounds=drift, noise=0.001, seed=1), sampled(1.0, rounds=drift, noise=0.001, seed=2)
    pairs = judge(first, second, paired=True), judge(first, second, paired=False)
    spans = [found.high / found.low for found in pairs]
    assert spans[0] < spans[1]
    assert [str(found.verdict) for found in pairs] == ["FASTER", "UNCLEAR"]


@pytest.mark.parametrize("noise,between", [(0.005, 0.002), (0.02, 0.01), (0.02, 0.03)])
@pytest.mark.parametrize("paired", [True, False])
def test_no_difference_is_hardly_ever_called_one_and_the_interval_holds_the_truth(noise, between, paired):
    rng = random.Random(f"{noise}/{between}")
    wrong = covered = 0
    for seed in range(150):
        rounds = [tuple(math.exp(rng.gauss(0, between)) for _ in range(3)) for _ in range(2)]
        pair = [sampled(1.0, rounds=each, noise=noise, seed=2 * seed + n) for n, each in enumerate(rounds)]
        found = judge(*pair, paired=paired)
        wrong += found.verdict in (Verdict.FASTER, Verdict.SLOWER)
        covered += found.low <= 1.0 <= found.high
    assert wrong <= 5
    assert covered >= 127  # of 150, where 90 % make 135


def test_the_smallest_change_that_could_have_been_seen_is_where_the_verdict_turns():
    first, second = sampled(1.0, noise=0.02, rounds=(1, 1.01, 0.995), seed=1), sampled(1.0, noise=0.02, seed=2)
    level = scaled(second, first.value / second.value)  # no difference left
    seen = judge(first, level).detectable
    assert BAND < seen < 0.2
    assert verdict(first, scaled(level, 1 / (1 + seen * 1.02))) == "FASTER"
    assert verdict(first, scaled(level, 1 / (1 + seen * 0.90))) == "UNCLEAR"


def test_a_printed_number_alone_is_never_a_verdict():
    found = judge(row(3.0, printed="3.0"), row(1.0, printed="1.0"))
    assert (found.verdict, found.speedup, found.low, found.detectable) == (Verdict.UNCLEAR, 3.0, None, None)
    assert "one printed number" in found.reason
    assert "samples are too few" in judge(row(1.0, samples=(1.0, 1.0), n=2), row(2.0)).reason


def test_means_without_a_number_of_samples_are_taken_as_one_sample():
    first, second = row(1.0, mean=1.0, std=0.02), row(0.9, mean=0.9, std=0.02)
    unsaid = judge(first, second)
    said = judge(replace(first, n=100), replace(second, n=100))
    assert (unsaid.verdict, said.verdict) == (Verdict.FASTER, Verdict.FASTER)
    assert unsaid.high / unsaid.low > said.high / said.low
    assert "n not said" in unsaid.basis
    assert verdict(row(1.0, std=0.2), row(0.9, std=0.2)) == "UNCLEAR"
    assert verdict(row(1.0, std=0.2, n=10_000), row(0.9, std=0.2, n=10_000)) == "FASTER"


def test_an_interval_beside_a_bare_number_is_no_interval():
    assert verdict(sampled(1.0), row(2.0)) == "UNCLEAR"
    assert "the other a standard deviation" in judge(replace(sampled(1.0), std=None), row(2.0, std=0.1)).reason


def test_zero_is_not_compared_and_a_sample_of_zero_does_not_break_it():
    assert judge(row(0.0), row(1.0)).speedup is None
    odd = sampled(1.0)
    assert verdict(replace(odd, samples=(0.0, *odd.samples[1:])), sampled(1.0, seed=2)) == "SAME"


def test_one_round_says_so():
    pair = sampled(1.5, seed=1), sampled(1.0, seed=2)
    assert "one round" in judge(*pair, protocol="quick/1").reason
    assert "one round" not in judge(*pair, protocol=STANDARD).reason


def test_the_presets_are_those_of_the_runner():
    rounds = {protocol.name: protocol.rounds for protocol in PROTOCOLS.values()}
    assert {name for name, number in rounds.items() if number > 1} == set(INTERLEAVED)
    assert {name for name, number in rounds.items() if number == 1} == set(SINGLE)


def in_rounds(parts: list[list[float]], **fields) -> Measurement:
    """A latency whose journal says which samples each round took."""
    found = spread([sample for part in parts for sample in part])
    return replace(row(found["value"], **fields), **found, round_sizes=tuple(len(part) for part in parts))


def test_the_rounds_of_the_journal_count_and_not_the_thirds_of_the_samples():
    steps = [[1.0, 1.001] * 3, [1.004, 1.005] * 12, [1.0, 1.001] * 3]
    known, blurred = in_rounds(steps), replace(in_rounds(steps), round_sizes=())
    other = in_rounds([[1.0, 1.001] * 6] * 3)
    found, thirds = judge(known, other), judge(blurred, other)
    assert found.basis == "samples and rounds"
    assert thirds.basis == "samples and thirds"
    assert found.high / found.low > thirds.high / thirds.low


def test_five_rounds_show_a_smaller_change_than_three():
    rng = random.Random(5)
    parts = [[math.exp(rng.gauss(0, 0.004)) for _ in range(8)] for _ in range(5)]
    five, three = in_rounds(parts), in_rounds(parts[:3])
    assert judge(five, five, paired=False).detectable < judge(three, three, paired=False).detectable


def test_a_single_round_says_so_whatever_the_protocol():
    one, three = in_rounds([[1.0, 1.001] * 10]), in_rounds([[1.0, 1.001] * 4] * 3)
    assert "one round on one side" in judge(one, three, protocol=STANDARD).reason
    assert "one round each" in judge(one, one, protocol=STANDARD).reason


def test_what_is_usual_for_like_cells_steadies_a_spread_that_three_rounds_found_by_chance():
    pairs = [
        (sampled(1.0, rounds=_drift(seed, 0.004), noise=0.002, seed=seed), sampled(1.0, noise=0.002, seed=seed + 500))
        for seed in range(60)
    ]
    like = usual_spread(pairs).near(1.0)
    assert like.freedom > 2
    wild = sampled(1.05, rounds=(1.0, 1.04, 1.0), noise=0.001, seed=1), sampled(1.0, noise=0.001, seed=2)
    alone, beside = judge(*wild), judge(*wild, like=like)
    assert (alone.verdict, beside.verdict) == (Verdict.UNCLEAR, Verdict.FASTER)
    assert "beside those of like cells" in beside.basis
    assert usual_spread(pairs[:5]).near(1.0) is None


def _drift(seed: int, share: float) -> tuple[float, ...]:
    rng = random.Random(f"drift {seed}")
    return tuple(math.exp(rng.gauss(0, share)) for _ in range(3))


def clocked(ms: float, mhz: int | None, **fields) -> Measurement:
    note = f"The GPU was held back by its power limit to an SM clock of {mhz} MHz." if mhz else None
    return sampled(ms, note=note, flags=("throttled",) if mhz else (), **fields)


def test_times_are_compared_in_cycles_where_both_clocks_are_known():
    found = judge(clocked(1.0, 1980, seed=1), clocked(1.2, 1650, seed=2))
    assert (found.verdict, found.clocks) == (Verdict.SAME, (1980, 1650))
    assert "in cycles" in found.reason
    assert judge(clocked(1.0, 1980, seed=1), clocked(1.2, 1975, seed=2)).clocks is None
    assert judge(clocked(1.0, 1980, timing="eager"), clocked(1.2, 1650, timing="eager")).clocks is None


def test_the_recorded_clock_counts_before_a_note_and_pairs_are_compared_in_time():
    first = replace(sampled(1.0, seed=1), sm_clock_mhz=1980.0)
    second = replace(sampled(1.2, seed=2), sm_clock_mhz=1650.0, note="held back to an SM clock of 1980 MHz.")
    assert judge(first, second).clocks == (1980, 1650)
    paired = judge(first, second, paired=True)
    assert (paired.verdict, paired.clocks) == (Verdict.SLOWER, None)
    assert "1980 and 1650 MHz" in paired.reason


def test_a_difference_in_cycles_that_time_does_not_show_is_unclear():
    first = replace(sampled(1.0, seed=1), sm_clock_mhz=1980.0)
    second = replace(sampled(1.0, seed=2), sm_clock_mhz=1650.0)
    found = judge(first, second)
    assert found.verdict == "UNCLEAR"
    assert "FASTER in cycles but SAME in time" in found.reason


@pytest.mark.parametrize(
    "throttled,speedup,expected",
    [
        ("first", 1.3, "UNCLEAR"),
        ("first", 0.7, "SLOWER"),
        ("second", 1.3, "FASTER"),
        ("second", 0.7, "UNCLEAR"),
        ("second", 1.0, "UNCLEAR"),
        ("both", 1.3, "UNCLEAR"),
        ("none", 1.3, "FASTER"),
    ],
)
def test_what_throttling_could_have_made_up_is_no_verdict(throttled, speedup, expected):
    flags = [("throttled",) if throttled in (side, "both") else () for side in ("first", "second")]
    first, second = sampled(speedup, flags=flags[0], seed=1), sampled(1.0, flags=flags[1], seed=2)
    found = judge(first, second)
    assert found.verdict == expected
    assert ("throttled" in found.reason) == (expected == "UNCLEAR")


# two sides

LONG = replace(CASE, seqlen_q=256, seqlen_k=256)
FULL = replace(CASE, causal=False)
RUN = Run("r1", "local", gpu_name="NVIDIA H200", driver="570", kernel_hash="aaa", protocol=STANDARD)


def failed(status: Status, **fields) -> Measurement:
    given = {"mode": "fwd", "timing": "kernel", "case": CASE, "implementation": "x"} | fields
    return Measurement("r1", metric="latency_ms", status=status, note="24 GB needed", **given)


def test_regressions_come_first_and_a_number_that_is_gone_before_all():
    before = [
        sampled(1.0, seed=1),
        sampled(2.0, seed=2, mode="bwd"),
        sampled(1.0, seed=3, case=LONG),
        sampled(1.0, seed=4, case=FULL),
        failed(Status.OOM, mode="fwd_bwd"),
    ]
    after = [
        sampled(1.0, seed=5),
        sampled(1.0, seed=6, mode="bwd"),
        sampled(1.5, seed=7, case=LONG),
        failed(Status.INCORRECT, case=FULL),
        sampled(3.0, seed=8, mode="fwd_bwd"),
    ]
    found = compare(Side(RUN, before), Side(replace(RUN, run_id="r2"), after))
    assert [cell.outcome for cell in found.cells] == ["LOST", "SLOWER", "FASTER", "GAINED", "SAME"]
    assert found.cells[0].reason == "incorrect: 24 GB needed"
    overall = found.means[0]
    assert (overall.compared, overall.tried) == (3, 5)
    assert overall.speedup == pytest.approx((1 * 2 / 1.5) ** (1 / 3), rel=0.01)


def test_a_mean_never_mixes_timings_and_says_its_coverage():
    before = [sampled(1.0), sampled(4.0, timing="eager"), sampled(1.0, case=LONG)]
    after = [sampled(0.5), sampled(4.0, timing="eager")]
    found = compare(Side(RUN, before), Side(RUN, after))
    assert [(m.timing, m.compared, m.tried) for m in found.means] == [("kernel", 1, 2), ("eager", 1, 1)]
    assert [m.speedup for m in found.means] == pytest.approx([2.0, 1.0])
    assert (found.only_first, found.only_second) == (1, 0)


def test_what_only_one_side_has_tried_counts_in_the_coverage_and_has_no_mean_of_its_own():
    before = [sampled(1.0), sampled(1.0, implementation="gone"), sampled(1.0, implementation="gone", mode="bwd")]
    found = compare(Side(RUN, before), Side(replace(RUN, run_id="r2"), [sampled(0.5)]))
    assert [(m.implementation, m.compared, m.tried) for m in found.means] == [(None, 1, 3), ("x", 1, 1)]


def test_what_changed_between_the_runs_is_listed_and_what_nobody_recorded_too():
    other = replace(RUN, run_id="r2", driver="575", kernel_hash=None)
    found = compare(Side(RUN, [sampled(1.0)]), Side(other, [sampled(1.0)]))
    assert [(c.fact, c.first, c.second) for c in found.changes] == [
        ("driver", "570", "575"),
        ("kernel_hash", "aaa", None),
    ]
    assert "torch" in found.not_said
    assert "gpu_name" not in found.not_said
    assert any("a third run tells" in remark for remark in found.remarks)


def test_a_machine_that_ran_at_another_clock_or_reached_less_is_among_the_changes():
    before = [replace(sampled(1.0), sm_clock_mhz=1980.0)]
    after = [replace(sampled(1.1), sm_clock_mhz=1755.0)]
    run = replace(RUN, measured_tflops={"float16": 700.0, "bfloat16": 780.0}, measured_gbs=4200.0)
    other = replace(run, run_id="r2", measured_tflops={"float16": 640.0, "bfloat16": 778.0}, measured_gbs=None)
    assert [(c.fact, c.first, c.second) for c in compare(Side(run, before), Side(other, after)).changes] == [
        ("sm_clock_mhz, median", 1980.0, 1755.0),
        ("measured_tflops float16", 700.0, 640.0),
    ]


def test_two_implementations_of_one_run_are_compared_in_paired_rounds():
    rows = [sampled(1.5, implementation="slow", seed=1), sampled(1.0, implementation="quick", seed=2)]
    found = compare(Side(RUN, rows, "slow"), Side(RUN, rows, "quick"))
    assert [(cell.implementation, cell.outcome) for cell in found.cells] == [("slow -> quick", "FASTER")]
    assert found.cells[0].judgement.basis == "samples and paired thirds"
    assert found.same_run
    assert found.changes == ()


def test_sides_without_a_common_cell_say_which_field_keeps_them_apart():
    published = [row(1.0, case=replace(CASE, window_size=None, num_heads=None, num_kv_heads=None))]
    found = compare(Side(RUN, published), Side(RUN, [sampled(1.0)]))
    assert found.cells == ()
    assert found.remarks == (
        "No cell is in both: num_heads not said and 2; num_kv_heads not said and 2; window_size not said and 0.",
    )
    assert compare(Side(RUN, []), Side(RUN, [sampled(1.0)])).remarks == ("The first has no latency.",)


@pytest.mark.parametrize("factor,remarked", [(1.0, False), (0.7, True)])
def test_a_machine_that_was_slower_shows_in_what_did_not_change(factor, remarked):
    run = replace(RUN, torch="2.13.0")
    cases = [replace(CASE, head_dim=d, head_dim_v=d) for d in (16, 32, 64)]
    before = [sampled(1.0, implementation="torch_naive", case=case) for case in cases]
    after = [sampled(1.0 / factor, implementation="torch_naive", case=case) for case in cases]
    remarks = compare(Side(run, before), Side(replace(run, run_id="r2", kernel_hash="bbb"), after)).remarks
    said = [remark for remark in remarks if "The machine differed" in remark]
    assert bool(said) == remarked
    assert not said or "0.700x in kernel time over 3 cells" in said[0]
    assert not said or "3 of those are called different" in said[0]
    upgraded = compare(Side(run, before), Side(replace(run, run_id="r2", torch="2.14.0"), after))
    assert not any("The machine differed" in remark for remark in upgraded.remarks)


def test_a_machine_that_moved_some_of_what_did_not_change_says_so_though_their_mean_hardly_moved():
    run = replace(RUN, torch="2.13.0")
    cases = [replace(CASE, head_dim=d, head_dim_v=d, seqlen_q=n) for d in (16, 32, 64) for n in (128, 256, 512, 1024)]
    before = [sampled(1.0, implementation="torch_naive", case=case, seed=at) for at, case in enumerate(cases)]
    after = [
        sampled(0.95 if at < 4 else 1.0, implementation="torch_naive", case=case, seed=99 + at)
        for at, case in enumerate(cases)
    ]
    found = compare(Side(run, before), Side(replace(run, run_id="r2"), after))
    assert any("PyTorch's own, which did not change, differ by 3" in remark for remark in found.remarks)
    assert not any(cell.outcome in ("FASTER", "SLOWER") for cell in found.cells)


def test_cells_that_neither_side_could_run_are_counted_but_not_listed():
    found = compare(Side(RUN, [failed(Status.OOM)]), Side(RUN, [failed(Status.OOM)]))
    assert found.cells == ()
    assert (found.means[0].compared, found.means[0].tried, found.means[0].speedup) == (0, 1, None)


def test_a_comparison_is_plain_data_too():
    before, after = [sampled(1.0), failed(Status.OOM, mode="bwd")], [sampled(0.5), sampled(1.0, mode="bwd")]
    record = json.loads(json.dumps(as_json(compare(Side(RUN, before), Side(RUN, after)))))
    cells = {cell["outcome"]: cell for cell in record["cells"]}
    assert cells["FASTER"]["speedup"] == pytest.approx(2.0, rel=0.01)
    assert cells["FASTER"]["low"] < 2.0 < cells["FASTER"]["high"]
    assert cells["FASTER"]["seqlen_q"] == 128
    assert (cells["GAINED"]["first_ms"], cells["GAINED"]["first_status"]) == (None, "oom")
    assert set(cells["GAINED"]) == set(cells["FASTER"])


# the command


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path))
    monkeypatch.setattr(journal, "PUBLISHED", tmp_path / "published")
    before = [sampled(1.0), sampled(1.0, mode="bwd", seed=3), sampled(3.0, implementation="y", seed=5)]
    after = [sampled(2.0), sampled(0.5, mode="bwd", seed=4), sampled(3.0, implementation="y", seed=6)]
    RunFolder.create(tmp_path, RUN, before)
    RunFolder.create(tmp_path, replace(RUN, run_id="r2", driver="575"), [replace(m, run_id="r2") for m in after])
    return tmp_path


def test_the_command_lists_what_changed_and_the_regression_first(home, capfd):
    assert main(["compare", "r1", "r2"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert "  driver  570  ->  575" in lines
    verdicts = [line.split()[0] for line in lines[-3:]]
    assert verdicts == ["SLOWER", "FASTER", "SAME"]
    assert any("kernel" in line and "all" in line and "3 of 3" in line for line in lines)


def test_the_command_gives_data_and_takes_implementations(home, capfd):
    assert main(["compare", "r1/y", "r1/x", "--json"]) == 0
    record = json.loads(capfd.readouterr().out)
    assert [(c["implementation"], c["outcome"]) for c in record["cells"]] == [("y -> x", "FASTER")]
    assert (record["only_first"], record["only_second"]) == (0, 1)


@pytest.mark.parametrize(
    "sides,answer",
    [
        (("r1", "r9"), "There is no run 'r9'"),
        (("r1/x", "r2"), "Either both A and B name an implementation"),
        (("r1/x", "r2/z"), "Run 'r2' has no 'z'. Possible: x, y."),
    ],
)
def test_the_command_says_what_is_possible(home, sides, answer, capfd):
    assert main(["compare", *sides]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert answer in err
