"""Time the decoding kernels beside PyTorch's on a GPU: `python -m kernels.tools.time_decode --grid few`.

Times are medians of calls with the L2 flushed before each, between CUDA events; with --graph, of a CUDA graph of calls
that take turns over caches larger together than L2. Bytes are those of every key and value in use, once.
`--sweep` times a ladder of tiles instead of the tables'.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from triton.compiler import CompilationError

from .. import attention
from ..decode.triton_decode import decode
from ..decode.triton_decode.calls import plan_of
from ..decode.triton_decode.request import Caches, Options, request_of
from ..decode.triton_decode.tuning import DecodeTile
from ..decode.triton_mla import mla_decode
from .host_time import times_us

Row = tuple[str, float]  # name, microseconds
PEERS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@dataclass(frozen=True)
class Shape:
    """A decoding problem; lengths are drawn around `context` if ragged."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    batch: int
    context: int
    seqlen_q: int = 1
    page: int = 0
    layout: str = "NHD"
    cache: str = "bfloat16"
    ragged: bool = False
    lengths: bool = False  # whether lengths are given, though they are all the same
    latent: bool = False  # head_dim 512 + 64, absorbed

    @property
    def name(self) -> str:
        """Return a row's label."""
        more = f" q{self.seqlen_q}" * (self.seqlen_q > 1) + f" page {self.page} {self.layout}" * (self.page > 0)
        more += " e4m3" * (self.cache != "bfloat16") + " ragged" * self.ragged + " lengths" * self.lengths
        more += " latent" * self.latent
        return f"{self.num_heads}/{self.num_kv_heads} d{self.head_dim} B{self.batch} {self.context}{more}"


_HEADS = ((64, 8), (32, 8), (32, 32))
_CONTIGUOUS = [
    Shape(*heads, 128, b, n)
    for heads, b, n in product(_HEADS, (1, 8, 32, 128), (2048, 8192, 32768, 131072))
    if b * n <= 1 << 22
]
_BASE = [Shape(64, 8, 128, b, n) for b, n in ((1, 8192), (8, 8192), (32, 8192), (128, 2048), (32, 32768))]
# Shapes to be ahead in, or a few of them, by the name of their grid.
GRIDS: dict[str, list[Shape]] = {
    "contiguous": _CONTIGUOUS,
    "few": [s for s in _CONTIGUOUS if s.batch * s.context <= 1 << 18],
    "d256": [Shape(*h, 256, b, n) for h, b, n in product(((32, 2), (8, 1)), (1, 8, 32, 128), (2048, 8192, 32768))],
    "d64": [Shape(64, 8, 64, b, n) for b, n in product((1, 8, 32, 128), (2048, 8192, 32768))],
    "mqa": [Shape(h, 1, 128, b, n) for h, b, n in product((71, 128), (1, 32, 128), (2048, 8192, 32768))],
    "tokens": [replace(s, seqlen_q=t) for t in (2, 4, 8, 16) for s in _BASE],
    "paged": [
        replace(s, page=p, layout=layout, lengths=True)
        for s in _BASE
        for p, layout in ((0, "NHD"), (64, "NHD"), (16, "NHD"), (16, "HND"), (1, "NHD"), (256, "NHD"))
    ],
    "ragged": [replace(s, ragged=r, lengths=not r) for s in _BASE for r in (False, True)],
    "sweep": [
        *(Shape(64, 8, 128, b, n) for b, n in ((1, 8192), (1, 131072), (8, 8192), (32, 8192), (128, 2048))),
        *(Shape(32, 2, 256, b, 8192) for b in (1, 32)),
        *(Shape(64, 8, 64, b, 8192) for b in (1, 32)),
        *(Shape(64, 8, 128, b, 8192, cache="float8_e4m3fn") for b in (1, 32)),
        Shape(64, 8, 128, 32, 8192, seqlen_q=16),
        *(Shape(71, 1, 128, b, 8192) for b in (1, 32)),
        Shape(64, 8, 128, 32, 8192, lengths=True),
        Shape(64, 8, 128, 32, 8192, ragged=True),
    ],
    "mla_sweep": [
        Shape(h, 1, 512, b, n, latent=True)
        for h, b, n in ((16, 64, 8192), (64, 64, 8192), (128, 64, 8192), (16, 1, 8192))
    ],
    "least_sweep": [
        Shape(71, 1, 128, 1, 8192),
        Shape(32, 2, 256, 1, 8192),
        Shape(64, 8, 128, 1, 8192, lengths=True),
    ],
    "mla": [
        Shape(h, 1, 512, b, n, t, latent=True)
        for h, t in ((16, 1), (32, 1), (64, 1), (128, 1), (64, 2))
        for b, n in ((1, 8192), (16, 8192), (64, 1024), (64, 8192), (128, 8192), (128, 32768))
    ],
    "mla_paged": [
        Shape(h, 1, 512, b, 8192, page=64, lengths=True, latent=True)
        for h, b in product((16, 32, 64, 128), (16, 64, 128))
    ],
    "short": [Shape(*heads, 128, 1, 2048) for heads in _HEADS],
    "e4m3": [
        replace(s, cache=c)
        for s in (*_BASE, *(Shape(64, 8, 128, b, n) for b, n in ((32, 131072), (128, 8192))))
        for c in ("bfloat16", "float8_e4m3fn")
    ],
}


