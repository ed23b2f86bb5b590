"""Compiling ahead helps if it can, and never holds a sweep up for long."""

import sys
from pathlib import Path

import pytest

from results.records import attention_case
from runner import ahead
from runner.ahead import Ahead
from runner.cells import Cell
from runner.job import Cancelled

CASE = attention_case(batch=1, num_heads=1, seqlen=128, head_dim=64, dtype="bfloat16", causal=True)
CELLS = [Cell(CASE, "triton_fa2", "fwd")]
DONE = {"event": "rehearsed", "kernels": 3, "seconds": 7.25, "failed": 0, "fault": None}


def helper(tmp_path: Path, body: str) -> tuple[str, ...]:
    """A process in place of the one that compiles; `channel` and the first message are there."""
    path = tmp_path / "helper.py"
    lines = [
        "import os, sys, threading",
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})",
        "from runner.wire import Channel",
        "words = dict(zip(sys.argv[1::2], map(int, sys.argv[2::2])))",
        "channel = Channel(words['--read-fd'], words['--write-fd'])",
        "message = channel.receive()",
        body,
    ]
    path.write_text("\n".join(lines))
    return (sys.executable, str(path))


def compiled(command: tuple[str, ...], stop=lambda: False, tell=lambda done, found: None, limit_s: float = 60.0) -> str:
    return Ahead(command, limit_s).compile(CELLS, "cuda:1", stop, tell)


def test_it_says_what_it_did_and_tells_on_the_way(tmp_path) -> None:
    told = []
    body = f"""
assert message["device"] == "cuda:1" and message["cells"][0]["implementation"] == "triton_fa2"
channel.send({{"event": "compiled", "done": 1, "found": 3}})
channel.send({DONE!r})"""
    said = compiled(helper(tmp_path, body), tell=lambda done, found: told.append((done, found)))
    assert said.startswith("Compiled 3 kernels ahead in ")
    assert said.endswith(" s, 7.2 s of work side by side.")
    assert told == [(1, 3)]


def test_kernels_that_could_not_be_compiled_are_named(tmp_path) -> None:
    said = compiled(helper(tmp_path, f"channel.send({DONE | {'failed': 2, 'fault': 'ValueError: bad tile'}!r})"))
    assert said.endswith("2 could not be: ValueError: bad tile")


def test_a_crash_is_a_sentence(tmp_path) -> None:
    said = compiled(helper(tmp_path, "print('no more memory', flush=True); os._exit(9)"))
    assert said.startswith("Nothing was compiled ahead")
    assert "exit code 9; its last words: no more memory" in said


def test_a_hang_is_given_up_and_killed(tmp_path) -> None:
    file = tmp_path / "pid"
    body = f"open({str(file)!r}, 'w').write(str(os.getpid())); threading.Event().wait()"
    assert compiled(helper(tmp_path, body), limit_s=3.0) == "Compiling ahead was given up after 3 s."
    assert not Path(f"/proc/{file.read_text()}").exists()


def test_who_cancels_waits_for_nothing(tmp_path) -> None:
    with pytest.raises(Cancelled):
        compiled(helper(tmp_path, "threading.Event().wait()"), stop=lambda: True)


def test_it_begins_only_where_there_is_a_gpu_and_triton(monkeypatch, tmp_path) -> None:
    begun = []
    monkeypatch.setattr(ahead, "Ahead", begun.append)
    monkeypatch.setattr(ahead, "_GPU_FILES", (str(tmp_path / "none"),))
    assert ahead.begin(None) is None
    monkeypatch.setattr(ahead, "_GPU_FILES", (str(tmp_path),))
    assert ahead.begin("cpu") is None
    monkeypatch.setattr(ahead.importlib.util, "find_spec", lambda name: None)
    assert ahead.begin("cuda:0") is None
    monkeypatch.setattr(ahead.importlib.util, "find_spec", lambda name: name)
    ahead.begin(None)
    assert begun == [ahead.COMMAND]
