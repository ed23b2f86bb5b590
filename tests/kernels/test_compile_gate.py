"""Every tile must fit its chip: compiled for it without a GPU, in processes without the interpreter's variable."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
# head_dim 64 and 128 tiles on an H200 are faster with a few spilled values than the next smaller tile without
SPILLED_BYTES = 512
# The largest tile of a row, of both tables and of every chip; sm_89 stands for sm_86 (same table, limit and code).
# What four minutes do not allow, the smaller tiles and head_dims, is one command: `python -m kernels.offline`.
COMMON_DIMS = ["--head-dims", "64", "128"]
RUNS = {
    "IEEE float32 on sm_90": ["--precisions", "ieee", "--chips", "90", *COMMON_DIMS],
    "IEEE float32 on sm_89": ["--precisions", "ieee", "--chips", "89", *COMMON_DIMS],
    "16-bit on sm_90": ["--precisions", "half", "--chips", "90"],
    "16-bit on sm_89": ["--precisions", "half", "--chips", "89"],
    "16-bit elsewhere": ["--precisions", "half", "--chips", "80", "100", "120", *COMMON_DIMS],
    "TF32": ["--precisions", "tf32", "--chips", "89", "90", *COMMON_DIMS],
}


def offline(*arguments: str) -> subprocess.CompletedProcess:
    """`python -m kernels.offline` as a user runs it."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.offline", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", RUNS.values(), ids=RUNS.keys())
def test_every_table_row_fits_its_chip_and_hardly_spills(arguments):
    answer = offline(*arguments, "--largest", "--max-spilled", str(SPILLED_BYTES))
    print(answer.stdout)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_tile_that_is_too_large_is_found():
    code = (
        "from kernels.offline import Variant, compile_variant; from kernels.attention.triton_fa2.tuning import Tile\n"
    )
    code += "report = compile_variant(Variant('forward', 86, 'half', 128, Tile(128, 128, 8, 3)))\n"
    code += "print(report.fits, report.shared_bytes > 101376)"
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.stdout.split() == ["False", "True"], answer.stderr
