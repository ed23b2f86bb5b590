"""Level model: every mode of small models, the check that finds wrong attention, and what is refused beforehand."""

import gc
import weakref
from dataclasses import replace
from functools import partialmethod

import pytest
import torch

from kernels import registry
from kernels.models import AttentionInside, CausalModel
from results.records import Case
from runner.levels import make_inputs, model
from runner.measure.check import CheckedPass, check, make_oracle
from runner.sweeps.model import model_case
from tests.kernels.tiny_models import FAMILIES, VOCAB, tiny

pytest.importorskip("transformers", reason="whole models need transformers")

NAIVE = registry.get("torch_naive", "model").attention
CPU = registry.describe_device("cpu")
SEQLEN = 24


@pytest.fixture(autouse=True)
def small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let names of the table mean small models of the same family."""
    monkeypatch.setattr(model, "sizes_of", tiny)
    monkeypatch.setattr("results.levels.model_table.model", tiny)
    model._LAST.clear()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models be traced as for inductor, without its compiling."""
    compile_layers = partialmethod(CausalModel.compile_layers, backend="aot_eager")
    monkeypatch.setattr(CausalModel, "compile_layers", compile_layers)


def case_of(mode: str, name: str = "llama2-70b", **changes: object) -> Case:
    options = {"batch": 2, "seqlen": SEQLEN, "dtype": "float32", **changes}
    if mode == "decode":
        options["query_tokens"] = 1
    elif mode != "prefill":
        options.setdefault("optimizer", "adamw_bf16")
    return model_case(name, **options)


def found(attention: AttentionInside, case: Case) -> dict[str, CheckedPass]:
    oracle = make_oracle(make_inputs(case, "cpu", seed=3), seed=3)
    return {each.mode: check(attention, each, oracle) for each in model.passes(case)}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["prefill", "decode", "train"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_right_in_every_mode_or_says_why_not(name: str, mode: str) -> None:
    case = case_of(mode, name)
    for implementation in registry.implementations("model").values():
        if implementation.family != "pytorch" or implementation.name == "torch_flex":
            continue
        if reason := implementation.reason_against(case, CPU):
            assert reason.startswith(implementation.name)
            continue
        for checked in found(implementation.attention, case).values():
            assert checked.reason is None, implementation.name


@pytest.mark.parametrize(
    "changes", [{"dtype": "bfloat16"}, {"checkpointing": True}, {"optimizer": "adamw_fp32_master"}]
)
def test_training_is_right_in_other_settings(changes: dict) -> None:
    assert {each.reason for each in found(NAIVE, case_of("train", **changes)).values()} == {None}


def test_what_a_pass_returns_is_of_the_twin() -> None:
    checked = found(NAIVE, case_of("prefill"))["prefill"]
    assert set(checked.errors) == {"logits", "loss"}
    assert set(found(NAIVE, case_of("train"))) == {"fwd", "bwd"}


def not_causal(q, k, v, **mask):
    return NAIVE.full(q, k, v, **{**mask, "causal": False})


def wrong_scale(q, k, v, **mask):
    return NAIVE.full(q, k, v, **{**mask, "softmax_scale": 1.1 * q.shape[-1] ** -0.5})


def other_key_heads(q, k, v, **mask):
    return NAIVE.full(q, k.flip(1), v.flip(1), **mask)


def one_head_for_all(q, k, v, **mask):
    return NAIVE.full(q, k, v, **mask)[:, :1].expand_as(q)


class _WithoutGradientOfK(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dx):
        return torch.zeros_like(dx)


def dropped_gradient(q, k, v, **mask):
    return NAIVE.full(q, _WithoutGradientOfK.apply(k), v, **mask)


@pytest.mark.parametrize("cheat", [not_causal, wrong_scale, other_key_heads, one_head_for_all])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_wrong_attention_shows_in_prefill_and_in_training(cheat, dtype: str) -> None:
    wrong = AttentionInside(cheat, None)
    assert found(wrong, case_of("prefill", dtype=dtype))["prefill"].reason.startswith("logits is wrong: ")
    assert found(wrong, case_of("train", dtype=dtype))["bwd"].reason.startswith("grads is wrong: ")


def test_a_dropped_gradient_shows_in_the_backward_alone_and_a_step_that_reads_other_keys() -> None:
    checked = found(AttentionInside(dropped_gradient, None), case_of("train"))
    assert checked["fwd"].reason is None
    assert checked["bwd"].reason.startswith("grads is wrong: ")

    def one_key_short(step):
        return NAIVE.cached(replace(step, lengths=tuple(length - 1 for length in step.lengths)))

    assert found(AttentionInside(None, one_key_short), case_of("decode"))["decode"].reason.startswith("logits is wrong")


def test_calls_work_at_the_depth_of_the_case_the_twin_is_gone_and_the_cache_is_there_before() -> None:
    inputs = make_inputs(case_of("prefill"), "cpu", seed=1)
    assert inputs.twin().model.num_layers == 2
    call = model.call(NAIVE, inputs, "prefill")
    assert call().shape == (2, 1, VOCAB)
    assert inputs.whole().model.num_layers == 3
    assert inputs._twin is None
    inputs = make_inputs(case_of("prefill"), "cpu", seed=1)
    call = model.call(NAIVE, inputs, "prefill")
    before = inputs.bytes_of("prefill")
    call()
    assert inputs.bytes_of("prefill") == before


def test_cases_that_share_a_model_build_it_once_and_training_has_its_own() -> None:
    built = [make_inputs(case_of(mode), "cpu", seed=1).whole().model for mode in ("prefill", "decode", "train")]
    assert built[0] is built[1]
    assert built[2] is not built[0]
    assert make_inputs(case_of("prefill", dtype="bfloat16"), "cpu", seed=1).whole().model is not built[0]


@pytest.mark.usefixtures("traced")
def test_a_model_that_is_kept_for_the_next_case_is_freed_by_another() -> None:
    whole = make_inputs(case_of("prefill", compiled=True), "cpu", seed=1).whole()
    kept = weakref.ref(whole.model.attention_parameters[0])
    del whole
    gc.freeze()  # as the runner does between cases
    assert kept() is not None
    make_inputs(case_of("train"), "cpu", seed=1).whole()
    assert kept() is None


def test_the_bytes_given_are_weights_cache_and_states() -> None:
    for mode, states in (("prefill", 0), ("decode", 0), ("train", 8)):
        inputs = make_inputs(case_of(mode), "cpu", seed=1)
        model.call(NAIVE, inputs, mode)()
        parameters = tiny("llama2-70b").parameters
        cache = 0 if mode == "train" else 3 * 2 * SEQLEN * 2 * 2 * 16 * 4
        ids = inputs.tokens.numel() * 8
        scalars = inputs.whole().state_bytes - states * parameters
        assert 0 <= scalars <= 4 * 64  # a step count a weight
        assert inputs.bytes_of(mode) == 4 * parameters + cache + ids + inputs.whole().state_bytes


_OF_DYNAMO = pytest.mark.filterwarnings("ignore:The .grad attribute")  # of tensors that it looks at itself


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=_OF_DYNAMO)])
def test_every_part_of_training_can_be_timed_beside_the_others(compiled: bool) -> None:
    inputs = make_inputs(case_of("train", compiled=compiled), "cpu", seed=1)
    losses = [float(model.call(NAIVE, inputs, "train")())]
    assert model.call(NAIVE, inputs, "fwd")().requires_grad
    backward = model.call(NAIVE, inputs, "bwd")
    assert len(backward()) == len(backward()) == len(inputs.whole().model.parameters)
    model.call(NAIVE, inputs, "step")()
    losses.append(float(model.call(NAIVE, inputs, "train")()))
    assert abs(losses[1] - losses[0]) < 1e-3  # the rate is small: weights stay where they are
    assert all(weight.grad is None for weight in inputs.whole().model.parameters)


