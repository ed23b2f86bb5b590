"""The kernels of a first call are compiled side by side, and launched as if they had been compiled one by one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[4]
FORWARD = ["preprocess_kernel", "forward_kernel", "combine_outputs"]
BACKWARD = ["preprocess_kernel", "dq_dkdv_kernel", "combine_gradients"]


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> dict[str, str]:
    """What each scenario of first_call.py prints."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    folder = str(tmp_path_factory.mktemp("first_call"))
    command = [sys.executable, "-m", "tests.kernels.attention.triton_fa2.first_call", folder]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.fixture
def run(printed):
    """The lines that a scenario prints, in words."""

    def lines(scenario: str) -> list[list[str]]:
        assert "Traceback" not in printed[scenario], printed[scenario]
        return [line.split() for line in printed[scenario].splitlines()]

    return lines


def test_all_kernels_of_a_forward_and_of_a_backward_are_compiled_at_once_in_a_callers_mode_too(run):
    compiled, launched = run("forward_and_backward")
    assert compiled == sorted(FORWARD + BACKWARD)
    assert launched == (FORWARD + BACKWARD) * 2
    compiled, launched = run("in_a_mode_of_the_callers")
    assert launched == FORWARD + BACKWARD


def test_two_threads_that_make_the_same_first_call_compile_once(run):
    compiled, launched = run("in_two_threads")
    assert compiled == sorted(FORWARD)
    assert sorted(launched) == sorted(FORWARD * 2)


def test_a_kernel_that_does_not_compile_says_why_and_is_compiled_when_it_can_be(run):
    error, compiled, launched = run("one_that_does_not_compile")
    assert error == ["no", "such", "instruction"]
    assert launched == FORWARD, "the first call launched none of them"
