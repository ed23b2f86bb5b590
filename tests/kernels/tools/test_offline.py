"""Every kernel must fit its chip: compiled for it without a GPU, in processes without the interpreter's variable.

What is compiled is every Gluon kernel with a causal mask, and every kernel of triton_fa2 with the largest tile of each
table row, split walks and whole ones, for sm_80, 86, 90, 100 and 120 (gate.ROWS; sm_89 gets the PTX of sm_86, which a
test holds). Left out, for they would take an hour of two cores: the smaller tiles of a row; flash_attn_1 without a
mask; head_dims 16, 32 and 256 outside 16-bit on sm_86 and sm_90 and IEEE float32 on sm_90, and all of IEEE float32 at
256, where two tiles spill 904 bytes; IEEE float32 on sm_80, 100 and 120, whose tables are those of sm_86 and sm_90;
windows and full masks outside 16-bit on sm_90. All of it is one command:
`python -m kernels.tools.offline --masks causal full window`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]
PACKAGES = ("triton_fa2", "gluon_hopper", "gluon_fp8", "flash_attn_1", "decode", "features")


def run(*arguments: str) -> str:
    """Run Python in a process of its own, where Triton compiles instead of interpreting; return what it prints."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    answer = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def test_every_package_of_the_table_is_gated():
    code = "from tests.kernels.tools import gate\n"
    code += "print(*(package for package in gate.PACKAGES if gate.wanted(package)))"
    assert run("-c", code).split() == list(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_kernel_fits_its_chip_hardly_spills_and_has_no_serialised_product(package):
    print(run("-m", "tests.kernels.tools.gate", package))


def test_a_tile_that_is_too_large_is_found():
    code = "from kernels.tools.offline import KernelVariant, Tile\n"
    code += "variant = KernelVariant('triton_fa2', 'forward', 86, 'half', 128, 'causal', Tile(128, 128, 8, 3))\n"
    code += "needs = variant.resources()\n"
    code += "print(variant.fits(needs), needs.shared_bytes > 101376)"
    assert run("-c", code).split() == ["False", "True"]


def test_what_is_recorded_is_what_compiling_gives():
    code = "from tests.kernels.tools import gate\n"
    code += "wanted = (('triton_fa2', 'few_rows', 90), ('triton_fa2', 'dq', 86), ('gluon_hopper', 'dq', 90),\n"
    code += "          ('gluon_fp8', 'quantise', 90))\n"
    code += "for package, *name in wanted:\n"
    code += "    found = (v for v in gate.wanted(package) if [v.kernel, v.chip, v.precision] == [*name, 'half'])\n"
    code += "    v = next(found)\n"
    code += "    print(gate.resources(v)[1] == v.resources())"
    assert run("-c", code).split() == ["True"] * 4


def test_what_is_compiled_for_sm_86_is_what_sm_89_gets():
    code = "import re; from kernels.tools.offline import KernelVariant, Tile\n"
    code += "ptx = [KernelVariant('triton_fa2', 'forward', chip, 'half', 64, 'causal', Tile(64, 64, 4, 3)).compile()"
    code += ".asm['ptx'] for chip in (86, 89)]\n"
    code += "print(*(re.sub(r'[.]target.*', '', text) == re.sub(r'[.]target.*', '', ptx[0]) for text in ptx))"
    assert run("-c", code).split() == ["True", "True"]


KERNELS = """
import triton, triton.language as tl

@triton.jit
def plain(x_ptr, N: tl.constexpr):
    tl.store(x_ptr, N)

@triton.jit
def renamed(y_ptr, N: tl.constexpr):  # a comment
    tl.store(y_ptr, N)

@triton.jit
def other(x_ptr, N: tl.constexpr):
    tl.store(x_ptr, N + 2)
"""


def test_a_fingerprint_differs_where_the_code_can_and_not_by_names_and_comments(tmp_path):
    (tmp_path / "three_kernels.py").write_text(KERNELS)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import three_kernels as t\n"
    code += "from kernels.tools.compile import Pointer, fingerprint\n"
    code += "of = lambda f, n=1, chip=90, warps=4: fingerprint(chip, f, [Pointer('fp32'), n], {'num_warps': warps})\n"
    code += "first = of(t.plain)\n"
    code += "others = of(t.other), of(t.plain, 2), of(t.plain, chip=86), of(t.plain, warps=8)\n"
    code += "print(first == of(t.renamed), first in others, len(set(others)))"
    assert run("-c", code).split() == ["True", "False", "4"]
