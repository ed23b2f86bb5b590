"""Compile every kernel variant that the tuning tables can ask for, with no GPU: `python -m kernels.tools.offline`.

Prints for each variant what a block needs (shared memory, registers, spilled bytes) and what the chip has. The test
suite uses it as a gate: a tile that no longer fits, or spills, fails there and not on somebody's GPU. For Gluon kernels
it also prints the wgmma products that ptxas serialised, each of which would cost speed without being seen. Needs only
what Triton's wheel ships (its ptxas and cuobjdump).

PACKAGES is the table: a package adds its variants, and how one of them is called.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from ..attention.flash_attn_1 import kernels as fa1
from ..attention.flash_attn_1.launch import options_of as fa1_options_of
from ..attention.gluon_fp8 import tuning as fp8_tuning
from ..attention.gluon_fp8.forward import forward_kernel as fp8_forward_kernel
from ..attention.gluon_fp8.forward_three import forward_three_kernel
from ..attention.gluon_fp8.quantising import quantise_kernel
from ..attention.gluon_fp8.tiles import Fp8Shape
from ..attention.gluon_hopper import tuning as hopper_tuning
from ..attention.gluon_hopper.backward import backward_kernel
from ..attention.gluon_hopper.backward_common import BackwardShape, Scales, TileOrder
from ..attention.gluon_hopper.backward_dq_warpgroup import OutStrides, RingSize, dq_warpgroup_kernel
from ..attention.gluon_hopper.backward_two_kernels import DqSizes, ReadyRows, dkv_kernel
from ..attention.gluon_hopper.backward_two_kernels import dq_kernel as hopper_dq_kernel
from ..attention.gluon_hopper.forward import ForwardSizes
from ..attention.gluon_hopper.forward import forward_kernel as hopper_forward_kernel
from ..attention.triton_fa2 import tuning
from ..attention.triton_fa2.backward import dkdv_kernel, dq_dkdv_kernel, dq_kernel
from ..attention.triton_fa2.backward_few_queries import few_queries_kernel
from ..attention.triton_fa2.backward_one_pass import one_pass_kernel
from ..attention.triton_fa2.backward_panels import dkdv_panels_kernel, dq_panels_kernel
from ..attention.triton_fa2.forward import forward_kernel
from ..attention.triton_fa2.forward_few_keys import few_keys_kernel
from ..attention.triton_fa2.forward_few_rows import few_rows_kernel
from ..attention.triton_fa2.forward_panels import panels_kernel
from ..attention.triton_fa2.forward_window import window_kernel
from ..attention.triton_fa2.launch import most_registers
from ..attention.triton_fa2.pdl import PDL_CHIPS
from ..attention.triton_fa2.tuning import SHARED_MEMORY, Tile
from ..constants import Constants
from .compile import Call, Compilable, Pointer, Resources, descriptor

CHIPS = (80, 86, 89, 90, 100, 120)
MASKS = {"causal": (True, False), "full": (False, False), "window": (True, True)}  # name -> causal, window


@dataclass(frozen=True)
class KernelVariant(Compilable):
    """One thing to compile."""

    package: str  # a name of PACKAGES
    kernel: str
    chip: int  # 90 for compute capability 9.0
    precision: str  # one of tuning.PRECISIONS; "half" for all kernels but triton_fa2's
    head_dim: int
    mask: str  # one of MASKS
    tile: Tile | None = None  # None where the package's own table knows it

    def call(self) -> Call:
        """Return the kernel with arguments and options that make Triton compile this variant."""
        return PACKAGES[self.package][1](self)

    def __str__(self) -> str:
        tile = ""
        if self.tile is not None:
            tile = f"{self.tile.block_m}x{self.tile.block_n} w{self.tile.num_warps} s{self.tile.num_stages}"
            tile += " split" if self.tile.programs else ""
        name = f"{self.package:12} {self.kernel:12} sm_{self.chip:<3} {self.precision:6} {self.head_dim:3}"
        return f"{name} {self.mask:6} {tile:19}"


def variants(packages: Iterable[str] | None = None) -> Iterator[KernelVariant]:
    """Yield every variant of the packages (all if None), each once."""
    for package in PACKAGES if packages is None else packages:
        yield from PACKAGES[package][0]()


def largest(wanted: Iterable[KernelVariant]) -> list[KernelVariant]:
    """Return, of the variants that differ in the tile alone, the one that holds most: if it fits, the others do."""
    found: dict[tuple[Any, ...], KernelVariant] = {}
    for v in wanted:
        key = (v.package, v.kernel, v.chip, v.precision, v.head_dim, v.mask)
        if key not in found or _holds(v.tile) > _holds(found[key].tile):
            found[key] = v
    return list(found.values())


def _holds(tile: Tile | None) -> tuple[int, int]:
    """Return the rows in shared memory, streamed ones once a stage, and as a tie-break a thread's share of scores."""
    if tile is None:
        return 0, 0
    own, streamed = max(tile.block_m, tile.block_n), min(tile.block_m, tile.block_n)
    return own + streamed * tile.num_stages, tile.block_m * tile.block_n // tile.num_warps


