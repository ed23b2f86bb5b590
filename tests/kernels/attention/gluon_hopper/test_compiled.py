"""gluon_hopper's kernels as compiled on any machine with Triton: what ptxas says of them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def reports() -> list[dict]:
    """What ptxas says of the causal kernels."""
    answer = run("-m", "kernels.tools.offline_gluon_hopper", "--masks", "causal", "--json")
    return [json.loads(line) for line in answer.splitlines()]


def run(*arguments: str) -> str:
    """What a process says in which Triton compiles rather than interprets."""
    pytest.importorskip("triton", reason="Triton exists for Linux")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command, root = [sys.executable, *arguments], Path(__file__).parents[4]
    answer = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)
    assert answer.returncode in (0, 1), answer.stderr
    return answer.stdout


def test_every_kernel_fits_the_shared_memory_of_a_block(reports: list[dict]) -> None:
    assert len(reports) == 16
    limit = 232448  # CUDA C++ Programming Guide, compute capability 9.0
    assert [report for report in reports if report["shared_bytes"] > limit] == []


def test_no_product_is_serialised(reports: list[dict]) -> None:
    assert [report for report in reports if report["warnings"]] == []


def test_little_is_spilled(reports: list[dict]) -> None:
    assert [report for report in reports if report["spilled_bytes"] > 256] == []


def test_both_warpgroups_meet_between_what_they_store_and_the_product_that_reads_it() -> None:
    code = "from kernels.tools import offline_gluon_hopper as offline; from kernels.tools.compile import compiled_for\n"
    code += "kernel, arguments = offline._backward(offline.Variant('keys', 256, 'causal'))\n"
    code += "print(compiled_for(90, kernel, arguments, {'num_warps': 4}).asm['ptx'])"
    steps = re.findall(r"stmatrix|fence[.]proxy[.]async|bar[.]sync\s+\d+, 256|wgmma[.]mma_async", run("-c", code))
    order = "".join({"s": "S", "f": "F", "b": "B", "w": "W"}[step[0]] for step in steps)
    assert order.count("W") > 80
    assert re.findall(r"S+[^SW]*(?=W)", order) == re.findall(r"S+FB+(?=W)", order) != []
