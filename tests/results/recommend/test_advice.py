"""Advice and features, over runs with known winners."""

import json

import pytest

from results import capabilities
from results.files.journal import RunFolder
from results.recommend import advice, features
from results.recommend.winners import Contender
from results.records import Measurement, Run, Status, attention_case
from results.render import slice as rendered
from results.render.markdown import tables
from results.slice import Filters
from tests.builders import latency
from tests.cases import cases

SLICE = Filters(gpu="A GPU", baseline="torch_naive")
# by implementation: milliseconds at head_dim 64 and 128, or why there is none
TIMES = {
    "torch_naive": (8.0, 8.0),
    "mine": (1.0, Status.UNSUPPORTED),
    "torch_sdpa_flash": (2.0, 4.0),
    "torch_sdpa_math": (9.0, 9.0),
}


@pytest.fixture
def store(store_of):
    rows = []
    for name, times in TIMES.items():
        for head_dim, found in zip((64, 128), times, strict=True):
            case = attention_case(batch=4, num_heads=8, seqlen=1024, head_dim=head_dim, dtype="bfloat16", causal=True)
            note = "not at 128" if isinstance(found, Status) else None
            rows.append(latency(name, found, case, mode="fwd_bwd", note=note))
            if not isinstance(found, Status):
                memory = 400.0 if name == "torch_naive" else 100.0
                rows.append(latency(name, memory, case, mode="fwd_bwd", metric="peak_memory_mb", timing=None))
    return store_of((Run("a", "local", gpu_name="A GPU"), rows))


def test_advice_lets_the_baseline_stand_in_and_carries_speedup_memory_and_the_best_of_pytorchs_own(store):
    (training,) = advice.advise(store, SLICE)
    # mine loses 8 / 4 where the baseline stands in, a mean of sqrt(2); flash loses 2 / 1 where mine wins: the same
    assert training.use_case == "Training"
    assert (training.implementation, training.covered, training.cases) == ("mine", 1, 2)
    assert training.behind == pytest.approx(2**0.5)
    assert training.worst == pytest.approx(2.0)
    assert training.wins == 1
    assert (training.speedup, training.compared) == (pytest.approx(8.0), 1)
    assert training.memory_reduction == pytest.approx(4.0)
    assert training.backend == "FLASH_ATTENTION"
    assert training.runs == ("a",)
    assert advice.advise(store, Filters(gpu="B GPU", baseline="torch_naive")) == []


def test_advice_says_how_its_times_were_taken_also_if_their_source_does_not(store_of):
    case = attention_case(batch=1, num_heads=1, seqlen=256, head_dim=64, dtype="bfloat16", causal=True)
    rows = [latency(name, ms, case, mode="fwd", timing=None) for name, ms in (("torch_naive", 2.0), ("mine", 1.0))]
    (short,) = advice.advise(store_of((Run("a", "upload", gpu_name="A GPU"), rows)), SLICE)
    assert (short.use_case, short.about) == ("Short sequences", "forward, causal, up to 512 tokens, times as published")


def test_a_shape_whose_heads_are_not_said_is_neither_many_nor_few():
    case = attention_case(batch=1, num_heads=1, seqlen=1024, head_dim=64, dtype="bfloat16", causal=True)
    unsaid = case.__class__(**(vars(case) | {"num_heads": None, "num_kv_heads": None}))
    measurement = Measurement("a", unsaid, "x", "latency_ms", Status.OK, value=1.0)
    contest = {"x": Contender(measurement, None, "local", None, "causal", "B1 H?")}
    names = {use_case.name for use_case in advice.USE_CASES if use_case.holds(contest)}
    assert not names & {"Training", "Few heads"}


def test_features_are_what_ran_and_what_was_refused_and_why(store):
    table = features.features(store, SLICE).set_index(["feature", "implementation"])
    assert table.loc[("backward", "mine"), ["seen", "numbers"]].tolist() == ["ran", 1]
    assert table.loc[("sliding window", "mine"), "seen"] == "not tried"
    assert table.loc[("full mask", "mine"), "seen"] == "not tried"
    assert len(table) == len(features.FEATURES) * len(TIMES)


