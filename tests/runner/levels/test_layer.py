"""Level layer: layers are held to an oracle that shares no code with them, so that a wrong one is found."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from kernels import layers, plans, registry
from kernels.attention import torch_naive
from results.records import Case, layer_case
from runner.levels import layer, make_inputs
from runner.measure.check import CheckedPass, check, make_oracle

CASE = layer_case("gqa", batch=2, num_heads=4, num_kv_heads=2, seqlen=33, head_dim=16, dtype="float32", causal=False)
CASES = {
    "mha_fused": replace(CASE, subject="mha_fused", num_kv_heads=4),
    "mha": replace(CASE, subject="mha", num_kv_heads=4),
    "gqa": CASE,
    "mqa": replace(CASE, subject="mqa", num_kv_heads=1),
    "mla": replace(CASE, subject="mla", num_kv_heads=4, latent_dim=24),
    "mha_fused_bias": replace(CASE, subject="mha_fused_bias", num_kv_heads=4),
    "gqa_bias": replace(CASE, subject="gqa_bias"),
}


def checked(inputs: layer.LayerInputs, attention=torch_naive.attention) -> list[CheckedPass]:
    """Return what the check finds of forward and backward, the oracle made of the inputs as they came."""
    honest = make_inputs(inputs.case, "cpu", seed=3)
    oracle = replace(make_oracle(honest, seed=3), inputs=inputs)
    return [check(attention, each, oracle) for each in layer.passes(inputs.case)]


def reasons(case: Case, attention) -> list[str | None]:
    return [found.reason for found in checked(make_inputs(case, "cpu", seed=3), attention)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["torch_naive", "torch_sdpa_auto", "torch_sdpa_flash", "torch_sdpa_math"])
@pytest.mark.parametrize("subject", CASES)
def test_layers_are_right_around_implementations(subject: str, name: str, causal: bool) -> None:
    case = replace(CASES[subject], causal=causal)
    found = checked(make_inputs(case, "cpu", seed=3), registry.get(name, "layer").attention)
    assert [each.reason for each in found] == [None, None]
    assert max(error.relative for each in found for error in each.errors.values()) < 1e-5, "the oracle is right too"


def test_the_backward_is_checked_for_dx_and_the_gradient_of_every_weight() -> None:
    tensors = {subject: layer.passes(case)[1].tensors for subject, case in CASES.items()}
    assert tensors["mha_fused"] == ("dx", "dw_out", "dw_qkv")
    assert tensors["gqa"] == ("dx", "dw_out", "dw_q", "dw_k", "dw_v")
    assert tensors["mla"] == ("dx", "dw_out", "dw_q", "dw_down", "dw_up")
    assert tensors["mha_fused_bias"] == ("dx", "dw_out", "db_out", "dw_qkv", "db_qkv")


def test_a_seed_gives_all_implementations_the_same_weights() -> None:
    first, second, other = (make_inputs(CASE, "cpu", seed=seed) for seed in (3, 3, 4))
    for name, weight in first.weights.items():
        assert torch.equal(weight, second.weights[name])
        assert not torch.equal(weight, other.weights[name])
    around = first.layer.around(torch_naive.attention)
    assert all(a is b for a, b in zip(around.parameters(), first.layer.parameters(), strict=True))


def test_attention_gets_views_of_what_the_projections_give_and_no_repeated_heads() -> None:
    seen = {}

    def attention(q, k, v, *, causal):
        seen.update(q=q, k=k, v=v)
        return torch_naive.attention(q, k, v, causal=causal)

    make_inputs(CASE, "cpu", seed=3).layer.around(attention)(torch.randn(2, 33, 64))
    assert seen["q"].shape == (2, 4, 33, 16) and seen["q"].stride() == (33 * 64, 16, 64, 1)
    assert seen["k"].shape == (2, 2, 33, 16) and seen["k"].stride() == (33 * 32, 16, 32, 1)
    fused = make_inputs(CASES["mha_fused"], "cpu", seed=3).layer.around(attention)
    fused(torch.randn(2, 33, 64))
    assert seen["q"].stride() == seen["v"].stride() == (33 * 192, 16, 192, 1)
    assert seen["q"].untyped_storage().data_ptr() == seen["v"].untyped_storage().data_ptr()


class _WithGradientsInOne(torch.autograd.Function):
    """torch_naive whose dq, dk and dv lie in one tensor where q, k and v do."""

    @staticmethod
    def forward(ctx, q, k, v):
        with torch.enable_grad():
            ctx.inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
            ctx.out = torch_naive.attention(*ctx.inputs, causal=False)
        return ctx.out.detach()

    @staticmethod
    def backward(ctx, dout):
        room = plans.GradientRoom(*ctx.inputs, torch.empty_like)(*ctx.inputs)
        for gradient, found in zip(room, torch.autograd.grad(ctx.out, ctx.inputs, dout), strict=True):
            gradient.copy_(found)
        return room


@pytest.mark.parametrize("subject", ["mha_fused", "mla"])
def test_gradients_that_lie_side_by_side_are_not_copied(monkeypatch: pytest.MonkeyPatch, subject: str) -> None:
    inputs, stacked, stack = make_inputs(CASES[subject], "cpu", seed=3), [], torch.stack
    monkeypatch.setattr(torch, "stack", lambda *given, **more: (stacked.append(given), stack(*given, **more))[1])
    expected = layer.call(torch_naive.attention, inputs, "bwd")()
    assert len(stacked) == 1, "torch_naive's lie apart"
    found = layer.call(lambda q, k, v, causal: _WithGradientsInOne.apply(q, k, v), inputs, "bwd")()
    assert len(stacked) == 1
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_the_attention_alone_gets_what_it_gets_inside(mode: str) -> None:
    inputs, seen = make_inputs(CASE, "cpu", seed=3), []

    def attention(q, k, v, *, causal):
        seen.append([tensor.detach().clone() for tensor in (q, k, v)])
        return torch_naive.attention(q, k, v, causal=causal)

    layer.call(attention, inputs, mode)()
    layer.inner_call(attention, inputs, mode)()
    for inside, alone in zip(seen[0], seen[-1], strict=True):
        assert torch.equal(inside, alone)


# attention that is wrong


def of_other_heads(q, k, v, *, causal):
    return torch_naive.attention(q, k.flip(1), v.flip(1), causal=causal)


def keys_and_values_swapped(q, k, v, *, causal):
    return torch_naive.attention(q, v, k, causal=causal)


def heads_beside_tokens(q, k, v, *, causal):
    out = torch_naive.attention(q, k, v, causal=causal)
    return out.flatten(1, 2).unflatten(1, (out.shape[2], out.shape[1])).transpose(1, 2)


@pytest.mark.parametrize("fault", [of_other_heads, keys_and_values_swapped, heads_beside_tokens])
def test_a_layer_around_a_wrong_attention_is_caught_in_both_passes(fault) -> None:
    assert all(reasons(CASE, fault))


class _Zero(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(gradient)


class _Half(_Zero):
    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


def no_gradient_of_keys(q, k, v, *, causal):
    return torch_naive.attention(q, _Zero.apply(k), v, causal=causal)


def half_a_gradient_of_values(q, k, v, *, causal):
    return torch_naive.attention(q, k, _Half.apply(v), causal=causal)


@pytest.mark.parametrize(("fault", "tensor"), [(no_gradient_of_keys, "dw_k"), (half_a_gradient_of_values, "dw_v")])
@pytest.mark.parametrize("subject", ["gqa", "mha", "mqa"])
def test_a_dropped_gradient_is_caught_in_the_weight_that_it_belongs_to(fault, tensor: str, subject: str) -> None:
    forward, backward = checked(make_inputs(CASES[subject], "cpu", seed=3), fault)
    assert forward.reason is None
    assert backward.reason
    oracle = make_oracle(make_inputs(CASES[subject], "cpu", seed=3), seed=3)
    allowed = check(torch_naive.attention, layer.passes(CASES[subject])[1], oracle).errors[tensor]
    assert backward.errors[tensor].relative > 1e3 * allowed.relative


# layers that are wrong: a copy around another attention shares what was tampered with


def without_a_bias(module: nn.Module) -> None:
    module.project = lambda x: layers._heads(nn.functional.linear(x, module.qkv.weight) + 0 * module.qkv.bias, 16, 3)


def with_values_before_keys(module: nn.Module) -> None:
    project = type(module).project
    module.project = lambda x: [project(module, x)[at] for at in (0, 2, 1)]


def with_weights_of_the_first_call(module: nn.Module) -> None:
    kept = []

    def forward(x):
        if not kept:
            kept.append(module.out.weight.detach().clone())
        out = module.attention(*module.project(x), causal=module.shape.causal).transpose(1, 2).flatten(2)
        return nn.functional.linear(out, kept[0] + 0 * module.out.weight)

    module.forward = forward


def with_a_latent_of_zero_mean(module: nn.Module) -> None:
    module.up.register_forward_pre_hook(lambda _, given: (given[0] - given[0].mean(-1, keepdim=True),))


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("mha_fused_bias", without_a_bias),
        ("mha", with_values_before_keys),
        ("mha_fused", with_weights_of_the_first_call),
        ("mla", with_a_latent_of_zero_mean),
    ],
)
def test_a_wrong_layer_is_caught(subject: str, fault) -> None:
    inputs = make_inputs(CASES[subject], "cpu", seed=3)
    fault(inputs.layer)
    assert checked(inputs)[1].reason


def test_the_gradient_of_one_weight_that_stays_zero_is_caught() -> None:
    inputs = make_inputs(CASE, "cpu", seed=3)
    inputs.layer.q.weight.register_hook(torch.zeros_like)
    forward, backward = checked(inputs)
    assert forward.reason is None
    assert "dw_q is wrong" in backward.reason


def test_a_window_is_refused() -> None:
    with pytest.raises(registry.UnsupportedCase, match="without a window"):
        layer.empty_inputs(replace(CASE, window_size=8), "cpu")