_TRITON_FA2 = {
    "few_rows": few_rows_kernel,
    "few_keys": few_keys_kernel,
    "window": window_kernel,
    "panels": panels_kernel,
    "few_queries": few_queries_kernel,
    "dq_panels": dq_panels_kernel,
    "dkdv_panels": dkdv_panels_kernel,
    "forward": forward_kernel,
    "one_pass": one_pass_kernel,
    "dq_dkdv": dq_dkdv_kernel,
    "dq": dq_kernel,
    "dkdv": dkdv_kernel,
}


def _triton_fa2() -> Iterator[KernelVariant]:
    for chip in CHIPS:
        for kernel, precision, head_dim, tile in tuning.every_tile(tuning.chip_class(chip, SHARED_MEMORY[chip])):
            for mask in MASKS:
                yield KernelVariant("triton_fa2", kernel, chip, precision, head_dim, mask, tile)


def _call_triton_fa2(variant: KernelVariant) -> Call:
    kernel, tile = _TRITON_FA2[variant.kernel], variant.tile
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    if variant.kernel == "window":
        options["maxnreg"] = most_registers(tile)
    return kernel, {name: _triton_fa2_argument(name, variant) for name in kernel.arg_names}, options


_TWO_PANELS = {"HEAD_DIM": 96, "BLOCK_D": 64, "BLOCK_D2": 32}  # the most that head_dims padded to 128 have


def _triton_fa2_argument(name: str, variant: KernelVariant) -> Any:
    if name == "lse_ptr" and variant.precision != "half":
        return Pointer("fp64")
    if name in ("lse_ptr", "delta_ptr"):
        return Pointer("fp32")
    if name.endswith("_ptr"):
        parts = variant.precision == "bf16x6" and name in ("q_ptr", "k_ptr", "v_ptr", "dout_ptr")
        return Pointer("bf16" if variant.precision == "half" or parts else "fp32")
    if name in ("scale", "softmax_scale"):
        return 0.125
    causal, window = MASKS[variant.mask]
    constants = {
        "BLOCK_M": variant.tile.block_m,
        "BLOCK_N": variant.tile.block_n,
        "SHARES": variant.tile.num_warps,
        "HEAD_DIM": variant.head_dim,
        "BLOCK_D": variant.head_dim,
        "BLOCK_M2": 16,  # the second panels: of 1 to 16 rows and keys, and of no columns
        "BLOCK_N2": 64 if variant.kernel == "window" else 16,
        "BLOCK_D2": 0,
        "WHOLE": False,
        "MASKED": True,
        "HAS_LEFT": window,
        "HAS_RIGHT": causal or window,
        "SCALE_FIRST": False,
        "STORE_LSE": True,
        **(_TWO_PANELS if variant.kernel in ("dq_panels", "dkdv_panels") else {}),
        "SPLIT": variant.tile.programs > 0,
        "GROUPED": False,
        "COPIED": variant.precision == "ieee",
        "OWN_DELTA": tuning.computes_delta(variant.precision, variant.head_dim, variant.tile),  # the larger code
        "ONE_LOOP": False,  # the larger code of the two
        "PDL": tuning.chip_class(variant.chip, SHARED_MEMORY[variant.chip]) in PDL_CHIPS,
        "PRECISION": "ieee" if variant.precision == "half" else variant.precision,
    }
    return constants.get(name, 4096)  # else a stride or a length: a multiple of 16, as those of usual shapes are


