"""The memory calculator: which card a model fits, and up to which context."""

from dataclasses import replace

import pytest

from results import levels
from results.implementations import facts_of
from results.recommend import model_fit
from results.records import Case

LINEAR, NAIVE = facts_of("triton_fa2").memory, facts_of("torch_naive").memory
STEP = Case(level="model", subject="llama2-7b", batch=1, seqlen_q=1, seqlen_k=16384, dtype="bfloat16", causal=True)


def test_a_model_fits_the_cards_that_hold_it():
    fits = {fit.card: fit.fits for fit in model_fit.on_cards(STEP, LINEAR, "decode")}
    assert (fits["16 GB"], fits["24 GB"]) == (False, True)
    large = replace(STEP, subject="llama3-70b", seqlen_k=1 << 20)
    assert not any(fit.fits for fit in model_fit.on_cards(large, LINEAR, "decode"))
    assert model_fit.on_cards(replace(STEP, subject="llama4"), LINEAR, "decode") == []
    assert model_fit.moments(replace(STEP, subject="llama4"), LINEAR, "decode") == []


@pytest.mark.parametrize("mode", ["decode", "prefill", "train"])
def test_the_longest_context_is_the_last_that_fits(mode):
    case = STEP if mode == "decode" else replace(STEP, seqlen_q=16384, optimizer="sgd")
    for fit in model_fit.on_cards(case, LINEAR, mode):
        if fit.longest:
            longest = replace(case, seqlen_q=1 if mode == "decode" else fit.longest, seqlen_k=fit.longest)
            one_more = replace(longest, seqlen_q=1 if mode == "decode" else fit.longest + 1, seqlen_k=fit.longest + 1)
            assert levels.memory_mb(longest, LINEAR, mode) <= fit.usable_mb
            assert levels.memory_mb(one_more, LINEAR, mode) > fit.usable_mb


def test_training_has_three_moments_and_parts_add_up_to_their_peak():
    case = replace(STEP, seqlen_q=2048, seqlen_k=2048, optimizer="adamw_bf16")
    found = model_fit.moments(case, LINEAR, "train")
    assert [moment.moment for moment in found] == ["at the loss", "in the backward", "at the step"]
    assert max(moment.peak for moment in found) == model_fit.on_cards(case, LINEAR, "train")[0].needs_mb
    for moment in model_fit.moments(replace(STEP, seqlen_q=2048, seqlen_k=2048), NAIVE, "prefill"):
        assert sum(value for _, value in model_fit.parts(moment)) == pytest.approx(moment.peak)
