"""What runs declare of their implementations, as the pages ask for it."""

from dataclasses import replace

import pytest

from results.implementations import facts_of
from results.levels import names
from results.query.declared import colours, declared, of_rows, with_precision
from results.recommend.winners import winners
from results.records import Measurement, Run, Status, attention_case
from results.slice import Filters
from tests.builders import add_run, latency

CASE = attention_case(batch=1, num_heads=1, seqlen=64, head_dim=64, dtype="float16", causal=True)
RUN = Run("old", "local", created="2026-01-01T00:00:00")


@pytest.fixture
def found(store_of):
    def made(*sweeps) -> dict[str, str]:
        days = enumerate(sweeps, start=1)
        runs = (replace(RUN, run_id=f"run-{n}", created=f"2026-01-{n:02}", implementations=of) for n, of in days)
        return colours(store_of(*((run, []) for run in runs)))

    return made


def test_the_newest_run_says_the_colour_and_runs_from_before_declarations_keep_theirs(found):
    colour_of = found({"mine": {"colour": "#111111"}}, {"mine": {"colour": "#222222"}, "other": {}})
    assert colour_of["mine"] == "#222222"
    assert "other" not in colour_of
    assert found()["triton_fa2"] == "#e69f00"


@pytest.mark.parametrize("colour", ["red;background:url(//x)", "#12345", None])
def test_what_is_no_colour_is_left_out(found, colour):
    assert "mine" not in found({"mine": {"colour": colour}})


def test_an_implementation_at_two_levels_declares_twice(store_of):
    op = {"level": "op", "memory": {"growth": "matrix"}, "colour": "#111111"}
    decode = {"level": "decode", "memory": {"growth": "linear"}, "precision": "fp8"}
    row = Measurement("r", CASE, "mine", "compile_ms", Status.OK, value=1.0)
    runs = [
        replace(RUN, run_id=f"r{day}", created=f"2026-01-0{day}", implementations={"mine": facts})
        for day, facts in enumerate((op, decode), start=1)
    ]
    store = store_of(*((run, [row]) for run in runs))
    assert declared(store)["mine"] == op
    assert declared(store, "decode")["mine"] == decode
    assert colours(store)["mine"] == "#111111"
    assert with_precision(store, "fp8") == []
    assert with_precision(store, "fp8", "decode") == ["r1/mine", "r2/mine"]


@pytest.mark.parametrize("name", ["triton_fa2", "measured_here", "declared_here"])
def test_an_upload_declares_nothing_of_what_we_measured(store_of, name):
    ours = replace(RUN, run_id="ours", implementations={"declared_here": {"family": "own"}})
    store = store_of((ours, [Measurement("ours", CASE, "measured_here", "compile_ms", Status.OK, value=1.0)]))
    before = {each: declared(store, each) for each in names()}
    store.close()
    far = {name: {"precision": "fp8"}, "theirs": {"precision": "fp8", "family": "peer"}}
    store = store_of((Run("far", "upload", created="2199-01-01", implementations=far), []))
    assert {each: declared(store, each) for each in names()} == before | {
        "op": before["op"] | {"theirs": far["theirs"]}
    }


def test_no_date_or_code_of_an_upload_lets_it_replace_a_run_of_ours(home, opened):
    for source, year, code, ms in (("local", 2026, "a", 1), ("local", 2027, "b", 9), ("upload", 2199, "a", 1)):
        rows = latency("mine", float(ms), CASE), latency("torch_naive", 2.0, CASE)
        add_run(home, f"r{year}", *rows, source=source, created=f"{year}-01-01", kernel_hash=code)
    assert winners(opened(), Filters(gpu="A GPU", mode="fwd"))["winner"].tolist() == ["torch_naive"]


def test_the_facts_of_an_upload_count_for_its_own_rows_only(home, opened):
    said = {"far-1": "fp8", "far-2": None, "bare": ""}
    for seqlen, (run_id, precision) in zip((256, 512, 1024), said.items(), strict=True):
        facts = {} if run_id == "bare" else {"theirs": {"precision": precision, "family": "peer"}}
        case = replace(CASE, seqlen_q=seqlen, seqlen_k=seqlen)
        rows = latency("theirs", 1.0, case), latency("torch_naive", 2.0, case)
        add_run(home, run_id, *rows, source="upload", created=None, gpu_name="a GPU", implementations=facts)
    store = opened()
    assert declared(store)["theirs"] == {"family": "peer"}  # what the runs that declare it agree on
    assert with_precision(store, "fp8") == ["far-1/theirs"]
    assert [facts_of("theirs", of_rows(store), run_id).family for run_id in said] == ["peer", "peer", None]
    found = winners(store, Filters(gpu="a GPU", mode="fwd", timing="kernel")).sort_values("seqlen")
    assert found["winner"].tolist() == ["torch_naive", "theirs", "theirs"]  # FP8 wins nothing in its own run only
