"""Our attention in models of transformers: logits, loss, gradients and generated tokens as with their own eager one."""

import copy
import functools
import itertools
import sys

import pytest
import torch

import kernels
from kernels import choice, dispatch, features, plans, registry, routes
from kernels import transformers as ours
from kernels.features import Features
from kernels.registry import UnsupportedCase
from tests.cases import cases
from tests.kernels.conftest import in_both_places

transformers = pytest.importorskip("transformers", reason="the names are registered with transformers")

VOCAB = 50  # as in SIZES
SIZES = cases(__file__, "sizes")  # of tiny models
NO_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
CONFIGURATIONS = cases(__file__, "configurations")
VISION = SIZES["vision"]
BLOOM = transformers.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=1, n_head=4)
CLOSE = {"rtol": 1e-4, "atol": 2e-5}  # float32, two layers: sums in another order
attend = functools.partial(ours.attend, dispatch.attention, torch.nn.Module())


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
    name, sizes, more = CONFIGURATIONS[family]  # collecting need not load all families, which takes a second
    config = getattr(transformers, name)(**SIZES[sizes], **more, **NO_TOKENS)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


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


MASKS = {"none": torch.ones(3, 12, dtype=torch.long), "left": padded("left"), "right": padded("right")}
MASKS["holes"] = MASKS["none"].clone()  # padding at both sides and between tokens
MASKS["holes"][0, :2] = MASKS["holes"][1, 4:6] = MASKS["holes"][2, 9:] = 0
FEW = [("llama", "none"), ("llama", "left"), ("mistral", "left"), ("gemma2", "left"), ("gpt_oss", "none")]
EVERY = list(itertools.product(CONFIGURATIONS, MASKS))


@in_both_places
@pytest.mark.parametrize(("family", "mask"), EVERY if torch.cuda.is_available() else [*FEW, ("gpt2", "right")])
def test_logits_loss_and_gradients_are_those_of_eager(family: str, mask: str, device: str) -> None:
    own, changed = both(causal_model(family).to(device))
    inputs, real = {"input_ids": tokens().to(device)}, MASKS[mask].to(device)
    if mask != "none":
        inputs["attention_mask"] = real
    with torch.no_grad():
        expected, found = own(**inputs).logits, changed(**inputs).logits
    torch.testing.assert_close(found[real.bool()], expected[real.bool()], **CLOSE)
    expected, found = trained(own, **inputs), trained(changed, **inputs)
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize(("family", "mask", "masks"), [("gpt2", "left", 2), ("gpt2", "holes", 2), ("llama", "left", 0)])
def test_padded_calls_that_the_host_decides_go_to_pytorch_by_one_mask_for_all_layers(family, mask, masks, monkeypatch):
    made, bias = [], ours._bias
    monkeypatch.setattr(ours, "_bias", lambda *asked: made.append(1) or bias(*asked))
    monkeypatch.setattr(ours.routes, "left_to_pytorch", lambda *asked: asked[-1] == ("mask",))
    test_logits_loss_and_gradients_are_those_of_eager(family, mask, "cpu")
    assert len(made) == masks, "one for each forward; none where query heads share key heads"


GENERATED = [("llama", "dynamic"), ("mistral", "dynamic"), ("llama", "static")]
ALL_GENERATED = list(itertools.product(("llama", "mistral", "gemma2", "gpt_oss"), ("dynamic", "static")))


@in_both_places
@pytest.mark.parametrize(("family", "cache"), ALL_GENERATED if torch.cuda.is_available() else GENERATED)
def test_generation_gives_the_tokens_of_eager(family: str, cache: str, device: str) -> None:
    own, changed = both(causal_model(family).to(device))
    asked = {"max_new_tokens": 8, "do_sample": False, "attention_mask": padded("left").to(device), "pad_token_id": 0}
    asked |= {"cache_implementation": cache, "disable_compile": True}
    ids = tokens().to(device)
    assert torch.equal(changed.generate(ids, **asked), own.generate(ids, **asked))


