"""Operations, bytes and memory of decoding against numbers counted by hand."""

import contextlib
import random
import time
import tracemalloc
from dataclasses import replace

import pytest

from results import levels
from results.levels import decode
from results.levels.memory import law_from_json
from results.records import CASE_SCHEMA, LEVELS, Case, RecordError, case_to_json, decode_case
from tests.cases import cases

# Llama-3 70B's heads: 64 query heads over 8 key heads
CASE = decode_case(batch=4, num_heads=64, num_kv_heads=8, context=8192, head_dim=128, dtype="bfloat16")
CACHE = 4 * 8192 * 8 * (128 + 128) * 2  # keys and values
QUERIES = 4 * 64 * (128 + 128) * 2  # q and out of one token
MIB = 1024 * 1024


def test_each_query_token_multiplies_with_the_keys_and_values_that_it_sees() -> None:
    assert levels.flops(CASE, "decode") == 2 * 4 * 64 * 8192 * (128 + 128)
    case = replace(CASE, batch=1, num_heads=8, seqlen_q=4, seqlen_k=100)
    assert levels.flops(case, "decode") == 2 * 8 * (97 + 98 + 99 + 100) * 256
    case = replace(CASE, window_size=1024, seqlen_q=2)
    assert levels.flops(case, "decode") == 2 * 4 * 64 * (1024 + 1024) * 256
    assert levels.bytes_moved(case, "decode") == CACHE / 8192 * 1025 + 2 * QUERIES


def test_bytes_are_the_cache_its_page_table_scales_queries_and_output_and_a_latent_is_key_and_value() -> None:
    assert levels.bytes_moved(CASE, "decode") == CACHE + QUERIES == 134348800
    case = replace(CASE, page_size=16, seqlen_k=8200)  # 512.5 pages: the last one is half full
    cache = 4 * 8200 * 8 * 256 * 2
    assert levels.bytes_moved(case, "decode") == cache + QUERIES + 4 * 4 * 513
    case = replace(CASE, subject="mla", num_heads=128, num_kv_heads=1, head_dim=576, head_dim_v=512, latent_dim=512)
    record, queries = 4 * 8192 * 576 * 2, 4 * 128 * (576 + 512) * 2
    assert levels.bytes_moved(case, "decode") == record + queries
    assert levels.flops(case, "decode") == 2 * 4 * 128 * 8192 * (576 + 512)
    assert levels.memory_mb(case, law_from_json({"growth": "linear"}), "decode") * MIB == record + queries + 4 * 128 * 4
    case = replace(CASE, cache_dtype="float8_e4m3fn")
    assert levels.bytes_moved(case, "decode") == CACHE / 2 + QUERIES + 2 * 8 * 4
    law = law_from_json({"growth": "linear"})
    assert levels.memory_mb(case, law, "decode") * MIB == CACHE / 2 + 2 * 8 * 4 + QUERIES + 4 * 64 * 4


def test_modes_of_other_levels_and_what_the_case_leaves_open_have_no_numbers_and_a_ragged_batch_a_bound() -> None:
    assert levels.flops(CASE, "fwd") is None
    assert levels.bytes_moved(CASE, "fwd") is None
    assert levels.memory_mb(CASE, law_from_json({"growth": "linear"}), "fwd") is None
    assert levels.flops(replace(CASE, window_size=None), "decode") is None
    assert levels.bytes_moved(replace(CASE, dtype=None), "decode") is None
    with pytest.raises(RecordError, match="with ragged lengths at most 4096"):
        replace(CASE, batch=4097, lengths="ragged")


def test_memory_is_the_cache_and_what_the_law_says_up_to_the_longest_context_that_fits() -> None:
    law = law_from_json({"growth": "matrix", "fwd": {"matrices": 2}})
    parts = levels.memory_parts(replace(CASE, page_size=64), law, "decode")
    assert parts.given * MIB == CACHE + QUERIES / 2 + 4 * 128 * 4
    assert parts.returned * MIB == QUERIES / 2
    assert parts.matrices * MIB == 2 * 4 * 64 * 8192 * 2
    law = law_from_json({"growth": "linear", "fwd": {"numbers": 1}})
    longest = levels.largest_seqlen(CASE, law, "decode", 1024.0)
    assert levels.memory_mb(replace(CASE, seqlen_k=longest), law, "decode") <= 1024.0
    assert levels.memory_mb(replace(CASE, seqlen_k=longest + 1), law, "decode") > 1024.0


def test_forms_are_what_a_case_has_beside_plain_decoding() -> None:
    case = replace(CASE, page_size=16, lengths="ragged", cache_dtype="float8_e4m3fn", seqlen_q=4)
    assert dict(decode.forms(case_to_json(case))) == {
        "page 16": {"page_size": 0},
        "ragged": {"lengths": "uniform"},
        "float8_e4m3fn cache": {"cache_dtype": "bfloat16"},
        "4 query tokens": {"seqlen_q": 1},
    }
    assert dict(decode.forms(case_to_json(CASE))) == {}


