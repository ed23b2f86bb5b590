"""Compile the decoding kernels for any NVIDIA chip with no GPU: `python -m kernels.decode.triton_decode.offline`.

Prints for each tile of the tuning tables what a block needs: shared memory, registers, spilled bytes. The tests compile
a part of it (`--gate`), so that a tile that does not fit its chip fails there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from kernels.decode.triton_decode.plan import Plan
from kernels.decode.triton_decode.request import Request
from kernels.decode.triton_decode.tuning import SHARED_MEMORY, DecodeTile, chip_class, every_tile
from kernels.tools.compile import Pointer, Resources, compile_offline, read_resources

CHIPS = (80, 86, 89, 90, 100, 120)
MULTIPROCESSORS = 132
GATE_DIMS = (64, 128, 256, 512)
SPILLED_BYTES = 1664  # of latent attention over 64 rows, most of them outside its loop; the others stay far below


@dataclass(frozen=True)
class Variant:
    """One thing to compile."""

    chip: int  # 90 for compute capability 9.0
    cache: str
    rows: int
    head_dim: int
    paged: bool
    tile: DecodeTile


def variants(chips: tuple[int, ...] = CHIPS) -> Iterator[Variant]:
    """Everything that the tables hold for these chips."""
    for chip in chips:
        for cache, rows, head_dim, paged, tile in every_tile(chip_class(chip, SHARED_MEMORY[chip])):
            yield Variant(chip, cache, rows, head_dim, paged, tile)
    if 90 in chips:
        for paged in (False, True):
            yield Variant(90, "half", 64, 512, paged, DecodeTile(64, 4, 1, 1, form="gluon"))


def gate() -> list[Variant]:
    """The variants that the tests compile: of each chip and cache, those that hold most."""
    found: dict[Any, Variant] = {}
    for v in variants((80, 86, 90)):
        if v.head_dim in (GATE_DIMS if v.chip == 90 else (128, 512)) and v.rows in (16, 64) and v.cache != "float32":
            key = (v.chip, v.cache, v.head_dim, v.rows if v.cache == "half" and v.head_dim != 64 else 0)
            if key not in found or _holds(v.tile) > _holds(found[key].tile):
                found[key] = v
    return [*found.values(), Variant(90, "half", 64, 512, False, DecodeTile(64, 4, 1, 1, form="gluon"))]


def _holds(tile: DecodeTile) -> int:
    return tile.block_n * tile.num_stages


def plan_of(v: Variant) -> Plan:
    """The plan of a case that uses the variant's tile, over ragged lengths."""
    dtype = {"half": torch.bfloat16, "e4m3": torch.bfloat16, "float32": torch.float32}[v.cache]
    latent = v.head_dim == 512
    heads = 1 if latent else 8
    width = 576 if latent else v.head_dim
    cache = (4096 * heads * width, 4096 * width, width, 1)
    request = Request(
        dtype=dtype,
        cache_dtype=torch.float8_e4m3fn if v.cache == "e4m3" else dtype,
        batch=8,
        num_heads=heads * v.rows,
        num_kv_heads=heads,
        seqlen_q=1,
        capacity=4096,
        page=16 if v.paged else 0,
        head_dim=v.head_dim,
        head_dim_v=v.head_dim,
        ragged=True,
        causal=True,
        window_size=0,
        softmax_scale=0.1,
        strides=(heads * v.rows * width, width, width, *cache, *cache, 256, 0, 0, 0, 0),
        scaled=(False, False),
        rope_dim=64 if latent else 0,
        pairs=True,
        device=torch.device("cpu"),
    )
    machine = (chip_class(v.chip, SHARED_MEMORY[v.chip]), MULTIPROCESSORS, v.chip)
    if latent and v.tile.form == "gluon":
        from kernels.decode.gluon_mla.plan import HopperPlan

        return HopperPlan(request, machine)
    return Plan(request, v.tile, machine)


def compile_variant(v: Variant) -> list[tuple[Variant, str, Resources]]:
    """Compile the kernels of a variant's plan for its chip: their names and what a block of each needs."""
    plan = plan_of(v)
    found = []
    for kernel, _, scalars, constants, options in plan.kernels(False):
        pointers = {name: Pointer(_dtype(name, v, plan)) for name in kernel.arg_names if name.endswith("_ptr")}
        names = [name for name in kernel.arg_names if name not in pointers and name not in constants]
        values = {**constants, **pointers, **dict(zip(names, scalars, strict=True))}
        made = compile_offline(v.chip, kernel, {name: values[name] for name in kernel.arg_names}, options)
        found.append((v, kernel.__name__, read_resources(v.chip, kernel, made)))
    return found


def fits(v: Variant, needed: Resources) -> bool:
    """Whether the chip has that much shared memory for a block, little is spilled, and no product is serialised."""
    enough = needed.shared_bytes <= SHARED_MEMORY[v.chip] and needed.spilled_bytes <= SPILLED_BYTES
    return enough and not needed.warnings


def _dtype(name: str, v: Variant, plan: Plan) -> str:
    """Triton's short name of what a pointer points to."""
    if name in ("q_ptr", "out_ptr"):
        return "fp32" if v.cache == "float32" else "bf16"
    if name in ("k_ptr", "v_ptr", "kv_ptr"):
        if v.cache != "e4m3":
            return "fp32" if v.cache == "float32" else "bf16"
        form = plan.kernels(False)[0][3]["CACHE"]
        if form == "bytes":
            return "u8"
        return "i16" if form == "pairs" and name == "v_ptr" else "fp8e4nv"
    return "i32" if name in ("tickets_ptr", "lengths_ptr", "table_ptr") else "fp32"


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if anything does not fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", type=int, nargs="+", default=CHIPS, choices=CHIPS)
    parser.add_argument("--gate", action="store_true", help="only what the tests compile")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args(arguments)
    wanted = gate() if chosen.gate else list(variants(tuple(chosen.chips)))
    bad = 0
    with ProcessPoolExecutor(chosen.processes) as pool:
        for reports in pool.map(compile_variant, wanted):
            for v, name, needed in reports:
                t = v.tile
                fitting = fits(v, needed)
                bad += not fitting
                print(
                    f"sm_{v.chip:<3} {name:14} {v.cache:7} rows {v.rows:3} d{v.head_dim:<3} {'paged' * v.paged:5} "
                    f"n{t.block_n} w{t.num_warps} s{t.num_stages} p{t.per_sm}: {needed.shared_bytes / 1024:6.1f} of "
                    f"{SHARED_MEMORY[v.chip] / 1024:.0f} KB, {needed.registers} registers, {needed.spilled_bytes} "
                    f"spilled{'  DOES NOT FIT' * (not fitting)}{' '.join(needed.warnings)}",
                    flush=True,
                )
    print(f"{len(wanted)} variants, {bad} kernels do not fit")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
