"""Runs that are copies of another run, or that name a chip which cannot have made them."""

from dataclasses import replace

import pytest

from kernels import registry
from results.checks import check
from results.checks.chips import RUNS_ON
from results.records import Measurement
from tests.builders import H200, at, found, noisy, row, timed
from tests.cases import cases
from tests.results.checks.lies import scaled

OURS = replace(H200, source="shipped", created="2026-11-20", compute_capability="9.0", sm_count=132)
THEIRS = replace(OURS, run_id="r2", source="upload", created="2026-11-01")
ROWS = [replace(noisy(1.0 + n, spread_by=0.01 * n, seed=n), case=at(512 * n)) for n in range(1, 7)]


def copies(change, count=6, *, ours=OURS, theirs=THEIRS, rows=ROWS):
    """Return the findings of a run whose rows are changed copies of ours."""
    stolen = [replace(change(m), run_id=theirs.run_id) for m in rows[:count]]
    return [f for f in check([(theirs, stolen)], [(ours, rows)]) if f.rule == "same_as_run"]


@pytest.mark.parametrize("factor,words", [(1.0, "to the digit, such as"), (0.9, "multiplied by 0.9")])
def test_a_copy_of_a_run_is_one_finding_that_names_it(factor, words):
    (finding,) = copies(lambda m: scaled(m, factor))
    assert finding.run_id == "r2" and len(finding.measurement_ids) == 6
    assert words in finding.sentence and "are those of r1 (NVIDIA H200)" in finding.sentence


def test_values_alone_are_enough_if_most_of_them_are_the_same():
    def plain(m):
        return replace(m, samples=(), ci_low=None, ci_high=None)

    assert "multiplied by 0.5" in copies(lambda m: plain(scaled(m, 0.5)))[0].sentence
    assert copies(plain, count=4) == []
    assert copies(lambda m: replace(plain(m), value=m.value * (1 + m.value / 1e3), p20=None, p80=None)) == []


def test_times_of_compiling_are_enough_where_all_others_differ():
    rows = [row(1e3 / n, "compile_ms", case=at(512 * n)) for n in range(1, 4)]
    assert "3 of 3 cells the compile times" in copies(lambda m: m, rows=rows)[0].sentence
    assert copies(lambda m: m, count=1, rows=rows) == []
    assert copies(lambda m: replace(m, value=m.value / 1e3), theirs=THEIRS, rows=rows) == []


def test_two_cells_another_measurement_and_the_run_that_ships_are_no_copy():
    assert copies(lambda m: m, count=2) == []
    assert copies(lambda m: replace(m, samples=tuple(s * (1 + n * 1e-6) for n, s in enumerate(m.samples)))) == []
    assert copies(lambda m: m, ours=replace(THEIRS, run_id="r1"), theirs=replace(OURS, run_id="r2")) == []


@pytest.mark.parametrize("words,changes", cases(__file__, "test_facts_that_the_named_chip_cannot_have"))
def test_facts_that_the_named_chip_cannot_have(words, changes):
    (finding,) = found("another_chip", *ROWS, run=replace(OURS, **changes))
    assert words in finding.sentence
    assert found("like_another_chip", *ROWS, run=replace(OURS, **changes)) == []


@pytest.mark.parametrize("words,changes", cases(__file__, "test_facts_that_the_named_chip_hardly_has"))
def test_facts_that_the_named_chip_hardly_has(words, changes):
    (finding,) = found("like_another_chip", *ROWS, run=replace(OURS, **changes))
    assert words in finding.sentence


def test_a_clock_above_that_of_a_data_center_card():
    run = replace(OURS, gpu_name="H100 PCIe", sm_count=None, gpu_memory_mb=None)
    fast = [replace(m, sm_clock_mhz=1980.0) for m in ROWS]
    assert "1980 MHz instead of 1755" in found("like_another_chip", *fast, run=run)[0].sentence
    assert found("like_another_chip", *ROWS, run=run) == []


