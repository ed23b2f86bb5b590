"""Back and Forward: what an address does not name stays as it stands."""

import sys
from types import ModuleType

import pytest
import streamlit as st

from pages.ui import findings
from pages.ui.shell import address
from tests.cases import cases
from tests.pages.conftest import run_folder, shown


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


@pytest.mark.parametrize("page, name, label", cases(__file__, "links to nothing"))
def test_a_link_to_what_is_not_here_says_so(app, home, page, name, label, monkeypatch):
    readable = findings._readable  # to read and check all that ships takes half a minute
    monkeypatch.setattr(findings, "_readable", lambda run_ids: readable({"run-b"}.intersection(run_ids)))
    run_folder(home, "run-b")
    app.query_params[name] = "nope-zzz"
    app.switch_page(f"pages/{page}.py").run()
    assert f"The link names what is not here: {label} nope-zzz." in shown(app)


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
