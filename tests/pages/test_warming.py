"""What is imported and asked before the first reader comes."""

import pytest
from streamlit.testing.v1 import AppTest

from pages.ui.filters import chips, offers
from pages.ui.shell import data, warming
from results.files import journal
from tests.pages.conftest import GPU, ROOT, run_folder, shown


@pytest.fixture
def own_alone(home, monkeypatch):
    """Nothing but the run of the home, so that its GPU is the first."""
    monkeypatch.setattr(journal, "PUBLISHED", home / "none")
    return home


def test_the_slice_that_is_warmed_is_the_one_a_first_visit_shows(own_alone):
    run_folder(own_alone, "run-b", created="2026-02-01T00:00:00")
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=30).run()
    first = offers.at_first(data.asked_ahead)
    assert {name: app.session_state[name] for name in chips.SINGLE} == {n: getattr(first, n) for n in chips.SINGLE}
    assert first.gpu == GPU


def test_a_first_visit_asks_nothing_that_was_not_asked_while_the_server_started(own_alone, monkeypatch):
    warming.first_view()
    asked = []
    answer = data.open_store().__class__.query
    monkeypatch.setattr("results.store.database.Store.query", lambda *args: asked.append(args[1]) or answer(*args))
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=30).run()
    assert "triton_fa2 is the fastest" in shown(app)
    assert asked == []


def test_a_home_without_results_is_no_trouble(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path))
    monkeypatch.setattr(journal, "PUBLISHED", tmp_path / "none")
    warming.first_view()
    assert offers.at_first(data.asked_ahead).gpu is None