@in_both_places
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_packed_sequences_do_not_see_each_other(family: str, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(ours, "_by_mask_tensor", None)  # none is made
    own, changed = both(causal_model(family).to(device))
    places = torch.tensor([[*range(5), *range(7)]], device=device)
    placed = {"input_ids": tokens(batch=1).to(device), "position_ids": places, "use_cache": False}
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
    config = transformers.WhisperConfig(**SIZES["whisper"])
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


def test_what_is_not_computed_and_models_computed_eagerly_alone_are_refused_in_words() -> None:
    q = torch.zeros(1, 4, 6, 16)
    for name, words in cases(__file__, "refused").items():
        asked = {name: torch.zeros(1, 4, 6, 1)}
        with pytest.raises(UnsupportedCase, match=words):
            ours.attend(kernels.attention, torch.nn.Module(), q, q, q, None, **asked)
    model = transformers.AutoModelForCausalLM.from_config(BLOOM)
    model.config._attn_implementation = ours.FRONT_DOOR  # which transformers does not check
    with pytest.raises(UnsupportedCase, match="no attention of others for the models of transformers.*bloom"):
        model(tokens())


def test_models_that_keep_an_attention_of_their_own_have_it_and_say_so_once(recwarn: pytest.WarningsRecorder) -> None:
    choice.forget()
    sam = transformers.SamVisionConfig(**VISION, image_size=32, patch_size=8, global_attn_indexes=[0], window_size=2)
    for config, kind, own in 2 * (
        (BLOOM, transformers.BloomModel, "eager"),
        (sam, transformers.SamVisionModel, "sdpa"),
    ):
        assert kind._from_config(config, attn_implementation=ours.FRONT_DOOR).config._attn_implementation == own
    said = [str(each.message).partition("They use ")[2] for each in recwarn if "They use" in str(each.message)]
    assert [each.split()[0] for each in said] == ["'eager',", "'sdpa',"] and "sdpa_replacement() reaches it" in said[1]


def test_keys_of_a_window_that_has_moved_on_have_their_own_places_in_a_longer_mask() -> None:
    mask = torch.ones(1, 20, dtype=torch.bool)
    mask[0, 4] = mask[0, 12:] = False
    sizes = {"q_length": 2, "kv_length": 9, "q_offset": 10, "kv_offset": 3}
    assert ours.describe_mask(1, **sizes, attention_mask=mask).tolist() == [[True, False, *[True] * 7]]
    assert ours.describe_mask(1, **sizes | {"kv_offset": 5, "kv_length": 7}, attention_mask=mask) is None
    cut = ours.describe_mask(1, **sizes, attention_mask=mask[:, :11])
    assert cut.tolist() == [[True, False, *[True] * 6, False]], "a key without an entry is not seen"


def test_a_mask_of_padding_knows_whether_it_is_causal_where_its_module_does_not() -> None:
    q, module = torch.randn(3, 4, 12, 16), torch.nn.Module()
    real = ours.describe_mask(3, 12, 12, attention_mask=padded("right"))
    causal, _ = ours.attend(dispatch.attention, module, q, q, q, padded("right").bool(), is_causal=True)
    found, _ = ours.attend(dispatch.attention, module, q, q, q, real, is_causal=False)
    assert found.equal(causal)


def test_a_model_that_asks_for_a_mask_tensor_gets_one_with_what_its_modules_are_not_told() -> None:
    masking = transformers.masking_utils
    asked = {"mask_function": masking.bidirectional_mask_function, "allow_is_bidirectional_skip": False}
    assert ours.describe_mask(2, 3, 4, **asked, attention_mask=torch.ones(2, 4).bool()).shape == (2, 1, 3, 4)
    assert ours.describe_mask(2, 3, 4, **asked | {"allow_is_bidirectional_skip": True}) is None
    causal = masking.causal_mask_function
    models = (transformers.PegasusXModel, transformers.LlamaModel)  # the first one's decoder says that it is not causal
    found = [ours.describe_mask(2, 3, 3, mask_function=causal, config=each.config_class()) for each in models]
    assert found[0].equal(torch.ones(3, 3, dtype=torch.bool).tril().expand(2, 1, 3, 3))
    assert found[1] is None


def test_packed_sequences_told_as_to_flash_attention_do_not_see_each_other() -> None:
    q, k = torch.randn(1, 4, 12, 16), torch.randn(1, 2, 12, 16)
    starts, module = torch.tensor([0, 5, 12]), torch.nn.Module()
    asked = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 7, "max_length_k": 7}
    documents = torch.tensor([[0] * 5 + [1] * 7])
    found, _ = ours.attend(dispatch.attention, module, q, k, k, None, **asked)
    torch.testing.assert_close(found, ours.attend(dispatch.attention, module, q, k, k, documents)[0], **CLOSE)
    with pytest.raises(UnsupportedCase, match="cu_seq_lens are computed under 'attnbench'"):
        ours.attend(ours._checked("torch_naive"), module, q, k, k, None, **asked)