def test_implementations_that_do_not_run_on_the_chip_are_named():
    run = replace(OURS, gpu_name="NVIDIA B200", compute_capability=None, sm_count=None)
    (finding,) = found("another_chip", row(1.0, name="gluon_hopper@old"), row(1.0, name="triton_fa2"), run=run)
    assert "but gluon_hopper@old does not run on compute capability 10.0" in finding.sentence
    assert found("another_chip", row(1.0, name="triton_fa2"), run=replace(run, gpu_name="MI300X")) == []
    assert found("another_chip", row(1.0, name="gluon_hopper"), run=replace(run, gpu_name="MI300X"))


def test_a_run_without_a_fact_of_its_chip_is_doubted_and_an_unknown_or_right_chip_believed():
    bare = replace(THEIRS, run_id="r1", protocol="standard/1", sm_count=None, gpu_memory_mb=None)
    assert "nothing shows which chip it was" in found("without_facts", *ROWS, run=bare)[0].sentence
    assert found("without_facts", *ROWS, run=replace(bare, sm_count=132)) == []
    for run in (OURS, replace(OURS, gpu_name="Some GPU", compute_capability="3.0")):
        assert found("another_chip", *ROWS, run=run) + found("like_another_chip", *ROWS, run=run) == []


def test_samples_that_are_no_multiples_of_the_timers_ticks_are_told():
    run = replace(OURS, protocol="standard/1")
    ticks = [replace(ROWS[0], samples=tuple(count * 32e-6 for count in range(2000, 2030)), timing="kernel")]
    assert found("off_ticks", *ticks, run=run) == []
    (finding,) = found("off_ticks", *(scaled(m, 1.001) for m in ticks), run=run)
    assert "of 30 samples below 1 ms" in finding.sentence
    assert found("off_ticks", *(scaled(m, 1.001) for m in ticks), run=replace(run, gpu_name="A100 40GB")) == []


@pytest.mark.parametrize("name", [name for name in RUNS_ON if not name.startswith("flash")])
def test_the_limits_of_this_projects_kernels_and_pytorchs_are_those_that_they_declare(name):
    levels = [registry.implementations(level) for level in ("op", "decode")]
    kernel = next(known[name] for known in levels if name in known)
    said = tuple(
        each and ".".join(map(str, each)) for each in (kernel.min_compute_capability, kernel.max_compute_capability)
    )
    assert said == RUNS_ON[name]


def _kernels(run_id: str, apart: float, *, slower: float = 1.0) -> list[Measurement]:
    """Return times of PyTorch's kernels on a chip that is faster at every other shape than another chip."""
    return [
        replace(timed(n * slower * (1 + apart * (n % 2)), implementation=name), run_id=run_id, case=at(512 * n))
        for n in range(1, 33)
        for name in ("torch_sdpa_flash", "torch_naive")
    ]


@pytest.mark.parametrize("name,times,words", cases(__file__, "test_times_that_fit_another_chip"))
def test_times_that_fit_another_chip(name, times, words):
    h200 = replace(OURS, run_id="h200")
    known = [(h200, _kernels("h200", 0.0)), (replace(h200, run_id="h100", gpu_name="H100 SXM"), _kernels("h100", 0.03))]
    told = replace(THEIRS, gpu_name=name, gpu_memory_mb=None)
    doubts = [f.sentence for f in check([(told, _kernels("r2", **times))], known) if f.rule == "unlike_its_chip"]
    assert [words in each for each in doubts] == [True] * bool(words)


def test_a_gpu_that_has_another_name_elsewhere():
    ours, theirs = (replace(run, gpu_uuid="5570") for run in (OURS, replace(THEIRS, gpu_name="H100 SXM")))
    (finding,) = [
        f for f in check([(theirs, [replace(ROWS[0], run_id="r2")])], [(ours, ROWS)]) if f.rule == "of_another_gpu"
    ]
    assert "is the one of r1, by the hash 5570 of its UUID, and that is NVIDIA H200" in finding.sentence
