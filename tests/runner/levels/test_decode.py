"""Level decode: a cache that holds NaN beyond the context, and the check that finds who reads it."""

import math
from dataclasses import replace

import pytest
import torch

from kernels import reference, registry
from kernels.decode.torch_naive import decode as naive
from kernels.registry import UnsupportedCase
from results.levels import bytes_moved
from results.records import Case, decode_case
from runner.levels import decode, make_inputs
from runner.measure.check import check, make_oracle

CASE = decode_case(batch=2, num_heads=4, num_kv_heads=2, context=33, head_dim=16, dtype="float32")
(STEP,) = decode.PASSES


def found(attention, case: Case = CASE):
    return check(attention, STEP, make_oracle(make_inputs(case, "cpu", seed=3), seed=3))


def test_the_cache_is_normal_up_to_the_context_and_nan_beyond_it() -> None:
    inputs = make_inputs(CASE, "cpu", seed=3)
    for cache, used in ((inputs.k_cache, inputs.k), (inputs.v_cache, inputs.v)):
        assert cache.shape == (2, 2, 33 + decode.ROOM, 16)
        assert used.shape == (2, 2, 33, 16)
        assert bool(torch.isfinite(used).all())
        assert bool(torch.isnan(cache[:, :, 33:]).all())
    assert inputs.cache_seqlens.tolist() == [33, 33]


def test_the_bytes_given_and_returned_are_those_of_the_level() -> None:
    inputs = make_inputs(CASE, "cpu", seed=3)
    assert inputs.bytes_of("decode") + inputs.q.numel() * 4 == bytes_moved(CASE, "decode")


def test_the_oracle_is_attention_over_the_keys_in_use() -> None:
    inputs = make_inputs(CASE, "cpu", seed=3)
    exact = decode.oracle(inputs, ("decode",))["out"]
    torch.testing.assert_close(exact, reference.attention(inputs.q, inputs.k, inputs.v).out)


@pytest.mark.parametrize("name", registry.implementations("decode"))
@pytest.mark.parametrize(
    "changes", [{}, {"dtype": "float16"}, {"seqlen_q": 3}, {"window_size": 5}, {"num_kv_heads": 4}]
)
def test_implementations_are_right_or_say_up_front_why_not(name: str, changes: dict) -> None:
    implementation, case = registry.get(name, "decode"), replace(CASE, **changes)
    reason = implementation.reason_against(case, registry.describe_device("cpu"))
    if reason:
        assert reason.startswith(name)
        return
    checked = found(implementation.attention, case)
    assert checked.reason is None
    assert set(checked.errors) == {"out"}


def whole_cache(q, k_cache, v_cache, *, context, **mask):
    return naive(q, k_cache, v_cache, context=k_cache.shape[2], **mask)


def weighed_with_zero(q, k_cache, v_cache, *, context, **mask):
    out = naive(q, k_cache, v_cache, context=context, **mask)
    return out + 0 * v_cache[:, :1, -1:, :]


def one_key_short(q, k_cache, v_cache, *, context, **mask):
    return naive(q, k_cache, v_cache, context=context - 1, **mask)


def of_other_heads(q, k_cache, v_cache, *, context, **mask):
    return naive(q, k_cache.flip(1), v_cache.flip(1), context=context, **mask)


@pytest.mark.parametrize("cheat", [whole_cache, weighed_with_zero, one_key_short, of_other_heads])
def test_who_reads_other_keys_than_those_in_use_does_not_pass(cheat) -> None:
    checked = found(cheat)
    assert checked.reason.startswith("out is wrong: ")
    assert math.isnan(checked.errors["out"].relative) == (cheat in (whole_cache, weighed_with_zero))


@pytest.mark.parametrize("changes", [{"page_size": 16}, {"latent_dim": 8}])
def test_a_paged_or_latent_cache_is_not_measured_yet(changes: dict) -> None:
    with pytest.raises(UnsupportedCase, match="contiguous"):
        decode.empty_inputs(replace(CASE, **changes), "cpu")


def test_every_call_of_a_step_is_made_without_gradients() -> None:
    seen = []

    def attention(q, k_cache, v_cache, **options):
        seen.append((torch.is_grad_enabled(), options["context"], options["causal"]))
        return naive(q, k_cache, v_cache, **options)

    decode.call(attention, make_inputs(CASE, "cpu", seed=0), "decode")()
    assert seen == [(False, 33, True)]