def test_a_step_takes_the_gradients_that_it_is_given_and_training_has_no_device_time() -> None:
    inputs = make_inputs(case_of("train"), "cpu", seed=1)
    weight = inputs.whole().model.parameters[0]
    before = weight.detach().clone()
    model.call(NAIVE, inputs, "step")()
    assert not torch.equal(weight, before)
    assert {model.device_call(NAIVE, inputs, mode, lambda: None) for mode in model.TRAINING} == {None}


@pytest.mark.parametrize(("mode", "calls"), [("prefill", 3), ("decode", 3), ("train", 3)])
def test_the_attention_alone_is_that_of_every_layer(mode: str, calls: int) -> None:
    seen = []

    def full(q, k, v, **mask):
        seen.append((tuple(q.shape), tuple(k.shape)))
        return NAIVE.full(q, k, v, **mask)

    def cached(step):
        seen.append((tuple(step.q.shape), tuple(step.k_cache.shape)))
        return NAIVE.cached(step)

    case = case_of(mode)
    model.inner_call(AttentionInside(full, cached), make_inputs(case, "cpu", seed=1), mode)()
    assert seen == [((2, 4, case.seqlen_q, 16), (2, 2, SEQLEN, 16))] * calls
    assert model.inner_call(NAIVE, make_inputs(case_of("train"), "cpu", seed=1), "fwd") is None


def test_the_checked_twin_is_no_larger_than_it_must_be() -> None:
    large = replace(case_of("prefill", batch=8), seqlen_q=16384, seqlen_k=16384, num_layers=80)
    twin = model.checked_case(large)
    assert (twin.batch, twin.seqlen_q, twin.seqlen_k, twin.num_layers) == (2, 4096, 4096, 2)
    step = model.checked_case(replace(large, seqlen_q=1))
    assert (step.batch, step.seqlen_q, step.seqlen_k) == (2, 1, 16384)