_STAGES = {  # bytes of a step's keys and values -> warps, stages, programs a multiprocessor
    16: ((4, 4, 2), (4, 3, 3), (4, 5, 3), (4, 4, 3)),
    32: ((4, 3, 2), (4, 4, 2), (4, 3, 3), (4, 4, 1), (8, 4, 1), (8, 3, 2)),
    64: ((4, 2, 2), (4, 3, 1), (8, 3, 1), (4, 2, 3)),
}


_LATENT = (  # rows, most rows of a head, then keys, warps, stages, programs a multiprocessor
    (64, 4096, (32, 8, 2, 1), (32, 8, 3, 1), (32, 8, 4, 1), (64, 8, 2, 1), (16, 8, 4, 1), (32, 4, 3, 1)),
    (16, 32, (32, 8, 3, 2), (32, 4, 3, 2), (64, 8, 2, 1), (64, 8, 3, 1), (32, 8, 4, 1), (16, 4, 4, 3)),
    (32, 64, (32, 8, 3, 1), (32, 8, 2, 2), (64, 8, 2, 1)),
)


def ladder(shape: Shape, least: tuple[int, ...] = (128,)) -> list[DecodeTile]:
    """Return the tiles worth a try."""
    if shape.latent:
        rows = shape.num_heads * shape.seqlen_q
        forms = ((m, n, w, s, p) for m, most, *rest in _LATENT for n, w, s, p in rest if m <= rows <= most)
        return [DecodeTile(64, 4, 1, 1, form="gluon"), *(DecodeTile(n, w, s, p, 128, m) for m, n, w, s, p in forms)]
    bytes_a_key = 2 * shape.head_dim * (1 if shape.cache != "bfloat16" else 2)
    rows = shape.num_heads // shape.num_kv_heads * shape.seqlen_q
    few = shape.batch * shape.num_kv_heads < 300
    found = []
    for kilobytes, forms in _STAGES.items():
        for (warps, stages, per_sm), m, tickets, keys in product(
            forms, (64, 128) if rows > 64 else (64,), (True, False) if few else (True,), least
        ):
            more = 2 if shape.page else 0
            found.append(
                DecodeTile(kilobytes * 1024 // bytes_a_key, warps, stages + more, per_sm, keys, m, tickets=tickets)
            )
    return found


class Inputs:
    """Tensors of a shape on the GPU, or on device "meta", without memory."""

    def __init__(self, shape: Shape, device: str = "cuda") -> None:
        s, self.shape = shape, shape
        capacity = s.context * (2 if s.ragged else 1)
        dtype = getattr(torch, s.cache)
        self.q = torch.randn(s.batch, s.num_heads, s.seqlen_q, s.head_dim, device=device, dtype=torch.bfloat16)
        self.table = self.lengths = None
        if s.page:
            width = capacity // s.page
            sizes = (s.batch * width, s.page, s.num_kv_heads, s.head_dim)
            if s.layout == "HND":
                sizes = (sizes[0], sizes[2], sizes[1], sizes[3])
            order = torch.randperm(sizes[0], device=device)
            self.table = order.view(s.batch, width).to(torch.int32)
        else:
            sizes = (s.batch, s.num_kv_heads, capacity, s.head_dim)
        if s.latent:
            self.q = torch.randn(s.batch, s.num_heads, s.seqlen_q, 576, device=device, dtype=torch.bfloat16)
            sizes = (*((sizes[0], s.page) if s.page else (s.batch, capacity)), 576)
        self.k = torch.empty(sizes, device=device, dtype=dtype)
        self.v = self.k if s.latent else torch.empty_like(self.k)
        self.tokens = s.batch * s.context
        if device != "meta":
            for x in {id(x): x for x in (self.k, self.v)}.values():
                _fill(x)
        if s.lengths or s.ragged:
            lengths = torch.full((s.batch,), s.context, dtype=torch.int32)
            if s.ragged and device != "meta":
                drawn = torch.randn(s.batch, generator=torch.Generator().manual_seed(0)) * s.context / 2 + s.context
                drawn = drawn.clamp(1, capacity)
                lengths = (drawn * (s.batch * s.context / drawn.sum())).clamp(1, capacity).to(torch.int32)
                self.tokens = int(lengths.sum())
            self.lengths = lengths.to(device)

    @property
    def bytes(self) -> int:
        """Return the bytes of the keys and values in use."""
        if self.shape.latent:
            return self.tokens * 576 * self.k.element_size()
        return 2 * self.tokens * self.shape.num_kv_heads * self.shape.head_dim * self.k.element_size()

    def call(self, tile: DecodeTile | None = None, **more: object) -> object:
        """Our kernel's answer."""
        if self.shape.latent:
            return mla_decode(
                self.q, self.k, softmax_scale=192**-0.5, cache_seqlens=self.lengths, page_table=self.table, tile=tile
            )
        return decode(
            self.q, self.k, self.v, cache_seqlens=self.lengths, page_table=self.table, kv_layout=self.shape.layout,
            tile=tile, **more,
        )  # fmt: skip

    def peers(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield PyTorch's backends, where they take part."""
        if self.table is None and self.lengths is None and not self.shape.latent and self.shape.cache == "bfloat16":
            gqa = self.shape.num_heads != self.shape.num_kv_heads
            for name, backend in PEERS.items():

                def attend(backend: SDPBackend = backend) -> object:
                    with sdpa_kernel(backend):
                        return scaled_dot_product_attention(self.q, self.k, self.v, enable_gqa=gqa)

                yield name, attend


def _fill(x: torch.Tensor) -> None:
    """Random values, a piece at a time, so that float32 copies stay small."""
    flat = x.view(-1)
    step = 1 << 28
    for begin in range(0, flat.numel(), step):
        piece = flat[begin : begin + step]
        piece.copy_(torch.randn(piece.numel(), device=x.device, dtype=torch.bfloat16))


def time_us(call: Callable[[], object], flush: torch.Tensor, budget_ms: float = 60.0) -> float:
    """Median microseconds of calls with a cold L2."""
    for _ in range(3):
        call()
    pairs, spent = [], 0.0
    torch.cuda.synchronize()
    count = 8
    while True:
        pairs = []
        for _ in range(count):
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        times = [a.elapsed_time(b) for a, b in pairs]
        spent = sum(times) + 0.06 * count
        if count > 8 or spent * 2 > budget_ms:
            return statistics.median(times) * 1e3
        count = min(60, int(8 * budget_ms / spent))


def graph_sets(shape: Shape) -> list[Inputs]:
    """Return inputs of 250 MB or more together."""
    one = Inputs(shape)
    return [one, *(Inputs(shape) for _ in range(min(40, 250_000_000 // one.bytes)))]


def graph_time_us(calls: list[Callable[[], object]], rounds: int = 5) -> float:
    """Return the microseconds a call of a CUDA graph of all of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    times = []
    for _ in range(rounds + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / len(calls) * 1e3)
    return statistics.median(times[1:])


def time_row(rows: list[Row], name: str, calls: list[Callable[[], object]], flush: torch.Tensor | None) -> None:
    """Add a name's microseconds a call to the rows, or say why there are none."""
    try:
        rows.append((name, graph_time_us(calls) if flush is None else time_us(calls[0], flush)))
    except (RuntimeError, CompilationError) as error:
        print(f"{name}: {type(error).__name__} {str(error)[:100]}", flush=True)


def print_host_times() -> None:
    """Print the host's time of a short call, whose kernels take less than that."""
    for shape in (
        Shape(32, 8, 128, 1, 512),
        Shape(32, 8, 64, 1, 512),
        Shape(32, 8, 128, 1, 512, lengths=True),
        Shape(16, 1, 512, 1, 256, latent=True),
    ):
        x = Inputs(shape)
        calls: dict[str, Callable[[], object]] = {"ours": x.call}
        if not shape.lengths and not shape.latent:
            calls["kernels.attention"] = partial(attention, x.q, x.k, x.v)
            calls["SDPA"] = partial(scaled_dot_product_attention, x.q, x.k, x.v, enable_gqa=True)
        times = {name: wall for name, (_, wall) in times_us(calls, torch.cuda.synchronize).items()}
        print(
            f"host us a call, {shape.name}: " + ", ".join(f"{name} {us:.1f}" for name, us in times.items()), flush=True
        )


def compile_one(job: tuple[Shape, DecodeTile | None]) -> str | None:
    """Leave a shape's kernels in Triton's cache; what went wrong."""
    shape, tile = job
    x = Inputs(shape, "meta")
    try:
        caches = Caches(x.k, x.v, x.lengths, x.table)
        options = Options(shape.layout)
        if shape.latent:
            options = Options(softmax_scale=192**-0.5, latent_dim=512)
        request = request_of(x.q, caches, options, check_device=False)
        request = replace(request, device=torch.device("cuda", 0))
        plan_of(request, tile).compile(x.q, x.k, x.v)
    except (RuntimeError, CompilationError) as error:
        return f"{shape.name} {tile}: {type(error).__name__} {str(error)[:200]}"
    return None


def compile_all(jobs: list[tuple[Shape, DecodeTile | None]], processes: int) -> None:
    """Compile in processes side by side."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for failure in pool.imap_unordered(compile_one, jobs, chunksize=4):
            if failure:
                print("not compiled:", failure, flush=True)


def time_shape(
    shape: Shape, tiles: list[DecodeTile | None], flush: torch.Tensor | None, peers: bool
) -> list[tuple[str, float, float]]:
    """Return names, microseconds and TB/s of a shape's tiles and peers; in a graph if nothing flushes the L2."""
    sets = [Inputs(shape)] if flush is not None else graph_sets(shape)
    rows: list[Row] = []
    for tile in tiles:
        time_row(rows, "ours" if tile is None else _tile_name(tile), [partial(x.call, tile) for x in sets], flush)
    if peers:
        for name, *calls in zip(PEERS, *(x.peers() for x in sets), strict=False):
            time_row(rows, name, [call for _, call in calls], flush)
    print(_line(shape, rows, sets[0].bytes), flush=True)
    return [(*row, sets[0].bytes / row[1] / 1e6) for row in rows]


def _line(shape: Shape, rows: list[Row], bytes_: int) -> str:
    """Return the line of a shape: the fastest of ours and all peers."""
    ours = sorted((us, name) for name, us in rows if name not in PEERS)
    if not ours:
        return f"{shape.name}: none of ours ran"
    best = min((us for name, us in rows if name in PEERS), default=float("nan"))
    cells = "  ".join(f"{name} {us:.1f}" for us, name in ours[:6])
    theirs = "  ".join(f"{name} {us:.1f}" for name, us in rows if name in PEERS)
    share = bytes_ / ours[0][0] / 1e6
    return f"{shape.name:34} {share:5.2f} TB/s  x{best / ours[0][0]:5.2f}  {cells} | {theirs}"


def main(arguments: list[str] | None = None) -> None:
    """Print a line a shape: ours and the peers in microseconds, TB/s, and the best peer's time over ours."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.time_decode", description=__doc__.split("\n")[0])
    parser.add_argument("--grid", nargs="+", default=["few"], choices=GRIDS, metavar="GRID", help=", ".join(GRIDS))
    parser.add_argument("--sweep", action="store_true", help="a ladder of tiles instead of the tables'")
    parser.add_argument("--graph", action="store_true", help="calls of a CUDA graph instead of single ones")
    parser.add_argument("--least", type=int, nargs="+", default=[128], help="least keys of a share, for the sweep")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--processes", type=int, default=14, help="that compile beforehand; 0 for none")
    parser.add_argument("--host", action="store_true", help="the host's time alone")
    parser.add_argument("--out", type=Path, help="a file of one JSON object a line")
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("No CUDA device here: kernels are timed on a GPU only.")
    if chosen.host:
        print_host_times()
        return
    shapes = [shape for name in chosen.grid for shape in GRIDS[name]]
    tiles = {shape: ladder(shape, chosen.least) if chosen.sweep else [None] for shape in shapes}
    if chosen.processes:
        compile_all([(shape, tile) for shape in shapes for tile in tiles[shape]], chosen.processes)
    flush = None if chosen.graph else torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for shape in shapes:
        for name, us, tb_s in time_shape(shape, tiles[shape], flush, not chosen.no_peers):
            if chosen.out:
                with chosen.out.open("a") as out:
                    out.write(json.dumps({**asdict(shape), "name": name, "us": us, "tb_s": tb_s}) + "\n")
        torch.cuda.empty_cache()


def _tile_name(tile: DecodeTile) -> str:
    if tile.form != "triton":
        return tile.form
    more = "" if tile.tickets is None else "t" if tile.tickets else "c"
    return f"m{tile.rows}n{tile.block_n}w{tile.num_warps}s{tile.num_stages}p{tile.per_sm}l{tile.least_keys}{more}"


if __name__ == "__main__":
    main()
