"""The page's own logic; a real sweep runs in the browser tests."""

import json
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import streamlit as st

from pages.ui.run import background, one_shape, plan_form, progress, under_way
from pages.ui.shell import access
from results.files import journal
from results.files.journal import RunFolder, State
from results.levels.real_shapes import SHAPES
from results.records import attention_case, decode_case, layer_case
from runner import launch, sweeps
from runner.launch import SweepRequest
from tests.builders import import_understanding
from tests.cases import cases
from tests.pages.conftest import run_folder, shown
from tests.results.formats.peers.peer_files import understood

LISTING, PLAN = map(json.loads(Path(__file__).with_suffix(".json").read_text()).get, ("listing", "plan"))


@pytest.fixture
def started(monkeypatch):
    """Requests that were started; nothing really runs."""
    requests: list[SweepRequest] = []
    monkeypatch.setattr(background, "PATIENCE_S", 20.0)
    monkeypatch.setattr(launch, "listing", lambda device=None: LISTING)
    monkeypatch.setattr(launch, "plan", lambda request: PLAN)
    monkeypatch.setattr(launch, "start", lambda request, home=None: requests.append(request))
    return requests


@pytest.fixture
def page(app, started):
    return app.switch_page("pages/run_sweep.py").run()


def test_a_feature_offers_the_implementations_that_declare_it(page, started):
    features = page.multiselect(key="features_quick")
    assert features.options == ["sliding window", "values of another head_dim, such as 192 and 128"]
    features.select("sliding window").run()
    assert page.multiselect(key="edit_implementations_quick_window").options == ["torch_naive"]
    page.button(key="start").click().run()
    (request,) = started
    assert request.implementations == ("torch_naive",)


def test_the_plan_draws_itself_and_what_was_planned_is_started(page, started):
    assert not page.button(key="start").disabled
    assert "Measures 1 combination in about 70 s. 1 cannot run here, each with its reason below." in shown(page)
    assert page.dataframe[0].value.values.tolist() == [[1, "Too old."]]
    assert started == []
    table = next(table.value for table in page.dataframe if "sweep" in table.value)
    assert table["sweep"].tolist() == list(sweeps.SWEEPS)
    assert table["shapes"].gt(0).all()
    page.text_input(key="edit_seqlen_quick").set_value("64,256").run()
    page.multiselect(key="edit_implementations_quick").set_value(["torch_naive"]).run()
    page.button(key="start").click().run()
    assert started == [SweepRequest("quick", "cpu", ("torch_naive",), {"seqlen": "64,256"}, "quick")]
    page.text_input(key="edit_num_heads_quick").set_value("4").run()
    page.multiselect(key="edit_causal_quick").set_value(["false"]).run()
    page.multiselect(key="edit_modes_quick").set_value(["fwd"]).run()
    page.button(key="start").click().run()
    changes = {"seqlen": "64,256", "num_heads": "4", "causal": "false", "modes": "fwd"}
    assert started[1].changes == changes
    page.text_input(key="edit_seqlen_quick").set_value("many").run()
    assert "seqlen 'many' is not a whole number." in shown(page)
    assert "start" not in [button.key for button in page.button]


def test_the_button_is_there_before_devices_are_known_and_starts_on_the_first(app, started, monkeypatch):
    known = threading.Event()
    monkeypatch.setattr(background, "PATIENCE_S", 0.01)
    monkeypatch.setattr(launch, "listing", lambda device=None: known.wait(20) and LISTING)
    page = app.switch_page("pages/run_sweep.py").run()
    assert "Looking for devices" in shown(page)
    assert "looking for devices" in [box.value for box in page.text_input if box.label == "Device"]
    page.button(key="start").click().run()
    assert "starting" in shown(page) and started == []
    monkeypatch.setattr(background, "PATIENCE_S", 20.0)
    known.set()
    page.run()
    assert [request.device for request in started] == ["cpu"]
    assert "starting" not in shown(page)


