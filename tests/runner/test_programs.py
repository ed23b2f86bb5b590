"""`python -m runner record`: a program's own process, its recording whatever its end, and the ones that ship."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernels import problem
from results import programs
from runner import sweeps
from tests.runner.conftest import ROOT

HEAD = {"format": programs.FORMAT, "version": programs.VERSION, "program": "x"}
PROGRAM = """
import os, signal, sys
import results  # of the program, next to it
from torch.nn.functional import scaled_dot_product_attention as sdpa
import torch
torch.set_num_threads(1)
x = torch.randn(1, 2, 8, 16)
for _ in range(3):
    sdpa(x, x, x, is_causal=True)
print(results.NAME, sys.argv[1:])
if "killed" in sys.argv:
    import time; time.sleep(3); os.kill(os.getpid(), signal.SIGKILL)
if "raises" in sys.argv:
    raise SystemExit(3)
"""


@pytest.mark.parametrize(("end", "code"), [("ends", 0), ("raises", 1), ("killed", 1)])
def test_a_program_leaves_its_recording_whatever_its_end(tmp_path: Path, end: str, code: int) -> None:
    (tmp_path / "results.py").write_text("NAME = 'mine'\n")
    script, output = tmp_path / "train.py", tmp_path / "calls.json"
    script.write_text(PROGRAM)
    words = ["record", "--output", str(output), "--", "python", str(script), end]
    answer = subprocess.run([sys.executable, "-m", "runner", *words], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == code, answer.stderr
    found = programs.load(output)
    assert (found.name, [call.count for call in found.calls]) == (f"train.py {end}", [3])
    assert found.calls[0].case.causal and found.calls[0].mode == "fwd"
    if end != "killed":
        assert f"mine ['{end}']" in answer.stdout
    if code:
        assert "the recording has its calls until then" in answer.stderr
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_the_shipped_recordings_are_problems_that_kernels_and_sweeps_know() -> None:
    shipped = programs.shipped()
    assert len(shipped) >= 10
    for program in shipped:
        assert program.source and program.calls
        assert [problem.of_record(call.problem) for call in program.calls]
        assert len(program.tuned) + sum(call.reason is not None for call in program.calls) == len(program.calls)
    assert {call.case.level for program in shipped for call in program.tuned} == {"op"} and sweeps.SWEEPS


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not a recording (JSONDecodeError"),
        ("[]", "is not a recording; `python -m runner record` writes one."),
        (json.dumps(HEAD | {"version": 9}), "has version 9; this attnbench reads version 1."),
        (json.dumps(HEAD), "(KeyError: 'calls')"),
        (
            '{"format": "attnbench recording", "version": 1, "program": "x", "calls": [{"problem": {}, "count": 0}]}',
            "0",
        ),
    ],
)
def test_a_file_that_is_no_recording_is_refused_in_words(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "calls.json"
    path.write_text(text)
    with pytest.raises(programs.ProgramError) as refused:
        programs.load(path)
    assert sentence in str(refused.value)
