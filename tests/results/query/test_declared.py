"""What runs declare of their implementations, as the pages ask for it."""

from contextlib import closing
from dataclasses import replace

import pytest

from results.files.journal import RunFolder
from results.implementations import facts_of
from results.levels import names
from results.query.declared import colours, declared, of_rows, with_precision
from results.recommend.winners import winners
from results.records import Measurement, Run, Status, attention_case
from results.slice import Filters
from results.store.database import open_store

CASE = attention_case(batch=1, num_heads=1, seqlen=64, head_dim=64, dtype="float16", causal=True)
RUN = Run("old", "local", created="2026-01-01T00:00:00")


def found(home, *sweeps) -> dict[str, str]:
    for day, facts in enumerate(sweeps, start=1):
        run = replace(RUN, run_id=f"run-{day}", created=f"2026-01-{day:02}T00:00:00", implementations=facts)
        RunFolder.create(home, run, [])
    with closing(open_store(home)) as store:
        return colours(store)


def test_the_newest_run_says_the_colour_of_an_implementation(home):
    colour_of = found(home, {"mine": {"colour": "#111111"}}, {"mine": {"colour": "#222222"}, "other": {}})
    assert colour_of["mine"] == "#222222"
    assert "other" not in colour_of


def test_runs_from_before_declarations_keep_their_colours(home):
    assert found(home)["triton_fa2"] == "#e69f00"


@pytest.mark.parametrize("colour", ["red;background:url(//x)", "#12345", None])
def test_what_is_no_colour_is_left_out(home, colour):
    assert "mine" not in found(home, {"mine": {"colour": colour}})


def test_an_implementation_at_two_levels_declares_twice(home):
    op = {"level": "op", "memory": {"growth": "matrix"}, "colour": "#111111"}
    decode = {"level": "decode", "memory": {"growth": "linear"}, "precision": "fp8"}
    for day, facts in enumerate((op, decode), start=1):
        run = replace(RUN, run_id=f"r{day}", created=f"2026-01-{day:02}", implementations={"mine": facts})
        RunFolder.create(home, run, [Measurement(run.run_id, CASE, "mine", "compile_ms", Status.OK, value=1.0)])
    with closing(open_store(home)) as store:
        assert declared(store)["mine"] == op
        assert declared(store, "decode")["mine"] == decode
        assert colours(store)["mine"] == "#111111"
        assert with_precision(store, "fp8") == []
        assert with_precision(store, "fp8", "decode") == ["r1/mine", "r2/mine"]


@pytest.mark.parametrize("name", ["triton_fa2", "measured_here", "declared_here"])
def test_an_upload_declares_nothing_of_what_we_measured(home, name):
    ours = replace(RUN, run_id="ours", implementations={"declared_here": {"family": "own"}})
    rows = [Measurement("ours", CASE, "measured_here", "compile_ms", Status.OK, value=1.0)]
    RunFolder.create(home, ours, rows)
    with closing(open_store(home)) as store:
        before = {each: declared(store, each) for each in names()}
    far = {name: {"precision": "fp8"}, "theirs": {"precision": "fp8", "family": "peer"}}
    RunFolder.create(home, Run("far", "upload", created="2199-01-01", implementations=far), [])
    with closing(open_store(home)) as store:
        assert {each: declared(store, each) for each in names()} == before | {
            "op": before["op"] | {"theirs": far["theirs"]}
        }


def test_the_facts_of_an_upload_count_for_its_own_rows_only(home):
    said = {"far-1": "fp8", "far-2": None, "bare": ""}
    for seqlen, (run_id, precision) in zip((256, 512, 1024), said.items(), strict=True):
        facts = {} if run_id == "bare" else {"theirs": {"precision": precision, "family": "peer"}}
        case = replace(CASE, seqlen_q=seqlen, seqlen_k=seqlen)
        row = Measurement(run_id, case, "theirs", "latency_ms", "ok", value=1.0, mode="fwd", timing="kernel")
        other = replace(row, implementation="torch_naive", value=2.0)
        RunFolder.create(home, Run(run_id, "upload", gpu_name="a GPU", implementations=facts), [row, other])
    with closing(open_store(home)) as store:
        assert declared(store)["theirs"] == {"family": "peer"}  # what the runs that declare it agree on
        assert with_precision(store, "fp8") == ["far-1/theirs"]
        assert [facts_of("theirs", of_rows(store), run_id).family for run_id in said] == ["peer", "peer", None]
        found = winners(store, Filters(gpu="a GPU", mode="fwd", timing="kernel")).sort_values("seqlen")
        assert found["winner"].tolist() == ["torch_naive", "theirs", "theirs"]  # FP8 wins nothing in its own run only
