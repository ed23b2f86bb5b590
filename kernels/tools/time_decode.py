"""Time a ladder of tiles for the decoding kernels on a GPU: `python -m kernels.tools.time_decode --grid latent`.

Times are medians with the L2 flushed before each call, or with --graph of calls in a CUDA graph. Bandwidth counts every
key and value in use once. `python -m runner run decode` compares the tuned kernels with other implementations.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from triton import testing
from triton.compiler import CompilationError

from ..decode.triton_decode import decode
from ..decode.triton_decode.calls import plan_of
from ..decode.triton_decode.request import Caches, Options, request_of
from ..decode.triton_decode.tuning import DecodeTile
from ..decode.triton_mla import mla_decode


@dataclass(frozen=True)
class Shape:
    """A decoding problem."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    batch: int
    context: int
    seqlen_q: int = 1
    page: int = 0
    cache: str = "bfloat16"
    lengths: bool = False  # whether lengths are given; all are the context
    latent: bool = False  # head_dim 512 + 64, absorbed

    @property
    def name(self) -> str:
        """Return a row's label."""
        more = f" q{self.seqlen_q}" * (self.seqlen_q > 1) + f" page {self.page}" * (self.page > 0)
        more += " e4m3" * (self.cache != "bfloat16") + " lengths" * self.lengths + " latent" * self.latent
        return f"{self.num_heads}/{self.num_kv_heads} d{self.head_dim} B{self.batch} {self.context}{more}"


GRIDS: dict[str, list[Shape]] = {
    "common": [
        *(Shape(64, 8, 128, b, n) for b, n in ((1, 2048), (1, 8192), (1, 131072), (8, 8192), (32, 8192), (128, 2048))),
        *(Shape(32, 2, 256, b, 8192) for b in (1, 32)),
        *(Shape(64, 8, 64, b, 8192) for b in (1, 32)),
        *(Shape(71, 1, 128, b, 8192) for b in (1, 32)),
        Shape(64, 8, 128, 32, 8192, seqlen_q=16),
    ],
    "e4m3": [Shape(64, 8, 128, b, 8192, cache="float8_e4m3fn") for b in (1, 32)],
    "paged": [Shape(64, 8, 128, 32, 8192, page=page, lengths=True) for page in (0, 16, 64)],
    "latent": [
        Shape(h, 1, 512, b, n, latent=True)
        for h, b, n in ((16, 64, 8192), (64, 64, 8192), (128, 64, 8192), (16, 1, 8192))
    ],
}
_STAGES = {  # KB of keys and values in a step -> warps, stages, programs per multiprocessor
    16: ((4, 4, 2), (4, 3, 3), (4, 5, 3), (4, 4, 3)),
    32: ((4, 3, 2), (4, 4, 2), (4, 3, 3), (4, 4, 1), (8, 4, 1), (8, 3, 2)),
    64: ((4, 2, 2), (4, 3, 1), (8, 3, 1), (4, 2, 3)),
}
_LATENT = (  # rows, most rows of a head, then keys, warps, stages, programs per multiprocessor
    (64, 4096, (32, 8, 2, 1), (32, 8, 3, 1), (32, 8, 4, 1), (64, 8, 2, 1), (16, 8, 4, 1), (32, 4, 3, 1)),
    (16, 32, (32, 8, 3, 2), (32, 4, 3, 2), (64, 8, 2, 1), (64, 8, 3, 1), (32, 8, 4, 1), (16, 4, 4, 3)),
    (32, 64, (32, 8, 3, 1), (32, 8, 2, 2), (64, 8, 2, 1)),
)


def ladder(shape: Shape, least: tuple[int, ...] = (128,)) -> list[DecodeTile]:
    """Return the tiles to try; `least`: the least keys of a share."""
    rows = shape.num_heads // shape.num_kv_heads * shape.seqlen_q
    if shape.latent:
        forms = ((m, n, w, s, p) for m, most, *rest in _LATENT for n, w, s, p in rest if m <= rows <= most)
        return [DecodeTile(64, 4, 1, 1, form="gluon"), *(DecodeTile(n, w, s, p, 128, m) for m, n, w, s, p in forms)]
    bytes_a_key = 2 * shape.head_dim * (1 if shape.cache != "bfloat16" else 2)
    row_tiles = (64, 128) if rows > 64 else (64,)
    tickets = (True, False) if shape.batch * shape.num_kv_heads < 300 else (True,)
    return [
        DecodeTile(
            kilobytes * 1024 // bytes_a_key, warps, stages + 2 * (shape.page > 0), per_sm, keys, m, tickets=ticket
        )
        for kilobytes, forms in _STAGES.items()
        for (warps, stages, per_sm), m, ticket, keys in product(forms, row_tiles, tickets, least)
    ]


