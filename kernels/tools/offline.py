"""Compile every kernel variant of the tuning tables for any NVIDIA chip, with no GPU: `python -m
kernels.tools.offline`.

Prints for each variant what a block needs (shared memory, registers, spilled bytes) and what the chip has. The test
suite uses it as a gate: a tile that no longer fits, or spills, fails there and not on somebody's GPU. Needs only what
Triton's wheel ships (its ptxas and cuobjdump).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from kernels.attention.triton_fa2 import tuning
from kernels.attention.triton_fa2.backward import both_kernel, dkdv_kernel, dq_kernel
from kernels.attention.triton_fa2.chain import CHAINING
from kernels.attention.triton_fa2.forward import forward_kernel
from kernels.attention.triton_fa2.fused import fused_kernel
from kernels.attention.triton_fa2.narrow import narrow_kernel
from kernels.attention.triton_fa2.tuning import SHARED_MEMORY, Tile
from kernels.tools.compile import BINARIES, Pointer, compiled_for

CHIPS = (80, 86, 89, 90, 100, 120)
MASKS = {"causal": (False, True), "full": (False, False), "window": (True, True)}  # name -> HAS_LEFT, HAS_RIGHT
_KERNELS = {
    "narrow": narrow_kernel,
    "forward": forward_kernel,
    "fused": fused_kernel,
    "both": both_kernel,
    "dq": dq_kernel,
    "dkdv": dkdv_kernel,
}


@dataclass(frozen=True)
class Variant:
    """One thing to compile."""

    kernel: str
    chip: int  # 90 for compute capability 9.0
    precision: str
    head_dim: int
    tile: Tile
    mask: str = "causal"


@dataclass(frozen=True)
class Report:
    """What a block of a compiled variant needs."""

    variant: Variant
    shared_bytes: int
    registers: int
    spilled_bytes: int  # of a thread's stack

    @property
    def fits(self) -> bool:
        """Whether the chip has that much shared memory for a block."""
        return self.shared_bytes <= SHARED_MEMORY[self.variant.chip]


def variants(chips: Iterable[int] = CHIPS, masks: Iterable[str] = ("causal",)) -> Iterator[Variant]:
    """Everything the tables can ask for on these chips, each once."""
    for chip in chips:
        for kernel, precision, head_dim, tile in tuning.every_tile(tuning.chip_class(chip, SHARED_MEMORY[chip])):
            for mask in masks:
                yield Variant(kernel, chip, precision, head_dim, tile, mask)


def largest(wanted: Iterable[Variant]) -> list[Variant]:
    """Of the variants that differ in the tile alone, the one that holds most: if it fits, the others do."""
    found: dict[tuple[str, int, str, int, str], Variant] = {}
    for variant in wanted:
        key = (variant.kernel, variant.chip, variant.precision, variant.head_dim, variant.mask)
        if key not in found or _holds(variant.tile) > _holds(found[key].tile):
            found[key] = variant
    return list(found.values())


def _holds(tile: Tile) -> tuple[int, int]:
    """Rows in shared memory, streamed ones once a stage, and as a tie-break what a thread has in registers."""
    own, streamed = max(tile.block_m, tile.block_n), min(tile.block_m, tile.block_n)
    return own + streamed * tile.num_stages, tile.block_m * tile.block_n // tile.num_warps


def compiled(variant: Variant) -> Any:
    """What Triton makes of a variant for its chip."""
    kernel, tile = _KERNELS[variant.kernel], variant.tile
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return compiled_for(variant.chip, kernel, {name: _argument(name, variant) for name in kernel.arg_names}, options)


def compile_variant(variant: Variant) -> Report:
    """Compile for the variant's chip and read what the result needs."""
    kernel = compiled(variant)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [BINARIES / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))
    return Report(variant, kernel.metadata.shared, registers, stack)


def compile_all(wanted: Iterable[Variant], processes: int = 2) -> Iterator[Report]:
    """Reports in the order of the variants."""
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(compile_variant, wanted, chunksize=4)


