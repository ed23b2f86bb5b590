"""Our attention in models of transformers: logits, loss, gradients and generated tokens as with their own eager one."""

import copy

import pytest
import torch

from kernels import transformers as ours
from kernels.registry import UnsupportedCase

transformers = pytest.importorskip("transformers", reason="the names are registered with transformers")

VOCAB = 50
TINY = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
NO_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
CONFIGS = {
    "llama": transformers.LlamaConfig(**TINY, **NO_TOKENS),
    "mistral": transformers.MistralConfig(**TINY, sliding_window=5, **NO_TOKENS),
    "gemma": transformers.GemmaConfig(**TINY, head_dim=16, **NO_TOKENS),
    "gpt2": transformers.GPT2Config(
        **GPT2, **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0), **NO_TOKENS
    ),
}
VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
CLOSE = {"rtol": 1e-4, "atol": 2e-5}  # float32, two layers: sums in another order


@pytest.fixture(scope="module", autouse=True)
def names() -> dict[str, str]:
    return ours.register()


def both(model: torch.nn.Module, name: str = ours.FRONT_DOOR) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Return the model with its own attention, and a copy with ours."""
    own, changed = model, copy.deepcopy(model)
    own.set_attn_implementation("eager")
    changed.set_attn_implementation(name)
    return own, changed


def causal_model(family: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[family]).eval()


def tokens(count: int = 12, batch: int = 3) -> torch.Tensor:
    return torch.randint(0, VOCAB, (batch, count), generator=torch.Generator().manual_seed(1))


def padded(side: str, count: int = 12) -> torch.Tensor:
    """A mask of three sequences, of which two are 3 and 5 tokens shorter."""
    real = torch.ones(3, count, dtype=torch.long)
    for row, missing in ((1, 3), (2, 5)):
        real[row, slice(0, missing) if side == "left" else slice(count - missing, None)] = 0
    return real


def trained(model: torch.nn.Module, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Loss and every parameter's gradient of a step over tokens that follow a real one."""
    real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    follows = real & real.roll(1, 1)
    loss = model(**inputs, labels=inputs["input_ids"].where(follows, -100)).loss
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return {"loss": loss} | dict(zip((name for name, _ in model.named_parameters()), gradients, strict=True))


@pytest.mark.parametrize(
    ("family", "padding"),
    [("llama", None), ("llama", "left"), ("mistral", "left"), ("gemma", None), ("gpt2", "right")],
)
def test_logits_loss_and_gradients_are_those_of_eager(family: str, padding: str | None) -> None:
    own, changed = both(causal_model(family))
    inputs = {"input_ids": tokens()} | ({"attention_mask": padded(padding)} if padding else {})
    with torch.no_grad():
        expected, found = own(**inputs).logits, changed(**inputs).logits
    real = padded(padding).bool() if padding else torch.ones(3, 12, dtype=torch.bool)
    torch.testing.assert_close(found[real], expected[real], **CLOSE)
    expected, found = trained(own, **inputs), trained(changed, **inputs)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_generation_gives_the_tokens_of_eager(family: str) -> None:
    own, changed = both(causal_model(family))
    asked = {"max_new_tokens": 8, "do_sample": False, "attention_mask": padded("left"), "pad_token_id": 0}
    assert torch.equal(changed.generate(tokens(), **asked), own.generate(tokens(), **asked))


def test_a_static_cache_that_is_not_full_is_cut_to_what_is_there() -> None:
    own, changed = both(causal_model("llama"))
    asked = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "cache_implementation": "static"}
    asked |= {"attention_mask": padded("left"), "disable_compile": True}
    assert torch.equal(changed.generate(tokens(), **asked), own.generate(tokens(), **asked))


def test_packed_sequences_do_not_see_each_other() -> None:
    own, changed = both(causal_model("llama"))
    placed = {"input_ids": tokens(batch=1), "position_ids": torch.tensor([[*range(5), *range(7)]]), "use_cache": False}
    with torch.no_grad():
        torch.testing.assert_close(changed(**placed).logits, own(**placed).logits, **CLOSE)


@pytest.mark.parametrize("family", ["vit", "clip"])
def test_encoders_of_images_and_texts_see_everything_or_the_past(family: str) -> None:
    torch.manual_seed(0)
    pixels = torch.randn(2, 3, 32, 32)
    if family == "vit":
        config = transformers.ViTConfig(**VISION, image_size=32, patch_size=8)
        own, changed = both(transformers.ViTModel(config).eval())
        results = [model(pixels).last_hidden_state for model in (own, changed)]
    else:
        text = {**VISION, "vocab_size": VOCAB, "max_position_embeddings": 16, "eos_token_id": VOCAB - 1}
        config = transformers.CLIPConfig(text_config=text, vision_config={**VISION, "image_size": 32, "patch_size": 8})
        own, changed = both(transformers.CLIPModel(config).eval())
        asked = {"input_ids": tokens(12), "attention_mask": padded("right"), "pixel_values": pixels}
        results = [model(**asked).logits_per_image for model in (own, changed)]
    torch.testing.assert_close(results[1], results[0], **CLOSE)


