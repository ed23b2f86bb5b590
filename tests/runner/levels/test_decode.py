"""Level decode: caches that hold NaN where nothing is in use, and the check that finds who reads it."""

import math
from dataclasses import replace

import pytest
import torch

from kernels import reference, registry
from kernels.decode.step import DecodeStep
from kernels.decode.torch_naive import decode as naive
from kernels.registry import UnsupportedCase
from results.levels import bytes_moved
from results.records import Case, decode_case
from runner.levels import decode, make_inputs
from runner.measure.check import check, make_oracle

CASE = decode_case(batch=3, num_heads=4, num_kv_heads=2, context=33, head_dim=16, dtype="float32")
LATENT = decode_case(batch=3, num_heads=4, num_kv_heads=1, context=33, head_dim=32, dtype="float32", latent_dim=16)
PAGED, RAGGED, E4M3 = {"page_size": 4}, {"lengths": "ragged"}, {"cache_dtype": "float8_e4m3fn"}
FORMS = [{}, PAGED, {"page_size": 1}, RAGGED, {**PAGED, **RAGGED}, E4M3, {**PAGED, **RAGGED, **E4M3}]
MIXED = {"page_size": 4, "lengths": "2q21_q5s33_3q1s12", "batch": 6, "seqlen_q": 21}
PREFILL = {"page_size": 4, "seqlen_q": 20}
(STEP,) = decode.PASSES


def found(attention, case: Case = CASE):
    return check(attention, STEP, make_oracle(make_inputs(case, "cpu", seed=3), seed=3))


def test_the_cache_is_normal_up_to_each_length_and_nan_beyond_it() -> None:
    inputs = make_inputs(replace(CASE, **RAGGED), "cpu", seed=3)
    lengths = inputs.step.lengths
    assert sum(lengths) == 3 * 33
    assert len(set(lengths)) == 3
    assert inputs.step.cache_seqlens.tolist() == list(lengths)
    for cache in inputs.caches:
        assert cache.shape[2] - max(lengths) in range(decode.ROOM, decode.ROOM + 64)
        for at, length in enumerate(lengths):
            assert bool(torch.isfinite(cache[at, :, :length]).all())
            assert bool(torch.isnan(cache[at, :, length:]).all())


def test_pages_are_permuted_no_two_sequences_share_one_and_the_rest_is_nan() -> None:
    inputs = make_inputs(replace(CASE, **PAGED), "cpu", seed=3)
    table, pages = inputs.step.page_table, inputs.step.k_cache
    assert table.shape == (3, 9)
    used = table.flatten().tolist()
    assert len(set(used)) == 27
    assert used != sorted(used)
    assert pages.shape == (27 + decode.SPARE_PAGES, 4, 2, 16)
    assert bool(torch.isfinite(pages[table[:, :8].flatten()]).all())
    last = pages[table[:, 8]]  # holds one token of 33
    assert bool(torch.isfinite(last[:, 0]).all())
    assert bool(torch.isnan(last[:, 1:]).all())
    spare = sorted(set(range(len(pages))) - set(used))
    assert bool(torch.isnan(pages[spare]).all())


def test_entries_out_of_use_name_no_page_and_the_table_stays_when_other_data_is_filled_in() -> None:
    step = make_inputs(replace(CASE, **PAGED, **RAGGED), "cpu", seed=3).step
    for row, pages in zip(step.page_table.tolist(), step.pages_of_sequences, strict=True):
        assert set(row[pages:]) <= {decode.NO_PAGE}
        assert all(0 <= page < len(step.k_cache) for page in row[:pages])
    assert bool((step.readable_table() < len(step.k_cache)).all())
    inputs = make_inputs(replace(CASE, **PAGED, **RAGGED), "cpu", seed=3)
    table, q = inputs.step.page_table.clone(), inputs.step.q.clone()
    inputs.fill(4)
    assert torch.equal(inputs.step.page_table, table)
    assert not torch.equal(inputs.step.q, q)


@pytest.mark.parametrize(
    "case", [*(replace(CASE, **form) for form in (*FORMS, MIXED, PREFILL)), LATENT, replace(LATENT, **PAGED)]
)
def test_the_bytes_given_and_returned_are_those_of_the_level(case: Case) -> None:
    inputs = make_inputs(case, "cpu", seed=3)
    out = math.prod(inputs.result_shapes()[0]) * 4
    padding = 0
    if inputs.step.page_table is not None:  # the table has room for the longest in every row
        padding = 4 * (inputs.step.page_table.numel() - sum(inputs.step.pages_of_sequences))
    assert inputs.bytes_of("decode") - padding + out == bytes_moved(case, "decode")


