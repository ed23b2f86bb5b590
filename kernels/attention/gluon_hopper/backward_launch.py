"""The launches of a backward: one class for each kind, and the tiles of keys that are split by queries.

- `SingleKernelBackward`: one kernel computes dK and dV, and adds up dQ in float32 in memory.
- `DqWarpgroupBackward`: the same, with a separate warpgroup for dQ.
- `TwoKernelBackward`: for head_dim 192 and 256, and for the same bits on every run.

In the first two, tiles of keys are split where the last round would leave many programs without a tile. Each split has
a program in a launch behind that of the whole tiles, if there is one, which begins as soon as programs of that end.
dK and dV of a split are float32 until `merge_kernel` adds them up. Kernels count a part of a group of query heads
(tuning.group_splits) as a group with a separate key head, and `sum_parts_kernel` adds up dK and dV.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...launches import Rooms, recorded
from ...plans import LOG2_E
from . import configs, tuning
from .backward import backward_kernel
from .backward_common import (
    BackwardShape,
    Scales,
    TileOrder,
    finish_kernel,
    merge_kernel,
    prepare_kernel,
    sum_parts_kernel,
)
from .backward_dq_warpgroup import OutStrides, RingSize, dq_warpgroup_kernel
from .backward_two_kernels import DqSizes, ReadyRows, dkv_kernel, dq_kernel
from .barriers import zero_kernel
from .launch import Descriptor, Launch, Step, run_in_order

if TYPE_CHECKING:
    from .packed import PackedShape
    from .plan import GluonHopperPlan

FRAGMENT_ROWS = FRAGMENT_COLUMNS = 64
FRAGMENT = FRAGMENT_ROWS * FRAGMENT_COLUMNS  # numbers of dQ that are added at once
_MERGED_ROWS = 16  # rows of dK and dV of a program of merge_kernel or sum_parts_kernel
_ZEROED = 1024  # counters that a program sets to zero
_DK, _DV = 5, 6  # their positions among a kernel's tensors
Split = tuple[int, int, int]  # tile, first block of queries, block behind the last
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def splits_of(tiles: range, blocks: int, programs: int) -> list[Split]:
    """Split tiles of so many blocks of queries, tile by tile, by what each program would have, dealt evenly.

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


