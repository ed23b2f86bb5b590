"""Back and Forward: what an address does not name stays as it stands."""

import sys
from types import ModuleType

from pages.ui.shell import address


def test_an_address_without_filters_that_the_back_button_brings_keeps_them(app, monkeypatch):
    app.switch_page("pages/speedup.py").run().radio(key="mode").set_value("bwd").run()
    assert not app.radio(key="mode").proto.HasField("default"), "a default would be left out of the address"
    monkeypatch.setattr(address, "came_back", lambda: True)
    app.query_params.clear()
    app.run()
    mode = app.radio(key="mode")
    assert (mode.value, mode.options[mode.proto.default]) == ("bwd", "bwd"), "Streamlit then takes the default"
    assert "mode" not in app.query_params, "or Forward would be lost"


def test_all_filters_stand_in_the_address_of_a_first_visit(app):
    app.switch_page("pages/speedup.py").run()
    assert {"gpu", "mask", "mode", "shape", "baseline", "timing"} <= set(app.query_params)


def test_a_streamlit_without_these_insides_writes_the_same_address(app, monkeypatch):
    monkeypatch.setitem(sys.modules, "streamlit.runtime.state.session_state_proxy", ModuleType("without"))
    app.switch_page("pages/speedup.py").run()
    assert not app.exception
    assert {"gpu", "mask", "mode", "shape", "baseline", "timing"} <= set(app.query_params)
