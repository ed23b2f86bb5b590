"""Models of transformers around our attention: equal to transformers' own, with a cache, compiled, checkpointed."""

import copy
import dataclasses
import importlib.util

import pytest
import torch

from kernels import models, registry
from kernels.models import AttentionInside, CausalModel, loss_of
from kernels.registry import UnsupportedCase
from runner.sweeps.model import model_case
from tests.kernels.tiny_models import FAMILIES, VOCAB, tiny

pytest.importorskip("transformers", reason="whole models need transformers")

NAIVE = registry.get("torch_naive", "model").attention
SDPA = registry.get("torch_sdpa_auto", "model").attention
CPU = registry.describe_device("cpu")


def built(name: str, *, layers: int = 3, dtype: torch.dtype = torch.float32) -> CausalModel:
    sizes = dataclasses.asdict(tiny(name))
    model = models.build(sizes, num_layers=layers, context=32, dtype=dtype, device="cpu", seed=1)
    model.use(NAIVE)
    return model


def tokens(count: int, batch: int = 2) -> torch.Tensor:
    return torch.randint(0, VOCAB, (batch, count), generator=torch.Generator().manual_seed(count))


def logits(model: CausalModel, ids: torch.Tensor, **options: object) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(ids, **options)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gpt-j-6b"])
def test_logits_are_those_of_transformers_own_attention(name: str) -> None:
    model, ids = built(name), tokens(20)
    own = copy.deepcopy(model.module)
    own.config._attn_implementation = "eager"
    with torch.no_grad():
        expected = own(input_ids=ids, use_cache=False).logits
    for inside in (NAIVE, SDPA):
        model.use(inside)
        torch.testing.assert_close(logits(model, ids), expected, rtol=1e-4, atol=2e-5)


def test_gpt_j_attends_as_its_own_module_does() -> None:
    model, ids = built("gpt-j-6b"), tokens(20)
    own = copy.deepcopy(model.module)
    hidden = torch.ones(20, 20, dtype=torch.bool).triu(1)
    mask = torch.zeros(1, 1, 20, 20).masked_fill(hidden, float("-inf"))
    own.config._attn_implementation = "eager"
    for layer in own.transformer.h:
        vars(layer.attn).pop("_attn", None)  # before transformers 5.24, the class's own is behind ours
    with torch.no_grad():
        expected = own(input_ids=ids, use_cache=False, attention_mask=mask).logits
    torch.testing.assert_close(logits(model, ids), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_float64_copy_differs_by_rounding_alone(name: str) -> None:
    model, ids = built(name), tokens(20)
    exact = model.double()
    exact.use(NAIVE)
    error = (logits(model, ids) - logits(exact, ids)).square().mean().sqrt()
    assert exact.parameters[0].dtype == torch.float64
    assert 0 < error < 1e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_a_step_against_the_cache_of_a_prefill_is_the_last_of_a_longer_prefill(name: str) -> None:
    model, ids = built(name), tokens(21)
    prompt, filled, longer = ids[:, :20], model.cache(20, 0), model.cache(21, 0)
    logits(model, prompt, cache=filled)
    model.use(SDPA)
    logits(model, ids[:, 20:], cache=longer)  # makes its tensors
    for short, long in zip(filled.tensors, longer.tensors, strict=True):
        long[:, :, :-1] = short[:, :, 1 - longer.held :]
    found = logits(model, ids[:, 20:], cache=longer)
    torch.testing.assert_close(found, logits(model, ids, keep=1), rtol=1e-4, atol=2e-5)


def test_a_step_that_fails_on_its_way_leaves_the_next_one_right() -> None:
    model, token = built("llama2-7b"), tokens(1)
    cache = model.cache(8, seed=5)
    expected = logits(model, token, cache=cache)

    def fails(step):
        raise RuntimeError("out of shared memory")

    model.use(AttentionInside(None, fails))
    with pytest.raises(RuntimeError, match="out of shared memory"):
        logits(model, token, cache=cache)
    model.use(NAIVE)
    torch.testing.assert_close(logits(model, token, cache=cache), expected)


def test_a_cache_of_a_seed_is_filled_with_the_same_numbers_again() -> None:
    model = built("llama2-7b")
    cache = model.cache(8, seed=5)
    logits(model, tokens(1), cache=cache)
    before = [tensor[:, :, :-1].clone() for tensor in cache.tensors]
    cache.fill(6)
    assert not torch.equal(cache.tensors[0][:, :, :-1], before[0])
    cache.fill(5)
    for tensor, expected in zip(cache.tensors, before, strict=True):
        torch.testing.assert_close(tensor[:, :, :-1], expected)


@pytest.mark.parametrize("name", ["gpt2", "gpt-j-6b", "llama2-70b"])
def test_compiled_layers_give_the_same_and_are_compiled_once_for_all_depths(name: str) -> None:
    import torch._dynamo
    from torch._dynamo.utils import counters

    plain, compiled, ids = built(name, layers=12), built(name, layers=12), tokens(12)
    torch._dynamo.reset()
    counters.clear()
    compiled.compile_layers(backend="eager")
    torch.testing.assert_close(logits(compiled, ids), logits(plain, ids))
    caches = [model.cache(12, 0) for model in (plain, compiled)]
    one, other = (logits(m, ids[:, :1], cache=c) for m, c in zip((plain, compiled), caches, strict=True))
    torch.testing.assert_close(one, other)
    count = counters["stats"]["unique_graphs"]
    assert count < 12
    another = built(name, layers=12)
    another.compile_layers(backend="eager")
    torch.testing.assert_close(logits(another, ids[:, :1], cache=another.cache(12, 0)), one)
    assert counters["stats"]["unique_graphs"] == count


def test_a_checkpointed_backward_gives_the_same_gradients_and_keeps_less() -> None:
    plain, checkpointed, ids = built("llama2-7b"), built("llama2-7b"), tokens(16)
    checkpointed.checkpoint()
    found, kept = [], []
    for model in (plain, checkpointed):
        saved: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, saved=saved: saved.append(x.numel()) or x, lambda x: x):
            loss = loss_of(model.logits(ids), ids)
        kept.append(sum(saved))
        found.append(torch.autograd.grad(loss, model.parameters))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert kept[1] < kept[0] / 2


