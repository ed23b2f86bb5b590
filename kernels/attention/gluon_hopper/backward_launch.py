"""The launches of a backward by one kernel that adds up dQ in float32, and what all kinds of backward have.

The launches of a backward by two kernels, for head_dim 256 and for the same bits on every run.

The launches of a backward whose dQ has a warpgroup of its own.

The launch of a backward kernel over the tiles of keys: in which order, and which tiles are cut.

Tiles of keys that are cut by queries, where the last round would leave many programs without a tile.

Each piece has a program in a launch behind that of the whole tiles, which begins as soon as programs of that end. A
piece's dK and dV are float32 sums until backward_common.py adds them up, in the order of the queries: the same bits on
every run. dQ needs nothing of this: its sums are added up in memory anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import triton

from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.backward import backward_kernel
from kernels.attention.gluon_hopper.backward_common import finish_kernel, merge_kernel, prepare_kernel
from kernels.attention.gluon_hopper.backward_dq_warpgroup import assisted_kernel
from kernels.attention.gluon_hopper.backward_two_kernels import wide_dkv_kernel, wide_dq_kernel
from kernels.attention.gluon_hopper.barriers import zero_kernel
from kernels.attention.gluon_hopper.launch import Descriptor, Launch, Step, run_in_order

ROWS = 16  # of dK and dV that a program of merge_kernel adds up
Piece = tuple[int, int, int]  # tile, first block of queries, block behind the last


def cut(tiles: range, blocks: int, programs: int) -> list[Piece]:
    """Tiles of so many blocks of queries in pieces, tile by tile: what each program would have, dealt evenly.

    A cut near the end of a tile is left out.
    """
    length = -(-len(tiles) * blocks // programs)
    near = length // 16
    found = []
    for i, tile in enumerate(tiles):
        begin, end = i * blocks, (i + 1) * blocks
        cuts = [x for x in range(-(-begin // length) * length, end, length) if begin + near < x < end - near]
        edges = [begin, *cuts, end]
        found += [(tile, low - begin, high - begin) for low, high in zip(edges, edges[1:], strict=False)]
    return found


class Pieces:
    """The launches of the pieces of `tiles`, and of what adds them up."""

    def __init__(self, plan: Any, block_n: int, tiles: range, blocks: int, programs: int) -> None:
        found = cut(tiles, blocks, programs)
        longest_first = sorted(range(len(found)), key=lambda i: found[i][1] - found[i][2])
        self.table = torch.tensor([[*found[i], i] for i in longest_first], dtype=torch.int32, device=plan.device)
        firsts = [i for i, (_, low, _) in enumerate(found) if low == 0]
        self._firsts = torch.tensor([*firsts, len(found)], dtype=torch.int32, device=plan.device)
        self._numbers = len(found) * 2 * block_n * plan.size
        self._merge: Launch | None = None
        self._plan, self._block_n, self._tiles = plan, block_n, tiles

    def sums(self, like: torch.Tensor) -> torch.Tensor:
        """Room for dK and dV of all pieces."""
        return like.new_empty(self._numbers, dtype=torch.float32)

    def merge(self, sums: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor) -> Step:
        """The launch for dK and dV of the tiles that were cut."""
        if self._merge is None:
            self._merge = self._launch(dk, dv)
        return self._merge, (sums, self._firsts, dk, dv)

    def _launch(self, dk: torch.Tensor, dv: torch.Tensor) -> Launch:
        plan, block_n = self._plan, self._block_n
        rest = (
            *(*dk.stride()[:3], *dv.stride()[:3], self._tiles.start, -(-plan.seqlen_k // block_n)),
            *(plan.num_kv_heads, plan.seqlen_k, plan.softmax_scale, ROWS, block_n, plan.head_dim, plan.size, True),
        )
        return Launch(merge_kernel, (len(self._tiles), block_n // ROWS, 1), plan.device, [None] * 4, rest, pdl=True)


DK, DV = 5, 6  # where these stand among a kernel's tensors


class TileLaunches:
    """A program for each tile of keys, or for a piece of one.

    `extra` are arguments, and `constants` constants, that only this kernel has; `in_order`: tiles stay whole, and come
    head by head.
    """

    def __init__(
        self,
        backward: Any,
        kernel: Any,
        makers: Sequence[Descriptor | None],
        extra: tuple[int, ...] = (),
        constants: tuple[int, ...] = (),
        *,
        in_order: bool = False,
    ) -> None:
        plan, block_n = backward.plan, backward.tiles.block_n
        programs = torch.cuda.get_device_properties(plan.device).multi_processor_count
        key_tiles = -(-plan.seqlen_k // block_n)
        heads, masks = plan.num_kv_heads * plan.batch, (plan.causal, plan.window_size > 0)
        n_tiles = key_tiles * heads
        even = not any(masks) and not in_order
        left_over = tuning.tiles_to_cut(n_tiles, plan.seqlen_q, programs) if even else 0
        by_length = (heads, 1) if in_order else tuning.heads_by_length(heads, key_tiles, programs, *masks)
        arguments = (
            *(*backward.sizes, backward.n_m, plan.window_size, *extra, *by_length),
            *(*backward.scales, *backward.constants, *constants, left_over > 0),
        )
        makers = (*makers, None, None)
        launch = lambda grid, cut: Launch(kernel, grid, plan.device, makers, (*arguments, cut), pdl=True)  # noqa: E731
        self._pieces: Pieces | None = None
        if left_over:
            self._whole = launch((n_tiles - left_over, 1, 1), False)
            self._pieces = Pieces(plan, block_n, range(n_tiles - left_over, n_tiles), backward.n_m, programs)
            self._cut = launch((len(self._pieces.table), 1, 1), True)
        else:
            self._whole = launch((key_tiles, plan.num_kv_heads, plan.batch), False)

    def steps(self, *tensors: torch.Tensor) -> Iterator[Step]:
        """The launches, for these tensors."""
        yield self._whole, (*tensors, tensors[-1], tensors[-1])  # no pieces: not read
        if self._pieces is not None:
            sums = self._pieces.sums(tensors[-1])
            yield self._cut, (*tensors, self._pieces.table, sums)
            yield self._pieces.merge(sums, tensors[DK], tensors[DV])


LOG2_E = math.log2(math.e)
FRAGMENT = 64 * 64  # numbers of dQ that a consumer adds at once
SLOTS = 2  # blocks of queries under way
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Given(NamedTuple):
    """What a backward is given, (batch, heads, seqlen, head_dim) each, but lse: (batch, num_heads, seqlen_q)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor  # to the base 2
    dout: torch.Tensor


