"""The sweeps: the grids of the reports they repeat, and changing an axis."""

import json

import pytest

from results.levels.real_shapes import SHAPES
from runner import sweeps
from runner.sweeps import SWEEPS, Sweep, SweepError
from tests.cases import cases


@pytest.mark.parametrize(
    ("name", "count"),
    [*cases(__file__, "test_a_sweep_has_as_many_cases_as_its_description_says"), ("real_models", len(SHAPES))],
)
def test_a_sweep_has_as_many_cases_as_its_description_says(name: str, count: int) -> None:
    cases = sweeps.get(name).cases()
    assert len(cases) == len(set(cases)) == count


def test_the_paper_keeps_tokens_and_width_and_every_case_says_every_feature() -> None:
    for case in sweeps.get("fa_paper").cases():
        assert case.batch * case.seqlen_q == 16384
        assert case.num_heads * case.head_dim == 2048
    for sweep in SWEEPS.values():
        for case in sweep.cases():
            assert None not in (case.num_kv_heads, case.head_dim_v, case.window_size, case.causal, case.seqlen_k)


def test_a_decode_sweep_is_of_contexts_and_batches_and_pairs_of_heads() -> None:
    changed = sweeps.override(sweeps.get("decode"), {"context": "4096", "batch": "2,4", "heads": "16/2, 8"})
    found = [(c.level, c.seqlen_q, c.seqlen_k, c.batch, c.num_heads, c.num_kv_heads) for c in changed.cases()]
    assert found == list(cases(__file__, "contexts, batches and heads"))
    assert sweeps.from_json(sweeps.to_json(changed)) == changed


def test_batch_specs_take_the_place_of_batch_context_and_tokens() -> None:
    changed = sweeps.override(sweeps.get("mixed_batches"), {"batch_spec": "8q1s1024_2q2048,4q3s1k", "page_size": "16"})
    sizes = [(c.batch, c.seqlen_q, c.seqlen_k, c.lengths) for c in changed.cases()[::2]]
    assert sizes == [(10, 2048, 2048, "2q2k_8q1s1k"), (4, 3, 1024, "uniform")]
    again = sweeps.override(changed, {"batch": "2", "context": "64"})
    assert [(c.batch, c.seqlen_k) for c in again.cases()[::2]] == [(2, 64)]


def test_an_axis_can_be_changed_a_value_counts_once_and_the_batch_ends_the_rule_of_tokens() -> None:
    changed = sweeps.override(sweeps.get("quick"), {"seqlen": "64, 96", "causal": "false", "dtype": "float32"})
    found = [(c.seqlen_q, c.causal, c.dtype) for c in changed.cases()]
    assert found == [(64, False, "float32"), (96, False, "float32")]
    changed = sweeps.override(sweeps.get("quick"), {"seqlen": "64,96,64", "modes": "fwd,fwd", "dtype": "float32"})
    assert [case.seqlen_q for case in changed.cases()] == [64, 96]
    assert changed.modes == ("fwd",)
    changed = sweeps.override(sweeps.get("fa_paper"), {"batch": "3", "num_heads": "5"})
    assert {(c.batch, c.num_heads) for c in changed.cases()} == {(3, 5)}


@pytest.mark.parametrize(
    "name,changes,sentence", cases(__file__, "test_an_impossible_change_is_refused_with_a_sentence")
)
def test_an_impossible_change_is_refused_with_a_sentence(name: str, changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(SweepError) as refused:
        sweeps.override(sweeps.get(name), changes)
    assert sentence in str(refused.value)


def test_a_sweep_of_models_extrapolates_where_it_is_given_depths() -> None:
    assert sweeps.override(sweeps.get("training"), {"depths": "2,4"}).extrapolates
    assert not sweeps.get("training").extrapolates


@pytest.mark.parametrize("sweep", SWEEPS.values(), ids=lambda sweep: sweep.name)
def test_a_sweep_survives_the_way_through_json(sweep: Sweep) -> None:
    assert sweeps.from_json(sweeps.to_json(sweep)) == sweep


def test_a_sweep_with_features_apart_has_each_of_them_once_for_each_context_and_batch() -> None:
    cases = [case for case in sweeps.get("decode_quick").cases() if (case.seqlen_k, case.batch) == (512, 4)]
    first = cases[0]
    assert (first.page_size, first.lengths, first.cache_dtype, first.latent_dim) == (0, "uniform", "float16", 0)
    apart = ("dtype", "seqlen_q", "window_size", "page_size", "lengths", "cache_dtype", "latent_dim")
    for name, case in zip(apart, cases[1:], strict=True):
        differing = {each for each in apart if getattr(case, each) != getattr(first, each)}
        assert differing == ({"dtype", "cache_dtype"} if name == "dtype" else {name})


def test_latents_are_shared_by_all_heads_and_a_quantised_cache_is_an_axis_of_its_own() -> None:
    for case in sweeps.get("mla_decode").cases():
        assert (case.subject, case.num_kv_heads, case.head_dim, case.head_dim_v) == ("mla", 1, 576, 512)
    changed = sweeps.override(sweeps.get("decode"), {"latent_dim": "512", "heads": "16", "context": "64", "batch": "1"})
    assert [case.latent_dim for case in changed.cases()] == [512]
    kinds = {case.cache_dtype for case in sweeps.get("fp8_cache_decode").cases()}
    assert kinds == {"bfloat16", "float8_e4m3fn"}


def test_models_are_narrowed_by_domain_and_by_shape_and_have_any_dtype() -> None:
    models = sweeps.get("real_models")
    protein = sweeps.override(models, {"domain": "protein", "dtype": "float16,float32"})
    assert len(protein.cases()) == 2 * sum(shape.domain == "protein" for shape in SHAPES)
    assert {case.dtype for case in protein.cases()} == {"float16", "float32"}
    one = sweeps.override(models, {"shape": "DeepSeek-V2 Lite: training of 4096 tokens"})
    assert [(case.head_dim, case.head_dim_v, case.batch) for case in one.cases()] == [(192, 128, 2)]


def test_flashtile_has_grouped_heads_of_one_version_also_when_its_record_is_read() -> None:
    sweep = sweeps.from_json(json.loads(json.dumps(sweeps.to_json(sweeps.get("flashtile")))))
    cases = {str(case.subject): case for case in sweep.cases()}
    left = [(s, n) for s in cases for n in sweep.implementations if not sweep.takes_part(cases[s], n, "fwd")]
    assert left == [("gqa_bias", "tiled_v1")]
