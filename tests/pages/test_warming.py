"""What is imported and asked before the first reader comes."""

from pages.ui.filters import chips, offers
from pages.ui.shell import data, warming
from tests.pages.conftest import GPU, new_app, run_folder, shown


def test_the_slice_that_is_warmed_is_the_one_a_first_visit_shows(unpublished):
    run_folder(unpublished, "run-b", created="2026-02-01T00:00:00")
    app = new_app().run()
    first = offers.at_first(data.asked_ahead)
    assert {name: app.session_state[name] for name in chips.SINGLE} == {n: getattr(first, n) for n in chips.SINGLE}
    assert first.gpu == GPU


def test_a_first_visit_asks_nothing_that_was_not_asked_while_the_server_started(unpublished, monkeypatch):
    warming.first_view()
    asked = []
    answer = data.open_store().__class__.query
    monkeypatch.setattr("results.store.database.Store.query", lambda *args: asked.append(args[1]) or answer(*args))
    app = new_app().run()
    assert "triton_fa2 is the fastest" in shown(app)
    assert asked == []


def test_a_home_without_results_is_no_trouble(empty):
    warming.first_view()
    assert offers.at_first(data.asked_ahead).gpu is None
