"""Level model: operations by every convention, bytes of a step, words."""

from dataclasses import replace

import pytest

from results import levels
from results.levels.memory import MemoryLaw, WorkspaceLaw
from results.levels.model import FLOP_CONVENTIONS, training_flops, unmasked_flops
from results.records import Case, case_to_json

LEVEL = levels.level_of("model")
TRAIN = Case(level="model", subject="llama2-7b", batch=4, seqlen_q=2048, seqlen_k=2048, dtype="bfloat16", causal=True)
DECODE = replace(TRAIN, batch=1, seqlen_q=1, seqlen_k=512, window_size=0)


def of_token(convention: str, case: Case = TRAIN) -> float:
    return training_flops(case_to_json(case), convention) / (case.batch * case.seqlen_q)


def test_palm_counts_six_operations_a_parameter_of_matrices_and_attention_in_full_and_causal_half_of_it():
    assert of_token("palm") == 6 * 6_607_077_376 + 12 * 32 * 4096 * 2048
    assert levels.flops(TRAIN, "train") == of_token("palm") * 8192
    case = replace(TRAIN, subject="llama3-8b", seqlen_q=8192, seqlen_k=8192)
    assert 1 - 6 * 7_504_658_432 / of_token("palm", case) == pytest.approx(0.22, abs=0.005)
    halved = (of_token("palm") - of_token("causal")) / (12 * 32 * 4096 * 2048)
    assert halved == pytest.approx(0.5, abs=1e-3)


def test_other_conventions_are_those_of_their_sources():
    mpt = replace(TRAIN, subject="llama2-7b")  # 6.7e9 parameters, 32 layers, hidden 4096, as MPT-7B
    assert 10643 * of_token("llm-foundry", mpt) / 989e12 == pytest.approx(0.46, abs=0.02)
    assert of_token("nanogpt") - of_token("torchtitan") == 6 * 32000 * 4096
    gpt2 = replace(TRAIN, subject="gpt2", seqlen_q=1024, seqlen_k=1024)
    assert of_token("nanogpt", gpt2) == 6 * (124_439_808 - 1024 * 768) + 12 * 12 * 768 * 1024
    assert all(convention.source and convention.words for convention in FLOP_CONVENTIONS.values())


def test_forward_is_a_third_of_training_and_a_prefill_counts_the_head_for_its_last_token_only():
    assert levels.flops(TRAIN, "fwd") == pytest.approx(levels.flops(TRAIN, "train") / 3)
    assert levels.flops(TRAIN, "bwd") == pytest.approx(levels.flops(TRAIN, "train") * 2 / 3)
    assert levels.flops(TRAIN, "step") is None
    prefill, head = levels.flops(TRAIN, "prefill"), 32000 * 4096
    assert levels.flops(TRAIN, "fwd") - prefill == pytest.approx(2 * head * 4 * 2047)


@pytest.mark.parametrize(("context", "tokens_per_s"), [(512, 319), (2048, 301), (8192, 246), (16384, 197)])
def test_bytes_of_a_step_give_the_ceiling_of_generation_at_4300_gb_per_s(context, tokens_per_s):
    moved = levels.bytes_moved(replace(DECODE, seqlen_k=context), "decode")
    assert 4.3e12 / moved == pytest.approx(tokens_per_s, rel=0.01)


def test_a_batch_reads_more_experts_than_a_token_and_a_model_cut_to_few_layers_counts_those():
    lite = replace(DECODE, subject="deepseek-v2-lite")
    one, many = (levels.bytes_moved(replace(lite, batch=batch), "decode") for batch in (1, 64))
    assert one / 2 == pytest.approx(2_451_308_544, rel=0.05)
    assert 4.5 < many / one < 64
    cut = replace(TRAIN, num_layers=2)
    per_layer = (levels.flops(replace(TRAIN, num_layers=4), "train") - levels.flops(cut, "train")) / 2
    assert levels.flops(TRAIN, "train") == pytest.approx(levels.flops(cut, "train") + 30 * per_layer)


@pytest.mark.parametrize(("optimizer", "bytes_"), [("sgd", 6), ("adamw_bf16", 14), ("adamw_fp32_master", 30)])
def test_an_optimizer_step_moves_each_state_both_ways(optimizer, bytes_):
    assert levels.bytes_moved(replace(TRAIN, optimizer=optimizer), "step") == bytes_ * 6_738_415_616


def test_an_unknown_model_or_open_shape_counts_nothing():
    assert levels.flops(replace(TRAIN, subject="llama4"), "train") is None
    assert levels.flops(replace(TRAIN, batch=None), "train") is None
    assert levels.bytes_moved(replace(DECODE, dtype=None), "decode") is None


def test_words_name_the_model_its_shape_and_settings():
    case = replace(TRAIN, num_layers=4, optimizer="adamw_bf16", checkpointing=True, compiled=False)
    assert LEVEL.words(case) == "llama2-7b, 4 layers, batch 4, seqlen 2048, bfloat16, adamw_bf16, checkpointing"
    assert LEVEL.short(case) == "llama2-7b L4 B4 S2048 bfloat16 adamw_bf16 checkpointing"
    assert LEVEL.words(DECODE) == "llama2-7b, batch 1, context 512, bfloat16"
    assert LEVEL.words(replace(DECODE, optimizer="none")) == LEVEL.words(DECODE)


def test_learned_positions_end_a_model_whatever_the_memory():
    law = MemoryLaw("linear", fwd=WorkspaceLaw(numbers=1))
    found = {
        name: levels.largest_seqlen(replace(DECODE, subject=name, num_heads=12), law, "decode", 80 * 1024)
        for name in ("gpt2", "llama2-7b")
    }
    assert found["gpt2"] == 1024
    assert found["llama2-7b"] > 100_000


def test_operations_that_the_mask_leaves_are_those_of_the_causal_count():
    fields = case_to_json(TRAIN)
    assert unmasked_flops(fields, "train") == pytest.approx(training_flops(fields, "causal"))
    assert unmasked_flops(case_to_json(DECODE), "decode") == levels.flops(DECODE, "decode")
    windowed, whole = (
        unmasked_flops(fields | {"subject": name, "seqlen_q": 32768, "seqlen_k": 32768}, "prefill")
        for name in ("mistral-7b", "llama3-8b")
    )
    assert windowed < 0.8 * whole