_HOPPER = {  # kernel -> head_dims, masks
    "forward": ((*hopper_tuning.HEAD_DIMS, hopper_tuning.WIDE_KEYS), MASKS),
    "padded": ((64,), MASKS),
    "packed": (hopper_tuning.HEAD_DIMS, MASKS),
    "short": ((128,), ("causal",)),
    "tail": ((64, 128), ("full",)),
    "two": ((64,), ("full",)),
    "three": ((64,), ("full",)),
    "long": ((64,), ("full", "causal")),
    "held": ((128,), ("full",)),
    "recompute": ((64,), ("full", "causal")),
    "split": ((64, 256), ("full",)),
    "backward": ((64, 128), MASKS),
    "split backward": ((128,), ("full",)),
    "packed backward": ((64, 128), MASKS),
    "dq warpgroup": ((128,), ("full", "causal")),
    "split dq warpgroup": ((128,), ("full",)),
    "dkv": ((*hopper_tuning.HEAD_DIMS, hopper_tuning.WIDE_KEYS), MASKS),
    "dq": ((*hopper_tuning.HEAD_DIMS, hopper_tuning.WIDE_KEYS), MASKS),
}
HOPPER_FORWARDS = ("forward", "short", "tail", "two", "three", "long", "held", "recompute", "split", "padded", "packed")
# of full masks: queries, keys and heads that get the form
_HOPPER_LENGTHS = {
    "tail": (2048, 1000, 128),
    "two": (448, 1500, 160),
    "three": (257, 257, 768),
    "long": (16384, 16384, 16),
    "held": (16384, 16384, 16),
    "recompute": (16384, 16384, 16),
    "split": (4096, 4096, 20),
}
_HOPPER_SPLITS = ("split backward", "split dq warpgroup")  # for tiles that are split by queries


def _gluon_hopper() -> Iterator[KernelVariant]:
    for mask in MASKS:
        for kernel, (head_dims, masks) in _HOPPER.items():
            for head_dim in head_dims if mask in masks else ():
                yield KernelVariant("gluon_hopper", kernel, 90, "half", head_dim, mask)


def _call_gluon_hopper(variant: KernelVariant) -> Call:
    make = _hopper_forward if variant.kernel in HOPPER_FORWARDS else _hopper_backward
    return *make(variant), {"num_warps": 4}