def test_features_of_calls_are_those_that_were_recorded_of_the_gpu(store, tmp_path, monkeypatch):
    found = {"softcap": 0.5, "dropout": 1.5, "head_dim_v": 0.1}
    right = {name: {"errors": {"float16": error}, "why": None} for name, error in found.items()}
    broken = {"varlen": {"errors": {"float16": None}, "why": "RuntimeError: no registers"}}
    of_mine = {"implementations": {"mine": right | broken | {"mask": "mine takes none."}}}
    of_another = {"implementations": {"mine": {"sinks": right["softcap"]}}}
    (tmp_path / capabilities.RECORD).write_text(json.dumps({SLICE.gpu: of_mine, "Another": of_another}))
    monkeypatch.setattr(capabilities.paths, "PUBLISHED", tmp_path)
    table = features.features(store, SLICE).set_index(["feature", "implementation"])
    words = capabilities.CAPABILITIES
    seen = table.xs("mine", level="implementation")[["seen", "why"]].fillna("")
    assert {name: seen.loc[words[name]].tolist() for name in of_mine["implementations"]["mine"]} == {
        "softcap": ["checked", ""],
        "dropout": ["failed", "1.5 times the error that is allowed"],
        "head_dim_v": ["checked", ""],
        "varlen": ["failed", "RuntimeError: no registers"],
        "mask": ["refused", "mine takes none."],
    }
    assert table.loc[(words["softcap"], "torch_naive"), "seen"] == "not tried"
    assert len(table) == (len(features.FEATURES) + 4) * len(TIMES), "each feature once"
    assert words["sinks"] not in table.index.get_level_values("feature")


def test_a_feature_that_was_only_refused_says_so(store):
    features.FEATURES["test"] = "head_dim = 128"
    try:
        table = features.features(store, SLICE).set_index(["feature", "implementation"])
    finally:
        del features.FEATURES["test"]
    assert table.loc[("test", "mine"), ["seen", "why"]].tolist() == ["refused", "not at 128"]


def test_rendered_advice_holds_the_advice_and_every_feature_with_its_numbers(store):
    text = rendered.render_advice(store, SLICE)
    advised, seen = tables(text)
    assert dict(zip(advised.header, advised.rows[0], strict=True)) == cases(__file__, "ADVISED")
    rows = {row[0]: dict(zip(seen.header, row, strict=True)) for row in seen.rows}
    assert rows["backward"]["torch_naive"] == "2"
    assert rows["FP8 products"]["mine"] == "not tried"
    assert rows["memory grows"]["torch_naive"] == "with seqlen squared"


def with_more(tmp_path, rows) -> Filters:
    """The same GPU with another run."""
    RunFolder.create(tmp_path, Run("more", "local", gpu_name="A GPU"), rows)
    return SLICE


def number(name: str, metric: str, value: float | None, **of) -> Measurement:
    fields = {"batch": 1, "num_heads": 32, "num_kv_heads": 8, "seqlen": 4096, "head_dim": 128, "causal": True}
    case = attention_case(**fields | {"dtype": "bfloat16"} | of)
    timing = "kernel" if metric == "latency_ms" else None
    return Measurement("more", case, name, metric, Status.OK, mode="fwd", timing=timing, value=value)


def test_windows_of_any_size_are_use_cases_of_their_own(store, tmp_path):
    times = {"torch_naive": 8.0, "torch_flex": 2.0, "mine": 1.0}
    rows = [number(name, "latency_ms", ms, window_size=size) for name, ms in times.items() for size in (1024, 4000)]
    scope = with_more(tmp_path, rows)
    store.refresh()
    found = {one.use_case: one for one in advice.advise(store, scope)}
    assert set(found) == {"Training", "Prompts with a window"}
    window = found["Prompts with a window"]
    assert (window.implementation, window.cases, window.speedup) == ("mine", 2, pytest.approx(8.0))


def test_what_was_only_checked_is_said_to_be_not_timed_and_fp8_products_are_a_feature(store, tmp_path):
    rows = [number("mine", "error_out", 1e-3, dtype="float16"), number("gluon_fp8", "latency_ms", 1.0)]
    scope = with_more(tmp_path, rows)
    store.refresh()
    table = features.features(store, scope).set_index(["feature", "implementation"])
    assert table.loc[("float16", "mine"), ["seen", "numbers"]].tolist() == ["checked", 0]
    assert table.loc[("FP8 products", "gluon_fp8"), "seen"] == "ran"
    assert table.loc[("FP8 products", "mine"), "seen"] == "not tried"