def test_the_loss_is_transformers_own() -> None:
    model, ids = built("gpt2"), tokens(16)
    with torch.no_grad():
        own = model.module(input_ids=ids, labels=ids, use_cache=False).loss
        shifted = loss_of(model.logits(ids)[:, :-1], ids[:, 1:])
    torch.testing.assert_close(own, shifted)


def test_a_padding_mask_and_an_unknown_family_are_refused_in_words() -> None:
    model, ids = built("llama2-7b"), tokens(6)
    hidden = torch.zeros(2, 1, 6, 6)
    with pytest.raises(UnsupportedCase, match="a mask tensor is not supported"):
        model.module(input_ids=ids, attention_mask=hidden)
    sizes = dataclasses.asdict(tiny("gpt2"))
    sizes["architecture"]["family"] = "mamba"
    with pytest.raises(UnsupportedCase, match="Unknown family 'mamba'. Possible: gpt2, gptj"):
        models.build(sizes, num_layers=1, context=8, dtype=torch.float32, device="cpu", seed=0)


def test_values_narrower_than_keys_are_filled_up_except_for_those_that_declare_them() -> None:
    widths: list[int] = []

    def attention(q, k, v, **mask):
        widths.append(v.shape[3])
        return NAIVE.full(q, k, v, **mask)

    q, v = torch.randn(1, 2, 5, 24), torch.randn(1, 2, 5, 16)
    narrow = AttentionInside(attention, None).whole(q, q, v, causal=True)
    filled = AttentionInside(attention, None, widened=True).whole(q, q, v, causal=True)
    assert widths == [16, 24]
    torch.testing.assert_close(narrow, filled)
    found = registry.implementations("model")
    full = {name for name, each in found.items() if each.attention.full and not each.attention.widened}
    assert {"gluon_hopper", "torch_naive", "torch_sdpa_cudnn"} <= full
    assert not full & {"triton_fa2", "torch_sdpa_flash"}
    assert found["triton_split_kv"].attention.widened_cache


def test_the_inside_of_a_model_refuses_what_it_refuses_alone() -> None:
    prefill = model_case("llama2-7b", batch=1, seqlen=64, dtype="float32")
    step = model_case("llama2-7b", batch=1, seqlen=64, query_tokens=1, dtype="float32")
    found = registry.implementations("model")
    assert "gluon_fp8" not in found
    assert found["torch_naive"].reason_against(prefill, CPU) is None
    assert found["torch_naive"].reason_against(step, CPU) is None
    assert found["triton_fa2"].reason_against(step, CPU) == "triton_fa2 attends to whole sequences only."
    assert found["triton_split_kv"].reason_against(prefill, CPU) == "triton_split_kv attends to a cache only."
    latent = model_case("deepseek-v2-lite", batch=1, seqlen=64, dtype="float32")
    assert found["torch_naive"].reason_against(latent, CPU) is None


def test_without_transformers_every_implementation_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    around = models.implementations(registry.implementations("op"), {})
    assert {each.unavailable for each in around} == {models.NEEDS}
    with pytest.raises(UnsupportedCase, match="pip install 'transformers"):
        built("gpt2")
