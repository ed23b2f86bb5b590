"""Compile the decoding kernels with every tile of their tables, with no GPU: `python -m kernels.tools.offline_decode`.

Prints what a block of each needs, as kernels.tools.offline does for the other packages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..decode.gluon_mla.plan import HopperPlan
from ..decode.triton_decode.plan import LaunchOf, Plan
from ..decode.triton_decode.request import Request
from ..decode.triton_decode.tuning import SHARED_MEMORY, DecodeTile, chip_class, every_tile
from ..unspecialized import UnspecializedTuples
from .compile import Call, Compilable, Pointer, descriptor
from .offline import CHIPS, compile_all, line

MULTIPROCESSORS = 132
_GATED_DIMS = (64, 128, 256, 512)
_GLUON = DecodeTile(64, 4, 1, 1, form="gluon")
_POINTERS = {"out_ptr": "q", "q_ptr": "q", "k_ptr": "k", "kv_ptr": "k", "v_ptr": "v"}  # others: numbers or integers
_DESCRIBED = {"latents_desc": 128, "ropes_desc": 64}  # dims of TMA's blocks of 64 keys
_INTEGERS = ("tickets_ptr", "lengths_ptr", "table_ptr")


@dataclass(frozen=True)
class DecodeVariant(Compilable):
    """One thing to compile: a kernel of a plan that uses a tile."""

    chip: int  # 90 for compute capability 9.0
    cache: str  # a name of tuning.CACHES
    rows: int  # query heads of a key head
    head_dim: int  # 512: latents
    paged: bool
    tile: DecodeTile
    is_second: bool  # the kernel that combines parts
    ragged: bool = True  # whether lengths are given

    package = "decode"

    def call(self) -> Call:
        """Return the kernel with arguments and options that make Triton compile this variant."""
        kernel, _, scalars, constants, options = self._launch()
        pointers = {name: self._pointer(name) for name in kernel.arg_names if name.endswith("_ptr")}
        pointers |= dict.fromkeys(_absent(kernel, self), None)
        if self.tile.form == "gluon" and not self.is_second:
            by_tma = constants["CONFIG"].config.tma
            pointers |= {
                name: descriptor("bf16", [1, 1, 64, width]) if by_tma else Pointer("bf16")
                for name, width in _DESCRIBED.items()
            }
        names = [name for name in kernel.arg_names if name not in pointers and name not in constants]
        values = {**constants, **pointers, **dict(zip(names, scalars, strict=True))}
        arguments = [values[name] for name in kernel.arg_names]
        if isinstance(kernel, UnspecializedTuples):
            arguments = kernel.declared(arguments)
        return kernel, dict(zip(kernel.arg_names, arguments, strict=True)), options

    def _launch(self) -> LaunchOf:
        return plan_of(self).kernels(False)[self.is_second]

    def _pointer(self, name: str) -> Pointer:
        whole = "fp32" if self.cache == "float32" else "bf16"
        if name not in _POINTERS:
            return Pointer("i32" if name in _INTEGERS else "fp32")
        if self.cache != "e4m3" or _POINTERS[name] == "q":
            return Pointer(whole)
        form = plan_of(self).kernels(False)[0][3]["CONFIG"].config.cache
        return Pointer("u8" if form == "bytes" else "i16" if (form, name) == ("pairs", "v_ptr") else "fp8e4nv")

    def __str__(self) -> str:
        t = self.tile
        kernel = "combine" if self.is_second else "mla" if t.form == "gluon" else "split"
        name = f"{self.package:12} {kernel:12} sm_{self.chip:<3} {self.cache:7} {self.head_dim:3} rows {self.rows:<3}"
        keys = f"{t.least_keys} keys" + f" {t.rows} rows" * (t.rows != 64)
        cache = "paged" if self.paged else "" if self.ragged else "full"
        return f"{name} {cache:5} n{t.block_n} w{t.num_warps} s{t.num_stages} p{t.per_sm} {keys}"


def _absent(kernel: Any, v: DecodeVariant) -> list[str]:
    """Return the pointers that a plan's calls leave out: the Gluon kernel gets others in their place."""
    names = ["lse_ptr", "k_scale_ptr", "v_scale_ptr"]
    names += [name for name, given in (("table_ptr", v.paged), ("lengths_ptr", v.ragged)) if not given]
    return [] if v.tile.form == "gluon" and not v.is_second else [name for name in names if name in kernel.arg_names]


def variants() -> Iterator[DecodeVariant]:
    """Yield everything that the tables hold, each once."""
    for chip in CHIPS:
        tiles = every_tile(chip_class(chip, SHARED_MEMORY[chip]))
        if chip == 90:
            tiles += [("half", 64, 512, paged, _GLUON) for paged in (False, True)]
        for each in tiles:
            first = DecodeVariant(chip, *each, is_second=False)
            yield first
            if len(plan_of(first).kernels(False)) > 1:
                yield DecodeVariant(chip, *each, is_second=True)


def gated() -> list[DecodeVariant]:
    """Return the variants that the tests compile: of each chip, cache and head_dim, those that hold most."""
    found: dict[Any, DecodeVariant] = {}
    for v in variants():
        dims = _GATED_DIMS if v.chip == 90 else (128, 512)
        if v.head_dim not in dims or v.rows not in (16, 64) or v.cache == "float32" or v.chip == 89:
            continue
        by_rows = v.rows if v.cache == "half" and v.head_dim != 64 else 0
        key = (v.chip, v.cache, v.head_dim, by_rows, v.tile.form, v.is_second)
        if key not in found or _holds(v.tile) > _holds(found[key].tile):
            found[key] = v
    full = [
        replace(v, ragged=False) for v in found.values() if v.chip == 90 and not v.paged and v.head_dim in (128, 512)
    ]
    return [*found.values(), *full]


def plan_of(v: DecodeVariant) -> Plan:
    """Return the plan of a case that uses the variant's tile, over ragged lengths."""
    dtype = torch.float32 if v.cache == "float32" else torch.bfloat16
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
        ragged=v.ragged,
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
    return HopperPlan(request, machine) if v.tile.form == "gluon" else Plan(request, v.tile, machine)


def _holds(tile: DecodeTile) -> int:
    return tile.block_n * tile.num_stages


def main(arguments: list[str] | None = None) -> int:
    """Print a line a variant; 1 if anything does not fit or is serialised."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.offline_decode")
    parser.add_argument("--chips", type=int, nargs="+", default=CHIPS, choices=CHIPS)
    parser.add_argument("--gated", action="store_true", help="only what the tests compile")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args(arguments)
    wanted = [v for v in (gated() if chosen.gated else variants()) if v.chip in chosen.chips]
    failed = 0
    for variant, resources in compile_all(wanted, chosen.processes):
        print(line(variant, resources), flush=True)
        failed += not variant.fits(resources) or bool(resources.warnings)
    print(f"{len(wanted)} variants, {failed} too large or serialised", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