@pytest.mark.parametrize("form", ["boolean", "additive", "padding"])
def test_keys_that_a_query_has_not_chosen_are_not_seen(form: str) -> None:
    q, k = torch.randn(1, 4, 5, 16), torch.randn(1, 2, 7, 16)
    indices = torch.tensor([[[0, 6], [1, 2], [3, 4], [5, 0], [6, 3]]], dtype=torch.int32)
    seen = torch.ones(5, 7, dtype=torch.bool).tril(2)[None, None]
    masks = {"boolean": seen, "additive": torch.zeros(seen.shape).masked_fill(~seen, -torch.inf), "padding": None}
    chosen = torch.zeros(1, 1, 5, 7, dtype=torch.bool).scatter(-1, indices[:, None].long(), True)
    expected = features.attention(q, k, k, Features(mask=seen & chosen)).transpose(1, 2)
    found, _ = attend(q, k, k, masks[form], indices=indices)
    torch.testing.assert_close(found, expected, **CLOSE)


def test_learned_queries_are_those_of_every_sequence() -> None:
    q, k = torch.randn(1, 4, 3, 16), torch.randn(2, 4, 7, 16)
    found, _ = attend(q, k, k, None, is_causal=False)
    torch.testing.assert_close(found, torch.nn.functional.scaled_dot_product_attention(q, k, k).transpose(1, 2))


def test_a_call_like_one_before_is_bound_already_unless_it_asks_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    module, masked, by_mask = torch.nn.Module(), [], ours._by_mask
    for package in (ours, dispatch):
        monkeypatch.setattr(package, "_SEEN", plans.SeenCalls())
    sdpa = torch.nn.functional.scaled_dot_product_attention
    kernel = functools.partial(sdpa, is_causal=True).__call__  # not known as PyTorch's
    monkeypatch.setattr(dispatch, "bound", lambda q, k, v, *options: (kernel, (q, k, v)))
    monkeypatch.setattr(ours, "_by_mask", lambda *call: masked.append(call) or by_mask(*call))

    def attends(q: torch.Tensor, **asked) -> bool:
        """Return whether the call was decided anew."""
        before = len(masked)
        out, _ = ours.attend(dispatch.attention, module, q, k, v, None, **asked)
        torch.testing.assert_close(out, sdpa(q, k, v, is_causal=True).transpose(1, 2))
        return len(masked) > before

    q, k, v = torch.randn(3, 1, 2, 8, 16)
    assert attends(q) and not attends(q.clone(), output_attentions=False) and not attends(q, s_aux=None)
    assert attends(q.mT.contiguous().mT) and attends(q.clone().requires_grad_()) and not attends(q)
    with pytest.raises(UnsupportedCase):
        attends(q, output_attentions=True)


def test_a_name_says_which_features_it_lacks() -> None:
    q, tiled = torch.zeros(2, 4, 6, 16), ours._checked("tiled_v1")
    holes = torch.ones(2, 6, dtype=torch.bool)
    holes[0, 2] = False
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    for found, asked, words in (
        (mask, {}, "masks given as tensors"),
        (holes, {"sliding_window": 3}, "masks given as tensors"),
        (None, {"softcap": 30.0, "s_aux": torch.zeros(4), "dropout": 0.1}, "softcaps or attention sinks or dropout"),
    ):
        with pytest.raises(UnsupportedCase, match=f"tiled_v1 does not support {words}"):
            ours.attend(tiled, torch.nn.Module(), q, q, q, found, **asked)