def test_the_end_of_a_followed_sweep_is_one_sentence_with_links(app, started, home):
    folder = RunFolder(home / "runs" / "run-a")
    times = {"started": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:01:30Z"}
    with folder.lock():
        folder.write_state(State(state="running", done=3, total=9, **times))
        page = app.switch_page("pages/run_sweep.py").run()
    folder.write_state(State(state="finished", done=9, total=9, **times))
    page.run()
    assert "The sweep has finished after 2 min: 21 numbers, 6 failed." in shown(page)
    labels = [link.proto.label for link in page.get("page_link")]
    assert {"See results", "Table and downloads"} <= set(labels)


def test_every_ended_sweep_of_the_list_links_to_its_own_results(app, started, home):
    run_folder(home, "run-b")
    for name, done in (("run-a", 9), ("run-b", 4)):
        RunFolder(home / "runs" / name).write_state(State(state="finished", done=done, total=9))
    page = app.switch_page("pages/run_sweep.py").run()
    results = [link.proto.query_string for link in page.get("page_link") if link.proto.label == "See results"]
    assert [name for query in results for name in ("run-a", "run-b") if f"run={name}" in query] == ["run-b", "run-a"]


def test_the_results_of_a_model_are_those_of_the_model_that_was_measured():
    chosen = {"model": "gpt2-tiny", "model_gpu": "A CPU", "run": "a"}
    assert progress.results_of("a", "model", "A CPU", "gpt2-tiny") == ("models", chosen)
    assert progress.results_of("b", "decode", "A GPU", "mla") == ("decode", {"gpu": "A GPU", "run": "b"})
    assert progress.results_of("c", "op", None, None) == ("overview", {"run": "c"})


def test_a_trace_is_of_one_cell_and_starts_as_it_was_planned(page, started):
    page.button_group(key="protocol").set_value("sustained").run()
    assert "Implementations" not in [choice.label for choice in page.multiselect]
    page.selectbox(key="cell_seqlen_quick").set_value("512").run()
    page.selectbox(key="cell_dtype_quick").set_value("float32").run()
    page.button(key="start").click().run()
    cell = {"seqlen": "512", "head_dim": "64", "dtype": "float32", "causal": "true", "modes": "fwd"}
    changes = cell | {"inputs": "normal", "timings": "eager"}
    assert started == [SweepRequest("quick", "cpu", ("torch_naive",), changes, "sustained")]


def test_a_trace_from_a_link_has_the_cell_of_the_link(app, started):
    app.query_params.update({"protocol": "sustained", "sweep": "fa2_speedup", "cell_seqlen_fa2_speedup": "3000"})
    app.query_params["cell_modes_fa2_speedup"] = "bwd"
    page = app.switch_page("pages/run_sweep.py").run()
    assert page.selectbox(key="cell_seqlen_fa2_speedup").value == "3000"
    assert page.selectbox(key="cell_modes_fa2_speedup").value == "bwd"


def test_a_trace_under_way_says_how_far_it_is_and_a_finished_one_is_linked(app, started, home):
    run = replace(RunFolder(home / "runs" / "run-a").run(), protocol="sustained/1")
    folder = RunFolder.create(home, replace(run, run_id="traced"))
    with folder.lock():
        folder.write_state(State(state="running", done=0, total=1, current="x (trace, 3 of 30 s)", eta_s=27.0))
        page = app.switch_page("pages/run_sweep.py").run()
        assert "Now: x (trace, 3 of 30 s)" in shown(page)
        assert "its numbers come at its end" in shown(page)
        assert "Traces of sustained sweeps" not in [link.proto.label for link in page.get("page_link")]
    folder.write_state(State(state="finished", done=1, total=1))
    assert "Traces of sustained sweeps" in [link.proto.label for link in page.run().get("page_link")]


@pytest.mark.parametrize("sweep, reason", cases(__file__, "sweeps without a time"))
def test_a_sweep_without_a_time_says_whether_one_will_come(app, started, home, sweep, reason):
    run = replace(RunFolder(home / "runs" / "run-a").run(), run_id="untimed", sweep=sweep)
    folder = RunFolder.create(home, run)
    with folder.lock():
        folder.write_state(State(state="running", done=0, total=9))
        assert reason in shown(app.switch_page("pages/run_sweep.py").run())


@pytest.mark.parametrize("named, changed, reason", cases(__file__, "forged requests"))
def test_a_forged_request_is_refused_before_anything_starts(named, changed, reason):
    problems = plan_form.problems_of(SweepRequest(*named, **changed), LISTING)
    assert any(problem.startswith(reason) for problem in problems)


@pytest.mark.parametrize("named", [(), ("--against-python=/path/evil.sh",)])
def test_a_crashed_sweep_is_resumed_after_a_program_that_it_names_is_shown(app, started, home, monkeypatch, named):
    resumed = []
    monkeypatch.setattr(launch, "resume", lambda run_id, confirmed: resumed.append((run_id, confirmed)))
    folder = RunFolder(home / "runs" / "run-a")
    folder.write_run(replace(folder.run(), command=" ".join(("python -m runner run quick --device cpu", *named))))
    folder.write_state(State(state="running", done=3, total=9))
    page = app.switch_page("pages/run_sweep.py").run()
    assert "crashed" in shown(page)
    assert ("/path/evil.sh" in shown(page)) == bool(named)
    page.button(key="resume_run-a").click().run()
    assert resumed == [("run-a", named)]


def test_a_running_sweep_shows_how_far_it_is_plans_no_other_by_itself_and_asks_before_it_cancels(app, started, home):
    folder = RunFolder(home / "runs" / "run-a")
    with folder.lock():
        folder.write_state(State(state="running", done=3, total=9, current="torch_naive fwd", eta_s=200.0))
        page = app.switch_page("pages/run_sweep.py").run()
        assert page.progress[0].text == "3 of 9 combinations · about 3 min left"
        assert "Now: torch_naive fwd" in shown(page)
        assert "`run-a` 9 combinations" in shown(page)  # the list of sweeps, which stays as it is drawn first
        assert "below each name: the time of the next best, relative to the fastest." in shown(page)
        assert "speedup over" not in shown(page)
        assert "Planning another takes processor time from it" in shown(page)
        (plan,) = [button for button in page.button if button.label == "Show plan"]
        plan.click().run()
        assert "Measures 1 combination" in shown(page)
        assert not folder.cancel_requested()
        page.button(key="cancel_run-a").click().run()
        assert folder.cancel_requested()


def test_every_page_shows_a_running_sweep_and_only_while_it_runs(app, started, home):
    folder = RunFolder(home / "runs" / "run-a")
    assert not app.run().sidebar.get("progress")
    with folder.lock():
        folder.write_state(State(state="running", done=3, total=9, eta_s=200.0))
        page = app.switch_page("pages/upload.py").run()
        assert page.sidebar.get("progress")[0].proto.text == "Sweep: 33%, about 3 min left"
        page.button(key="badge_cancel_run-a").click().run()
        assert folder.cancel_requested()
        assert not app.switch_page("pages/run_sweep.py").run().sidebar.get("progress"), "that page draws all of it"
    assert not app.switch_page("pages/upload.py").run().sidebar.get("progress")


@pytest.mark.parametrize(
    "case",
    [
        attention_case(batch=2, num_heads=32, num_kv_heads=8, seqlen=3000, head_dim=128, dtype="bfloat16", causal=True),
        decode_case(batch=4, num_heads=32, num_kv_heads=8, context=8192, head_dim=64, dtype="float16", page_size=16),
        layer_case("mqa", batch=1, num_heads=16, num_kv_heads=1, seqlen=512, head_dim=64, dtype="float16", causal=True),
    ],
)
def test_a_link_to_one_shape_fills_in_that_shape(case):
    link = one_shape.link(case)
    name = link["sweep"]
    marks = (f"edit_{axis}_{name}" for axis in sweeps.axes_of(sweeps.get(name)))
    typed = {mark: value if isinstance(value := link[mark], str) else ",".join(value) for mark in marks if mark in link}
    changes = {mark.removeprefix("edit_").removesuffix(f"_{name}"): value for mark, value in typed.items()}
    (made,) = sweeps.override(sweeps.get(name), changes).cases()
    assert one_shape._identity(made) == one_shape._identity(case)


def test_a_shape_that_is_not_whole_says_what_it_does_not_state():
    row = {"level": "op", "subject": "attention", "seqlen_q": 512.0, "seqlen_k": 512.0, "batch": float("nan")}
    assert one_shape.link(row) == "It does not state batch, num_heads, head_dim, dtype, causal."


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_token_opens_the_server_on_every_address_and_counts_on_every_page(app, started, monkeypatch, address):
    real = st.get_option
    monkeypatch.setattr(st, "get_option", lambda name: address if name == "server.address" else real(name))
    monkeypatch.setenv(access.TOKEN, "a secret é")
    page = app.switch_page("pages/run_sweep.py").run()
    assert page.button(key="start").disabled and access.OFF in shown(page), "no plan: each is a process"
    page.text_input(key="run_token").set_value("guess").run()
    assert "That is not the token" in shown(page)
    page.text_input(key="run_token").set_value("a secret é").run()
    page.button(key="start").click().run()
    assert len(started) == 1
    assert page.switch_page("pages/upload.py").run().get("file_uploader")


def test_a_device_that_is_taken_is_said_in_words(page, started, monkeypatch):
    def refuse(request, home=None):
        raise launch.LaunchError("cpu is taken by run 'other'; wait for it or cancel it.")

    monkeypatch.setattr(launch, "start", refuse)
    page.button(key="start").click().run()
    assert "cpu is taken by run 'other'" in shown(page)


@pytest.mark.parametrize("others,pace", [(0, 2), (1, 5), (4, 10), (9, 20)])
def test_the_more_tabs_look_the_less_often_each_does(others, pace, monkeypatch):
    seen = dict.fromkeys(map(str, range(others)), time.monotonic()) | {"closed long ago": time.monotonic() - 1000}
    monkeypatch.setattr(under_way, "_tabs", lambda: seen)
    monkeypatch.setattr(st, "session_state", {})
    assert under_way.pace(True) == pace
    assert under_way.pace(False) == max(15, pace)


def test_a_decode_sweep_is_edited_by_its_own_axes_and_implementations(app, started, monkeypatch):
    decoding = [{"name": "torch_sdpa_auto", "level": "decode", "description": "SDPA", "reason": None}]
    listing = LISTING | {"implementations": LISTING["implementations"] + decoding}
    monkeypatch.setattr(launch, "listing", lambda device=None: listing)
    app.query_params["sweep"] = "decode"
    page = app.switch_page("pages/run_sweep.py").run()
    assert not page.exception
    typed = {box.key: box.value for box in page.text_input}
    assert typed["edit_context_decode"] == "2048,8192,32768,131072"
    assert typed["edit_heads_decode"] == "64/8,32/8,32/32,71/1"
    assert not any("seqlen" in key for key in typed)
    assert page.multiselect(key="edit_implementations_decode").options == ["torch_sdpa_auto"]


def test_the_shapes_of_models_are_chosen_by_domain_and_a_sustained_one_by_name(app, started):
    app.query_params["sweep"] = "real_models"
    page = app.switch_page("pages/run_sweep.py").run()
    assert not page.exception
    page.multiselect(key="edit_domain_real_models").set_value(["speech"]).run()
    page.button(key="start").click().run()
    assert started[0].changes == {"domain": "speech"}
    page.button_group(key="protocol").set_value("sustained").run()
    assert not page.exception
    assert page.selectbox(key="cell_shape_real_models").value == SHAPES[0].name


def test_the_cases_of_an_upload_are_started_from_its_link_and_those_of_no_run_are_a_sentence(app, started, home):
    app.query_params["cases_of"] = "nope"
    page = app.switch_page("pages/run_sweep.py").run()
    assert "There is no run 'nope'" in shown(page)
    import_understanding(home, understood("cudnn_training_c_a100.csv"))
    (upload,) = [folder.run_id for folder in journal.run_folders(home) if folder.run_id.startswith("upload-")]
    app.query_params["cases_of"] = upload
    page = app.switch_page("pages/run_sweep.py").run()
    assert re.search(r"\d shapes of \*\*upload-\w+\*\*, modes fwd", shown(page))
    page.button(key="start").click().run()
    (request,) = started
    assert (request.cases_of, request.implementations) == (upload, ("torch_naive", "torch_sdpa_cudnn"))
