"""Eager times of two processes: a busy host is no change, a change that is everywhere still is one."""

import math
import random
from dataclasses import replace

import pytest

from results.compare.between_runs import LEAST, WITHOUT_CONTROLS, Shift, beyond_controls, beyond_rounds
from results.compare.compare import Side, compare
from results.compare.verdicts import Doubt, judge
from results.files import journal
from results.records import Measurement, Run, attention_case
from results.spread import spread

RUN = Run("r1", "local", protocol="standard/1")
NAMES = tuple(f"name{number}" for number in range(8))
SEQLENS = (128, 256, 512, 1024)
MODES = ("fwd", "bwd", "fwd_bwd")


def times(seed: int, *, busy: float = 0.0, slower=lambda name, seqlen, mode: 1.0, timing="eager") -> list[Measurement]:
    """A run of 8 implementations, 4 cases and 3 modes; a busy host shifts whole cells, all rounds of them."""
    rng, found = random.Random(seed), []
    for seqlen in SEQLENS:
        case = attention_case(batch=1, num_heads=1, seqlen=seqlen, head_dim=64, dtype="float16", causal=True)
        for name in NAMES:
            for mode in MODES:
                middle = slower(name, seqlen, mode) * math.exp(rng.gauss(0, busy))
                samples = [middle * math.exp(rng.gauss(0, 0.004)) for _ in range(30)]
                kind = {"metric": "latency_ms", "mode": mode, "timing": timing, "status": "ok"}
                found.append(Measurement("r1", case, name, **kind, **spread(samples), round_sizes=(10, 10, 10)))
    return found


def outcomes(before: list[Measurement], after: list[Measurement]) -> list[tuple[str, str]]:
    found = compare(Side(RUN, before), Side(replace(RUN, run_id="r2"), after))
    return [(cell.implementation, cell.outcome) for cell in found.cells if cell.outcome in ("FASTER", "SLOWER")]


@pytest.mark.parametrize("seed", range(3))
def test_a_busy_host_is_not_called_a_change_in_eager_time_though_every_round_shows_it(seed):
    before, after = times(2 * seed, busy=0.1), times(2 * seed + 1, busy=0.1)
    assert len(outcomes(before, after)) <= 1
    alone = [str(judge(a, b, protocol=RUN.protocol).verdict) for a, b in zip(before, after, strict=True)]
    assert len(alone) - alone.count("UNCLEAR") > 48, "the rounds alone must call most cells different"


def test_an_implementation_that_is_5_percent_slower_is_found_everywhere_or_in_its_one_case():
    after = times(2, slower=lambda name, seqlen, mode: 1.05 if name == "name3" else 1.0)
    assert outcomes(times(1), after) == [("name3", "SLOWER")] * len(SEQLENS) * len(MODES)
    after = times(2, slower=lambda name, seqlen, mode: 1.05 if (name, seqlen) == ("name3", 512) else 1.0)
    assert outcomes(times(1), after) == [("name3", "SLOWER")] * len(MODES)


def test_two_timings_of_one_process_share_its_host_and_nothing_is_added():
    before = [replace(m, implementation="before") for m in times(1) if m.implementation == "name0"]
    after = [replace(m, implementation="after") for m in times(2) if m.implementation == "name0"]
    found = compare(Side(RUN, before + after, "before"), Side(RUN, before + after, "after"))
    assert {cell.judgement.apart for cell in found.cells} == {None}


def test_a_few_cells_or_controls_cannot_tell_and_get_what_is_usual_between_processes():
    few = [Shift("x", 0.3 * number, 0.01) for number in range(LEAST - 1)]
    assert {shift.spread.variance for shift in beyond_rounds(few, few)} == {0.01**2}
    assert {shift.spread.variance for shift in beyond_rounds(few)} == {0.01**2 + WITHOUT_CONTROLS**2}
    assert beyond_rounds([]) == []
    few = [Shift("x", 0.3 * number, 0.01, 1.0) for number in range(LEAST - 1)]
    assert {(shift.spread.variance, shift.offset) for shift in beyond_controls(few, few)} == {
        (WITHOUT_CONTROLS**2, 0.0)
    }


def test_a_comparison_says_what_the_processes_differ_by():
    found = compare(Side(RUN, times(1, busy=0.1)), Side(replace(RUN, run_id="r2"), times(2, busy=0.1)))
    said = next(remark for remark in found.remarks if "vary with the host" in remark)
    share = float(said.split(" by ")[-1].split(" %")[0])
    assert 8 < share < 25  # two runs of 10 % each
    assert "and what the processes differ by" in found.cells[0].judgement.basis


def test_a_host_on_which_the_controls_take_longer_shows_no_change_of_that_size_in_others():
    ours, controls = ([Shift(name, 0.3 + number % 3 / 100, 0.01) for number in range(LEAST)] for name in ("x", "y"))
    alone = beyond_rounds([*ours, *controls])[0]
    assert alone.spread.variance < 0.02**2
    assert alone.offset == pytest.approx(0.31), "a host that became slower moves everything alike"
    assert beyond_rounds([*ours, *controls], controls)[0].spread.variance > 0.15**2


