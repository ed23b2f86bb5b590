"""The frame: sections, addresses, what Back and Forward keep, and what is asked before the first reader comes."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pandas as pd
import pytest
import streamlit as st
from streamlit.runtime.pages_manager import PagesManager

from pages.ui import findings
from pages.ui.filters import chips, offers
from pages.ui.shell import address, data, page_body, terms, warming
from pages.ui.shell.data import Answers
from pages.ui.shell.sections import HELP, SECTIONS
from results.store.database import Store
from tests.cases import cases
from tests.pages.conftest import GPU, ROOT, new_app, opened, run_folder, shown

ADDRESSES = (  # that links in issues and messages may hold
    *("overview", "speedup", "memory", "scaling", "accuracy", "decode", "layers", "models", "compare", "sustained"),
    *("findings", "reports", "run_sweep", "runs", "upload", "shapes", "programs"),
)


def test_the_sidebar_has_at_most_eight_entries_and_every_address_ever_given_is_a_page():
    assert len(SECTIONS) <= 8
    files = [entry.file for section in SECTIONS for entry in section.pages]
    assert set(ADDRESSES) <= set(files)
    assert all((ROOT / "pages" / f"{name}.py").is_file() for name in [*files, HELP.file])
    assert terms.link("timing") == '[?](units#timing "Device time and eager time")'


def test_an_address_without_filters_that_the_back_button_brings_keeps_them(app, monkeypatch):
    app.switch_page("pages/speedup.py").run().radio(key="mode").set_value("bwd").run()
    assert not app.radio(key="mode").proto.HasField("default"), "a default would be left out of the address"
    monkeypatch.setattr(address, "came_back", lambda: True)
    app.query_params.clear()
    app.run()
    mode = app.radio(key="mode")
    assert (mode.value, mode.options[mode.proto.default]) == ("bwd", "bwd"), "Streamlit then takes the default"
    assert "mode" not in app.query_params, "or Forward would be lost"


@pytest.mark.parametrize("inside", [True, False], ids=["usual", "another Streamlit"])
def test_all_filters_stand_in_the_address_of_a_first_visit_also_for_a_wrong_one_of_the_link(app, monkeypatch, inside):
    app.query_params["mode"] = "sideways" if inside else "fwd"  # Streamlit drops the first from the address
    if not inside:
        monkeypatch.setitem(sys.modules, "streamlit.runtime.state.session_state_proxy", ModuleType("without"))
    app.switch_page("pages/speedup.py").run()
    assert not app.exception
    assert {"gpu", "mask", "mode", "shape", "baseline", "timing"} <= set(app.query_params)


@pytest.fixture(scope="module")
def two_runs(shared_home):
    run_folder(shared_home, "run-b")
    return shared_home


@pytest.mark.parametrize("page, name, label", cases(__file__, "links to nothing"))
def test_a_link_to_what_is_not_here_says_so(two_runs, page, name, label, monkeypatch):
    readable = findings._readable  # to read and check all that ships takes half a minute
    monkeypatch.setattr(findings, "_readable", lambda run_ids: readable({"run-b"}.intersection(run_ids)))
    there = opened(page, **{"gpu": GPU, name: "nope-zzz"})
    assert f"The link names what is not here: {label} nope-zzz." in shown(there)


def test_a_valid_link_says_nothing_and_a_run_is_opened_by_either_name(app, home):
    run_folder(home, "run-b")
    app.query_params["run"] = "run-b"
    app.switch_page("pages/runs.py").run()
    assert app.selectbox(key="run_id").value == "run-b"
    assert "not here" not in shown(app)


def test_the_browser_tab_has_the_name_of_its_page(app, monkeypatch):
    titles = []
    monkeypatch.setattr(st, "set_page_config", lambda **given: titles.append(given.get("page_title")))
    for page, title in (("models", "Models"), ("runs", "Runs"), ("speedup", "Speedup")):
        app.switch_page(f"pages/{page}.py").run()
        assert titles[-1] == f"{title} · attnbench"


def test_a_first_visit_shows_the_slice_that_was_warmed_and_asks_nothing_more(home, monkeypatch):
    warming.first_view()
    first, asked = offers.at_first(data.asked_ahead), []
    for name in ("query", "rows"):
        answer = getattr(Store, name)
        monkeypatch.setattr(Store, name, lambda *args, answer=answer: asked.append(args[1]) or answer(*args))
    app = new_app().run()
    assert "is the fastest" in shown(app)
    assert [sql for sql in asked if "data_version" not in sql] == []
    assert {name: app.session_state[name] for name in chips.SINGLE} == {n: getattr(first, n) for n in chips.SINGLE}
    assert first.shape.endswith("hidden 2048")


def test_a_home_without_results_is_no_trouble_and_no_page_lists_the_files_of_pages(empty, monkeypatch):
    monkeypatch.setattr(PagesManager, "uses_pages_directory", None)
    warming.first_view()
    assert offers.at_first(data.asked_ahead).gpu is None
    assert PagesManager.uses_pages_directory is False


def test_a_change_redraws_the_body_of_a_page_and_all_of_a_page_that_has_none(monkeypatch):
    redrawn = []
    monkeypatch.setattr(st, "session_state", {})
    monkeypatch.setattr(st, "fragment", lambda draw, key: draw)
    monkeypatch.setattr(st, "rerun", redrawn.append)
    monkeypatch.setattr(page_body, "_draw", lambda draw: draw())
    for begin in (lambda: page_body.show(lambda: None), page_body.none_yet):
        begin()
        page_body.again("filters")
    assert redrawn == [["filters", "body"], "app"]


def test_an_answer_is_worked_out_once_or_again_if_it_failed_and_the_oldest_is_forgotten():
    asked, answers = [], Answers(2)
    for question in ("a", "a", "b", "a", "c", "a", "b"):
        answers.get(question, lambda question=question: asked.append(question))
    assert asked == ["a", "b", "c", "b"]
    answers = Answers(2)
    with pytest.raises(ZeroDivisionError):
        answers.get("a", lambda: 1 / 0)
    assert answers.get("a", lambda: 5) == 5


@pytest.mark.parametrize("made", [pd.DataFrame({"n": [1, 2]}), [{"n": 1}]], ids=["table", "rows"])
def test_whoever_changes_an_answer_changes_it_for_nobody_else(made):
    answers = Answers(2)
    first = answers.get("a", lambda: made)
    if isinstance(first, pd.DataFrame):
        first.loc[0, "n"] = 7
        first["m"] = 8
    else:
        first[0]["n"] = 7
    again = answers.get("a", lambda: None)
    assert pd.DataFrame(again).iloc[0].to_dict() == {"n": 1}


def test_two_who_ask_at_once_share_one_answer():
    answers, started, go_on, asked = Answers(2), threading.Event(), threading.Event(), []

    def work():
        asked.append(1)
        started.set()
        assert go_on.wait(30)
        return 5

    with ThreadPoolExecutor(2) as pool:
        given = [pool.submit(answers.get, "a", work) for _ in range(2)]
        assert started.wait(30)
        go_on.set()
    assert ([each.result() for each in given], asked) == ([5, 5], [1])
