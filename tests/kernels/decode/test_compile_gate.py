"""Tiles must fit their chips: compiled without a GPU, in a process without the interpreter's variable.

Every tile of every chip, some minutes: `python -m kernels.decode.triton_decode.offline`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]


def test_the_largest_tiles_fit_their_chips_and_hardly_spill():
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.decode.triton_decode.offline", "--gate"]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
