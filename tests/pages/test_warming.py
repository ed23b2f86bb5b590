"""What is imported and asked before the first reader comes."""

from streamlit.runtime.pages_manager import PagesManager

from pages.ui.filters import chips, offers
from pages.ui.shell import data, warming
from results.store.database import Store
from tests.pages.conftest import new_app, shown


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
