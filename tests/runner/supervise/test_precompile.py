"""Compiling ahead helps if it can, and never fails a sweep."""

from collections.abc import Iterator

import pytest

from results.records import Status
from runner.supervise import supervisor
from runner.supervise.job import Cancelled

CELLS = [0, 2]
COMPILED = {"event": "compiled", "done": 1, "found": 3}
DONE = {"event": "rehearsed", "kernels": 3, "seconds": 7.25, "failed": 0, "fault": None}


class ScriptedHandle:
    """A worker that says what was prepared for it; an exception is what listening to it ends in."""

    def __init__(self, *answers: dict | BaseException) -> None:
        self.answers: Iterator[dict | BaseException] = iter(answers)
        self.heard: list[dict] = []
        self.killed = False

    def send(self, message: dict) -> None:
        self.heard.append(message)

    def receive(self, deadline: float) -> dict:
        answer = next(self.answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def describe_loss(self) -> str:
        return "The worker ended with exit code 9."

    def kill(self) -> None:
        self.killed = True


def test_it_says_what_it_did_and_tells_on_the_way() -> None:
    handle, told = ScriptedHandle(COMPILED, DONE), []
    said = supervisor.compile_ahead(handle, CELLS, lambda *numbers: told.append(numbers))
    assert handle.heard == [{"do": "compile", "cells": CELLS, "claims": None}]
    assert said.startswith("Compiled 3 kernels ahead in ")
    assert said.endswith(" s, 7.2 s of work in parallel.")
    assert told == [(1, 3)]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (DONE | {"failed": 2, "fault": "ValueError: bad tile"}, "2 failed: ValueError: bad tile"),
        (DONE | {"kernels": None}, "because the process for it ended"),
        (EOFError(), "Nothing was compiled ahead. The worker ended with exit code 9."),
        (TimeoutError(), "Compiling ahead was given up after 60 s without progress."),
    ],
)
def test_whatever_goes_wrong_is_a_sentence(answer, sentence) -> None:
    handle = ScriptedHandle(answer)
    assert sentence in supervisor.compile_ahead(handle, CELLS, lambda *numbers: None)
    assert handle.killed == isinstance(answer, TimeoutError)


def test_who_cancels_waits_for_nothing() -> None:
    with pytest.raises(Cancelled):
        supervisor.compile_ahead(ScriptedHandle(Cancelled()), CELLS, lambda *numbers: None)


def test_it_is_possible_where_there_is_a_gpu_and_triton(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(supervisor.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(supervisor, "_GPU_FILES", (str(tmp_path / "none"),))
    assert not supervisor.can_compile_ahead(None)
    monkeypatch.setattr(supervisor, "_GPU_FILES", (str(tmp_path),))
    assert supervisor.can_compile_ahead(None) and supervisor.can_compile_ahead("cuda:1")
    assert not supervisor.can_compile_ahead("cpu")
    monkeypatch.setattr(supervisor.importlib.util, "find_spec", lambda name: None)
    assert not supervisor.can_compile_ahead("cuda:1")


@pytest.mark.parametrize(
    ("compiles", "sentence"),
    [("well", "Compiled 7 kernels ahead"), ("badly", "Nothing was compiled"), ("dies", "ended with exit code 9")],
)
def test_a_sweep_goes_on_whatever_became_of_it(runner, compiles, sentence) -> None:
    runner.use("fast_worker", compiles=compiles)
    done = runner("run", "quick", "--set", "seqlen=128", "--implementations", "torch_naive,triton_fa2")
    assert done.returncode == 0, done.stderr
    folder = runner.folder()
    assert sentence in folder.log_path.read_text()
    assert {m.status for m in folder.read()[0]} == {Status.OK}
    assert folder.read_state().costs["compiling"] >= 0
