"""Levels are found, and a name without one is refused with those that exist."""

import pytest

from results import levels
from results.levels import UnknownLevel, level_of
from results.records import LEVELS, Case, attention_case, case_to_json, decode_case

OP = attention_case(batch=2, num_heads=8, seqlen=512, head_dim=64, dtype="bfloat16", causal=True, num_kv_heads=2)
DECODE = decode_case(batch=3, num_heads=8, num_kv_heads=2, context=1000, head_dim=64, dtype="bfloat16", page_size=16)


def test_every_level_is_found_by_a_case_its_fields_or_its_name_and_an_unknown_one_is_refused() -> None:
    assert sorted(levels.names()) == sorted(LEVELS)
    assert level_of(DECODE) is level_of(case_to_json(DECODE)) is level_of("decode")
    assert level_of(Case(level=None)) is level_of(None) is level_of({"level": float("nan")}) is level_of("op")
    with pytest.raises(UnknownLevel, match="Unknown level 'kernel'. Available: decode, layer, model, op."):
        level_of("kernel")


def test_axes_name_fields_of_the_case() -> None:
    for name in levels.names():
        level = level_of(name)
        assert {level.columns.field, level.rows.field} <= set(case_to_json(OP))
        assert level.columns.column == "seqlen"


def test_words_say_shape_and_mask() -> None:
    assert levels.words(OP) == "batch 2, heads 8/2, seqlen 512, head_dim 64, bfloat16, causal"
    assert level_of(OP).short(OP) == "B2 H8 KV2 D64 S512 bfloat16 causal"
    assert level_of(DECODE).short(DECODE) == "decode B3 H8 KV2 D64 context 1000 page 16 bfloat16"