@pytest.mark.parametrize(("window", "filled"), [(None, 7), (3, 7), (3, 6)])
def test_a_bias_by_position_holds_all_masks_and_gets_its_gradient(window: int | None, filled: int) -> None:
    q, k = torch.randn(2, 4, 5, 16), torch.randn(2, 4, 7, 16)
    bias, real = torch.randn(1, 4, 5, 7, requires_grad=True), torch.ones(2, filled, dtype=torch.bool)
    real[1, 1] = False
    seen = torch.ones(5, 7, dtype=torch.bool).tril(filled - 5)
    seen = seen.triu(filled - 5 - window + 1) if window else seen
    seen = seen & torch.nn.functional.pad(real, (0, 7 - filled))[:, None, None]
    scores = (q @ k.mT * 0.25 + bias).masked_fill(~seen, -torch.inf)
    expected = (scores.softmax(-1) @ k).transpose(1, 2)
    asked = {"position_bias": bias, "sliding_window": window}
    found, _ = attend(q, k, k, real, **asked)
    torch.testing.assert_close(found, expected, **CLOSE)
    of_bias = [torch.autograd.grad(out.square().sum(), bias)[0] for out in (found, expected)]
    torch.testing.assert_close(*of_bias, **CLOSE)
    dropped, _ = attend(q, k, k, real, dropout=0.5, **asked)  # as in the training of T5
    assert torch.autograd.grad(dropped.square().sum(), bias)[0].any()


@pytest.mark.parametrize("left", [False, True])
def test_dropout_drops_its_share_by_the_generator_and_is_left_to_pytorch_by_one_look_up(left, monkeypatch) -> None:
    monkeypatch.setattr(routes, "left_to_pytorch", lambda *call: left)
    decide, decided = ours._by_mask, []
    monkeypatch.setattr(ours, "_by_mask", lambda *call: decided.append(1) or decide(*call))
    q, v = torch.zeros(1, 2, 64, 16), torch.ones(1, 2, 64, 16)
    torch.manual_seed(0)
    first, other = (attend(q, q, v, None, dropout=0.2)[0] for _ in range(2))
    torch.manual_seed(0)
    assert attend(q, q, v, None, dropout=0.2)[0].equal(first)
    assert len(decided) == (1 if left else 3)
    routes.forget()
    assert not first.equal(other)
    assert first.mean().item() == pytest.approx(1.0, abs=0.1)


def test_a_window_to_both_sides_needs_no_mask_where_modules_pass_it_and_nothing_is_padded() -> None:
    q, real, config = torch.randn(1, 2, 6, 16), torch.ones(1, 6, dtype=torch.bool), transformers.ModernBertConfig()
    near = transformers.masking_utils.sliding_window_bidirectional_mask_function(2)
    described = functools.partial(ours.describe_mask, 1, 6, 6, mask_function=near)
    assert described(attention_mask=real, config=config) is None
    seen = described(config=causal_model("llama").config)
    assert described(attention_mask=real.tril(4), config=config).equal(seen & real.tril(4))
    found, expected = (
        attend(q, q, q, mask, is_causal=False, **window)[0]
        for mask, window in ((None, {"sliding_window": 3}), (seen, {}))
    )
    torch.testing.assert_close(found, expected, **CLOSE)


def test_a_mask_is_read_without_an_import_which_would_end_the_graph_of_a_compiled_program(monkeypatch) -> None:
    ours.register([])
    causal = transformers.masking_utils.causal_mask_function
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert ours.describe_mask(2, 3, 3, mask_function=causal) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_compiled_code_gets_a_mask_tensor_where_it_cannot_look_into_the_mask() -> None:
    window = transformers.masking_utils.sliding_window_causal_mask_function(3)
    assert ours.describe_mask(2, 6, 6, mask_function=window) is None
    compiled = torch.compile(lambda kind: ours.describe_mask(2, 6, 6, mask_function=kind), backend="eager")
    found = compiled(window)
    assert found[0, 0, 5].tolist() == [False, False, False, True, True, True]
    assert compiled(transformers.masking_utils.causal_mask_function) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("heads, kv_heads, left", [(12, 12, True), (120, 120, False), (12, 6, False)])