class Shape(Protocol):
    """What a plan knows."""

    device: torch.device
    batch: int
    num_heads: int
    num_kv_heads: int
    n_heads: int
    group_size: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    size: int
    causal: bool
    window_size: int
    softmax_scale: float

    def masked(self, block_n: int) -> bool: ...
    def new(self, like: torch.Tensor) -> torch.Tensor: ...


class Tiled:
    """What all have: descriptors of the tiles of inputs and gradients."""

    def __init__(self, plan: Shape, tiles: tuning.BackwardTiles, like: Given) -> None:
        self.plan, self.tiles = plan, tiles
        q, k, v = like[:3]
        self.n_m = -(-plan.seqlen_q // self.tiles.block_m)
        self.padded_q = self.n_m * self.tiles.block_m
        block_q, block_kv = [1, 1, self.tiles.block_m, plan.size], [1, 1, self.tiles.block_n, plan.size]
        self.q, self.dq, self.dout = (Descriptor(x, block_q) for x in (q, plan.new(q), like.dout))
        self.k, self.v = Descriptor(k, block_kv), Descriptor(v, block_kv)
        self.dk, self.dv = Descriptor(plan.new(k), block_kv), Descriptor(plan.new(v), block_kv)
        self.n_rows = plan.n_heads * self.padded_q
        self.row = Descriptor(self.row_of(q), [self.tiles.block_m])
        self.sizes = (plan.num_heads, plan.group_size, plan.seqlen_q, plan.seqlen_k, self.padded_q)
        self.scales = (plan.softmax_scale * LOG2_E, plan.softmax_scale)
        self.constants = self.constants_of(tiles)

    def __call__(self, given: Given) -> Tensors:
        """dq, dk and dv; the caller has made the tensors' device the current one."""
        dq, dk, dv = map(self.plan.new, given[:3])
        run_in_order(list(self.steps(given, (dq, dk, dv))))
        return dq, dk, dv

    def steps(self, given: Given, gradients: Tensors) -> Iterator[Step]:
        """The launches that fill the gradients."""
        raise NotImplementedError

    def constants_of(self, tiles: tuning.BackwardTiles) -> tuple[Any, ...]:
        """What a kernel is compiled for."""
        plan = self.plan
        masks = (plan.causal, plan.window_size > 0, plan.masked(tiles.block_n))
        return (tiles.block_m, tiles.block_n, plan.size, SLOTS, *masks)

    def row_of(self, like: torch.Tensor, more: int = 0) -> torch.Tensor:
        """Room for lse or delta, padded to whole tiles, and for more numbers behind."""
        return like.new_empty(self.n_rows + more, dtype=torch.float32)

    def over_keys(
        self, kernel: Any, makers: tuple[Descriptor | None, ...], rest: tuple[Any, ...], *, pdl: bool = False
    ) -> Launch:
        """A launch with a program for each tile of keys."""
        grid = (-(-self.plan.seqlen_k // self.tiles.block_n), self.plan.num_kv_heads, self.plan.batch)
        return Launch(kernel, grid, self.plan.device, makers, rest, pdl=pdl)


class Backward(Tiled):
    """Those that add up dQ: zeros for its sums, and delta, by a kernel in front."""

    def __init__(self, plan: Shape, tiles: tuning.BackwardTiles, like: Given) -> None:
        super().__init__(plan, tiles, like)
        self.prepare = self.preparing(like, plan.n_heads)

    def preparing(self, like: Given, heads: int) -> Launch:
        """delta of the first so many heads; zeros, and lse of all heads."""
        plan, rows, zeros = self.plan, tuning.PREPARED_ROWS, self.zeros()
        programs = heads * (self.padded_q // rows)
        rest = (
            *(*like.out.stride()[:3], *like.dout.stride()[:3], plan.num_heads, plan.seqlen_q, self.padded_q),
            *(self.n_rows, zeros),
            *(rows, plan.head_dim, plan.size, triton.next_power_of_2(-(-zeros // programs)), True),
        )
        return Launch(prepare_kernel, (programs, 1, 1), plan.device, [None] * 6, rest)

    def zeros(self) -> int:
        """How many numbers of dQ's fragments must be zero when a kernel begins to add to them."""
        return self.plan.n_heads * self.n_m * self.tiles.fragments * FRAGMENT


class NarrowBackward(Backward):
    """delta, all gradients, and dQ from float32 fragments to its own dtype."""

    def __init__(self, plan: Shape, like: Given) -> None:
        super().__init__(plan, tuning.BACKWARD[plan.size], like)
        q = like.q
        self._fragments_shape = (self.zeros() // 256, 256)
        fragment = Descriptor(q.new_empty(self._fragments_shape, dtype=torch.float32), [FRAGMENT // 256, 256])
        makers = (self.q, self.k, self.v, self.dout, fragment, self.dk, self.dv, self.row, self.row)
        self._main = TileLaunches(self, backward_kernel, makers)
        rest = (
            *(*plan.new(q).stride()[:3], plan.num_heads, plan.seqlen_q, self.n_m, plan.softmax_scale),
            *(0, plan.n_heads),
            *(self.tiles.block_m, self.tiles.fragments, plan.head_dim, True),
        )
        grid = (plan.n_heads * self.n_m * self.tiles.fragments, 1, 1)
        self._finish = Launch(finish_kernel, grid, plan.device, (None, None), rest, pdl=True)

    def steps(self, given: Given, gradients: Tensors) -> Iterator[Step]:
        (q, k, v, out, lse, dout), (dq, dk, dv) = given, gradients
        fragments = q.new_empty(self._fragments_shape, dtype=torch.float32)
        padded, delta = self.row_of(q), self.row_of(q)
        yield self.prepare, (out, dout, lse, padded, delta, fragments)
        yield from self._main.steps(q, k, v, dout, fragments, dk, dv, padded, delta)
        yield self._finish, (fragments, dq)


_AT_ONCE = 1024  # counters that a program sets to zero


class WideBackward(Tiled):
    """dQ with delta, then dK and dV."""

    def __init__(self, plan: Shape, like: Given) -> None:
        for_keys, for_queries = tuning.BACKWARD_APART[plan.size]
        super().__init__(plan, for_keys, like)
        self._counters = plan.batch * plan.num_kv_heads
        rest = (self.n_rows, self._counters, _AT_ONCE, True)
        self._zero = Launch(zero_kernel, (-(-self._counters // _AT_ONCE), 1, 1), plan.device, [None], rest)
        self._query_tiles = -(-plan.seqlen_q // (2 * for_queries.block_m))
        self._key_tiles = -(-plan.seqlen_k // for_keys.block_n)
        self._queries = self._launch_queries(for_queries, like)
        self._keys = self._launch_keys()

    def _launch_queries(self, tiles: tuning.BackwardTiles, like: Given) -> Launch:
        plan = self.plan
        keys, values = (Descriptor(x, [1, 1, tiles.block_n, plan.size]) for x in (like.k, like.v))
        makers = (self.q, keys, values, self.dout, self.dq, None, None, None, None)
        rest = (
            *(*(stride // 8 for stride in like.out.stride()[:3]), self.n_rows, plan.num_kv_heads, *self.sizes),
            *(plan.window_size, *self.scales, *self.constants_of(tiles), plan.head_dim),
        )
        grid = self._grid(self._query_tiles, plan.num_heads)
        return Launch(wide_dq_kernel, grid, plan.device, makers, rest, pdl=True)

    def _launch_keys(self) -> Launch:
        plan = self.plan
        makers = (self.q, self.k, self.v, self.dout, self.dk, self.dv, self.row, self.row, None)
        rest = (
            *(self.n_rows, plan.group_size * self._query_tiles, plan.num_kv_heads, *self.sizes, self.n_m),
            *(plan.window_size, *self.scales, *self.constants),
        )
        grid = self._grid(self._key_tiles, plan.num_kv_heads)
        return Launch(wide_dkv_kernel, grid, plan.device, makers, rest, pdl=True)

    def _grid(self, tiles: int, heads: int) -> tuple[int, int, int]:
        """As longest_first has it."""
        if not self.plan.causal or self.plan.window_size:
            return tiles, heads, self.plan.batch
        together = tuning.heads_in_turns(self._key_tiles, heads * self.plan.batch)
        return together, tiles, heads * self.plan.batch // together

    def steps(self, given: Given, gradients: Tensors) -> Iterator[Step]:
        (q, k, v, out, lse, dout), (dq, dk, dv) = given, gradients
        padded, delta = self.row_of(q), self.row_of(q, more=self._counters)
        yield self._zero, (delta,)
        yield self._queries, (q, k, v, dout, dq, out, lse, padded, delta)
        yield self._keys, (q, k, v, dout, dk, dv, padded, delta, delta)


class AssistedBackward(Backward):
    """delta, all gradients by the kernel with an assistant, and dQ of the last heads from what is left in the ring."""

    def __init__(self, plan: Shape, like: Given) -> None:
        tiles = tuning.BACKWARD[plan.size]
        self._units = plan.batch * plan.num_kv_heads
        programs = torch.cuda.get_device_properties(plan.device).multi_processor_count
        masks, in_order = (plan.causal, plan.window_size > 0), plan.size == 64
        lag = tuning.ring_lag(self._units, -(-plan.seqlen_k // tiles.block_n), programs, *masks, in_order)
        fragments = plan.group_size * -(-plan.seqlen_q // tiles.block_m) * tiles.fragments
        if not tuning.fits_in_ring(min(self._units, 2 * lag) * fragments):
            lag = self._units  # everything stays where it is until finish_kernel
        self._places = min(self._units, 2 * lag)
        super().__init__(plan, tiles, like)
        ahead = lag < self._units and tuning.delta_ahead(plan.size, plan.seqlen_q, plan.seqlen_k, *masks)
        if ahead:
            self.prepare = self.preparing(like, lag * plan.group_size)
        q, self._ring_shape = like.q, (self.zeros() // 256, 256)
        ring = Descriptor(q.new_empty(self._ring_shape, dtype=torch.float32), [FRAGMENT // 256, 256])
        fragment_of_dq = Descriptor(plan.new(q), [1, 1, 64, 64])
        tiled = (self.q, self.k, self.v, self.dout, ring, self.dk, self.dv, self.row, self.row, fragment_of_dq)
        extra = (self._places, lag, *like.out.stride()[:3], *like.dout.stride()[:3])
        makers = (*tiled, None, None, None, None)
        constants = (ahead, plan.head_dim)
        self._main = TileLaunches(self, assisted_kernel, makers, extra, constants, in_order=in_order or ahead)
        rest = (
            *(*plan.new(q).stride()[:3], plan.num_heads, plan.seqlen_q, self.n_m, plan.softmax_scale),
            *(max(0, self._units - lag) * plan.group_size, self._places * plan.group_size),
            *(tiles.block_m, tiles.fragments, plan.head_dim, True),
        )
        grid = (min(self._units, lag) * plan.group_size * self.n_m * tiles.fragments, 1, 1)
        self._finish = Launch(finish_kernel, grid, plan.device, (None, None), rest, pdl=True)

    def zeros(self) -> int:
        """The fragments of all places of the ring, and a counter for each unit."""
        of_unit = self.plan.group_size * self.n_m * self.tiles.fragments * FRAGMENT
        return self._places * of_unit + -(-self._units // 256) * 256

    def steps(self, given: Given, gradients: Tensors) -> Iterator[Step]:
        (q, k, v, out, lse, dout), (dq, dk, dv) = given, gradients
        ring = q.new_empty(self._ring_shape, dtype=torch.float32)
        padded, delta = self.row_of(q), self.row_of(q)
        yield self.prepare, (out, dout, lse, padded, delta, ring)
        yield from self._main.steps(q, k, v, dout, ring, dk, dv, padded, delta, dq, ring, out, dout, delta)
        yield self._finish, (ring, dq)