class Inputs:
    """Tensors of a shape on the GPU, or on device "meta", without memory."""

    def __init__(self, shape: Shape, device: str = "cuda") -> None:
        s, self.shape = shape, shape
        width = 576 if s.latent else s.head_dim
        self.q = torch.randn(s.batch, s.num_heads, s.seqlen_q, width, device=device, dtype=torch.bfloat16)
        heads = () if s.latent else (s.num_kv_heads,)
        sizes = (s.batch, *heads, s.context, width)
        self.table = self.lengths = None
        if s.page:
            pages = s.context // s.page
            sizes = (s.batch * pages, s.page, *heads, width)
            self.table = torch.randperm(sizes[0], device=device).view(s.batch, pages).to(torch.int32)
        if s.lengths:
            self.lengths = torch.full((s.batch,), s.context, dtype=torch.int32, device=device)
        self.k = torch.randn(sizes, device=device, dtype=torch.bfloat16).to(getattr(torch, s.cache))
        self.v = self.k if s.latent else torch.randn_like(self.k, dtype=torch.bfloat16).to(self.k.dtype)

    @property
    def bytes(self) -> int:
        """Return the bytes of all keys and values."""
        return self.k.numel() * self.k.element_size() * (1 if self.shape.latent else 2)

    def call(self, tile: DecodeTile) -> object:
        """Return the result of our kernel with a tile."""
        options: dict[str, Any] = {"cache_seqlens": self.lengths, "page_table": self.table, "tile": tile}
        if self.shape.latent:
            return mla_decode(self.q, self.k, softmax_scale=192**-0.5, **options)
        return decode(self.q, self.k, self.v, **options)


def compile_one(job: tuple[Shape, DecodeTile]) -> str | None:
    """Put a shape's kernels into Triton's cache; return what failed."""
    shape, tile = job
    x = Inputs(shape, "meta")
    caches = Caches(x.k, x.v, x.lengths, x.table)
    options = Options(softmax_scale=192**-0.5, latent_dim=512) if shape.latent else Options()
    try:
        request = request_of(x.q, caches, options, check_device=False)
        plan_of(replace(request, device=torch.device("cuda", 0)), tile).compile(x.q, x.k, x.v)
    except (RuntimeError, CompilationError) as error:
        return f"{shape.name} {tile}: {type(error).__name__} {str(error)[:200]}"
    return None


def time_shape(
    shape: Shape, tiles: list[DecodeTile], bench: Callable[[Callable[[], object]], float]
) -> dict[str, float]:
    """Return the microseconds of each tile that runs, fastest first; `bench` returns the milliseconds of a call."""
    inputs, found = Inputs(shape), {}
    for tile in tiles:
        try:
            found[tile_name(tile)] = bench(partial(inputs.call, tile)) * 1e3
        except (RuntimeError, CompilationError) as error:
            print(f"{tile_name(tile)}: {type(error).__name__} {str(error)[:100]}", flush=True)
    found = dict(sorted(found.items(), key=lambda item: item[1]))
    print(line(shape, found, inputs.bytes), flush=True)
    return found


def line(shape: Shape, found: dict[str, float], bytes_: int) -> str:
    """Return a line with the bandwidth of the fastest tile and the times of the fastest six."""
    if not found:
        return f"{shape.name}: no tile ran"
    cells = "  ".join(f"{name} {us:.1f}" for name, us in list(found.items())[:6])
    return f"{shape.name:34} {bytes_ / min(found.values()) / 1e6:5.2f} TB/s  {cells}"


def tile_name(tile: DecodeTile) -> str:
    """Return a name that no other tile of a ladder has."""
    if tile.form != "triton":
        return tile.form
    more = "" if tile.tickets is None else "t" if tile.tickets else "c"
    return f"m{tile.rows}n{tile.block_n}w{tile.num_warps}s{tile.num_stages}p{tile.per_sm}l{tile.least_keys}{more}"


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each shape."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.time_decode", description=__doc__.split("\n")[0])
    parser.add_argument("--grid", nargs="+", default=["common"], choices=GRIDS)
    parser.add_argument("--graph", action="store_true", help="time calls in a CUDA graph instead of single calls")
    parser.add_argument("--least", type=int, nargs="+", default=[128], help="least keys of a share")
    parser.add_argument("--processes", type=int, default=14, help="processes that compile beforehand; 0 for none")
    parser.add_argument("--out", type=Path, help="a file to append a JSON object per tile to")
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("No CUDA device here: kernels are timed on a GPU only.")
    tiles = {shape: ladder(shape, chosen.least) for name in chosen.grid for shape in GRIDS[name]}
    if chosen.processes:
        with multiprocessing.get_context("spawn").Pool(chosen.processes) as pool:
            jobs = [(shape, tile) for shape, each in tiles.items() for tile in each]
            for failure in filter(None, pool.imap_unordered(compile_one, jobs, chunksize=4)):
                print("not compiled:", failure, flush=True)
    bench = testing.do_bench_cudagraph if chosen.graph else testing.do_bench
    for shape, each in tiles.items():
        found = time_shape(shape, each, lambda call: bench(call, return_mode="median"))
        for name, us in found.items() if chosen.out else ():
            with chosen.out.open("a") as out:
                out.write(json.dumps({**asdict(shape), "name": name, "us": us}) + "\n")


if __name__ == "__main__":
    main()
