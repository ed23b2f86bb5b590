from results.journal import RunFolder, State
from tests.pages.conftest import shown


def test_every_run_is_listed_with_its_state_and_source(app):
    page = app.switch_page("pages/runs.py").run()
    table = page.dataframe[0].value.set_index("run_id")
    assert table.loc["published-fa2_rtx4060", ["state", "source"]].tolist() == ["finished", "published"]
    assert table.loc["run-a", "numbers"] == 21
    assert table.loc["run-a", "failures"] == 6


def test_a_run_that_died_reads_as_crashed_and_shows_its_log(app, home):
    folder = RunFolder(home / "runs" / "run-a")
    folder.write_state(State(state="running", done=1, total=9))
    folder.log_path.write_text("the last words\n")
    page = app.switch_page("pages/runs.py").run()
    page.selectbox(key="run_id").select("run-a").run()
    assert "crashed" in shown(page)
    assert "the last words" in page.code[0].value


def test_a_broken_line_of_a_journal_is_named(app, home):
    with open(home / "runs" / "run-a" / "measurements.jsonl", "a") as journal:
        journal.write("not json\n")
    page = app.switch_page("pages/runs.py").run()
    page.selectbox(key="run_id").select("run-a").run()
    assert any("left out" in warning.value for warning in page.warning)
