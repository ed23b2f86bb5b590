"""The page Runs: states, export, deletion with undo."""

import json
from dataclasses import replace

import pytest

from pages.ui.runs import actions
from results.files.journal import RunFolder, State, published_folders
from results.formats.errors import CellError
from results.formats.validation import run_of
from results.records import Run
from runner import launch, sweeps
from tests.cases import cases
from tests.pages.conftest import run_folder, shown


def test_every_run_is_listed_with_its_state_and_source(app):
    page = app.switch_page("pages/runs.py").run()
    table = page.dataframe[0].value.set_index("id")
    assert table.loc["published-fa2_rtx4060", ["state", "source"]].tolist() == ["finished", "published"]
    for folder in published_folders():
        assert table.loc[folder.run_id, "state"] == folder.condition()
    assert table.loc["h200-fa2_speedup", "source"] == "included with attnbench"
    assert table.loc["run-a", "numbers"] == 21
    assert table.loc["run-a", ["failed", "not possible"]].tolist() == [6, 0]


def test_a_run_that_died_reads_as_crashed_and_shows_its_log_and_a_broken_line_of_its_journal(unpublished, app, home):
    folder = RunFolder(home / "runs" / "run-a")
    folder.write_state(State(state="running", done=1, total=9))
    folder.log_path.write_text("the last words\n")
    with open(home / "runs" / "run-a" / "measurements.jsonl", "a") as journal:
        journal.write("not json\n")
    app.query_params["run_id"] = "gone"
    page = app.switch_page("pages/runs.py").run()
    assert "The link names what is not here: Run gone." in shown(page)
    page.selectbox(key="run_id").select("run-a").run()
    assert "crashed" in shown(page)
    assert "the last words" in page.code[0].value
    assert any("Left out: line" in warning.value for warning in page.warning)


def _runs_page(app, run_id):
    page = app.switch_page("pages/runs.py").run()
    page.selectbox(key="run_id").select(run_id).run()
    return page


def test_a_deleted_run_is_gone_until_it_is_brought_back_at_once_or_later(app, home):
    page = _runs_page(app, "run-a")
    page.button(key="delete_run").click().run()
    assert "Deleted run-a" in shown(page)
    assert "run-a" not in page.dataframe[0].value["id"].tolist()
    page.button(key="undo").click().run()
    assert "Brought back run-a" in shown(page)
    assert page.dataframe[0].value.set_index("id").loc["run-a", "numbers"] == 21
    assert list((home / "trash").iterdir()) == []
    page.selectbox(key="run_id").select("run-a").run()
    page.button(key="delete_run").click().run()
    page.run()
    (bring_back,) = [button for button in page.button if button.label == "Bring back"]
    bring_back.click().run()
    assert "run-a" in page.dataframe[0].value["id"].tolist()


def test_published_and_running_runs_cannot_be_deleted(app, home):
    page = _runs_page(app, "published-fa2_rtx4060")
    assert "ships with attnbench" in shown(page)
    folder = RunFolder(home / "runs" / "run-a")
    folder.write_state(State(state="running", done=1, total=9))
    with folder.lock():
        page.selectbox(key="run_id").select("run-a").run()
        assert "cancel it on Run sweep" in shown(page)
        assert "delete_run" not in [button.key for button in page.button]


def test_what_differs_between_two_environments_is_listed(unpublished, app, home):
    run_folder(home, "run-b", created="2026-02-01T00:00:00")
    other = RunFolder(home / "runs" / "run-b")
    other.write_run(replace(other.run(), torch="2.99", driver="999"))
    page = _runs_page(app, "run-a")
    page.selectbox(key="beside_run").select("run-b").run()
    table = next(table.value for table in page.dataframe if "the other" in table.value)
    assert table.values.tolist() == [["driver", "not stated", "999"], ["torch", "not stated", "2.99"]]


