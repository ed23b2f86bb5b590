"""Compile the Hopper kernels with no GPU: `python -m kernels.tools.offline_gluon_hopper`.

Prints for each variant the shared memory of a block, what a thread spills, and ptxas's warnings that it serialised
the asynchronous products (C75xx), each of which would cost speed without being seen. Needs only Triton's wheel.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.backward import backward_kernel
from kernels.attention.gluon_hopper.backward_dq_warpgroup import assisted_kernel
from kernels.attention.gluon_hopper.backward_two_kernels import wide_dkv_kernel, wide_dq_kernel
from kernels.attention.gluon_hopper.forward import forward_kernel
from kernels.tools.compile import Pointer, compiled_needs, descriptor

SHARED_MEMORY = 232448  # bytes of a block on compute capability 9.0, CUDA C++ Programming Guide, table of capabilities
CUTS = ("cut", "assisted cut")  # the backward's kernels for pieces of tiles
FORWARDS = ("forward", "short", "long", "recompute", "split", "padded")
MASKS = {"full": (False, False), "causal": (True, False), "window": (True, True)}  # name -> CAUSAL, WINDOW
_COMPILED = {  # kernel -> head_dims, masks
    "forward": (tuning.HEAD_DIMS, MASKS),
    "padded": ((64,), MASKS),
    "short": ((128,), ("causal",)),
    "long": ((64,), ("full", "causal")),
    "recompute": ((64,), ("full", "causal")),
    "split": ((256,), ("full",)),
    "backward": ((64, 128), MASKS),
    "cut": ((128,), ("full",)),
    "assisted": ((128,), ("full", "causal")),
    "assisted cut": ((128,), ("full",)),
    "keys": (tuning.HEAD_DIMS, MASKS),
    "queries": (tuning.HEAD_DIMS, MASKS),
}


@dataclass(frozen=True)
class Variant:
    """One thing to compile."""

    kernel: str  # "forward", or another of FORWARDS; "backward", "assisted", or of CUTS; apart "keys", "queries"
    head_dim: int
    mask: str


@dataclass(frozen=True)
class Report:
    """What a compiled variant needs."""

    variant: Variant
    shared_bytes: int
    spilled_bytes: int  # stored to a thread's stack
    warnings: tuple[str, ...]  # serialised products


def variants() -> Iterator[Variant]:
    """Every kernel, head_dim and mask of the tables."""
    for mask in MASKS:
        for kernel, (head_dims, masks) in _COMPILED.items():
            yield from (Variant(kernel, head_dim, mask) for head_dim in head_dims if mask in masks)


def compile_variant(variant: Variant) -> Report:
    """Compile for sm_90a, and read ptxas's report."""
    kernel, arguments = _forward(variant) if variant.kernel in FORWARDS else _backward(variant)
    needs = compiled_needs(kernel, arguments)
    return Report(variant, needs.shared_bytes, needs.spilled_bytes, needs.warnings)


def compile_all(wanted: Iterable[Variant], processes: int = 2) -> Iterator[Report]:
    """Reports in the order of the variants."""
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(compile_variant, wanted)


def _forward(variant: Variant) -> tuple[Any, list[Any]]:
    causal, window = MASKS[variant.mask]
    head_dim, recompute = variant.head_dim, variant.kernel == "recompute"
    seqlen = {"short": 512, "long": 16384, "recompute": 16384, "split": 8192}.get(variant.kernel, 1024)
    unpadded = head_dim - 8 * (variant.kernel == "padded")
    tiles = tuning.forward_tiles(head_dim, unpadded, seqlen, causal, window)
    q, kv = (descriptor("bf16", [1, 1, rows, head_dim]) for rows in (tuning.ROWS, tiles.block_n))
    config = tuning.ForwardConfig(
        **vars(replace(tiles, flag_overflow=tiles.flag_overflow and not recompute)),
        head_dim=head_dim,
        causal=causal,
        has_window=window,
        masked=causal or window,
        split_kv=variant.kernel == "split",
        recompute=recompute,
    )
    out = Pointer("bf16") if tiles.store_from_registers else q
    pointers = [out, Pointer("fp32"), out, Pointer("fp32"), Pointer("i32"), Pointer("i32")]
    return forward_kernel, [q, kv, kv, *pointers, *[9] * 10, 0.125, 9, 9, 9, config]


def _backward(variant: Variant) -> tuple[Any, list[Any]]:
    causal, window = MASKS[variant.mask]
    head_dim = variant.head_dim
    assisted = variant.kernel in ("assisted", "assisted cut")
    if assisted or variant.kernel in ("backward", "cut"):
        tiles = tuning.BACKWARD[head_dim]
    else:
        tiles = tuning.BACKWARD_APART[head_dim][variant.kernel == "queries"]
    q, kv = (descriptor("bf16", [1, 1, rows, head_dim]) for rows in (tiles.block_m, tiles.block_n))
    fragments, rows = descriptor("fp32", [16, 256]), descriptor("fp32", [tiles.block_m])
    counts, scales = [9, 9, 9, 9, 9, 9, 9], [0.125, 0.125]
    constants = [tiles.block_m, tiles.block_n, head_dim, 2, causal, window, causal or window]
    if assisted or variant.kernel in ("backward", "cut"):
        both = [q, kv, kv, q, fragments, kv, kv, rows, rows]
        pieces, constants = [Pointer("i32"), Pointer("fp32")], [*constants, *[variant.kernel in CUTS] * 2]
        if assisted or head_dim == 64:
            ring = [descriptor("bf16", [1, 1, 64, 64]), Pointer("fp32")]
            later = [Pointer("bf16"), Pointer("bf16"), Pointer("fp32")]
            ahead = tuning.delta_ahead(head_dim, 4096, 4096, causal, window)
            counts += [9, 9, *[4096] * 6, 9, 9]
            constants[-2:-2] = [ahead, head_dim]
            return assisted_kernel, [*both, *ring, *later, *pieces, *counts, *scales, *constants]
        return backward_kernel, [*both, *pieces, *counts, 9, 9, *scales, *constants]
    if variant.kernel == "keys":
        tensors = [q, kv, kv, q, kv, kv, rows, rows, Pointer("fp32")]
        return wide_dkv_kernel, [*tensors, 9, 9, 9, *counts, *scales, *constants]
    tensors = [q, kv, kv, q, q, Pointer("bf16"), *[Pointer("fp32")] * 3]
    return wide_dq_kernel, [*tensors, *[9] * 5, *counts[1:], *scales, *constants, head_dim]


def main(arguments: list[str] | None = None) -> int:
    """Print a line a variant; 1 if anything does not fit or is serialised."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.offline_gluon_hopper")
    parser.add_argument("--masks", nargs="+", default=list(MASKS), choices=MASKS)
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    options = parser.parse_args(arguments)
    failed = False
    for report in compile_all(variant for variant in variants() if variant.mask in options.masks):
        print(json.dumps(asdict(report)) if options.json else _line(report), flush=True)
        failed |= report.shared_bytes > SHARED_MEMORY or bool(report.warnings)
    return int(failed)


def _line(report: Report) -> str:
    v = report.variant
    needs = f"shared {report.shared_bytes:6} of {SHARED_MEMORY}, spilled {report.spilled_bytes:4}"
    return f"{v.kernel:12} {v.head_dim:3} {v.mask:7} {needs}{''.join(f'  {warning}' for warning in report.warnings)}"


if __name__ == "__main__":
    sys.exit(main())
