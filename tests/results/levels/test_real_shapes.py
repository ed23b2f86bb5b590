"""Shapes of models: named, sourced, told apart, and found again by their sizes."""

from dataclasses import replace

from results import levels
from results.levels.model_table import models
from results.levels.real_shapes import DOMAINS, SHAPES, shape_of
from results.records import attention_case, case_to_json, decode_case


def named(name: str):
    return next(shape for shape in SHAPES if shape.name == name)


def test_every_shape_has_a_name_and_sizes_of_its_own_and_a_source() -> None:
    assert len({shape.name for shape in SHAPES}) == len({shape.case for shape in SHAPES}) == len(SHAPES) >= 60
    assert not [shape.name for shape in SHAPES if "," in shape.name], "names are chosen from a list with commas"
    assert {shape.name for shape in SHAPES if not shape.source.startswith("https://")} == {
        "Multi-query limit: prefill of 2048 tokens"
    }
    assert named("Multi-query limit: prefill of 2048 tokens").source.startswith("No model: ")


def test_the_shapes_reach_from_small_heads_to_shared_keys_and_few_of_them() -> None:
    cases = [shape.case for shape in SHAPES]
    assert {32, 40, 64, 80, 96, 128, 160, 256} < {case.head_dim for case in cases}
    assert {(71, 1), (48, 1), (128, 1)} < {(case.num_heads, case.num_kv_heads) for case in cases}
    assert (192, 128) in {(case.head_dim, case.head_dim_v) for case in cases}
    assert min(case.seqlen_q for case in cases) == 1
    assert {4, 77, 257, 300} <= {case.seqlen_k for case in cases if not case.causal}
    assert any(case.causal and case.seqlen_q < case.seqlen_k for case in cases)
    assert len(DOMAINS) == 6


def test_heads_are_those_of_the_table_of_models() -> None:
    known = {model.source: model for model in models().values()}
    found = 0
    for shape in SHAPES:
        if model := known.get(shape.source.removesuffix("/blob/main/config.json")):
            case = shape.case
            widths = (case.num_heads, case.num_kv_heads, case.head_dim, case.head_dim_v, case.window_size)
            assert widths == (model.heads, model.kv_heads, model.head_dim, model.value_dim, model.window_size)
            found += 1
    assert found >= 10


def test_a_case_is_found_by_its_sizes_whatever_its_dtype() -> None:
    shape = named("Stable Diffusion 1.5: text at 64 x 64")
    case = shape.in_dtype("float16")
    assert (case.seqlen_q, case.seqlen_k, case.head_dim, case.dtype) == (4096, 77, 40, "float16")
    assert shape_of(case) is shape_of(case_to_json(replace(case, inputs="normal"))) is shape
    assert shape_of(replace(case, batch=3)) is None
    context = {"batch": 1, "num_heads": 1, "num_kv_heads": 1, "head_dim": 64, "dtype": "bfloat16"}
    assert shape_of(decode_case(context=64, **context)) is None


def test_words_name_the_model_and_what_keys_and_values_have_of_their_own() -> None:
    case = named("DeepSeek-V3: chunked prefill: 512 tokens on 8192").case
    assert levels.words(case) == (
        "batch 1, heads 128, seqlen 512/8192, head_dim 192/128, bfloat16, causal, "
        "as DeepSeek-V3: chunked prefill: 512 tokens on 8192"
    )
    other = attention_case(batch=1, num_heads=128, seqlen=512, head_dim=64, dtype="bfloat16", causal=True)
    assert levels.words(other) == "batch 1, heads 128, seqlen 512, head_dim 64, bfloat16, causal"