def test_a_decoder_attends_to_an_encoder_of_another_length() -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_target_positions": 16}
    sizes |= {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 8}
    config = transformers.WhisperConfig(
        **sizes,
        vocab_size=VOCAB,
        max_source_positions=15,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    own, changed = both(transformers.WhisperForConditionalGeneration(config).eval())
    asked = {"input_features": torch.randn(3, 8, 30), "decoder_input_ids": tokens(7)}
    expected, found = (model(**asked).logits for model in (own, changed))
    torch.testing.assert_close(found, expected, **CLOSE)


def test_implementations_have_names_that_transformers_does_not_take_for_its_own(names: dict[str, str]) -> None:
    assert names["triton_fa2"] == "attnbench:triton_fa2"
    assert names[ours.FRONT_DOOR] == "attnbench"
    assert not [name for name in names.values() if "flash" in name or "/" in name]
    own, changed = both(causal_model("llama"), names["torch_naive"])
    inputs = {"input_ids": tokens(), "attention_mask": padded("left")}
    with torch.no_grad():
        real = padded("left").bool()
        torch.testing.assert_close(changed(**inputs).logits[real], own(**inputs).logits[real], **CLOSE)
    changed.set_attn_implementation(names["torch_sdpa_cudnn"])
    with pytest.raises(UnsupportedCase, match="torch_sdpa_cudnn runs on cuda, not on cpu"):
        changed(**inputs)


def test_narrow_values_are_filled_up_for_those_that_need_equal_widths() -> None:
    q, k, v = (torch.randn(1, 2, 6, width) for width in (24, 24, 16))
    module = torch.nn.Module()
    wide, _ = ours.attend(ours._checked("torch_sdpa_math"), module, q, k, v, None)
    naive, _ = ours.attend(ours._checked("torch_naive"), module, q, k, v, None)
    assert wide.shape == (1, 6, 2, 16)
    torch.testing.assert_close(wide, naive, **CLOSE)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"dropout": 0.1}, "dropout"),
        ({"softcap": 30.0}, "a cap on the scores"),
        ({"s_aux": torch.zeros(4)}, "attention sinks"),
        (
            {"position_bias": torch.zeros(1, 4, 6, 6), "output_attentions": True},
            "a bias by position and the probabilities",
        ),
    ],
)
def test_what_is_not_computed_is_refused_in_words(asked: dict, words: str) -> None:
    q = torch.zeros(1, 4, 6, 16)
    with pytest.raises(UnsupportedCase, match=words):
        ours.attend(torch.nn.functional.scaled_dot_product_attention, torch.nn.Module(), q, q, q, None, **asked)


def test_a_name_refuses_a_mask_tensor_and_holes_in_a_window() -> None:
    q = torch.zeros(2, 4, 6, 16)
    naive = ours._checked("torch_naive")
    with pytest.raises(UnsupportedCase, match="causal masks, sliding windows and padding"):
        ours.attend(naive, torch.nn.Module(), q, q, q, torch.ones(2, 1, 6, 6, dtype=torch.bool))
    holes = torch.ones(2, 6, dtype=torch.bool)
    holes[0, 2] = False
    with pytest.raises(UnsupportedCase, match="padding between them"):
        ours.attend(naive, torch.nn.Module(), q, q, q, holes, sliding_window=3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_compiled_code_gets_a_mask_tensor_where_it_cannot_look_into_the_mask() -> None:
    from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

    window = sliding_window_causal_mask_function(3)
    assert ours.describe_mask(2, 6, 6, mask_function=window) is None
    compiled = torch.compile(lambda kind: ours.describe_mask(2, 6, 6, mask_function=kind), backend="eager")
    found = compiled(window)
    assert found[0, 0, 5].tolist() == [False, False, False, True, True, True]
    assert compiled(causal_mask_function) is None


def test_triton_kernels_train_a_model_of_shared_key_heads(names: dict[str, str], device: str) -> None:
    pytest.importorskip("kernels.attention.triton_fa2.launch", exc_type=ImportError)
    model = causal_model("llama").to(device)
    model.model.layers = model.model.layers[:1]
    own, changed = both(model, names["triton_fa2"])
    inputs = {"input_ids": tokens(6, batch=1).to(device)}
    for (name, found), expected in zip(
        trained(changed, **inputs).items(), trained(own, **inputs).values(), strict=True
    ):
        torch.testing.assert_close(found, expected, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")
