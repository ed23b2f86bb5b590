"""Shapes of models: which run of each counts, and who is the fastest on either side."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from results.levels.real_shapes import SHAPES
from results.query import shapes
from results.records import Case, Status, attention_case
from results.store.database import Store, open_store
from tests.builders import add_run, latency

GPU = "Test GPU"
OTHER_GPU = "Other GPU"
FIRST = SHAPES[0].case


def _run(
    home: Path, run_id: str, created: str, times: dict[str, float | None], case: Case = FIRST, gpu: str = GPU
) -> None:
    rows = [latency(name, ms or Status.INCORRECT, case) for name, ms in times.items()]
    add_run(home, run_id, *rows, created=created, gpu_name=gpu)


@pytest.fixture
def store(tmp_path: Path, shipped: Path) -> Iterator[Store]:
    _run(tmp_path, "old", "2026-01-01T00:00:00", {"torch_sdpa_flash": 3.0, "gluon_hopper": 2.0, "gluon_fp8": 0.1})
    _run(tmp_path, "newer", "2026-02-01T00:00:00", {"torch_sdpa_flash": 3.0, "torch_naive": 2.5, "triton_fa2": 2.0})
    _run(tmp_path, "ours alone", "2026-03-01T00:00:00", {"triton_fa2": 0.5})
    _run(tmp_path, "failed", "2026-04-01T00:00:00", {"torch_sdpa_flash": 3.0, "triton_fa2": None})
    plain = attention_case(batch=3, num_heads=3, seqlen=3, head_dim=64, dtype="bfloat16", causal=True)
    _run(tmp_path, "no model", "2026-05-01T00:00:00", {"torch_naive": 1.0, "triton_fa2": 2.0}, case=plain)
    outliers = replace(FIRST, inputs="outliers")
    _run(tmp_path, "other data", "2026-05-01T00:00:00", {"torch_naive": 1.0, "triton_fa2": 2.0}, case=outliers)
    _run(tmp_path, "elsewhere", "2026-05-01T00:00:00", {"torch_naive": 8.0, "triton_fa2": 2.0}, gpu=OTHER_GPU)
    shutil.copy(shipped, tmp_path / "store.duckdb")
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def test_the_newest_run_with_both_sides_counts_for_each_gpu_and_timing_and_is_summed_up(store: Store) -> None:
    (duel,) = shapes.duels(shapes.numbers(store, GPU, "kernel")).to_dict("records")
    assert (duel["run_id"], duel["place"], duel["shape"]) == ("newer", 0, SHAPES[0].name)
    assert (duel["ours"], duel["ours_ms"], duel["other"], duel["other_ms"]) == ("triton_fa2", 2.0, "torch_naive", 2.5)
    assert duel["ratio"] == 1.25
    assert {(GPU, "kernel"), (OTHER_GPU, "kernel")} <= set(shapes.there(store))
    (duel,) = shapes.duels(shapes.numbers(store, OTHER_GPU, "kernel")).to_dict("records")
    assert duel["ratio"] == 4.0
    assert shapes.numbers(store, GPU, "eager").empty
    duels = shapes.duels(shapes.numbers(store, GPU, "kernel"))
    summed = {"shapes": 1, "ahead": 1, "mean": pytest.approx(1.25), "low": 1.25, "high": 1.25}
    assert shapes.summed_up(duels) == summed
    assert shapes.summed_up(duels.assign(ratio=None)) is None
    assert shapes.summed_up(shapes.duels(shapes.numbers(store, GPU, "eager"))) is None
