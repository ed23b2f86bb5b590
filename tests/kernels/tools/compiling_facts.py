"""What compiling without a GPU gives, as JSON: `python -m tests.kernels.tools.compiling_facts FOLDER`.

A process of its own, in which Triton compiles instead of interpreting; one for all facts, for importing takes longer
than any of them.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

from kernels.tools.compile import Pointer, fingerprint, source_key
from kernels.tools.offline import KernelVariant, Tile
from tests.kernels.tools import gate

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


def main(folder: Path) -> dict[str, Any]:
    """Return the facts that test_offline.py asserts; `folder` gets a module of kernels."""
    too_large = KernelVariant("triton_fa2", "forward", 86, "half", 128, "causal", Tile(128, 128, 8, 3))
    needs = too_large.resources()
    return {
        "gated_packages": [package for package in gate.PACKAGES if gate.wanted(package)],
        "too_large_fits": too_large.fits(needs),
        "too_large_shared_bytes": needs.shared_bytes,
        "recorded_is_compiled": recorded_is_compiled(),
        "ptx_of_sm_86_and_89": [ptx_without_target(chip) for chip in (86, 89)],
        **hashes(folder),
    }


def recorded_is_compiled() -> list[bool]:
    """Return for a kernel of four kinds whether the gate's record has what compiling it gives."""
    wanted = (
        ("triton_fa2", "few_rows", 90),
        ("triton_fa2", "dq", 86),
        ("gluon_hopper", "dq", 90),
        ("gluon_fp8", "quantise", 90),
    )
    variants = (
        next(v for v in gate.wanted(package) if (v.kernel, v.chip, v.precision) == (kernel, chip, "half"))
        for package, kernel, chip in wanted
    )
    return [gate.resources(v)[1] == v.resources() for v in variants]


def ptx_without_target(chip: int) -> str:
    """Return the PTX of a forward kernel for a chip, without the line that names the chip."""
    variant = KernelVariant("triton_fa2", "forward", chip, "half", 64, "causal", Tile(64, 64, 4, 3))
    return re.sub(r"[.]target.*", "", variant.compile().asm["ptx"])


def hashes(folder: Path) -> dict[str, list[str]]:
    """Return both of a kernel, of its copy by another name, and of four that are compiled to other code."""
    path = folder / "three_kernels.py"
    path.write_text(KERNELS)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)

    def call(kernel: Any, number: int = 1, chip: int = 90, warps: int = 4) -> tuple:
        return chip, kernel, [Pointer("fp32"), number], {"num_warps": warps}

    plain = kernels.plain
    others = call(kernels.other), call(plain, 2), call(plain, chip=86), call(plain, warps=8)
    calls = (call(plain), call(kernels.renamed), *others)
    return {
        "fingerprints": [fingerprint(*each) for each in calls],
        "source_keys": [source_key(*each) for each in calls],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
