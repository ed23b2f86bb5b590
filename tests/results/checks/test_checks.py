"""Every rule on the smallest rows that break it and on rows that do not."""

from dataclasses import replace

import pytest

from results import levels
from results.checks import CHECKS, check
from results.checks.finding import printed_range
from results.gpus import bounds_of
from results.implementations import facts_of
from results.records import Case, Measurement, Status, decode_case
from tests.builders import H200, LARGE, at, found, ms_for, noisy, row
from tests.cases import cases

UNKNOWN = replace(H200, gpu_name="Some GPU", gpu_memory_mb=None)
LLAMA = Case(level="model", subject="llama2-7b", batch=1, seqlen_q=2048, seqlen_k=2048, dtype="float16")
VAGUE = Case(level="op", subject="attention")
STEP = decode_case(  # 134 MB
    batch=4, num_heads=64, num_kv_heads=8, context=8192, head_dim=128, dtype="bfloat16"
)
TRAINING = replace(LLAMA, batch=4, optimizer="adamw_bf16")
TRAINED_MB = levels.memory_mb(TRAINING, facts_of("triton_fa2").memory, "train")
OF_RUNS = {"same_as_run", "another_chip", "like_another_chip"}  # about the facts of runs: test_stolen.py
CASES = {"LARGE": LARGE, "LLAMA": LLAMA, "VAGUE": VAGUE, "STEP": STEP}


def made(case: dict | None = None, tflops: float = 0.0, trained: float = 0.0, **fields) -> Measurement:
    """Make a row of the table: its value, or the TFLOP/s of a forward of its length, or its share of TRAINED_MB."""
    changes = dict(case or {})
    of = CASES[changes.pop("of", "LARGE")]
    of = replace(at(changes.pop("seqlen")) if "seqlen" in changes else of, **changes)
    value = ms_for(tflops, (of.seqlen_q / 8192) ** 2) if tflops else trained * TRAINED_MB or fields.pop("value", None)
    return row(value, case=of, **fields)


EXAMPLES = {  # rule -> rows that break it, rows that do not
    rule: tuple([made(**said) for said in rows] for rows in both)
    for rule, both in cases(__file__, "rows that break a rule, and rows that do not").items()
}


def test_every_rule_has_an_example():
    assert set(EXAMPLES) | OF_RUNS == {rule.name for rule in CHECKS}


@pytest.mark.parametrize("rule", EXAMPLES)
def test_a_rule_finds_what_breaks_it(rule):
    rows = EXAMPLES[rule][0]
    findings = found(rule, *rows)
    assert findings
    known = {m.measurement_id for m in rows}
    for finding in findings:
        assert set(finding.measurement_ids) <= known
        assert any(character.isdigit() for character in finding.sentence)
        assert finding.sentence.endswith(".")
        assert "  " not in finding.sentence


@pytest.mark.parametrize("rule", EXAMPLES)
def test_a_rule_is_silent_where_nothing_is_wrong(rule):
    assert found(rule, *EXAMPLES[rule][1]) == []


def test_a_finding_says_its_arithmetic():
    (finding,) = found("above_peak", row(ms_for(1200)))
    assert "is 1200 TFLOP/s" in finding.sentence
    assert "above the 989.5 of NVIDIA H200 (NVIDIA H200 data sheet" in finding.sentence


def test_a_device_that_is_not_known_by_its_name_is_bounded_by_the_fastest_that_exists():
    assert found("above_peak", row(ms_for(2700)), run=UNKNOWN) == []
    (finding,) = found("above_peak", row(ms_for(2800)), run=UNKNOWN)
    assert "of the fastest GPU that exists" in finding.sentence


@pytest.mark.parametrize("name,tflops", cases(__file__, "test_chips_are_known_by_the_words_that_people_write"))
def test_chips_are_known_by_the_words_that_people_write(name, tflops):
    assert bounds_of(name).known
    assert bounds_of(name).tflops("bfloat16") == tflops


