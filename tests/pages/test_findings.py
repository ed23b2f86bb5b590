"""The page Findings: when runs are checked, and what is drawn of it."""

from dataclasses import replace

import pandas as pd
import pytest
import streamlit as st

from pages.ui import findings
from results.files.journal import RunFolder
from results.formats import understand
from results.formats.upload import Understanding
from results.records import Measurement, Run, attention_case
from tests.builders import at, noisy
from tests.cases import cases
from tests.pages.conftest import shown

CASE = attention_case(batch=1, num_heads=8, seqlen=1024, head_dim=64, dtype="float16", causal=True)
RUN = Run("odd", "local", created="2026-03-01T00:00:00", gpu_name="NVIDIA H200")


def latency(ms: float, mode: str = "fwd", run_id: str = "odd", name: str = "quick") -> Measurement:
    return Measurement(run_id, CASE, name, "latency_ms", "ok", mode=mode, timing="kernel", value=ms, statistic="median")


@pytest.fixture
def home(home):
    """The home with findings of its own: these tests count what is checked, and replace the check."""
    (home / "findings").unlink()
    return home


@pytest.fixture
def checked(monkeypatch):
    """How often each run was checked."""
    seen = []

    def counting(runs, known):
        runs = list(runs)
        seen.extend(run.run_id for run, _ in runs)
        return original(runs, known)

    original = findings.check
    monkeypatch.setattr(findings, "check", counting)
    return seen


@pytest.fixture
def page(unpublished, checked, app):
    RunFolder.create(unpublished, RUN, [latency(0.00001), latency(1.0, "bwd"), latency(0.5, "fwd_bwd")])
    return app.switch_page("pages/findings.py").run()


def sentences(page):
    return page.dataframe[0].value["sentence"].tolist()


def test_a_line_counts_the_findings_of_a_rule_in_a_run_impossible_first_and_others_before_own():
    found = pd.DataFrame(cases(__file__, "findings"))
    lines = findings.grouped(found.loc[found.index.repeat(found["count"])].drop(columns="count"))
    wanted = found.sort_values("rank")[["title", "place", "count"]]
    assert lines[[*wanted]].values.tolist() == wanted.values.tolist()


def test_every_rule_says_its_arithmetic_to_this_page_and_others_and_is_filtered(page):
    weights = page.dataframe[0].value["weight"].tolist()
    assert weights == sorted(weights, reverse=True)
    assert "doubtful" in weights
    assert any("above the 989.5 of NVIDIA H200" in sentence for sentence in sentences(page))
    assert any("takes 0.5 ms, less than its bwd alone: 1 ms" in sentence for sentence in sentences(page))
    found = findings.voided(["odd"])
    assert "above the 989.5" in found[latency(0.00001).measurement_id]
    assert "less than its bwd alone" in found[latency(0.5, "fwd_bwd").measurement_id]
    assert latency(1.0, "bwd").measurement_id not in found
    assert findings.voided(["nothing"]) == {}
    assert findings.badge(["odd"]).startswith(":red-badge[")
    assert " 3 impossible]" in findings.badge(["odd"])
    assert " 1 impossible]" in findings.badge(["run-a"])
    assert findings.badge(["nothing"]) == ""
    assert findings.rows_of([latency(0.00001).measurement_id])["value"].tolist() == [0.00001]
    page.get_by_key("rule").set_value(["fwd_bwd below fwd or bwd"]).run()
    assert len(sentences(page)) == 1
    page.get_by_key("weight").set_value(["doubtful"]).run()
    assert "No finding matches all of these filters" in shown(page)
    page.get_by_key("rule").set_value([]).run()
    page.get_by_key("place").set_value(["run-a"]).run()
    assert "Test GPU" not in shown(page)
    assert set(page.dataframe[0].value["place"]) == {"run-a"}


def test_runs_are_checked_once_and_again_only_when_they_change_or_cannot_be_read(page, home, checked):
    assert sorted(checked) == ["odd", "run-a"]
    page.get_by_key("weight").set_value(["impossible"]).run()
    assert len(checked) == 2
    RunFolder.create(home, replace(RUN, run_id="new"), [latency(0.00001, run_id="new")])
    page.run()
    assert sorted(checked) == ["new", "odd", "run-a"]
    assert "new" in set(page.dataframe[0].value["place"])
    st.cache_data.clear()  # as in a new server, which finds the findings in the home
    page.run()
    assert sorted(checked) == ["new", "odd", "run-a"] and len(page.dataframe[0].value)
    (home / "runs" / "run-a" / "run.json").write_text("{")
    page.run()
    assert set(page.dataframe[0].value["place"]) == {"odd", "new"}
    assert not page.exception


def test_a_long_check_is_drawn_as_far_as_it_is_and_ends(page, home, monkeypatch):
    monkeypatch.setattr(findings, "_FIRST_S", 0.0)  # then each drawing gets at least one run further
    monkeypatch.setattr(findings, "_NEXT_S", 0.0)
    next((home / "findings").iterdir()).unlink()  # a server before has found those of one run
    st.cache_data.clear()
    first = findings.so_far()
    assert (first.checked, first.left, first.places) == (1, 1, ["odd", "run-a"])
    page.run()
    assert {"odd", "run-a"} == set(page.dataframe[0].value["place"])


def test_a_home_without_findings_says_what_is_looked_for(unpublished, app, monkeypatch):
    monkeypatch.setattr(findings, "check", lambda runs, known: [])
    app.session_state["rules"] = True  # the expander is open
    page = app.switch_page("pages/findings.py").run()
    assert "No finding" in shown(page)
    assert "faster than the device can be" in page.dataframe[0].value["rule"].tolist()


def test_a_badge_checks_its_own_run_only(unpublished, checked):
    RunFolder.create(unpublished, RUN, [latency(0.00001)])
    assert findings.badge(["odd"])
    assert checked == ["odd"]


def test_an_upload_is_checked_before_it_is_stored(home):
    head = "gpu_name,implementation,mode,batch,num_heads,num_kv_heads,seqlen,head_dim,dtype,causal,window_size"
    row = "NVIDIA H200,fast,fwd,1,8,8,1024,64,float16,true,0,0.00001"
    found = findings.of_upload(understand("mine.csv", f"{head},latency_ms\n{row}\n".encode()))()
    assert [finding.rule for finding in found] == ["above_peak", "below_launch"]


@pytest.mark.parametrize("samples", [True, False])
def test_a_copy_of_a_run_that_is_here_is_named_before_and_after_the_import(unpublished, samples):
    cells = [replace(noisy(1.0 + n, spread_by=0.01 * n, seed=n), case=at(512 * n)) for n in range(1, 7)]
    rows = [replace(m, run_id="ours", samples=m.samples if samples else ()) for m in cells]
    RunFolder.create(unpublished, replace(RUN, run_id="ours"), rows)
    theirs = Run("theirs", "upload", created="2026-04-01T00:00:00", gpu_name="NVIDIA B200")
    copied = [replace(m, run_id="theirs") for m in rows]
    before = findings.of_upload(Understanding(None, "csv", "a file", (theirs,), tuple(copied)))()
    RunFolder.create(unpublished, theirs, copied)
    for found in (before, findings.of_runs(["theirs"]).itertuples()):
        (finding,) = [each for each in found if each.rule == "same_as_run"]
        assert finding.run_id == "theirs" and "are those of ours (NVIDIA H200)" in finding.sentence