def test_the_oracle_is_attention_over_the_keys_in_use_in_a_row_or_in_pages() -> None:
    inputs = make_inputs(CASE, "cpu", seed=3)
    exact = decode.oracle(inputs, ("decode",))["out"]
    torch.testing.assert_close(exact, reference.attention(inputs.step.q, *inputs.step.in_use()).out)
    inputs = make_inputs(replace(CASE, **PAGED, **RAGGED), "cpu", seed=3)
    step, exact = inputs.step, decode.oracle(inputs, ("decode",))["out"]
    for at, length in enumerate(step.lengths):
        rows = [int(step.page_table[at, token // 4]) * 4 + token % 4 for token in range(length)]
        k, v = (cache.flatten(0, 1)[rows].transpose(0, 1)[None] for cache in inputs.caches)
        torch.testing.assert_close(exact[at : at + 1], reference.attention(step.q[at : at + 1], k, v).out)


def test_a_quantised_cache_has_the_error_of_its_values_recorded_and_scales_for_each_head() -> None:
    errors = found(naive, replace(CASE, **E4M3)).errors
    assert errors["out"].relative < 1e-5
    assert 0.005 < errors["out_original"].relative < 0.1  # 3 bits of mantissa
    assert set(found(naive).errors) == {"out"}
    inputs = make_inputs(replace(CASE, **E4M3), "cpu", seed=3)
    assert float(inputs.step.k_scale[0] / inputs.step.k_scale[1]) == pytest.approx(2, rel=0.3)
    exact = inputs.originals[0][:, :, :33].double()
    stored = inputs.step.k_cache[:, :, :33].double() * inputs.step.k_scale[:, None, None]
    assert float((stored - exact).norm() / exact.norm()) < 0.04


def test_latents_are_scaled_as_the_heads_before_absorption() -> None:
    inputs = make_inputs(LATENT, "cpu", seed=3)
    assert inputs.step.scale == 192**-0.5
    records = inputs.step.k_cache[:, :, :33]
    exact = reference.attention(inputs.step.q, records, records[..., :16], softmax_scale=192**-0.5).out
    torch.testing.assert_close(decode.oracle(inputs, ("decode",))["out"], exact)


@pytest.mark.parametrize("name", registry.implementations("decode"))
@pytest.mark.parametrize(
    "case",
    [
        *(replace(CASE, **form) for form in FORMS),
        *(replace(CASE, seqlen_q=3, **form) for form in FORMS),
        *(replace(CASE, window_size=5, seqlen_q=2, **form) for form in FORMS),
        replace(CASE, dtype="float16", cache_dtype="float16"),
        replace(CASE, num_kv_heads=4),
        LATENT,
        replace(LATENT, seqlen_q=2, **PAGED, **RAGGED),
        *(replace(CASE, **form) for form in (MIXED, MIXED | {"page_size": 0}, MIXED | {"window_size": 3}, PREFILL)),
        replace(CASE, **PREFILL | RAGGED),
    ],
    ids=str,
)
def test_implementations_are_right_or_say_up_front_why_not(name: str, case: Case) -> None:
    implementation = registry.get(name, "decode")
    reason = implementation.reason_against(case, registry.describe_device("cpu"))
    if reason:
        assert name in reason or implementation.unavailable
        return
    checked = found(implementation.attention, case)
    assert checked.reason is None
    assert set(checked.errors) >= {"out"}


def test_who_looks_up_an_entry_of_the_table_that_is_out_of_use_fails() -> None:
    def looks(step: DecodeStep):
        return lambda: step.k_cache[step.page_table]

    with pytest.raises(IndexError):
        found(looks, replace(CASE, **PAGED, **RAGGED))


@pytest.mark.parametrize("case", [replace(CASE, cache_dtype="float16"), replace(LATENT, **E4M3)])
def test_other_caches_are_not_measured(case: Case) -> None:
    with pytest.raises(UnsupportedCase, match="e4m3 caches of keys and values are"):
        decode.empty_inputs(case, "cpu")


def test_what_is_planned_is_planned_once_and_every_call_is_made_without_gradients() -> None:
    seen = []

    def attention(step: DecodeStep):
        seen.append("planned")

        def attend():
            seen.append(torch.is_grad_enabled())
            return step.q

        return attend

    call = decode.call(attention, make_inputs(CASE, "cpu", seed=0), "decode")
    call()
    call()
    assert seen == ["planned", False, False]