def test_a_name_of_several_chips_is_taken_as_the_fastest_and_that_is_said():
    assert bounds_of("H100").bandwidth_gb_per_s == 3900
    assert "taken as the fastest of h100 nvl, h100 pcie, h100 sxm" in bounds_of("H100").source
    assert bounds_of("A100 40GB").bandwidth_gb_per_s == 1555
    assert bounds_of("H200 NVL").power_w == 600 and bounds_of("H200").power_w == 700
    assert bounds_of("RTX 4090 Laptop GPU").source.endswith("; taken as the desktop's")


def test_a_device_whose_memory_is_not_said_has_that_of_its_chip():
    unsaid = replace(H200, gpu_name="L4", gpu_memory_mb=None)
    assert len(found("above_device", row(25_000.0, "peak_memory_mb"), run=unsaid)) == 1
    assert found("above_device", row(24_000.0, "peak_memory_mb"), run=unsaid) == []
    assert found("above_device", row(1e6, "peak_memory_mb"), run=UNKNOWN) == []


@pytest.mark.parametrize(
    "dtype,tflops,impossible",
    [("float32", 600, True), ("float32", 400, False), ("float8_e4m3fn", 1900, False), ("float8_e4m3fn", 2300, True)],
)
def test_the_peak_is_the_highest_that_the_dtype_can_use(dtype, tflops, impossible):
    assert bool(found("above_peak", row(ms_for(tflops), case=replace(LARGE, dtype=dtype)))) == impossible


def test_an_open_mask_counts_as_the_one_that_excuses_most():
    unsaid = replace(LARGE, causal=None, window_size=None)
    assert found("above_peak", row(ms_for(1500), case=unsaid)) == []
    (finding,) = found("above_peak", row(ms_for(3000), case=unsaid))
    assert "even if causal" in finding.sentence
    assert found("time_and_tflops", row(ms_for(400), case=unsaid), row(220.0, "tflops", case=unsaid)) == []


def test_a_case_is_completed_from_another_table_of_the_report_only_if_it_has_the_very_number():
    short = replace(LARGE, num_heads=None, num_kv_heads=None, head_dim=None, head_dim_v=None)
    here = row(ms_for(400), case=short), row(700.0, "tflops", case=short)
    (finding,) = found("time_and_tflops", *here, row(ms_for(400)))
    assert "num_heads 16" in finding.sentence
    assert found("time_and_tflops", *here, row(ms_for(401))) == []
    assert found("time_and_tflops", *here, row(ms_for(400)), row(ms_for(400), case=replace(LARGE, num_heads=32))) == []


def test_a_window_or_few_heads_of_keys_do_not_make_memory_impossible():
    few = replace(LARGE, num_heads=None, num_kv_heads=None)
    assert found("below_floor", row(1.0, "peak_memory_mb", "torch_naive", case=few)) == []
    inputs = 3 * 2 * 16 * 8192 * 128 * 2 / 2**20
    assert found("below_floor", row(inputs, "peak_memory_mb", "somebodys_own")) == []
    assert found("below_floor", row(inputs - 1, "peak_memory_mb", "somebodys_own")) != []
    kept = replace(LARGE, num_kv_heads=1)
    assert found("below_floor", row(8.0, "kv_cache_mb", case=kept)) == []
    assert found("below_floor", row(7.0, "kv_cache_mb", case=kept)) != []


def test_training_needs_gradients_too_and_a_model_must_fit_the_device():
    assert found("below_weights", row(14_000.0, "peak_memory_mb", case=LLAMA, mode="train")) != []
    big = replace(LLAMA, subject="llama2-70b", dtype=None)
    assert found("above_device", row(1.0, "samples_per_s", case=big, mode=None)) == []  # 117 GiB in 140
    small = replace(H200, gpu_memory_mb=81_920.0)
    (finding,) = found("above_device", row(1.0, "samples_per_s", case=big, mode=None), run=small)
    assert "117 GiB at 16 bits" in finding.sentence


def test_out_of_memory_is_believed_where_heads_or_implementation_differ():
    oom = row(None, status=Status.OOM, case=at(1024))
    assert found("not_out_of_memory", oom, row(1.0, name="y", case=at(8192))) == []
    assert found("not_out_of_memory", oom, row(1.0, case=at(8192, num_heads=8, num_kv_heads=8))) == []
    explained = row(None, status=Status.OUT_OF_RESOURCES, case=at(1024), printed="OOM")
    assert found("not_out_of_memory", explained, row(1.0, case=at(8192))) == []
    noted = replace(explained, status=Status.OOM, note="shared memory OOM in the backward kernel")
    assert found("not_out_of_memory", noted, row(1.0, case=at(8192))) == []


