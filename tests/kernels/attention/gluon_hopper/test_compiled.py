"""The instructions of gluon_hopper's kernels, compiled on any machine with Triton."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str) -> str:
    """What a process says in which Triton compiles rather than interprets."""
    pytest.importorskip("triton", reason="Triton exists for Linux")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command, root = [sys.executable, *arguments], Path(__file__).parents[4]
    answer = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)
    assert answer.returncode in (0, 1), answer.stderr
    return answer.stdout


@pytest.mark.slow
def test_both_warpgroups_meet_between_what_they_store_and_the_product_that_reads_it() -> None:
    code = "from kernels.tools import cases, check, compile\n"
    code += "case = cases.OpCase('gluon_hopper', 'bfloat16', 256, 'causal')\n"
    code += "v = next(v for v in check.variants([90], [case]) if v.kernel == 'dkv')\n"
    code += "print(compile.compile_offline(90, v.launch).asm['ptx'])"
    steps = re.findall(r"stmatrix|fence[.]proxy[.]async|bar[.]sync\s+\d+, 256|wgmma[.]mma_async", run("-c", code))
    order = "".join({"s": "S", "f": "F", "b": "B", "w": "W"}[step[0]] for step in steps)
    assert order.count("W") > 80
    assert re.findall(r"S+[^SW]*(?=W)", order) == re.findall(r"S+FB+(?=W)", order) != []
