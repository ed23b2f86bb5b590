"""Every tile must fit its chip: compiled for it without a GPU, in processes without the interpreter's variable.

What is compiled is every kernel with the largest tile of each table row, cut walks and whole ones, for sm_80, 86, 90,
100 and 120 (gate.PIECES; sm_89 gets the same PTX as sm_86, which the last test holds). Left out, for they would take an
hour of these two cores instead of minutes: the smaller tiles of a row; head_dims 16, 32 and 256 outside 16-bit on sm_86
and sm_90 and IEEE float32 on sm_90, and all of IEEE float32 at 256, where two tiles spill 904 bytes; IEEE float32 on
sm_80, 100 and 120, whose tables are those of sm_86 and sm_90; windows and full masks outside 16-bit on sm_90. All of it
is one command: `python -m kernels.tools.offline --masks causal full window`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.kernels.tools import gate

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess:
    """Python in a process of its own, where Triton compiles instead of interpreting."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("piece", gate.PIECES)
def test_every_table_row_fits_its_chip_and_hardly_spills(piece):
    answer = run("-m", "tests.kernels.tools.gate", piece)
    print(answer.stdout)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_tile_that_is_too_large_is_found():
    code = "from kernels.tools.offline import Variant, compile_variant\n"
    code += "from kernels.attention.triton_fa2.tuning import Tile\n"
    code += "report = compile_variant(Variant('forward', 86, 'half', 128, Tile(128, 128, 8, 3)))\n"
    code += "print(report.fits, report.shared_bytes > 101376)"
    answer = run("-c", code)
    assert answer.stdout.split() == ["False", "True"], answer.stderr


def test_what_is_compiled_for_sm_86_is_what_sm_89_gets():
    code = "import re; from kernels.tools import offline; from kernels.attention.triton_fa2.tuning import Tile\n"
    code += "variants = [offline.Variant('forward', chip, 'half', 64, Tile(64, 64, 4, 3)) for chip in (86, 89)]\n"
    code += "ptx = [offline.compiled(variant).asm['ptx'] for variant in variants]\n"
    code += "print(*(re.sub(r'[.]target.*', '', text) == re.sub(r'[.]target.*', '', ptx[0]) for text in ptx))"
    answer = run("-c", code)
    assert answer.stdout.split() == ["True", "True"], answer.stderr