def _hopper_forward(variant: KernelVariant) -> tuple[Any, list[Any]]:
    causal, window = MASKS[variant.mask]
    head_dim, recompute = variant.head_dim, variant.kernel == "recompute"
    seqlen = {"short": 512, "long": 16384, "recompute": 16384}.get(variant.kernel, 1024)
    unpadded = head_dim - 8 * (variant.kernel == "padded")
    seqlen_k, split, packed = seqlen, False, variant.kernel == "packed"
    if variant.mask == "full":
        seqlen, seqlen_k, n_heads = _HOPPER_LENGTHS.get(variant.kernel, (1024, 1024, 1056))
    tiles = hopper_tuning.forward_tiles(head_dim, unpadded, seqlen, causal, window)
    if packed:
        tiles = hopper_tuning.packed_forward_tiles(head_dim, 0, causal, window)
    elif variant.mask == "full":
        mask = hopper_tuning.FullMask(seqlen, seqlen_k, n_heads, programs=132)
        tiles, split = hopper_tuning.full_mask_form(tiles, head_dim, mask)
    head_dim_v, pieces = hopper_tuning.values_head_dim(head_dim), hopper_tuning.PIECES.get(head_dim, 1)
    q, k = (descriptor("bf16", [1, 1, rows, head_dim // pieces]) for rows in (hopper_tuning.ROWS, tiles.block_n))
    v = descriptor("bf16", [1, 1, tiles.block_n, head_dim_v])
    config = hopper_tuning.ForwardConfig(
        **vars(replace(tiles, flag_overflow=tiles.flag_overflow and not recompute)),
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        pieces=pieces,
        causal=causal,
        has_window=window,
        masked=causal or window or packed or seqlen_k % tiles.block_n > 0,
        split_kv=split,
        recompute=recompute,
        packed=packed,
    )
    out = Pointer("bf16") if tiles.store_from_registers else q
    pointers = [out, Pointer("fp32"), out, Pointer("fp32"), Pointer("i32"), Pointer("i32")]
    sizes = ForwardSizes(*[9] * 10)
    return hopper_forward_kernel, [q, k, v, *pointers, sizes, 0.125, (9, 9, 9), Constants(config)]


def _hopper_backward(variant: KernelVariant) -> tuple[Any, list[Any]]:
    causal, window = MASKS[variant.mask]
    head_dim = variant.head_dim
    if variant.kernel in ("dkv", "dq"):
        tiles = hopper_tuning.BACKWARD_TWO_KERNELS[head_dim][variant.kernel == "dq"]
    else:
        tiles = hopper_tuning.BACKWARD[head_dim]
    head_dim_v, pieces = hopper_tuning.values_head_dim(head_dim), hopper_tuning.PIECES.get(head_dim, 1)
    q, k = (descriptor("bf16", [1, 1, rows, head_dim // pieces]) for rows in (tiles.block_m, tiles.block_n))
    do, v = (descriptor("bf16", [1, 1, rows, head_dim_v]) for rows in (tiles.block_m, tiles.block_n))
    fragments, rows = descriptor("fp32", [1, 16, 256]), descriptor("fp32", [tiles.block_m])
    shape, scales = BackwardShape(*[9] * 7), Scales(0.125, 0.125)
    config = hopper_tuning.BackwardConfig(
        block_m=tiles.block_m,
        block_n=tiles.block_n,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        slots=2,
        causal=causal,
        has_window=window,
        masked=causal or window or variant.kernel == "packed backward",
        linear_grid=variant.kernel in _HOPPER_SPLITS,
        split_q=variant.kernel in _HOPPER_SPLITS,
        next_delta=hopper_tuning.computes_next_delta(head_dim, 4096, 4096, causal, window),
        unpadded_head_dim=head_dim_v,
        pieces=pieces,
        scores_in_turn=tiles.scores_in_turn,
        packed=variant.kernel == "packed backward",
    )
    if variant.kernel == "dkv":
        tensors = [q, k, v, do, k, v, rows, rows, Pointer("fp32")]
        return dkv_kernel, [*tensors, ReadyRows(9, 9, 9), shape, scales, Constants(config)]
    if variant.kernel == "dq":
        tensors = [q, k, v, do, q, Pointer("bf16"), *[Pointer("fp32")] * 3]
        return hopper_dq_kernel, [*tensors, (9, 9, 9), DqSizes(*[9] * 8), scales, Constants(config)]
    tensors, split = [q, k, v, do, fragments, k, v, rows, rows], [Pointer("i32"), Pointer("fp32")]
    if variant.kernel == "packed backward":
        tensors[5:7] = [Pointer("bf16")] * 2
    if variant.kernel == "packed backward" or (variant.kernel in ("backward", "split backward") and head_dim > 64):
        return backward_kernel, [*tensors, *split, shape, TileOrder(9, 9), scales, Constants(config)]
    ring = [descriptor("bf16", [1, 1, 64, 64]), Pointer("fp32")]
    next_delta = [Pointer("bf16"), Pointer("bf16"), Pointer("fp32")]
    sizes = [shape, RingSize(9, 9), OutStrides(*[4096] * 6), TileOrder(9, 9), scales]
    return dq_warpgroup_kernel, [*tensors, *ring, *next_delta, *split, *sizes, Constants(config)]


def _gluon_fp8() -> Iterator[KernelVariant]:
    """Yield the causal variants, of which the form without a mask is a part."""
    for head_dim in hopper_tuning.HEAD_DIMS:
        forwards = ("forward" if tiles.consumers == 2 else "three" for tiles in fp8_tuning.forms(head_dim))
        for kernel in ("quantise", *forwards):
            yield KernelVariant("gluon_fp8", kernel, 90, "half", head_dim, "causal")


def _call_gluon_fp8(variant: KernelVariant) -> Call:
    head_dim = variant.head_dim
    if variant.kernel == "quantise":
        tensors = [tuple(Pointer(dtype) for _ in range(3)) for dtype in ("bf16", "fp8e4nv", "fp32")]
        numbers = [((4096, 4096, 4096, 1),) * 3, *[9] * 8, head_dim, head_dim]
        return quantise_kernel, [*tensors, *numbers], {"num_warps": fp8_tuning.quantising_warps(head_dim)}
    consumers = 3 if variant.kernel == "three" else 2
    tiles = next(tiles for tiles in fp8_tuning.forms(head_dim) if tiles.consumers == consumers)
    blocks = (fp8_tuning.ROWS, head_dim), (tiles.block_n, head_dim), (head_dim, tiles.block_n)
    tensors = [descriptor("fp8e4nv", [1, 1, *block]) for block in blocks]
    tensors += [descriptor("bf16", [1, 1, fp8_tuning.ROWS, head_dim]), *[Pointer("fp32")] * 3]
    config = fp8_tuning.Fp8Config(**vars(tiles), head_dim=head_dim, causal=True, masked=True)
    kernel = fp8_forward_kernel if consumers == 2 else forward_three_kernel
    n_long = [9] * (consumers - 2)
    return kernel, [*tensors, Fp8Shape(*[9] * 8), *n_long, 0.125, Constants(config)], {"num_warps": 4}


_FLASH_ATTN_1 = {"forward": fa1.forward_kernel, "backward": fa1.backward_kernel}


def _flash_attn_1() -> Iterator[KernelVariant]:
    for chip, kernel, precision, head_dim in product(CHIPS, _FLASH_ATTN_1, ("half", "ieee"), (64, 128, 256)):
        for mask in ("causal", "full"):
            yield KernelVariant("flash_attn_1", kernel, chip, precision, head_dim, mask)


def _call_flash_attn_1(variant: KernelVariant) -> Call:
    half = variant.precision == "half"
    own, sums = (fa1.Heads(Pointer(dtype), 4096, 4096, 4096) for dtype in ("bf16" if half else "fp32", "fp32"))
    tensors = (own, own, own, sums) if variant.kernel == "forward" else (*[own] * 5, sums, own, own)
    sizes = fa1.Fa1Sizes(4096, 4096, 4096, 4096, 0.125)
    causal = variant.mask == "causal"
    options = fa1_options_of(variant.kernel, 2 if half else 4, variant.head_dim, causal).copy()
    arguments = [*tensors, Pointer("fp32"), Pointer("fp32"), sizes, options.pop("CONFIG")]
    return _FLASH_ATTN_1[variant.kernel], arguments, options


# package -> its variants, and from one of them to a kernel with arguments and options
PACKAGES: dict[str, tuple[Callable[[], Iterator[KernelVariant]], Callable[[KernelVariant], Call]]] = {
    "triton_fa2": (_triton_fa2, _call_triton_fa2),
    "gluon_hopper": (_gluon_hopper, _call_gluon_hopper),
    "gluon_fp8": (_gluon_fp8, _call_gluon_fp8),
    "flash_attn_1": (_flash_attn_1, _call_flash_attn_1),
}


def compile_all(wanted: Iterable[Compilable], processes: int = 2) -> Iterator[tuple[Compilable, Resources]]:
    """Yield each variant with what a block of it needs, in order."""
    wanted = list(wanted)
    with ProcessPoolExecutor(processes) as pool:
        yield from zip(wanted, pool.map(Compilable.resources, wanted), strict=True)


def line(variant: Compilable, resources: Resources) -> str:
    """Return a line of the printed table."""
    shared, limit = resources.shared_bytes / 1024, SHARED_MEMORY[variant.chip] / 1024
    needs = (
        f"shared {shared:5.1f} of {limit:.0f} KB, {resources.registers:3} registers, {resources.spilled_bytes} spilled"
    )
    return "  ".join((f"{variant} {needs}", *(["DOES NOT FIT"] * (not variant.fits(resources))), *resources.warnings))


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if anything does not fit, is serialised or spills too much."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.offline", description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", nargs="+", metavar="NAME", help=f"packages ({', '.join(PACKAGES)}) or kernels")
    parser.add_argument("--chips", type=int, nargs="+", default=CHIPS, choices=CHIPS)
    parser.add_argument("--masks", nargs="+", default=["causal"], choices=MASKS)
    parser.add_argument("--precisions", nargs="+", default=tuning.PRECISIONS, choices=tuning.PRECISIONS)
    parser.add_argument("--head-dims", type=int, nargs="+", default=tuning.BLOCK_DIMS, choices=tuning.BLOCK_DIMS)
    parser.add_argument("--largest", action="store_true", help="only the largest tile of each table row")
    parser.add_argument("--max-spilled", type=int, help="bytes a thread may spill; more counts as a failure")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args(arguments)
    wanted = [v for v in variants() if _is_chosen(v, chosen)]
    total = failed = 0
    for variant, resources in compile_all(largest(wanted) if chosen.largest else wanted, chosen.processes):
        print(
            json.dumps({**asdict(variant), **asdict(resources)}) if chosen.json else line(variant, resources),
            flush=True,
        )
        spills = chosen.max_spilled is not None and resources.spilled_bytes > chosen.max_spilled
        failed += not variant.fits(resources) or bool(resources.warnings) or spills
        total += 1
    print(f"{total} variants, {failed} too large, serialised or spilling too much", file=sys.stderr)
    return int(failed > 0)


def _is_chosen(variant: KernelVariant, chosen: argparse.Namespace) -> bool:
    named = not chosen.kernels or variant.package in chosen.kernels or variant.kernel in chosen.kernels
    return (
        named
        and variant.chip in chosen.chips
        and variant.mask in chosen.masks
        and variant.precision in chosen.precisions
        and variant.head_dim in chosen.head_dims
    )


if __name__ == "__main__":
    sys.exit(main())
