"""Compile the kernels with no GPU: `python -m kernels.tools.offline_gluon_fp8`.

Prints for each variant the shared memory of a block, what a thread spills, and ptxas's warnings that it serialised the
asynchronous products (C75xx). Needs only Triton's wheel.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from kernels.attention.gluon_fp8 import tuning
from kernels.attention.gluon_fp8.forward import forward_kernel
from kernels.attention.gluon_fp8.forward_three import forward_three_kernel
from kernels.attention.gluon_fp8.quantising import quantise_kernel
from kernels.tools.compile import Needs, Pointer, compiled_needs, descriptor


@dataclass(frozen=True)
class Report:
    """What a compiled variant needs."""

    kernel: str  # "forward", "three" (consumers) or "quantise"
    head_dim: int
    shared_bytes: int
    spilled_bytes: int  # stored to a thread's stack
    warnings: tuple[str, ...]  # serialised products


def reports() -> Iterator[Report]:
    """Of every head_dim; the forward with a causal mask, whose form without one is a part of it."""
    for head_dim in tuning.HEAD_DIMS:
        warps = tuning.quantising_warps(head_dim)
        yield _report("quantise", head_dim, compiled_needs(quantise_kernel, _quantise(head_dim), num_warps=warps))
        for tiles in tuning.forms(head_dim):
            kernel, name = (forward_kernel, "forward") if tiles.consumers == 2 else (forward_three_kernel, "three")
            yield _report(name, head_dim, compiled_needs(kernel, _forward(head_dim, tiles)))


def _report(name: str, head_dim: int, needs: Needs) -> Report:
    return Report(name, head_dim, needs.shared_bytes, needs.spilled_bytes, needs.warnings)


def _forward(head_dim: int, tiles: tuning.Tiles) -> list[Any]:
    blocks = (tuning.ROWS, head_dim), (tiles.block_n, head_dim), (head_dim, tiles.block_n)
    tensors = [descriptor("fp8e4nv", [1, 1, *block]) for block in blocks]
    tensors += [descriptor("bf16", [1, 1, tuning.ROWS, head_dim]), *[Pointer("fp32")] * 3]
    constants = [tuning.ROWS, tiles.block_n, head_dim, tiles.kv_slots, True, True]
    return [*tensors, *[9] * (8 + tiles.consumers - 2), 0.125, *constants]


def _quantise(head_dim: int) -> list[Any]:
    tensors = [Pointer(dtype) for dtype in ("bf16", "fp8e4nv", "fp32") for _ in range(3)]
    return [*tensors, *[4096, 4096, 4096, 1] * 3, *[9] * 8, head_dim, head_dim]


def main() -> int:
    """A JSON object a variant; 1 if any product is serialised."""
    found = []
    for report in reports():
        found.append(report)
        print(json.dumps(asdict(report)), flush=True)
    return int(any(report.warnings for report in found))


if __name__ == "__main__":
    sys.exit(main())