def test_ragged_lengths_are_seeded_and_have_the_tokens_of_uniform_ones() -> None:
    case = case_to_json(replace(CASE, batch=64, lengths="ragged", seqlen_q=4))
    lengths = decode.lengths_of(case)
    assert lengths == decode.lengths_of(dict(case))
    assert sum(lengths) == 64 * 8192
    assert min(lengths) >= 4
    deviation = (sum((length - 8192) ** 2 for length in lengths) / 64) ** 0.5
    assert 0.35 * 8192 < deviation < 0.65 * 8192
    assert decode.lengths_of({**case, "lengths": "uniform"}) == (8192,) * 64


def test_operations_and_bytes_of_ragged_lengths_are_sums_over_the_sequences() -> None:
    case = replace(CASE, lengths="ragged", seqlen_q=2, window_size=4096, page_size=16)
    lengths = decode.lengths_of(case_to_json(case))
    keys = [min(length, 4097) for length in lengths]
    pairs = sum(min(length, 4096) + min(length - 1, 4096) for length in lengths)
    assert levels.flops(case, "decode") == 2 * 64 * pairs * 256
    table = 4 * sum(-(-count // 16) for count in keys)
    assert levels.bytes_moved(case, "decode") == sum(keys) * 8 * 256 * 2 + 2 * QUERIES + table


def test_operations_and_bytes_of_a_batch_spec_are_sums_over_its_requests() -> None:
    case = replace(CASE, batch=5, seqlen_q=64, seqlen_k=256, lengths="2q64_3q1s256", page_size=16)
    assert levels.flops(case, "decode") == 2 * 64 * (2 * 64 * 65 / 2 + 3 * 256) * 256
    keys, tokens = 2 * 64 + 3 * 256, 2 * 64 + 3
    assert levels.bytes_moved(case, "decode") == keys * 8 * 256 * 2 + tokens * QUERIES / 4 + 4 * keys / 16
    assert "2q64_3q1s256" in levels.words(case) and "2q64_3q1s256" in levels.level_of(case).short(case)
    assert dict(decode.forms(case_to_json(case))) == {"page 16": {"page_size": 0}}


@pytest.mark.parametrize(("changes", "sentence"), cases(__file__, "test_a_batch_spec_is_that_of_its_case"))
def test_a_batch_spec_is_that_of_its_case(changes: dict, sentence: str) -> None:
    with pytest.raises(RecordError, match=sentence):
        replace(CASE, **{"batch": 5, "seqlen_q": 64, "seqlen_k": 256, "lengths": "2q64_3q1s256"} | changes)


def test_formulas_cost_the_same_for_every_batch() -> None:
    """A field of 937 bytes once took 10 GB, because a uniform batch was a tuple of its lengths."""
    law = law_from_json({"growth": "linear", "fwd": {"numbers": 1}})
    small = case_to_json(replace(CASE, batch=1, page_size=16, window_size=1000))
    tracemalloc.start()
    large = {**small, "batch": 999_999_999}
    assert levels.flops(large, "decode") == pytest.approx(levels.flops(small, "decode") * 999_999_999)
    assert levels.bytes_moved(large, "decode") == pytest.approx(levels.bytes_moved(small, "decode") * 999_999_999)
    assert levels.memory_mb(large, law, "decode") > 0
    assert levels.flops({**large, "lengths": "ragged"}, "decode") is None
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("seed", range(5))
def test_the_cost_of_random_rows_is_linear_in_their_number(seed: int) -> None:
    """Every formula of every level over valid rows of any size, within a second and 16 MB for 200 rows."""
    chance = random.Random(seed)
    sizes = [name for name, rules in CASE_SCHEMA.items() if rules.kind == "whole"]
    rows = []
    for _ in range(200):
        fields = {name: chance.choice((1, 7, 4096, 999_999_999)) for name in sizes}
        fields["num_kv_heads"] = fields["num_heads"]
        choices = {"dtype": "bfloat16", "causal": True, "lengths": chance.choice(("uniform", "ragged"))}
        with contextlib.suppress(RecordError):
            rows.append(Case(level=chance.choice(LEVELS), **fields, **choices))
    law = law_from_json({"growth": "matrix", "fwd": {"matrices": 1}, "fwd_bwd": {"numbers": 2}})
    tracemalloc.start()
    began = time.process_time()
    for case in rows:
        for mode in levels.level_of(case).modes:
            record = case_to_json(case)
            levels.flops(record, mode), levels.bytes_moved(record, mode), levels.memory_mb(record, law, mode)
    assert time.process_time() - began < 20
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
