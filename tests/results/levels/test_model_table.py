"""Configurations of published models imply the published numbers of parameters and cache bytes."""

import pytest

from results.levels.model_table import UnknownModel, model, models
from tests.cases import cases

# Of each checkpoint, as its model card or the safetensors index of its source counts them.
PUBLISHED = cases(__file__, "PUBLISHED")


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_checkpoint(name):
    assert model(name).parameters == PUBLISHED[name]


def test_every_published_model_has_a_count_to_check_it_and_a_token_of_deepseek_v2_lite_2_7_billion():
    assert set(models()) - set(PUBLISHED) == {"gpt2-tiny"}
    assert model("deepseek-v2-lite").active_parameters / 1e9 == pytest.approx(2.66, abs=0.01)


@pytest.mark.parametrize(("name", "billions"), [("gpt2", 0.124), ("gpt-j-6b", 5.844), ("llama2-7b", 6.607)])
def test_matrices_leave_embeddings_and_norms_out(name, billions):
    assert model(name).matmul_parameters / 1e9 == pytest.approx(billions, abs=6e-4)


@pytest.mark.parametrize(
    ("name", "kib"), [("gpt2", 36), ("gpt2-xl", 300), ("gpt-neox-20b", 1056), ("llama2-7b", 512), ("llama3-8b", 128)]
)
def test_keys_and_values_of_a_token_in_bfloat16(name, kib):
    config = model(name)
    assert 2 * config.layers * config.cache_numbers() == kib * 1024


def test_a_latent_cache_holds_the_latent_and_the_rope_part_where_there_is_one():
    config = model("deepseek-v2-lite")
    assert config.cache_numbers(latent=True) == 576
    assert config.cache_numbers() == 16 * (192 + 128)
    with pytest.raises(ValueError, match="llama2-7b has no latent attention"):
        model("llama2-7b").cache_numbers(latent=True)


def test_depth_changes_parameters_by_whole_layers_of_which_the_first_may_be_dense():
    config = model("llama2-7b")
    of_a_layer = config.at_depth(2).parameters - config.at_depth(1).parameters
    assert config.at_depth(None).parameters == config.parameters == config.outside_parameters + 32 * of_a_layer
    config = model("deepseek-v2-lite")
    first = config.at_depth(1).parameters - config.outside_parameters
    second = config.at_depth(2).parameters - config.at_depth(1).parameters
    assert first < second / 7


def test_heads_fill_the_hidden_width_without_a_latent_and_an_unknown_model_names_those_that_exist():
    for config in models().values():
        wider = config.latent or config.architecture.family == "gemma"  # as its report says: 16 heads of 256 for 3072
        assert wider or config.heads * config.head_dim == config.hidden
        assert config.heads % config.kv_heads == 0
    with pytest.raises(UnknownModel, match="Unknown model 'llama4'. Available: gpt2-tiny, gpt2, gpt2-xl"):
        model("llama4")
