"""gluon_hopper's kernels as compiled on any machine with Triton: what ptxas says of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def reports() -> list[dict]:
    """What ptxas says of the causal kernels, by a process in which Triton compiles rather than interprets."""
    pytest.importorskip("triton", reason="Triton exists for Linux")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.attention.gluon_hopper.offline", "--masks", "causal", "--json"]
    root = Path(__file__).parents[2]
    answer = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)
    assert answer.returncode in (0, 1), answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_every_kernel_fits_the_shared_memory_of_a_block(reports: list[dict]) -> None:
    assert len(reports) == 16
    limit = 232448  # CUDA C++ Programming Guide, compute capability 9.0
    assert [report for report in reports if report["shared_bytes"] > limit] == []


def test_no_product_is_serialised(reports: list[dict]) -> None:
    assert [report for report in reports if report["warnings"]] == []


def test_little_is_spilled(reports: list[dict]) -> None:
    assert [report for report in reports if report["spilled_bytes"] > 256] == []
