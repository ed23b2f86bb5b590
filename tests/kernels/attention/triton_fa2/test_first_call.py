"""The kernels of a first call are compiled side by side, and launched as if they had been compiled one by one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[4]
FORWARD = ["preprocess_kernel", "forward_kernel", "combine_outputs"]
BACKWARD = ["preprocess_kernel", "dq_dkdv_kernel", "combine_gradients"]


def run(scenario: str, tmp_path: Path) -> list[list[str]]:
    """The lines that a scenario of first_call.py prints, in words."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kernels.attention.triton_fa2.first_call", scenario]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr
    return [line.split() for line in answer.stdout.splitlines()]


def test_all_kernels_of_a_forward_and_of_a_backward_are_compiled_at_once(tmp_path):
    compiled, launched = run("forward_and_backward", tmp_path)
    assert compiled == sorted(FORWARD + BACKWARD)
    assert launched == (FORWARD + BACKWARD) * 2


def test_dq_is_compiled_beside_dk_and_dv(tmp_path):
    compiled, launched = run("dq_beside_dkdv", tmp_path)
    assert launched == ["forward_kernel", "dq_kernel", "dkdv_kernel"]


def test_a_caller_may_compile_asynchronously_already(tmp_path):
    compiled, launched = run("in_a_mode_of_the_callers", tmp_path)
    assert launched == FORWARD + BACKWARD


def test_two_threads_that_make_the_same_first_call_compile_once(tmp_path):
    compiled, launched = run("in_two_threads", tmp_path)
    assert compiled == sorted(FORWARD)
    assert sorted(launched) == sorted(FORWARD * 2)


def test_a_kernel_that_does_not_compile_says_why_and_is_compiled_when_it_can_be(tmp_path):
    error, compiled, launched = run("one_that_does_not_compile", tmp_path)
    assert error == ["no", "such", "instruction"]
    assert launched == ["preprocess_kernel", *FORWARD], "the first call had prepared"


def test_a_tile_that_does_not_fit_gives_way_in_a_first_call(tmp_path):
    compiled, launched = run("a_tile_that_does_not_fit", tmp_path)
    assert compiled == sorted([*FORWARD, "forward_kernel"])
    assert launched == FORWARD
