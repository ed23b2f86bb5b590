"""The operator and decoding in one store: each level has its own map, and no case of one meets one of the other."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from results.query import accuracy, memory, pages, pairing, scaling, speedups
from results.recommend.features import features
from results.recommend.rule import RuleError, rule_of
from results.recommend.winners import winners
from results.records import Case, Measurement, Run, Status, attention_case, decode_case
from results.slice import Filters, level_in
from results.store.database import Store

# The decode cases differ from the operator's in nothing but the level, or among themselves in one field.
OP = attention_case(batch=4, num_heads=8, seqlen=1, seqlen_k=1024, head_dim=64, dtype="bfloat16", causal=True)
DECODE = decode_case(batch=4, num_heads=8, num_kv_heads=8, context=1024, head_dim=64, dtype="bfloat16")
PAGED = replace(DECODE, page_size=16)
SLICE = Filters(
    gpu="A GPU", workload="decode attention", mask="causal", mode="decode", timing="kernel", baseline="slow"
)


def _rows(case: Case, mode: str, **values: float) -> Iterator[Measurement]:
    for name, value in values.items():
        yield Measurement("one", case, name, "latency_ms", Status.OK, mode=mode, timing="kernel", value=value, n=3)
        yield Measurement("one", case, name, "peak_memory_mb", Status.OK, mode=mode, value=100 * value)


@pytest.fixture
def store(store_of: Callable[..., Store]) -> Store:
    rows = [
        *_rows(OP, "fwd", slow=8.0, fast=2.0),
        *_rows(DECODE, "decode", slow=1.0, fast=0.5),
        *_rows(PAGED, "decode", slow=3.0, fast=1.0),
        *_rows(replace(DECODE, batch=8), "decode", slow=2.0, fast=2.5),
        *_rows(replace(DECODE, seqlen_k=2048), "decode", slow=4.0, fast=1.0),
    ]
    return store_of((Run("one", "local", gpu_name="A GPU", created="2026-11-22"), rows))


def test_a_workload_says_its_level(store: Store) -> None:
    assert pages.options(store, "workload", gpu="A GPU")["choice"].tolist() == ["decode attention", "attention"]
    assert pages.options(store, "workload", gpu="A GPU", level="op")["choice"].tolist() == ["attention"]
    assert pages.options(store, "level", gpu="A GPU")["choice"].tolist() == ["decode", "op"]
    assert [level_in(Filters(workload=name)).name for name in ("decode attention", "attention", None)] == [
        *("decode", "op", "op")
    ]


def test_a_map_of_decode_has_context_and_batch_and_one_of_the_operator_nothing_of_decode(store: Store) -> None:
    grid = speedups.grid(store, SLICE)
    assert grid.columns[:4].tolist() == ["dtype", "seqlen", "batch", "implementation"]
    fast = grid[grid["implementation"] == "fast"]
    assert [*zip(fast["seqlen"], fast["batch"], strict=True)] == [(1024, 4), (1024, 8), (2048, 4)]
    grid = speedups.grid(store, Filters(gpu="A GPU", mode="fwd", timing="kernel", baseline="slow"))
    assert grid.columns[:4].tolist() == ["dtype", "seqlen", "head_dim", "implementation"]
    assert grid["speedup"].tolist() == [4.0, 1.0]
    anything = speedups.grid(store, Filters(gpu="A GPU", timing="kernel", baseline="slow"))
    assert anything["seqlen"].tolist() == [1, 1]


def test_cases_that_differ_in_the_page_size_alone_are_two_shapes(store: Store) -> None:
    shapes = pages.options(store, "shape", gpu="A GPU", level="decode")["choice"].tolist()
    assert shapes == ["H8 D64", "H8 D64 page 16"]
    (contiguous,), (paged,) = (
        speedups.grid(store, replace(SLICE, shape=shape, batch=(4,), seqlen=(1024,), implementation=("fast",)))
        .query("implementation == 'fast'")["speedup"]
        .tolist()
        for shape in shapes
    )
    assert (contiguous, paged) == (2.0, pytest.approx(3.0))


def test_every_case_is_one_case_and_a_filter_chooses_batches(store: Store) -> None:
    assert len({row.number.case_id for row in pairing.paired(store, Filters(gpu="A GPU", baseline="slow"))}) == 5
    assert accuracy.errors(store, SLICE, "out").empty
    assert pages.options(store, "batch", gpu="A GPU", level="decode")["choice"].tolist() == [4, 8]
    assert pages.options(store, "batch", gpu="A GPU", level="op")["choice"].tolist() == []
    assert speedups.grid(store, replace(SLICE, batch=(8,)))["batch"].tolist() == [8, 8]


def test_the_winners_stand_where_the_map_has_them_and_a_cell_has_the_operations_of_decode(store: Store) -> None:
    won = winners(store, replace(SLICE, shape="H8 D64"))
    assert won.columns[:3].tolist() == ["dtype", "seqlen", "batch"]
    assert [*zip(won["seqlen"], won["batch"], won["winner"], strict=True)] == [
        *((1024, 4, "fast"), (1024, 8, "slow"), (2048, 4, "fast"))
    ]
    cell = pages.cell(store, replace(SLICE, shape="H8 D64"), "bfloat16", 2048, 4)
    assert cell["implementation"].tolist() == ["fast", "slow"]
    assert cell["flops"].tolist() == [2.0 * 4 * 8 * 2048 * 128] * 2


def test_memory_is_that_of_the_same_case_and_of_two_page_sizes_in_two_rows(store: Store) -> None:
    rows = scaling.rows(store, SLICE).query("implementation == 'fast'").sort_values(["seqlen_k", "shape", "batch"])
    assert [*zip(rows["seqlen_k"], rows["batch"], rows["shape"], rows["peak_memory_mb"], strict=True)] == [
        *((1024, 4, "H8 D64", 50.0), (1024, 8, "H8 D64", 250.0), (1024, 4, "H8 D64 page 16", 100.0)),
        (2048, 4, "H8 D64", 100.0),
    ]
    assert rows["gb_per_s"].notna().all()
    found = memory.parts(store, replace(SLICE, seqlen=(1024,), batch=(4,), timing=None), ["one"])
    assert found["shape"].tolist() == ["H8 D64"] * 2 + ["H8 D64 page 16"] * 2
    assert found["peak_memory_mb"].tolist() == [50.0, 100.0, 100.0, 300.0]


def test_a_rule_is_of_the_operator_alone_and_features_of_decode_are_seen_in_decode_alone(store: Store) -> None:
    with pytest.raises(RuleError, match="decode attention has context and batch"):
        rule_of(store, SLICE)
    op = Filters(gpu="A GPU", workload="attention")
    counts = {
        name: table.set_index(["feature", "implementation"]).loc[("bfloat16", "fast"), "numbers"]
        for name, table in (("op", features(store, op)), ("decode", features(store, SLICE)))
    }
    assert counts == {"op": 1, "decode": 4}
