"""The gate before every timing: right implementations pass, and ways to cheat do not; more are planted bugs."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from kernels import reference, registry
from kernels.attention.torch_naive import attention as naive
from results.records import Case, attention_case
from runner.levels import make_inputs, op
from runner.levels.op import rounded_to_fp8
from runner.measure.check import ALONE, FLOORS, Oracle, check, check_timed, error_of, make_oracle, poison

CASE = attention_case(batch=1, num_heads=2, seqlen=63, head_dim=16, dtype="float32", causal=True)


FORWARD, BACKWARD = op.PASSES


def oracle_of(case: Case = CASE) -> Oracle:
    return make_oracle(make_inputs(case, "cpu", seed=3), seed=3)


def verdicts(attention, case: Case = CASE):
    oracle = oracle_of(case)
    return check(attention, FORWARD, oracle), check(attention, BACKWARD, oracle)


@pytest.mark.parametrize("name", ["torch_naive", "torch_sdpa_auto", "torch_sdpa_math", "torch_sdpa_flash"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("seqlen", [1, 63, 128])
def test_right_implementations_pass(name: str, dtype: str, seqlen: int) -> None:
    case = replace(CASE, dtype=dtype, seqlen_q=seqlen, seqlen_k=seqlen)
    forward, backward = verdicts(registry.get(name).attention, case)
    assert (forward.reason, backward.reason) == (None, None)
    assert set(forward.errors) == {"out"}
    assert set(backward.errors) == {"dq", "dk", "dv"}
    assert forward.first_ms > 0 and forward.warm_ms > 0


def zeros(q, k, v, **options):
    return naive(q, k, v, causal=True) * 0


CHEATS = (
    zeros,
    lambda q, k, v, **_: torch.empty_like(q) + naive(q, k, v, causal=True) * 0,
    lambda q, k, v, **_: q * 0 + k * 0 + v * 0,
    lambda q, k, v, **_: naive(q, k, v, causal=True)[:, :, :-1],
)


@pytest.mark.parametrize("cheat", CHEATS, ids=("zeros", "unwritten", "right on zeros", "of another shape"))
def test_a_cheat_does_not_pass_the_forward(cheat) -> None:
    assert check(cheat, FORWARD, oracle_of()).reason.startswith("out is wrong: relative error ")


ON_GPU = attention_case(batch=2, num_heads=8, seqlen=2048, head_dim=64, dtype="float16", causal=True)


_LATE = 10**8  # cycles, about 50 ms: who does not wait for the result reads too early on a busy host, too


def elsewhere(*, waits_before: bool, waits_after: bool):
    """Computes on a stream of its own, and waits for the data, or lets others wait for the result, or does not."""

    side = torch.cuda.Stream()

    def attention(q, k, v, **options):
        current = torch.cuda.current_stream()
        with torch.cuda.stream(side):
            if waits_before:
                side.wait_stream(current)
                torch.cuda._sleep(_LATE)
            out = naive(q, k, v, **options)
        if waits_after:
            current.wait_stream(side)
        return out

    return attention


@pytest.mark.gpu
@pytest.mark.parametrize(("before", "after"), [(False, True), (True, False), (False, False), (True, True)])
def test_work_on_another_stream_passes_only_if_it_is_waited_for(before: bool, after: bool) -> None:
    oracle = make_oracle(make_inputs(ON_GPU, "cuda", seed=3), seed=3)
    verdict = check(elsewhere(waits_before=before, waits_after=after), FORWARD, oracle)
    assert (verdict.reason is None) == (before and after)


def test_the_budget_is_twice_the_naive_error_plus_a_floor_or_the_floor_where_naive_does_not_fit(monkeypatch) -> None:
    oracle = oracle_of()
    budget, source = oracle.budget("dk")
    assert budget.relative == 2 * oracle.naive[None]["dk"].relative + FLOORS["float32"]
    assert source == "twice torch_naive plus a floor"
    oracle = replace(oracle_of(), naive={None: None})
    budget, source = oracle.budget("out")
    assert budget.relative == ALONE * FLOORS["float32"]
    assert "does not fit" in source
    assert check(registry.get("torch_sdpa_math").attention, FORWARD, oracle).reason is None

    def too_large(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    plain = replace(registry.get("torch_naive"), attention=too_large)
    monkeypatch.setitem(registry.implementations(), "torch_naive", plain)
    assert oracle_of().naive == {None: None}


def times(factor: float):
    return lambda q, k, v, **options: naive(q.float(), k.float(), v.float(), causal=True).to(q.dtype) * factor


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_fused_implementation_is_held_to_what_a_fused_kernel_must_lose(dtype: str) -> None:
    oracle = oracle_of(replace(CASE, dtype=dtype))
    tight, source = oracle.budget("out", fused=True)
    assert source == "twice the error of an exact fused kernel"
    assert tight.relative == 2 * oracle.fused["out"].relative < oracle.budget("out")[0].relative / 2
    assert check(times(1.0), FORWARD, oracle, fused=True).reason is None
    assert "twice the error of an exact fused kernel" in check(times(1.01), FORWARD, oracle, fused=True).reason


def test_the_tighter_budget_is_for_16_bits_and_no_other_precision() -> None:
    assert oracle_of().fused == {}
    oracle = make_oracle(make_inputs(replace(CASE, dtype="bfloat16"), "cpu", seed=3), 3, (None, "fp8"))
    assert oracle.budget("out", "fp8", fused=True) == oracle.budget("out", "fp8")


@pytest.mark.parametrize("features", [None, "softcap=3"])
def test_a_wrong_row_among_many_is_found_though_neither_mean_nor_largest_error_show_it(features, monkeypatch) -> None:
    monkeypatch.setattr("kernels.features._CHUNK", 256)
    case = replace(CASE, seqlen_q=1024, seqlen_k=1024, dtype="bfloat16", features=features)
    oracle = oracle_of(case)

    def without_last_dk(q, k, v, **options):
        k = k.clone() if k.requires_grad else k
        if k.requires_grad:
            k.register_hook(lambda gradient: gradient.index_fill(2, torch.tensor([1023]), 0.0))
        return naive(q, k, v, **options)

    found = check(without_last_dk, BACKWARD, oracle)
    allowed, _ = oracle.budget("dk")
    assert found.errors["dk"].relative < allowed.relative and found.errors["dk"].largest < allowed.largest
    assert found.reason.startswith("dk is wrong in 1 of 2048 rows, first in (0, 1, 1023): error ")


def timed_reason(attention, mode: str = "fwd") -> str | None:
    oracle = oracle_of()
    call = op.call(attention, oracle.inputs, mode)
    call()
    names = ("out",) if mode == "fwd" else ("dq", "dk", "dv")
    make, doubled = partial(op.call, attention, oracle.inputs, mode), partial(op.doubled, oracle.inputs, mode)
    return check_timed(make, names, doubled, oracle)


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_a_right_result_grows_with_its_inputs_after_timing(mode: str) -> None:
    assert timed_reason(naive, mode) is None


def test_a_call_that_takes_long_is_looked_at_twice(monkeypatch) -> None:
    monkeypatch.setattr("runner.measure.check.LONGEST_LOOK_S", 0.0)
    calls = []

    def attention(q, k, v, **options):
        calls.append(q)
        return naive(q, k, v, causal=True)

    assert timed_reason(attention) is None
    assert len(calls) == 3, "one before, two in the check"


class Unread(torch.Tensor):
    """Acts like a tensor and could compute when it is read."""


@pytest.mark.parametrize(
    "late,words",
    [
        (lambda out: out.as_subclass(Unread), "The result is a Unread, not a plain tensor"),
        (lambda out: out.to_sparse(), "The result is not a dense tensor on cpu"),
        (lambda out: torch._neg_view(-out), "The result is not a dense tensor on cpu"),
        (lambda out: out.to("meta"), "The result is not a dense tensor on cpu"),
    ],
)
def test_a_result_that_can_be_computed_when_it_is_read_does_not_pass(late, words: str) -> None:
    def attention(q, k, v, **options):
        return late(naive(q, k, v, causal=True).detach())

    assert check(attention, FORWARD, oracle_of()).reason.startswith(words)
    assert timed_reason(attention).startswith(f"After timing: {words}")


def test_doubling_leaves_the_inputs_and_their_versions_as_they_were() -> None:
    inputs = make_inputs(CASE, "cpu", seed=3)
    before = [(x.detach().clone(), x._version) for x in (inputs.q, inputs.k, inputs.v, inputs.dout)]
    with op.doubled(inputs, "fwd_bwd"):
        assert torch.equal(inputs.v, 2 * before[2][0])
    for x, (values, version) in zip((inputs.q, inputs.k, inputs.v, inputs.dout), before, strict=True):
        assert torch.equal(x, values) and x._version == version


def test_an_oracle_of_forwards_alone_allows_the_same_and_knows_no_gradient() -> None:
    inputs = make_inputs(CASE, "cpu", seed=3)
    oracle, both = make_oracle(inputs, seed=3, modes={"fwd"}), oracle_of()
    assert set(oracle.exact) == set(oracle.naive[None]) == {"out"}
    assert oracle.budget("out") == both.budget("out")
    assert check(naive, FORWARD, oracle).reason is None
    assert check(zeros, FORWARD, oracle).reason


def test_the_same_seed_gives_the_same_inputs_and_another_gives_others() -> None:
    first, same, other = (make_inputs(CASE, "cpu", seed) for seed in (3, 3, 4))
    for name in ("q", "k", "v", "dout"):
        assert torch.equal(getattr(first, name), getattr(same, name))
        assert not torch.equal(getattr(first, name), getattr(other, name))
    assert abs(first.q.std().item() - 1) < 0.1


def test_neither_the_check_nor_poison_touches_the_inputs() -> None:
    oracle = oracle_of()
    before = oracle.inputs.q.detach().clone()
    check(naive, FORWARD, oracle)
    assert torch.equal(oracle.inputs.q, before)
    inputs = make_inputs(CASE, "cpu", 0)
    poison(inputs)
    assert all(bool(torch.isfinite(t).all()) for t in (inputs.q, inputs.k, inputs.v, inputs.dout))


def test_errors_are_relative_to_the_reference_and_nan_stays_nan() -> None:
    exact = torch.full((1, 1, 4, 4), 2.0, dtype=torch.float64)
    assert error_of(exact.float() + 0.02, exact).relative == pytest.approx(0.01, rel=1e-3)
    assert error_of(exact.float() + 0.02, exact).largest == pytest.approx(0.02, rel=1e-3)
    spoiled = exact.float().clone()
    spoiled[0, 0, 0, 0] = math.nan
    assert math.isnan(error_of(spoiled, exact).relative)
    assert error_of(exact[:, :, :2].float(), exact).relative == math.inf


def test_grouped_heads_windows_and_unequal_lengths_are_checked_too() -> None:
    case = replace(CASE, batch=2, num_heads=4, num_kv_heads=2, seqlen_q=40, seqlen_k=64, window_size=9)
    forward, backward = verdicts(naive, case)
    assert (forward.reason, backward.reason) == (None, None)


class TestFp8:
    """Held to the float64 result of inputs rounded to e4m3, by torch's own conversion."""

    CASE = attention_case(batch=1, num_heads=2, seqlen=150, head_dim=16, dtype="float16", causal=True)

    def verdict(self, attention):
        inputs = make_inputs(self.CASE, "cpu", seed=3)
        oracle = make_oracle(inputs, seed=3, precisions={"fp8"}, modes={"fwd"})
        return check(attention, FORWARD, oracle, "fp8")

    @staticmethod
    def attention(q, k, v, *, of_values=rounded_to_fp8, **mask):
        return reference.attention(rounded_to_fp8(q), rounded_to_fp8(k), of_values(v), **mask).out.to(q.dtype)

    def test_rounded_inputs_pass(self):
        verdict = self.verdict(self.attention)
        assert verdict.reason is None
        assert verdict.errors["out"].relative > 2 * FLOORS["float16"]

    def test_a_bit_of_the_values_alone_does_not(self):
        reason = self.verdict(partial(self.attention, of_values=lambda v: v.double().round())).reason
        assert "the error of rounding the inputs to FP8" in reason

    def test_rows_share_the_least_power_of_two_by_which_they_fit(self):
        x = torch.zeros(1, 1, 300, 2, dtype=torch.float16)
        x[0, 0, 0, 0], x[0, 0, 5, 1], x[0, 0, 200, 0] = 450.0, 1.1, 1.1
        got = rounded_to_fp8(x)[0, 0]
        assert (got[0, 0], got[5, 1], got[200, 0]) == (448.0, 1.125, 1.125)
        assert torch.count_nonzero(got) == 3