@pytest.mark.parametrize("timing", ["eager", "kernel"])
def test_times_of_the_same_code_differ_in_one_cell_of_a_hundred_at_most_between_the_shipped_runs(timing):
    folders = {folder.run_id: folder for folder in journal.published_folders()}
    names = ("h200-torch_vs_triton", "h200-fa2_speedup")
    found = compare(*(Side(folders[name].run(), folders[name].read()[0]) for name in names))
    cells = [c for c in found.cells if c.timing == timing and c.judgement]
    assert len(cells) > 500
    assert sum(cell.outcome in ("FASTER", "SLOWER") for cell in cells) <= len(cells) / 100


def test_the_first_and_the_second_run_may_change_places():
    there, back = judged(kernels(1), kernels(2, moved)), judged(kernels(2, moved), kernels(1))
    apart = [{(c.case, c.implementation, c.mode): c.judgement.apart for c in found.cells} for found in (there, back)]
    assert len(apart[0]) == 96
    assert apart[0] == pytest.approx(apart[1], rel=0.1)


def moved(name: str, seqlen: int, mode: str) -> float:
    """A process whose launches take longer: calls of many kernels lose a twentieth, those of one a hundredth."""
    return 1.05 if name in ("torch_b", "torch_e") else 1.01


def renamed(rows: list[Measurement]) -> list[Measurement]:
    """Six of the eight are PyTorch's own; device times."""
    names = dict(zip(NAMES, (*(f"torch_{letter}" for letter in "abcdef"), "ours_a", "ours_b"), strict=True))
    return [replace(m, implementation=names[m.implementation], timing="kernel") for m in rows]


def kernels(seed: int, slower=lambda name, seqlen, mode: 1.0) -> list[Measurement]:
    return [
        replace(m, **spread([slower(m.implementation, m.case.seqlen_q, m.mode) * s for s in m.samples]))
        for m in renamed(times(seed))
    ]


def judged(before: list[Measurement], after: list[Measurement], **facts) -> list:
    run = replace(RUN, torch="2.11", gpu_name="A GPU")
    return compare(Side(run, before), Side(replace(run, **{"run_id": "r2", **facts}), after))


def different(found) -> set[str]:
    return {cell.implementation for cell in found.cells if cell.outcome in ("FASTER", "SLOWER")}


def test_a_process_whose_launches_take_longer_is_no_change_of_device_times_where_torch_is_the_same():
    found = judged(kernels(1), kernels(2, moved))
    assert different(found) == set()
    (said,) = [remark for remark in found.remarks if "PyTorch's unchanged kernels vary by" in remark]
    assert "the intervals include that" in said
    other = judged(kernels(1), kernels(2, moved), torch="2.12")
    assert different(other) == set()
    assert any("No unchanged kernels are in both" in remark for remark in other.remarks)


def test_a_kernel_that_is_5_percent_slower_is_found_in_a_process_that_stayed_or_was_slower_too():
    found = judged(kernels(1), kernels(2, lambda name, seqlen, mode: 1.05 if name == "ours_a" else 1.0))
    assert different(found) == {"ours_a"}
    assert sum(cell.outcome == "SLOWER" for cell in found.cells) == len(SEQLENS) * len(MODES)
    found = judged(kernels(1), kernels(2, lambda name, seqlen, mode: 1.026))
    assert different(found) == set()
    assert {cell.outcome for cell in found.cells} == {"UNCLEAR"}
    found = judged(kernels(1), kernels(2, lambda name, seqlen, mode: 1.026 * (1.05 if name == "ours_a" else 1.0)))
    assert different(found) == {"ours_a"}


def test_without_common_controls_a_slower_process_is_not_a_slower_kernel():
    found = judged(kernels(1), kernels(2, lambda name, seqlen, mode: 1.047), torch="2.12")
    assert different(found) == set()
    slowed = kernels(2, lambda name, seqlen, mode: 1.5)
    twice = judged(kernels(1), slowed, torch="2.12", sweep={"name": "quick"})
    assert {cell.outcome for cell in twice.cells} == {"UNCLEAR"}, "no difference is shown to be the code's"
    assert {cell.judgement.doubt for cell in twice.cells} == {Doubt.ALONE}
    decides = "`python -m runner run quick --against-python PYTHON_WITH_TORCH_2.11` measures both"
    assert all(decides in said for said in (twice.cells[0].reason, twice.remarks[0]))
    few = [[m for m in rows if m.implementation == "ours_a"] for rows in (kernels(1), slowed)]
    assert "`python -m runner run SWEEP --against r1`" in judged(*few).cells[0].reason
    other_gpu = judged(kernels(1), slowed, gpu_name="Another GPU")
    assert {cell.outcome for cell in other_gpu.cells} == {"SLOWER"}, "there the machine is what is compared"


def test_one_sharp_cell_among_blurred_ones_tells_what_processes_differ_by():
    blurred = [Shift("x", 0.0, 1.0)] * 18 + [Shift("x", 0.5, 0.01), Shift("x", -0.5, 0.01)] * 3
    assert beyond_rounds(blurred)[0].spread.variance > 0.1


def test_two_cards_of_one_name_are_said_to_be_two():
    found = judged(kernels(1), kernels(2), gpu_uuid="b")
    assert not any("Two different" in remark for remark in found.remarks), "the first does not say which it was"
    run = replace(RUN, gpu_name="A GPU", gpu_uuid="a")
    found = compare(Side(run, kernels(1)), Side(replace(run, run_id="r2", gpu_uuid="b"), kernels(2)))
    assert any("Two different A GPU cards (a and b)" in remark for remark in found.remarks)