def table(reports: Iterable[Report]) -> Iterator[str]:
    """One line a report."""
    head = f"{'kernel':8} {'chip':6} {'mask':7} {'precision':9} {'dim':>4} {'tile':>18} {'shared KB':>10} {'limit':>6}"
    yield f"{head} {'regs':>5} {'spilled':>8}"
    for report in reports:
        v = report.variant
        tile = f"{v.tile.block_m}x{v.tile.block_n} w{v.tile.num_warps} s{v.tile.num_stages}"
        limit = SHARED_MEMORY[v.chip] / 1024
        name = f"{v.kernel:8} sm_{v.chip:<3} {v.mask:7} {v.precision:9} {v.head_dim:4} {tile:>18}"
        needs = f"{report.shared_bytes / 1024:10.1f} {limit:6.0f} {report.registers:5} {report.spilled_bytes:8}"
        yield f"{name} {needs}" if report.fits else f"{name} {needs}  DOES NOT FIT"


def _argument(name: str, variant: Variant) -> Any:
    if name == "lse_ptr" and variant.precision != "half":
        return Pointer("fp64")
    if name in ("lse_ptr", "delta_ptr"):
        return Pointer("fp32")
    if name.endswith("_ptr"):
        pieces = variant.precision == "pieces" and name in ("q_ptr", "k_ptr", "v_ptr", "dout_ptr")
        return Pointer("bf16" if variant.precision == "half" or pieces else "fp32")
    if name in ("scale", "softmax_scale"):
        return 0.125
    has_left, has_right = MASKS[variant.mask]
    constants = {
        "BLOCK_M": variant.tile.block_m,
        "BLOCK_N": variant.tile.block_n,
        "SHARES": variant.tile.num_warps,
        "HEAD_DIM": variant.head_dim,
        "BLOCK_D": variant.head_dim,
        "HAS_LEFT": has_left,
        "HAS_RIGHT": has_right,
        "SCALE_FIRST": False,
        "STORE_LSE": True,
        "SPLIT": variant.tile.programs > 0,
        "GROUPED": False,
        "COPIED": variant.precision == "ieee",
        "ONE_LOOP": False,  # the larger code of the two
        "CHAINED": tuning.chip_class(variant.chip, SHARED_MEMORY[variant.chip]) in CHAINING,
        "PRECISION": "ieee" if variant.precision == "half" else variant.precision,
    }
    return constants.get(name, 4096)  # else a stride or a length: a multiple of 16, as those of usual shapes are


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if anything does not fit or spills too much."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.offline", description=__doc__.splitlines()[0])
    parser.add_argument("--chips", type=int, nargs="+", default=CHIPS, choices=CHIPS)
    parser.add_argument("--masks", nargs="+", default=["causal"], choices=MASKS)
    parser.add_argument("--precisions", nargs="+", default=tuning.PRECISIONS, choices=tuning.PRECISIONS)
    parser.add_argument("--head-dims", type=int, nargs="+", default=tuning.BLOCK_DIMS, choices=tuning.BLOCK_DIMS)
    parser.add_argument("--largest", action="store_true", help="only the largest tile of each table row")
    parser.add_argument("--max-spilled", type=int, help="bytes a thread may spill; more counts as a failure")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args(arguments)
    every = variants(chosen.chips, chosen.masks)
    wanted = [v for v in every if v.precision in chosen.precisions and v.head_dim in chosen.head_dims]
    wanted = largest(wanted) if chosen.largest else wanted
    reports: list[Report] = []
    for line in table(_collect(compile_all(wanted, chosen.processes), reports)):
        print(line, flush=True)
    most = chosen.max_spilled
    bad = [r for r in reports if not r.fits or (most is not None and r.spilled_bytes > most)]
    print(f"{len(reports)} variants, {len(bad)} of them too large" + (f" or over {most} bytes" if most else ""))
    return int(bool(bad))


def _collect(reports: Iterable[Report], into: list[Report]) -> Iterator[Report]:
    for report in reports:
        into.append(report)
        yield report


if __name__ == "__main__":
    sys.exit(main())