def test_a_sweep_is_linked_with_what_this_run_had_changed_and_a_trace_with_its_cell():
    changed = sweeps.override(sweeps.get("fa2_speedup"), {"seqlen": "128,256", "dtype": "float32"})
    run = {"sweep": json.dumps(sweeps.to_json(changed)), "protocol": "standard/1", "command": "x"}
    wanted = cases(__file__, "link of a sweep")
    assert actions.rerun_link(run) == wanted | {"edit_dtype_fa2_speedup": ["float32"]}
    assert actions.rerun_link({"sweep": "{}", "protocol": "quick/1"}) is None
    assert actions.rerun_link({"sweep": '{"name": "gone"}', "protocol": "quick/1"}) is None
    assert actions.rerun_link(run | {"protocol": "sustained/1"}) is None, "a trace from the page is of one cell"
    changes = {"seqlen": "4096", "head_dim": "128", "causal": "true", "modes": "fwd", "num_kv_heads": "4"}
    cell = replace(sweeps.override(sweeps.get("fa_paper"), changes), implementations=("triton_fa2",))
    link = actions.rerun_link({"sweep": json.dumps(sweeps.to_json(cell)), "protocol": "sustained/1"})
    assert link == cases(__file__, "link of a trace")


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, sweep in sweeps.SWEEPS.items()
        if {"seqlen", "causal"} <= set(sweeps.axes_of(sweep)) and sweep.level == "op"
    ],
)
@pytest.mark.parametrize("changes", cases(__file__, "changes of sweeps"))
def test_the_form_that_is_linked_asks_for_the_very_sweep_of_the_run(name, changes):
    # Block masks take no window.
    kept = {axis: text for axis, text in changes.items() if (name, axis) != ("block_sparse", "window_size")}
    assert asked_by_the_linked_form(name, kept) == sweeps.override(sweeps.get(name), kept)


def test_the_form_of_a_decode_sweep_is_linked_by_its_own_axes():
    changes = {"context": "4096", "batch": "2,4", "heads": "16/2", "timings": "kernel"}
    assert asked_by_the_linked_form("decode", changes) == sweeps.override(sweeps.get("decode"), changes)


def asked_by_the_linked_form(name, changes):
    usual = sweeps.get(name)
    record = sweeps.to_json(sweeps.override(usual, changes))
    link = actions.rerun_link({"sweep": json.dumps(record), "protocol": "quick/1"})
    start = [f"edit_{axis}_{name}" for axis in sweeps.axes_of(usual)]
    filled = {key.split("_", 1)[1].removesuffix(f"_{name}"): value for key, value in link.items() if key in start}
    typed = {axis: ",".join(value) if isinstance(value, list) else value for axis, value in filled.items()}
    assert set(typed) <= set(changes)
    return sweeps.override(usual, typed)


def test_a_record_that_cannot_be_is_one_broken_run_that_can_be_removed(unpublished, app, home):
    names = []
    for at, field in enumerate(cases(__file__, "impossible fields")):
        names.append(f"broken-{at}")
        record = run_folder(home, names[-1]).run_path
        record.write_text(json.dumps(json.loads(record.read_text()) | field))
        with pytest.raises(CellError):
            run_of(json.loads(record.read_text()))
    page = app.switch_page("pages/runs.py").run()
    for name in names:
        assert f"{name} cannot be shown" in shown(page)
        page.button(key=f"delete_broken_{name}").click().run()
        assert f"Deleted {name}" in shown(page)
    assert "cannot be shown" not in shown(page.run())


def test_no_field_of_a_record_brings_the_page_down(unpublished, app, home):
    odd = {f"odd-{at}": field for at, field in enumerate(cases(__file__, "odd fields"))}
    for name, field in odd.items():
        RunFolder.create(home, replace(Run(name, "upload", created="2026-05-01"), **field), [])
    page = app.switch_page("pages/runs.py")
    for name in odd:
        page.query_params["run_id"] = name
        assert f"Move **{name}** and its 0 numbers to the trash" in shown(page.run())


@pytest.mark.parametrize(("source", "offered"), [("upload", False), ("local", True)])
def test_the_cluster_of_an_upload_is_not_looked_at(unpublished, app, home, monkeypatch, source, offered):
    command = "python -m runner run quick --device cpu --on ray --address 127.0.0.1:1"
    asked = []
    monkeypatch.setattr(launch, "cluster", lambda address: asked.append(address) or {"nodes": []})
    RunFolder.create(home, Run("far", source, created="2026-05-01", command=command), [])
    page = _runs_page(app, "far")
    buttons = [button for button in page.button if button.key == "look_at_cluster"]
    assert [button.label.replace("\\", "") for button in buttons] == ["Look at the cluster 127.0.0.1:1"] * offered
    assert asked == []


def test_a_run_gets_another_title_and_keeps_its_id(app, home):
    page = _runs_page(app, "run-a")
    page.text_input(key="title_run-a").set_value("My H200, new driver")
    page.button(key="rename_run").click().run()
    assert "Renamed run-a to My H200, new driver." in shown(page)
    assert page.dataframe[0].value.set_index("id").loc["run-a", "run"] == "My H200, new driver"
    page = _runs_page(app, "published-fa2_rtx4060")
    assert not [each for each in page.text_input if each.key.startswith("title_")]
    assert None not in page.dataframe[0].value["created (UTC)"].tolist()
