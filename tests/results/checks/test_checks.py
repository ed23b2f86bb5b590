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
from tests.cases import cases, named

LLAMA = Case(level="model", subject="llama2-7b", batch=1, seqlen_q=2048, seqlen_k=2048, dtype="float16")
VAGUE = Case(level="op", subject="attention")
STEP = decode_case(  # 134 MB
    batch=4, num_heads=64, num_kv_heads=8, context=8192, head_dim=128, dtype="bfloat16"
)
TRAINING = replace(LLAMA, batch=4, optimizer="adamw_bf16")
TRAINED_MB = levels.memory_mb(TRAINING, facts_of("triton_fa2").memory, "train")
OF_RUNS = {rule.name for rule in CHECKS if rule.look.__module__.endswith(("chips", "stolen"))}  # in test_stolen.py
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
def test_a_rule_finds_what_breaks_it_and_is_silent_where_nothing_is_wrong(rule):
    rows = EXAMPLES[rule][0]
    findings = found(rule, *rows)
    assert findings
    known = {m.measurement_id for m in rows}
    for finding in findings:
        assert set(finding.measurement_ids) <= known
        assert any(character.isdigit() for character in finding.sentence)
        assert finding.sentence.endswith(".")
        assert "  " not in finding.sentence
    assert found(rule, *EXAMPLES[rule][1]) == []


@pytest.mark.parametrize("rule,of,rows,count,words", named(__file__, "test_a_rule_finds_as_much_as_is_wrong"))
def test_a_rule_finds_as_much_as_is_wrong(rule, of, rows, count, words):
    findings = found(rule, *(made(**said) for said in rows), run=replace(H200, **of))
    assert len(findings) == count
    assert all(word in finding.sentence for finding in findings for word in words)


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


def test_own_rows_are_judged_by_their_samples_and_a_lead_within_the_band_contradicts_nothing():
    blurred = noisy(1.0, spread_by=0.5), noisy(1.03, "y", spread_by=0.5, seed=3)
    assert len(found("within_spread", *blurred)) == 1
    assert len(found("noisy", *blurred)) == 2
    calls = [replace(m, timing="eager") for m in blurred]
    assert found("within_spread", *calls) == found("noisy", *calls) == [], "a host is noisy"
    sharp = noisy(1.0, spread_by=0.01), noisy(1.2, "y", spread_by=0.01, seed=3)
    assert found("within_spread", *sharp) == found("noisy", *sharp) == []
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


def test_a_row_without_a_number_is_nothing_to_check():
    names = EXAMPLES.keys() - {"not_out_of_memory", "other_memory"}
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