@pytest.mark.parametrize("mask", [torch.ones(64, 1, 196, 196, dtype=torch.bool), torch.ones(64, 196, dtype=torch.bool)])
def test_compiled_code_leaves_to_pytorch_what_the_host_decides(heads, kv_heads, left, mask, in_program) -> None:
    x = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16)
    q, k = (x.expand(64, count, 196, 64) for count in (heads, kv_heads))
    found = in_program(lambda q, k, mask: attend(q, k, k, mask, is_causal=False)[0], q, k, mask)
    assert found == ["scaled_dot_product_attention" if left else "attention_with_features"]


def test_triton_kernels_train_a_model_of_shared_key_heads(names: dict[str, str], device: str) -> None:
    pytest.importorskip("kernels.attention.triton_fa2.launch", exc_type=ImportError)
    model = causal_model("llama").to(device)
    model.model.layers = model.model.layers[:1]
    own, changed = both(model, names["triton_fa2"])
    inputs = {"input_ids": tokens(6, batch=1).to(device)}
    torch.testing.assert_close(trained(changed, **inputs), trained(own, **inputs), **CLOSE)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_compiled_models_on_the_gpu_train_with_padding(family: str) -> None:
    own, changed = both(causal_model(family).cuda())
    inputs = {"input_ids": tokens().cuda(), "attention_mask": padded("right").cuda()}
    expected = trained(own, **inputs)
    found = trained(changed, **inputs)
    changed.forward = torch.compile(changed.forward, backend="aot_eager")
    for results in (found, trained(changed, **inputs)):
        torch.testing.assert_close(results, expected, **CLOSE)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [True, False])
def test_a_captured_graph_reads_the_padding_at_each_replay(causal: bool) -> None:
    q, k, v = (torch.randn(3, heads, 40, 64, device="cuda", dtype=torch.float16) for heads in (4, 2, 2))
    real = torch.ones(3, 40, dtype=torch.bool, device="cuda")

    def call() -> torch.Tensor:
        return attend(q, k, v, real, is_causal=causal, softcap=5.0)[0]

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    real[1, 30:] = real[2, :7] = False
    call()
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        out = call()
    real[0, :9] = real[1, 20:] = real[2, 11] = False
    graph.replay()
    fresh = attend(q, k, v, real.clone(), is_causal=causal, softcap=5.0)[0]
    torch.testing.assert_close(out, fresh)
    wide, asked = (x.double() for x in (q, k, v)), Features(softcap=5.0, mask=real[:, None, None, :])
    exact = features.attention(*wide, asked, causal=causal).transpose(1, 2)
    seen = real if causal else torch.ones_like(real)
    torch.testing.assert_close(out[seen].double(), exact[seen], rtol=2e-3, atol=2e-3)


@pytest.mark.gpu
def test_dropout_on_the_gpu_follows_the_generator_and_recomputes_what_it_kept() -> None:
    config = causal_model("gpt2").config
    config.attn_pdrop = 0.3
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).cuda().train()
    model.set_attn_implementation(ours.FRONT_DOOR)
    inputs = {"input_ids": tokens().cuda()}

    def seeded(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return trained(model, **inputs)

    first, again, other = seeded(1), seeded(1), seeded(2)
    assert first["loss"].equal(again["loss"]) and not first["loss"].equal(other["loss"])
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    torch.testing.assert_close(seeded(1), first, **CLOSE)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_our_implementations_attend_on_the_gpu_or_say_why(names: dict[str, str]) -> None:
    own_names = [name for name, each in registry.implementations().items() if each.family == "own"]
    config = transformers.LlamaConfig(**SIZES["tiny"] | {"hidden_size": 256}, **NO_TOKENS)
    own, changed = both(transformers.AutoModelForCausalLM.from_config(config).to("cuda", torch.bfloat16).eval())
    ids, attended = tokens().cuda(), []
    with torch.no_grad():
        expected = own(ids).logits
        for implementation in (ours.FRONT_DOOR, *own_names):
            changed.set_attn_implementation(names[implementation])
            try:
                found = changed(ids).logits
            except UnsupportedCase as refused:
                assert implementation != ours.FRONT_DOOR, refused
                continue
            attended.append(implementation)
            loose = 4.0 if "fp8" in implementation else 1.0
            furthest = (found - expected).abs().max() / expected.abs().max()
            assert furthest <= 0.05 * loose, implementation
    assert {"attnbench", "triton_fa2"} <= set(attended)
