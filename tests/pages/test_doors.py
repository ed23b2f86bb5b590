"""A server that other machines can reach, without a token, is only read: no button of any page changes anything."""

from pathlib import Path

import pytest
import streamlit as st

from pages.ui.run import background
from pages.ui.shell import access
from results.files import library
from results.files.journal import RunFolder, State
from results.records import Run
from runner import launch
from tests.builders import LONG, ROW
from tests.cases import cases
from tests.pages.test_run_sweep import LISTING, PLAN

CLUSTER = "python -m runner run quick --device cpu --on ray --address 127.0.0.1:1"
VIEWS = (("run_sweep", ""), ("runs", "run-a"), ("runs", "far"), ("upload", ""), ("upload", "import"))
CHANGING = {*cases(__file__, "buttons")}


@pytest.fixture
def asked(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was started, ended or connected to, over runs to cancel, resume, bring back and remove."""
    calls: list[str] = []
    monkeypatch.setattr(background, "PATIENCE_S", 20.0)
    monkeypatch.setattr(launch, "listing", lambda device=None: LISTING)
    monkeypatch.setattr(launch, "plan", lambda request: PLAN)
    monkeypatch.setattr(launch, "named_by_the_run", lambda run_id: ())
    for name in ("start", "resume", "cancel", "cluster"):
        monkeypatch.setattr(launch, name, lambda *_, name=name, **__: calls.append(name) or {"nodes": []})
    for name, state in (("far", "cancelled"), ("gone", "finished"), ("broken", "finished"), ("alive", "running")):
        folder = RunFolder.create(home, Run(name, "local", command=CLUSTER), [])
        folder.write_state(State(state=state, done=1, total=9))
    RunFolder.open(home, "broken").run_path.write_text('{"run_id": 5}')
    library.delete(home, "gone")
    return calls


@pytest.mark.slow
def test_no_button_changes_anything_without_permission(app, home, asked, monkeypatch):
    """Each page is drawn while changes are allowed; then the server is closed and all of its buttons are pressed."""
    real, pressed = st.get_option, set()
    monkeypatch.delenv(access.TOKEN, raising=False)
    with RunFolder.open(home, "alive").lock():
        for name, what in VIEWS:
            monkeypatch.setattr(st, "get_option", real)
            page = app.switch_page(f"pages/{name}.py").run()
            if name == "runs":
                page.selectbox(key="run_id").select(what).run()
            if name == "upload":
                page.file_uploader[0].upload("mine.csv", (LONG + ROW).encode()).run()
            if what == "import":
                page.button(key="import").click().run()
            before = _files(home)
            pressed |= {button.click().key for button in page.button}
            monkeypatch.setattr(st, "get_option", lambda key: {"server.address": "0.0.0.0"}.get(key) or real(key))
            page.run()
            assert not page.exception and not page.get("file_uploader")
            assert name == "runs" or "Running sweeps, uploading and deleting are off" in page.warning[0].value
            assert asked == [] and _files(home) == before
    assert any(key and key.startswith("restore_") for key in pressed)
    assert pressed >= CHANGING, CHANGING - pressed


def _files(home: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in home.rglob("*") if path.is_file() and "store" not in path.name}
