"""A fused decoding step against the modules of transformers: logits, and what it leaves in the cache."""

import dataclasses

import pytest
import torch

from kernels import models, registry
from kernels.decode.step import DecodeStep
from kernels.generation import step as generation
from kernels.generation.step import LlamaStep
from kernels.models import CausalModel
from kernels.registry import UnsupportedCase
from runner.sweeps.model import model_case
from tests.kernels.tiny_models import tiny

pytest.importorskip("transformers", reason="whole models need transformers")

CONTEXT = 20  # more than Mistral's window
NARROW = {"PAIR_ROWS": 4, "BLOCK": 32, "NUM_WARPS": 1}  # several blocks of columns, the last cut


def built(name: str, device: str, **sizes: int) -> CausalModel:
    config = dataclasses.replace(tiny(name), **sizes)
    shape = {"num_layers": 2, "context": 64, "dtype": torch.float32, "device": device, "seed": 1}
    return models.build(dataclasses.asdict(config), **shape)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("llama2-7b", {"ffn": 90}), ("llama2-70b", {}), ("mistral-7b", {})],
    ids=["odd sizes", "few key heads", "window"],
)
def test_logits_and_cache_are_those_of_the_modules(name, sizes, device, monkeypatch) -> None:
    generation.form_of.cache_clear()
    for constant, value in NARROW.items() if sizes else ():
        monkeypatch.setattr(generation, constant, value)
    model = built(name, device, **sizes)
    cache, token = model.cache(CONTEXT, seed=2), torch.tensor([[11]], device=device)
    model.use(registry.get("torch_naive", "model").attention)
    with torch.no_grad():
        expected = model.logits(token, cache=cache)
    written = [tensor.clone() for tensor in cache.tensors]
    for tensor in cache.tensors:
        tensor[:, :, -1] = float("nan")
    model.use(registry.get("triton_step", "model").attention)
    torch.testing.assert_close(model.logits(token, cache=cache), expected, rtol=1e-4, atol=2e-5)
    for tensor, before in zip(cache.tensors, written, strict=True):
        torch.testing.assert_close(tensor, before, rtol=1e-4, atol=2e-5)


def test_other_models_and_more_tokens_are_refused(device: str) -> None:
    with pytest.raises(UnsupportedCase, match="llama and mistral without biases, not gpt2"):
        LlamaStep(built("gpt2", device).module)
    model = built("llama2-7b", device)
    model.use(registry.get("triton_step", "model").attention)
    with pytest.raises(UnsupportedCase, match="one token of one sequence, not \\(2, 1\\)"):
        model.logits(torch.zeros((2, 1), dtype=torch.int64, device=device), cache=model.cache(8, 0))


def test_a_plan_knows_that_more_sequences_are_refused() -> None:
    fused, device = registry.get("triton_step", "model"), registry.Device("cuda", "NVIDIA H200", (9, 0))
    one, two = (model_case("llama2-7b", batch=b, seqlen=64, query_tokens=1, dtype="bfloat16") for b in (1, 2))
    assert fused.reason_against(one, device) is None
    assert fused.reason_against(two, device) == "triton_step takes one token of one sequence."


def test_short_caches_are_attended_to_in_one_launch() -> None:
    q, cache = torch.empty(1, 2, 1, 16), torch.empty(1, 2, 8, 16)
    step = DecodeStep(q, cache, cache, (8,), torch.full((1,), 8, dtype=torch.int32))
    calls = {name: registry.get(name, "model").attention.cached(step) for name in ("triton_step", "triton_split_kv")}
    assert {name: call.keywords["one_launch"] for name, call in calls.items()} == {
        "triton_step": True,
        "triton_split_kv": False,
    }
