"""Every kernel must fit its chip: compiled for it without a GPU, in processes without the interpreter's variable.

What is compiled is every Gluon kernel with a causal mask, gluon_hopper's forwards of full masks, and every kernel of
triton_fa2 with the largest tile of each table row, split walks and whole ones, for sm_80, 86, 90, 100 and 120
(gate.ROWS; sm_89 gets the PTX of sm_86, which a test holds). Left out, for they would take an hour of two cores: the
smaller tiles of a row; flash_attn_1 without a mask; head_dims 16, 32 and 256 outside 16-bit on sm_86 and sm_90 and IEEE
float32 on sm_90, and all of IEEE float32 at 256, where two tiles spill 904 bytes; IEEE float32 on sm_80, 100 and 120,
whose tables are those of sm_86 and sm_90; windows and full masks outside 16-bit on sm_90. All of it is one command:
`python -m kernels.tools.offline --masks causal full window`.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]
PACKAGES = ("triton_fa2", "gluon_hopper", "gluon_fp8", "flash_attn_1", "decode", "features", "generation")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, where Triton compiles instead of interpreting."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def gated() -> str:
    """What the gate says of all packages; one process, for importing takes as long as a small package."""
    answer = run("-m", "tests.kernels.tools.gate")
    assert answer.returncode in (0, 1) and "Traceback" not in answer.stderr, answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """What compiling_facts.py finds."""
    answer = run("-m", "tests.kernels.tools.compiling_facts", str(tmp_path_factory.mktemp("kernels")))
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_every_package_of_the_table_is_gated(found):
    assert found["gated_packages"] == list(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_kernel_fits_its_chip_hardly_spills_and_has_no_serialised_product(gated, package):
    lines = gated.splitlines()
    (summary,) = (line for line in lines if line.startswith(f"{package}: "))
    variants, bad = map(int, re.findall(r"\d+(?= variants| too large)", summary))
    assert variants > 0
    assert bad == 0, "\n".join(line for line in lines if line.endswith("BAD"))


def test_a_tile_that_is_too_large_is_found(found):
    assert found["too_large_fits"] is False
    assert found["too_large_shared_bytes"] > 101376


def test_what_is_recorded_is_what_compiling_gives(found):
    assert found["recorded_is_compiled"] == [True] * 4


def test_what_is_compiled_for_sm_86_is_what_sm_89_gets(found):
    sm_86, sm_89 = found["ptx_of_sm_86_and_89"]
    assert sm_86 == sm_89
    assert len(sm_86) > 1000


def test_a_fingerprint_differs_where_the_code_can_and_not_by_names_and_comments(found):
    plain, renamed, *others = found["fingerprints"]
    assert plain == renamed
    assert len({plain, *others}) == 5
    assert len(set(found["source_keys"])) == 6
