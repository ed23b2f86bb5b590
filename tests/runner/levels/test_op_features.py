"""Cases with features: their text, their tensors, and the pairs that are counted for them."""

import itertools
import random

import pytest
import torch

from kernels import reference
from kernels.features import Features, attention_and_lse, attention_of_sequences, head_by_head
from results import levels
from results.levels.tensors import pairs_in_batch
from results.records import Case, RecordError, attention_case, case_to_json, compatible, measurement_from_json
from runner.levels import make_inputs
from runner.levels.op import slopes
from tests.cases import cases

SIZES = {"num_kv_heads": 1, "num_heads": 2, "head_dim": 16, "dtype": "float32"}
TEXTS = ("", "mask=padding", "documents=5", "varlen=skewed", "varlen=uniform", "prefix=9", "mask=bias", "ahead=3")
TEXTS += ("blocks=64:0.6",)


def _random_cases():
    draw = random.Random(4)
    for text, causal, window in itertools.product(TEXTS, (True, False), (0, 1, 7)):
        others = (each for each in ("sinks", "softcap=3", "alibi") if draw.random() < 0.5)
        asked = ",".join(filter(None, (text, *others)))
        batch, seqlen = draw.randint(1, 4), draw.randint(1, 40)
        sizes = {"batch": batch, "seqlen": 64 * (seqlen % 5 + 1) if "blocks" in text else seqlen, **SIZES}
        try:
            yield attention_case(**sizes, causal=causal, window_size=window, features=asked or None)
        except RecordError:  # a prefix needs a causal mask, two widths need a window, and blocks none
            assert text.startswith(("prefix", "ahead", "blocks"))


@pytest.mark.parametrize("case", list(_random_cases()), ids=levels.words)
def test_operations_count_the_pairs_that_the_mask_lets_through(case: Case) -> None:
    """With q = 0 and no bias all scores are 0, so that exp(lse) is the number of keys that a query sees."""
    inputs = make_inputs(case, "cpu", seed=1)
    options = dict(inputs.options)
    asked, bounds = options.pop("features", Features()), options.pop("bounds", None)
    seen = {name: getattr(asked, name) for name in ("prefix_lengths", "document_ids", "block_mask")}
    if asked.mask is not None and asked.mask.dtype == torch.bool:
        seen["mask"] = asked.mask
    qkv = torch.zeros_like(inputs.q), inputs.k, inputs.v
    if bounds is None:
        lse = attention_and_lse(*qkv, Features(**seen), **options)[1]
    else:
        lse = attention_of_sequences(*qkv, Features(**seen), bounds, **options)[1]
    pairs = lse[:, 0].double().exp().sum().item()
    assert pairs_in_batch(case_to_json(case)) == round(pairs) == pytest.approx(pairs, abs=0.1)
    assert levels.flops(case, "fwd") == 4 * 2 * 16 * round(pairs)
    assert (moved := levels.bytes_moved(case, "fwd")) > 0
    if asked.block_mask:
        assert asked.block_mask.listed.any(2).all(), "all keys are read"
        dense = attention_case(batch=case.batch, seqlen=case.seqlen_q, causal=case.causal, **SIZES)
        assert moved == levels.bytes_moved(dense, "fwd") + 4 * len(asked.block_mask.keys)


def test_the_oracle_of_features_agrees_with_that_of_plain_calls(monkeypatch) -> None:
    monkeypatch.setattr("kernels.features._CHUNK", 8)
    case = attention_case(batch=2, seqlen=20, seqlen_k=24, causal=True, window_size=7, **SIZES)
    inputs = make_inputs(case, "cpu", seed=1)
    tensors = [x.detach().double() for x in (inputs.q, inputs.k, inputs.v)]
    found = head_by_head(*tensors, Features(), dout=inputs.dout.double(), **inputs.options)
    exact = reference.gradients(*tensors, inputs.dout, **inputs.options)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, getattr(exact, name))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("text, seqlen, window", cases(__file__, "test_the_oracle_by_heads_is_the_definition"))
def test_the_oracle_by_heads_is_the_definition(text: str, seqlen: int, window: int, causal: bool, monkeypatch) -> None:
    monkeypatch.setattr("kernels.features._CHUNK", 128)
    sizes = {"batch": 3, "seqlen": seqlen, "window_size": window, **SIZES}
    inputs = make_inputs(attention_case(causal=causal, features=text, **sizes), "cpu", seed=1)
    options = dict(inputs.options)
    asked, bounds = options.pop("features"), options.pop("bounds", None)
    of = attention_and_lse if bounds is None else attention_of_sequences
    out = of(inputs.q, inputs.k, inputs.v, asked, *([] if bounds is None else [bounds]), **options)[0]
    found = head_by_head(inputs.q, inputs.k, inputs.v, asked, bounds, inputs.dout, **options)
    torch.testing.assert_close(found["out"], out)
    gradients = torch.autograd.grad(out, inputs.learned, inputs.dout)
    assert len(gradients) == 3 + ("bias_gradient" in text)
    torch.testing.assert_close(tuple(found[name] for name in list(found)[1:]), gradients)


def test_features_have_one_text_and_go_through_a_journal() -> None:
    sizes = {"batch": 1, "seqlen": 64, "causal": True, **SIZES}
    case = attention_case(**sizes, features="sinks, softcap=50.0")
    assert case.features == "softcap=50,sinks"
    assert case == attention_case(**sizes, features="softcap=50,sinks") != attention_case(**sizes)
    assert case.asked == ("softcap", "sinks")
    assert "softcap 50, sinks" in levels.words(case)
    assert not compatible(case, attention_case(**sizes)), "no source leaves out what changes the numbers"
    line = {"run_id": "r", "implementation": "a", "metric": "latency_ms", "status": "ok", "value": 1.0}
    assert measurement_from_json(line | case_to_json(case)).case == case
    assert attention_case(**sizes, features="").features is None


@pytest.mark.parametrize(("changes", "words"), cases(__file__, "test_a_text_that_is_no_feature_says_what_is_possible"))
def test_a_text_that_is_no_feature_says_what_is_possible(changes: dict, words: str) -> None:
    fields = {"level": "op", "seqlen_q": 64, "seqlen_k": 64, "causal": True, "window_size": 0, "batch": 1}
    with pytest.raises(RecordError, match=words):
        Case(**fields | changes)


def test_slopes_are_those_of_the_paper() -> None:
    assert slopes(8) == [2.0**-i for i in range(1, 9)]
    assert len(slopes(112)) == 112
    assert len(set(slopes(112))) == 112