def test_own_rows_are_judged_by_their_samples():
    blurred = noisy(1.0, spread_by=0.5), noisy(1.03, "y", spread_by=0.5, seed=3)
    assert len(found("within_spread", *blurred)) == 1
    assert len(found("noisy", *blurred)) == 2
    calls = [replace(m, timing="eager") for m in blurred]
    assert found("within_spread", *calls) == found("noisy", *calls) == [], "a host is noisy"
    sharp = noisy(1.0, spread_by=0.01), noisy(1.2, "y", spread_by=0.01, seed=3)
    assert found("within_spread", *sharp) == found("noisy", *sharp) == []


def test_a_lead_smaller_than_the_band_is_a_lead_and_no_contradiction():
    ahead = noisy(1.0, spread_by=0.004), noisy(1.015, "y", spread_by=0.004, seed=3)
    assert found("within_spread", *ahead) == []
    whole = replace(ahead[0], mode="fwd_bwd")
    assert found("whole_below_part", whole, replace(noisy(1.015, spread_by=0.004), mode="bwd")) == []
    assert len(found("whole_below_part", whole, replace(noisy(1.1, spread_by=0.004), mode="bwd"))) == 1


def test_times_that_are_known_only_roughly_contradict_nothing():
    """Blurred: the backward's median is the largest of the three, but its interval reaches to the others."""
    ends = {"fwd": (0.9, 1.0, 9.0), "bwd": (2.0, 9.0, 9.5), "fwd_bwd": (2.5, 3.0, 12.0)}
    blurred = [
        row(value, mode=mode, ci_low=low, ci_high=high, samples=(low, value, high, value, low, high))
        for mode, (low, value, high) in ends.items()
    ]
    sharp = [replace(m, ci_low=m.value * 0.999, ci_high=m.value * 1.001, samples=(m.value,) * 6) for m in blurred]
    for rule in ("whole_below_part", "backward_over_forward", "not_the_sum"):
        assert found(rule, *blurred) == []
        assert len(found(rule, *sharp)) == 1


def test_timings_are_never_mixed():
    rows = row(1.0, timing="kernel"), row(2.0, mode="bwd", timing="kernel"), row(1.5, mode="fwd_bwd", timing="eager")
    assert found("whole_below_part", *rows) == []


def test_a_row_without_a_number_is_nothing_to_check():
    names = EXAMPLES.keys() - {"not_out_of_memory"}
    rows = [replace(m, value=None, std=None, status=Status.ERROR) for name in names for m in EXAMPLES[name][0]]
    assert check([(H200, rows)]) == []


@pytest.mark.parametrize("value", [1e-99, 1e-12, 1e99])
def test_odd_values_break_no_rule(value):
    rows = [
        replace(m, value=value, std=None, printed=None) if m.value is not None else m
        for broken, sound in EXAMPLES.values()
        for m in (*broken, *sound)
    ]
    rows += [replace(m, case=replace(m.case, dtype=None)) for m in rows]
    assert isinstance(check([(H200, rows)]), list)


@pytest.mark.parametrize(
    "value,text,low,high", cases(__file__, "test_a_printed_number_is_known_to_half_of_its_last_digit")
)
def test_a_printed_number_is_known_to_half_of_its_last_digit(value, text, low, high):
    assert printed_range(row(value, printed=text)) == pytest.approx((low, high))


@pytest.mark.parametrize("name,impossible", [("mine", True), ("mine_fp8", False)])
def test_an_implementation_that_multiplies_in_fp8_is_held_to_the_rate_of_fp8(name, impossible):
    assert bool(found("above_peak", row(ms_for(1330), name=name))) == impossible
    assert bool(found("above_peak", row(ms_for(2300), name=name)))
    assert found("above_measured", row(ms_for(1330), name="mine_fp8")) == []
    assert found("above_measured", row(ms_for(900), name="mine"))
