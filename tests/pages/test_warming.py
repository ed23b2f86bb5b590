"""What is imported and asked before the first reader comes."""

from pages.ui.filters import chips, offers
from pages.ui.shell import data, warming
from results.store.database import Store
from tests.pages.conftest import new_app, shown


def test_the_slice_that_is_warmed_is_the_one_a_first_visit_shows(home):
    app = new_app().run()
    first = offers.at_first(data.asked_ahead)
    assert {name: app.session_state[name] for name in chips.SINGLE} == {n: getattr(first, n) for n in chips.SINGLE}
    assert first.shape.endswith("hidden 2048")


def test_a_first_visit_asks_nothing_that_was_not_asked_while_the_server_started(home, monkeypatch):
    warming.first_view()
    asked = []
    for name in ("query", "rows"):
        answer = getattr(Store, name)
        monkeypatch.setattr(Store, name, lambda *args, answer=answer: asked.append(args[1]) or answer(*args))
    app = new_app().run()
    assert "is the fastest" in shown(app)
    assert [sql for sql in asked if "data_version" not in sql] == []


def test_a_home_without_results_is_no_trouble(empty):
    warming.first_view()
    assert offers.at_first(data.asked_ahead).gpu is None