class SplitTiles:
    """The splits of `tiles`, and the launch that adds up their dK and dV."""

    def __init__(self, backward: BackwardLaunches, tiles: range) -> None:
        plan, block_n = backward.plan, backward.tiles.block_n
        found = splits_of(tiles, backward.n_m, plan.multiprocessors)
        longest_first = sorted(range(len(found)), key=lambda i: found[i][1] - found[i][2])
        self.table = torch.tensor([[*found[i], i] for i in longest_first], dtype=torch.int32, device=plan.device)
        firsts = [i for i, (_, low, _) in enumerate(found) if low == 0]
        self.firsts = torch.tensor([*firsts, len(found)], dtype=torch.int32, device=plan.device)
        self.numbers = len(found) * 2 * block_n * plan.size
        rest = (
            backward.dkv_strides,
            *(tiles.start, -(-plan.seqlen_k // block_n), plan.num_kv_heads, plan.seqlen_k, plan.softmax_scale),
            *(_MERGED_ROWS, block_n, plan.head_dim, plan.size, True),
        )
        grid = (len(tiles), block_n // _MERGED_ROWS, 1)
        self.merge = Launch(merge_kernel, grid, plan.device, [None] * 4, rest, pdl=True)


class KeyTileLaunches:
    """The launches of a kernel with a program for each tile of keys, or for a split of one.

    `extra` are arguments, and `constants` fields of its BackwardConfig, that only this kernel has; `in_order`: tiles
    stay whole, and come head by head.
    """

    def __init__(
        self,
        backward: BackwardLaunches,
        kernel: Any,
        makers: Sequence[Descriptor | None],
        extra: tuple[tuple[int, ...], ...] = (),
        *,
        in_order: bool = False,
        **constants: Any,
    ) -> None:
        plan, block_n = backward.plan, backward.tiles.block_n
        programs = plan.multiprocessors
        key_tiles = -(-plan.seqlen_k // block_n)
        heads, masks = plan.num_kv_heads * plan.batch, (plan.causal, plan.window_size > 0)
        n_tiles = key_tiles * heads
        even = not any(masks) and not backward.config.alibi and (not in_order or n_tiles < programs)
        left_over = tuning.tiles_to_split(n_tiles, plan.seqlen_q, programs) if even else 0
        by_length = (heads, 1) if in_order else tuning.heads_by_length(heads, key_tiles, programs, *masks)
        arguments = (backward.shape, *extra, TileOrder(*by_length), backward.scales)
        self._taken, makers = len(makers), (*makers, None, None)

        def launch(grid: tuple[int, int, int], split_q: bool) -> Launch:
            more = {"linear_grid": left_over > 0, "split_q": split_q, "all_split": split_q and left_over == n_tiles}
            config = replace(backward.config, **more, **constants)
            return Launch(kernel, grid, plan.device, makers, (*arguments, config), pdl=True)

        self._whole: Launch | None = None
        self._splits: SplitTiles | None = None
        if not left_over:
            self._whole = launch((key_tiles, plan.num_kv_heads, plan.batch), False)
        elif left_over < n_tiles:
            self._whole = launch((n_tiles - left_over, 1, 1), False)
        if left_over:
            self._splits = SplitTiles(backward, range(n_tiles - left_over, n_tiles))
            self._split = launch((len(self._splits.table), 1, 1), True)

    def steps(self, rooms: Rooms, tensors: tuple[torch.Tensor, ...], slopes: torch.Tensor | None) -> Iterator[Step]:
        """Yield the launches for these tensors, of which the kernel takes the first."""
        tensors = tensors[: self._taken]
        if self._whole is not None:
            yield self._whole, (*tensors, tensors[-1], tensors[-1] if slopes is None else slopes)  # no splits: not read
        if self._splits is not None:
            partial_dkv = rooms.float32(tensors[-1], self._splits.numbers)
            yield self._split, (*tensors, self._splits.table, partial_dkv)
            yield self._splits.merge, (partial_dkv, self._splits.firsts, tensors[_DK], tensors[_DV])


class BackwardInputs(NamedTuple):
    """Inputs of a backward, (batch, heads, seqlen, head_dim or head_dim_v) except lse."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor  # (batch, num_heads, seqlen_q), to the base 2
    dout: torch.Tensor
    slopes: torch.Tensor | None = None  # as the kernel takes them


class GroupParts:
    """dK and dV of the parts of groups of query heads, and the launch that adds them up."""

    def __init__(self, plan: GluonHopperPlan, dk: torch.Tensor, dv: torch.Tensor) -> None:
        width = -(-plan.head_dim // 8) * 8
        self._shape = (plan.batch, plan.num_kv_heads, plan.seqlen_k, width)
        self._dtype, self._head_dim = dk.dtype, plan.head_dim
        heads = plan.num_kv_heads // plan.group_splits
        rest = (
            *(dk.stride()[:3], dv.stride()[:3], plan.seqlen_k, heads, plan.group_splits),
            *(_MERGED_ROWS, width, plan.head_dim, configs.padded_head_dim(plan.head_dim), True),
        )
        grid = (-(-plan.seqlen_k // _MERGED_ROWS), plan.batch * heads, 1)
        self.sum = Launch(sum_parts_kernel, grid, plan.device, [None] * 4, rest, pdl=True)

    def room(self, device: torch.device | str) -> torch.Tensor:
        """Return room for dK or dV of all parts, (batch, num_kv_heads x group_splits, seqlen_k, head_dim)."""
        return torch.empty(self._shape, dtype=self._dtype, device=device)[..., : self._head_dim]


class BackwardLaunches(ABC):
    """Common parts of all backwards: descriptors of the tiles of inputs and gradients, and a config."""

    def __init__(self, plan: GluonHopperPlan, tiles: configs.BackwardTiles, like: BackwardInputs) -> None:
        self.plan, self.tiles = plan, tiles
        q, k, v = like[:3]
        self.n_m = -(-plan.seqlen_q // self.tiles.block_m)
        self.padded_q = self.n_m * self.tiles.block_m
        block_q, block_k = ([1, 1, n, plan.size // plan.pieces] for n in (self.tiles.block_m, self.tiles.block_n))
        block_do, block_v = ([1, 1, n, plan.size_v // plan.pieces_v] for n in (self.tiles.block_m, self.tiles.block_n))
        dq, dk, dv = plan.gradients_like(q, k, v)
        self.q, self.dout = Descriptor(q, block_q), Descriptor(like.dout, block_do)
        self.dq = self.q if dq is q else Descriptor(dq, block_q)
        self.k, self.v = Descriptor(k, block_k), Descriptor(v, block_v)
        self._parts = None if plan.group_splits == 1 else GroupParts(plan, dk, dv)
        if self._parts is not None:
            dk = dv = self._parts.room("meta")
        self.dk = self.k if dk is k else Descriptor(dk, block_k)
        self.dv = self.v if dv is v else Descriptor(dv, block_v)
        self.n_rows = plan.n_heads * self.padded_q  # of lse or delta, padded to whole tiles
        self.row = Descriptor(torch.empty(self.n_rows, dtype=torch.float32, device="meta"), [self.tiles.block_m])
        self.shape = BackwardShape(
            *(plan.num_heads, plan.group_size, plan.seqlen_q, plan.seqlen_k), *(self.padded_q, self.n_m, plan.window)
        )
        self.scales = Scales(plan.factor * LOG2_E, plan.softmax_scale)
        self.config = self.config_of(tiles)
        self.dq_strides, self.dkv_strides = dq.stride()[:3], (dk.stride()[:3], dv.stride()[:3])
        self._recorded: Callable[..., None] | None = None

    def __call__(self, given: BackwardInputs) -> Gradients:
        """Return dq, dk and dv; the caller has made the tensors' device the current one."""
        gradients = self.plan.new_gradients(*given[:3])
        if self._recorded is not None:
            self._recorded(*(x for x in given if x is not None), *gradients)
            return gradients
        rooms = Rooms()
        tensors = [x.detach() for x in (*given, *gradients) if x is not None]  # a call may have one tensor twice
        *inputs, dq, dk, dv = tensors
        steps = list(self.all_steps(BackwardInputs(*inputs), (dq, dk, dv), rooms))
        run_in_order(steps)
        self._recorded = recorded(steps, tensors, rooms, self.plan.device)
        return gradients

    def all_steps(self, given: BackwardInputs, gradients: Gradients, rooms: Rooms) -> Iterator[Step]:
        """Yield the launches of `steps`, and what adds up parts of groups of query heads, in the order of these."""
        if self._parts is None:
            yield from self.steps(given, gradients, rooms)
            return
        dq, dk, dv = gradients
        dk_parts, dv_parts = (rooms.note(self._parts.room(given.q.device)) for _ in range(2))
        yield from self.steps(given, (dq, dk_parts, dv_parts), rooms)
        yield self._parts.sum, (dk_parts, dv_parts, dk, dv)

    @abstractmethod
    def steps(self, given: BackwardInputs, gradients: Gradients, rooms: Rooms) -> Iterator[Step]:
        """Yield the launches that fill the gradients; their scratch memory is noted in `rooms`."""

    def config_of(self, tiles: configs.BackwardTiles) -> configs.BackwardConfig:
        """Return what a kernel with these tiles is compiled for."""
        plan = self.plan
        masked = plan.masked(tiles.block_n)
        groups = {"group_splits": plan.group_splits, "uneven_group": plan.uneven_group}
        return configs.backward_config(plan, tiles, masked=masked, **groups, **plan.of_scores)


class AddingBackward(BackwardLaunches):
    """Common parts of backwards that add up dQ in memory: a kernel in front computes delta and clears dQ's sums.

    There is room for fragments of dQ of `slots` key heads, then for `counters`. These are zero when a kernel begins to
    add to fragments, of which only head_dim's own columns are.
    """

    _prepare: Launch
    _main: KeyTileLaunches
    _finish: Launch

    def __init__(self, plan: GluonHopperPlan, like: BackwardInputs, slots: int, counters: int = 0) -> None:
        super().__init__(plan, tuning.backward_tiles("sums", plan.size), like)
        self._numbers = slots * plan.group_size * self.n_m * self.tiles.fragments * FRAGMENT
        self.zeros = self._numbers + -(-counters // 256) * 256
        self.sums = fragments_of(plan, self.zeros)

    def steps(self, given: BackwardInputs, gradients: Gradients, rooms: Rooms) -> Iterator[Step]:
        (q, k, v, out, lse, dout, slopes), (dq, dk, dv) = given, gradients
        sums = rooms.float32(q, self.zeros // 256, 256)
        padded, delta = rooms.float32(q, self.n_rows), rooms.float32(q, self.n_rows)
        yield self._prepare, (out, dout, lse, padded, delta, sums)
        tensors = (q, k, v, dout, sums, dk, dv, padded, delta, dq, sums, out, dout, delta)
        yield from self._main.steps(rooms, tensors, slopes)
        yield self._finish, (sums, dq)

    def _preparation(self, like: BackwardInputs, heads: int) -> Launch:
        """Return the launch for delta of the first so many heads, for zeros, and for lse of all heads."""
        plan, rows = self.plan, configs.PREPARED_ROWS
        programs = heads * (self.padded_q // rows)
        rest = (
            (like.out.stride()[:3], like.dout.stride()[:3]),
            *(plan.num_heads, plan.seqlen_q, self.padded_q, self.n_rows),
            (self._numbers, self.zeros),
            *(rows, plan.head_dim, plan.size, 1 << (-(-self.zeros // programs) - 1).bit_length(), True),
        )
        return Launch(prepare_kernel, (programs, 1, 1), plan.device, [None] * 6, rest)

    def _finishing(self, first_head: int, heads: int, ring_heads: int) -> Launch:
        """Return the launch that converts dQ of so many heads from `first_head` on; `ring_heads` have fragments."""
        plan, tiles = self.plan, self.tiles
        rest = (
            *(self.dq_strides, plan.num_heads, plan.seqlen_q, self.n_m, plan.softmax_scale, first_head, ring_heads),
            *(tiles.block_m, tiles.fragments, plan.head_dim, True),
            *((plan.uneven_group, plan.group_size) if plan.uneven_group else (0, 0)),
        )
        grid = (heads * self.n_m * tiles.fragments, 1, 1)
        return Launch(finish_kernel, grid, plan.device, (None, None), rest, pdl=True)


def fragments_of(plan: GluonHopperPlan | PackedShape, numbers: int) -> Descriptor:
    """Describe room for so many numbers of fragments of dQ to TMA, as (place, row of 256 numbers, number).

    A place is a fragment at head_dim 64, and two side by side at 128. A fragment's numbers come in order of its
    columns, by eights. Those of columns that head_dim does not have are out of bounds: they are neither added nor read.
    """
    rows = plan.size // FRAGMENT_COLUMNS * FRAGMENT // 256
    own = -(-plan.head_dim // 8) * (8 * FRAGMENT_ROWS // 256)
    shape, strides = (numbers // (rows * 256), own, 256), (rows * 256, 256, 1)
    return Descriptor(torch.empty_strided(shape, strides, dtype=torch.float32, device="meta"), [1, 16, 256])


class SingleKernelBackward(AddingBackward):
    """Launches for delta, for all gradients, and for dQ from float32 fragments to its own dtype."""

    def __init__(self, plan: GluonHopperPlan, like: BackwardInputs) -> None:
        super().__init__(plan, like, plan.batch * plan.num_kv_heads)
        self._prepare = self._preparation(like, plan.n_heads)
        makers = (self.q, self.k, self.v, self.dout, self.sums, self.dk, self.dv, self.row, self.row)
        self._main = KeyTileLaunches(self, backward_kernel, makers)
        self._finish = self._finishing(0, plan.n_heads, plan.n_heads)


class TwoKernelBackward(BackwardLaunches):
    """Launches for dQ with delta, then for dK and dV."""

    def __init__(self, plan: GluonHopperPlan, like: BackwardInputs) -> None:
        asked = (plan.size, plan.size_v, plan.seqlen_q if plan.causal and not plan.window_size else 0)
        for_keys, for_queries = (tuning.backward_tiles(kernel, *asked) for kernel in ("keys", "queries"))
        super().__init__(plan, for_keys, like)
        self._counters = plan.batch * plan.num_kv_heads
        rest = (self.n_rows, self._counters, _ZEROED, True)
        self._zero = Launch(zero_kernel, (-(-self._counters // _ZEROED), 1, 1), plan.device, [None], rest)
        self._query_tiles = -(-plan.seqlen_q // (2 * for_queries.block_m))
        self._key_tiles = -(-plan.seqlen_k // for_keys.block_n)
        self._queries = self._launch_queries(for_queries, like)
        self._keys = self._launch_keys()

    def _launch_queries(self, tiles: configs.BackwardTiles, like: BackwardInputs) -> Launch:
        plan = self.plan
        keys = Descriptor(like.k, [1, 1, tiles.block_n, plan.size // plan.pieces])
        values = Descriptor(like.v, [1, 1, tiles.block_n, plan.size_v // plan.pieces_v])
        makers = (self.q, keys, values, self.dout, self.dq, None, None, None, None)
        rest = (
            tuple(stride // 8 for stride in like.out.stride()[:3]),
            DqSizes(
                *(self.n_rows, plan.num_kv_heads, plan.num_heads, plan.group_size),
                *(plan.seqlen_q, plan.seqlen_k, self.padded_q, plan.window),
            ),
            self.scales,
            replace(self.config_of(tiles), unpadded_head_dim=plan.head_dim_v),
        )
        grid = self._grid(self._query_tiles, plan.num_heads)
        return Launch(dq_kernel, grid, plan.device, makers, rest, pdl=True)

    def _launch_keys(self) -> Launch:
        plan = self.plan
        makers = (self.q, self.k, self.v, self.dout, self.dk, self.dv, self.row, self.row, None)
        ready = ReadyRows(self.n_rows, plan.group_size * self._query_tiles, plan.num_kv_heads)
        rest = (ready, self.shape, self.scales, self.config)
        grid = self._grid(self._key_tiles, plan.num_kv_heads)
        return Launch(dkv_kernel, grid, plan.device, makers, rest, pdl=True)

    def _grid(self, tiles: int, heads: int) -> tuple[int, int, int]:
        """Return a grid as `program_tile_of_grid` reads it."""
        if not self.plan.causal or self.plan.window_size:
            return tiles, heads, self.plan.batch
        group = tuning.heads_taking_turns(self._key_tiles, heads * self.plan.batch)
        return group, tiles, heads * self.plan.batch // group

    def steps(self, given: BackwardInputs, gradients: Gradients, rooms: Rooms) -> Iterator[Step]:
        (q, k, v, out, lse, dout, _), (dq, dk, dv) = given, gradients
        padded, delta = rooms.float32(q, self.n_rows), rooms.float32(q, self.n_rows + self._counters)
        yield self._zero, (delta,)
        yield self._queries, (q, k, v, dout, dq, out, lse, padded, delta)
        yield self._keys, (q, k, v, dout, dk, dv, padded, delta, delta)


class DqWarpgroupBackward(AddingBackward):
    """Launches for delta, for all gradients, and for dQ of the last key heads from what is left in the ring."""

    def config_of(self, tiles: configs.BackwardTiles) -> configs.BackwardConfig:
        """Return what a kernel with these tiles is compiled for."""
        config = super().config_of(tiles)
        return replace(config, sums=2 if 64 < config.columns < config.head_dim else 1)

    def __init__(self, plan: GluonHopperPlan, like: BackwardInputs) -> None:
        tiles = tuning.backward_tiles("sums", plan.size)
        kv_heads = plan.batch * plan.num_kv_heads
        masks, in_order = (plan.causal, plan.window_size > 0), plan.size == 64
        key_tiles = -(-plan.seqlen_k // tiles.block_n)
        delay = tuning.dq_delay(kv_heads, key_tiles, plan.multiprocessors, *masks, in_order)
        fragments = plan.group_size * -(-plan.seqlen_q // tiles.block_m) * tiles.fragments
        if not tuning.fits_in_ring(min(kv_heads, 2 * delay) * fragments):
            delay = kv_heads  # everything stays where it is until finish_kernel
        slots = min(kv_heads, 2 * delay)
        super().__init__(plan, like, slots, counters=kv_heads)
        next_delta = (delay < kv_heads and not plan.uneven_group) and tuning.computes_next_delta(
            plan.size, plan.seqlen_q, plan.seqlen_k, *masks
        )
        self._prepare = self._preparation(like, delay * plan.group_size if next_delta else plan.n_heads)
        fragment_of_dq = Descriptor(plan.gradients_like(*like[:3])[0], [1, 1, 64, 64])
        tiled = (self.q, self.k, self.v, self.dout, self.sums, self.dk, self.dv, self.row, self.row, fragment_of_dq)
        strides = OutStrides(*like.out.stride()[:3], *like.dout.stride()[:3])
        extra = (RingSize(slots, delay), strides)
        makers = (*tiled, None, None, None, None)
        self._main = KeyTileLaunches(
            self,
            dq_warpgroup_kernel,
            makers,
            extra,
            in_order=in_order or next_delta,
            next_delta=next_delta,
            unpadded_head_dim=plan.head_dim,
        )
        heads = (max(0, kv_heads - delay), min(kv_heads, delay), slots)
        self._finish = self._finishing(*(n * plan.group_size for n in heads))
