"""The plan of a shape: tiles, grids, descriptors and launches.

The forward is one launch, and what may have to follow it: `combine_kernel`, or a launch that computes it all again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import torch

from ... import parallel_compile, plans
from ...launches import Rooms, recorded
from ...plans import LOG2_E, GradientRoom, Masks, PlanCache, device_guard, plan_key
from . import configs, tuning
from .backward_launch import BackwardInputs, DqWarpgroupBackward, SingleKernelBackward, TwoKernelBackward
from .forward import combine_kernel, forward_kernel
from .forward_overflow import MAX_FLAGS
from .forward_schedule import TileSchedule, Tiling, tile_schedule
from .forward_second_half import second_half_kernel
from .forward_tiles import ForwardShape
from .launch import Descriptor, Launch, Step, addressable, empty_addressable, is_addressable, run_in_order, warm_ups

_Backward = DqWarpgroupBackward | SingleKernelBackward | TwoKernelBackward
_PLANS: PlanCache[GluonHopperPlan] = PlanCache()


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: *Masks) -> torch.Tensor:
    """Compute attention of tensors that belong together, none of them empty, for a positive scale."""
    plan = plan_of(q, k, v, *masks)
    if plan is None:
        q, k, v = addressable(q), addressable(k), addressable(v)
        plan = plan_of(q, k, v, *masks)
    return plans.attend(plan, q, k, v)


def known_plan(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: *Masks) -> GluonHopperPlan | None:
    """Return the plan that an earlier call with such tensors made, if one did."""
    return _PLANS.get(plan_key(q, k, v, masks))


def plan_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: *Masks, **of_scores: Any
) -> GluonHopperPlan | None:
    """Return the plan of these shapes, strides and fields of configs, or None if TMA cannot address the tensors."""
    key = plan_key(q, k, v, (*masks, *of_scores.items()))
    plan = _PLANS.get(key)
    if plan is None and all(map(is_addressable, (q, k, v))):
        plan = _PLANS.remember(key, GluonHopperPlan(q, k, v, *masks, **of_scores))
    return plan


class GluonHopperPlan:
    """The launches for one shape and set of strides, all addressable by TMA, as `kernels.plans.AttentionPlan`."""

    prepare: plans.Prepare | None = None

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: *Masks, **of_scores: Any) -> None:
        self.device = q.device
        self.batch, self.num_heads, self.seqlen_q, self.head_dim = q.shape
        self.num_kv_heads, self.seqlen_k = k.shape[1:3]
        self.n_heads, self.group_size = self.batch * self.num_heads, self.num_heads // self.num_kv_heads
        self.head_dim_v = v.shape[3]
        self.size, self.size_v = configs.padded_head_dims(self.head_dim, self.head_dim_v)
        self.pieces, self.pieces_v = configs.PIECES.get(self.size, 1), 1
        self.masks, self.causal, self.softmax_scale = masks, masks[0], masks[2]
        self.window, self.window_size = configs.window_of(*masks[:2], self.seqlen_q + self.seqlen_k)
        self.of_scores = of_scores  # fields of both configs: bend or alibi
        self.factor = self.softmax_scale / of_scores.get("bend", 1.0)  # of scores in the softmax
        self.more: dict[str, bool] = {}  # fields of ForwardConfig: what else its forward stores
        self._with_more: dict[bool, Forward] = {}
        self._backwards: dict[tuple[Any, ...], _Backward] = {}
        self._ahead: Future[None] | None = None
        self._as_like = not self.head_dim % 8 and not self.head_dim_v % 8 and all(map(_is_dense, (q, k, v)))
        # Allocates the same shape and order of dimensions.
        self._new: plans.Prepare = torch.empty_like if self._as_like else empty_addressable
        self.new_gradients = GradientRoom(q, k, v, self._new)
        chip = torch.cuda.get_device_properties(self.device)
        self.multiprocessors = chip.multi_processor_count
        self.l2_bytes: int = getattr(chip, "L2_cache_size", 0)  # distinguishes an H100 from an H200; 0 if unknown
        self.group_splits, self.uneven_group = 1, 0
        self._forward = (ForwardByHalves if self.size == configs.HALVED else Forward)(self, q, k, v)

    def masked(self, block_n: int) -> bool:
        """Return whether any block of keys needs a mask."""
        return self.causal or self.window_size > 0 or self.seqlen_k % block_n > 0

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output, and the base-2 logsumexp (batch, num_heads, seqlen_q); +inf for a row that sees no key.

        given: q, k, v, and with alibi the slopes as the kernels take them.
        """
        with device_guard(self.device):
            return self._forward(*given)

    def forward_with_more(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, max_logits: torch.Tensor | None
    ) -> plans.Tensors:
        """Return the results of `forward` and the natural logsumexp; `max_logits` (num_heads,), of -inf, is filled."""
        wanted = max_logits is not None
        forward = self._with_more.get(wanted)
        if forward is None:
            plan = copy(self)
            plan.more = {"natural_lse": True, "max_logits": wanted}
            forward = self._with_more[wanted] = Forward(plan, q, k, v)
        out, lse, natural_lse = self.new_out(q), forward.new_lse(), forward.new_lse()
        with device_guard(self.device):
            forward.write(q, k, v, out, lse, natural_lse, natural_lse if max_logits is None else max_logits)
        return out, lse, natural_lse

    def output(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return the output alone."""
        return self.forward(q, k, v)[0]

    def backward(self, *saved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return dq, dk and dv; saved: a BackwardInputs.

        Up to head_dim 128 the last bits of dq depend on the order of additions, unless PyTorch is set to be
        deterministic (torch.use_deterministic_algorithms), which takes longer.
        """
        if self.size == configs.HALVED:
            from ..triton_fa2 import plan as portable

            q, k, v = saved[:3]
            return portable.plan_of(q, k, v, *self.masks, "ieee").backward(*saved)
        two_kernels = self._only_two_kernels or torch.are_deterministic_algorithms_enabled()
        given = BackwardInputs(*saved)
        key = (given.dout.stride(), given.dout.data_ptr() & 15, two_kernels)
        launches = self._backwards.get(key)
        if launches is None and not is_addressable(given.dout):
            return self.backward(*saved[:5], addressable(given.dout), *saved[6:])
        if launches is None:
            launches = self._backwards[key] = self._backward_of(given, two_kernels)
            if self._ahead is not None:
                wait([self._ahead])
        with device_guard(self.device):
            return launches(given)

    def compile_backward(self, *saved: torch.Tensor) -> None:
        """Compile the kernels of the backward in a thread; saved: q, k, v, out and lse."""
        if self.size == configs.HALVED or self.of_scores or torch.cuda.is_current_stream_capturing():
            return
        like = BackwardInputs(*map(_without_memory, (*saved, saved[3])))
        self._ahead = parallel_compile.ahead(partial(self._backward_warm_ups, like))

    def _backward_warm_ups(self, like: BackwardInputs) -> list[parallel_compile.WarmUp]:
        torch.cuda.set_device(self.device)  # of the thread
        two_kernels = self._only_two_kernels or torch.are_deterministic_algorithms_enabled()
        dq, dk, dv = map(_without_memory, self.gradients_like(*like[:3]))  # separate objects
        return warm_ups(self._backward_of(like, two_kernels).all_steps(like, (dq, dk, dv), Rooms()))

    def _backward_of(self, given: BackwardInputs, two_kernels: bool) -> _Backward:
        sizes = (self.size, self.batch * self.num_kv_heads, self.group_size, self.seqlen_q, self.seqlen_k)
        shared = tuning.SharedKeys(*sizes, self.causal, self.window_size)
        ahead = tuning.computes_next_delta(sizes[0], *sizes[3:], self.causal, self.window_size > 0)
        uneven = self.size == 64 and not (two_kernels or self.of_scores or ahead)
        shape = self.with_groups_split(tuning.group_splits(shared, self.multiprocessors, uneven))
        if configs.narrow_columns(self.head_dim, self.size) and not self.of_scores:
            shape = copy(shape)
            shape.size = shape.size_v = 192
            shape.pieces = shape.pieces_v = 3
        adding = DqWarpgroupBackward if shape._has_dq_warpgroup() else SingleKernelBackward
        return (TwoKernelBackward if two_kernels else adding)(shape, given)

    def with_groups_split(self, splits: int) -> GluonHopperPlan:
        """Return a plan that counts each part of a group of query heads as a group with a separate key head."""
        if splits == 1:
            return self
        plan = copy(self)
        plan.group_splits, plan.num_kv_heads = splits, self.num_kv_heads * splits
        plan.group_size = -(-self.group_size // splits)
        plan.uneven_group = self.group_size if self.group_size % splits else 0
        return plan

    @cached_property
    def _only_two_kernels(self) -> bool:
        if self.causal or self.window_size or self.group_size > 1 or self.of_scores:
            return self.size in configs.ONLY_TWO_KERNELS
        shape = (self.n_heads, self.seqlen_q, -(-self.seqlen_k // tuning.backward_tiles("sums", 128).block_n))
        outgrow = tuning.sums_outgrow_memory(self.size, *shape, self.l2_bytes)
        return self.size in configs.ONLY_TWO_KERNELS or outgrow

    def _has_dq_warpgroup(self) -> bool:
        if self.of_scores:
            return False
        shape = (self.batch * self.num_kv_heads, self.group_size, self.seqlen_q, self.seqlen_k)
        return tuning.has_dq_warpgroup(self.size, *shape, self.causal, self.window_size > 0, self.multiprocessors)

    def gradients_like(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> plans.Tensors:
        """Return q, k and v if dq, dk and dv have the same strides, else tensors without memory that have them."""
        return (q, k, v) if self._as_like else self.new_gradients(*map(_without_memory, (q, k, v)))

    def out_like(self, q: torch.Tensor) -> torch.Tensor:
        """Return a tensor with the shape and strides of `new_out`."""
        return q if self._as_like and self.head_dim == self.head_dim_v else self.new_out(_without_memory(q))

    def new_out(self, q: torch.Tensor) -> torch.Tensor:
        """Return room for an output of these queries, with their order of dimensions."""
        return self._new(q) if self.head_dim == self.head_dim_v else empty_addressable(q[..., : self.head_dim_v])


def _without_memory(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor like x without memory; empty_like would import sympy for it, which takes 2 s."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _is_dense(x: torch.Tensor) -> bool:
    return x.is_contiguous() or torch.empty_like(x, device="meta").stride() == x.stride()


_COMBINED_ROWS = 16  # rows of a program of combine_kernel
_KEPT_SLOTS = 4  # blocks of P and values under way
Part = tuple[int, Tiling, TileSchedule]  # how many programs compute some of the heads, their tiles, and whose are which


class Forward:
    """Computes the output and the base-2 logsumexp of a plan's tensors."""

    def __init__(
        self,
        plan: GluonHopperPlan,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor | None = None,
        part: Part | None = None,
    ) -> None:
        self._plan = plan
        self._recorded: Callable[..., None] | None = None
        self._rows = q.shape[:3], (plan.num_heads * plan.seqlen_q, plan.seqlen_q, 1)  # sizes and strides of lse
        tiles, split_kv = _form(plan, q.dtype == torch.bfloat16)
        tile_rows = configs.ROWS * tiles.consumers
        programs, tiling, schedule = part or _schedule(plan, tiles, tile_rows, split_kv)
        split_kv = schedule.combines is not None
        self._partial_shape = (1, 1, schedule.n_splits * tile_rows, plan.head_dim) if split_kv else None
        out = plan.out_like(q) if out is None else out
        masked = plan.masked(tiles.block_n)
        own: dict[str, Any] = {"masked": masked, "split_kv": split_kv, "keeps_p": part is not None}
        own["sums"] = 2 if 64 < configs.product_columns(plan.head_dim, plan.size) < plan.size else 1
        if narrow := configs.narrow_columns(plan.head_dim, plan.size):
            own |= {"sums": 3, "unpadded_head_dim": plan.head_dim % narrow}
        config = configs.forward_config(plan, tiles, **own, **plan.more, **plan.of_scores)
        rows, keys = ([1, 1, n, config.head_dim // config.pieces] for n in (configs.ROWS, tiles.block_n))
        values = [1, 1, tiles.block_n, config.head_dim_v // config.pieces_v]
        stored: list[Descriptor | None] = [None, None]
        if not tiles.store_from_registers:
            kept = torch.empty(self._partial_shape, dtype=q.dtype, device="meta") if self._partial_shape else out
            stored = [Descriptor(x, rows) for x in (out, kept)]
        makers = (*map(Descriptor, (q, k, v), (rows, keys, values)), stored[0], None, stored[1], *(None,) * 5)
        strides = tuple(stride // 8 for stride in out.stride()[:3])
        rest: tuple[Any, ...] = (schedule.entries, _shape(plan, tiling, schedule), plan.factor * LOG2_E, strides)
        grid = (programs, 1, 1)
        self._launch = Launch(forward_kernel, grid, plan.device, makers, (*rest, config))
        self._recompute = None
        if tiles.flag_overflow:
            config = replace(config, flag_overflow=False, recompute=True)
            self._recompute = Launch(forward_kernel, grid, plan.device, makers, (*rest, config), pdl=True)
        if split_kv:
            rest = (schedule.combines, plan.num_heads, tiling.group, plan.seqlen_q, *strides)
            rest += (tile_rows, plan.head_dim, plan.size, _COMBINED_ROWS, config.natural_lse, True)
            grid = (schedule.combines.shape[0], tile_rows // _COMBINED_ROWS, 1)
            self._combine = Launch(combine_kernel, grid, plan.device, (None,) * 5, rest, pdl=True)

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *slopes: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output and its logsumexp; the caller has made the tensors' device the current one."""
        out, lse = self._plan.new_out(q), self.new_lse()
        self.write(q, k, v, out, lse, *slopes * 2)
        return out, lse

    def new_lse(self) -> torch.Tensor:
        """Return room for the logsumexp."""
        return torch.empty_strided(*self._rows, dtype=torch.float32, device=self._plan.device)

    def write(self, *given: torch.Tensor) -> None:
        """Write out and lse; given: q, k, v, out and lse."""
        if self._recorded is not None:
            self._recorded(*given)
            return
        rooms, tensors = Rooms(), [x.detach() for x in given]  # a call may have one tensor twice
        steps = self._steps(rooms, *tensors)
        trains = any(x.requires_grad for x in given[:3])
        run_in_order(steps, partial(self._plan.compile_backward, *tensors[:5]) if trains else None)
        self._recorded = recorded(steps, tensors, rooms, self._plan.device)

    def _steps(self, rooms: Rooms, *tensors: torch.Tensor) -> list[Step]:
        q, k, v, out, lse, *more = tensors
        more = [*(more or (lse, lse)), lse]
        if self._recompute is not None:
            overflow = rooms.note(q.new_empty(MAX_FLAGS, dtype=torch.int32))
            tensors = (q, k, v, out, lse, out, lse, overflow, *more)
            return [(self._launch, tensors), (self._recompute, tensors)]
        if self._partial_shape is None:
            return [(self._launch, (q, k, v, out, lse, out, lse, lse, *more))]
        partial_out = rooms.note(q.new_empty(self._partial_shape))
        partial_lse = rooms.float32(q, self._partial_shape[2])
        computed = (self._launch, (q, k, v, out, lse, partial_out, partial_lse, lse, *more))
        return [computed, (self._combine, (partial_out, partial_lse, out, lse, more[0]))]


class ForwardByHalves(Forward):
    """Computes half of the output's columns after the other, where a consumer's registers hold no more.

    The second launch multiplies P that the first one kept, for a part of the heads after the other. Where the room for
    P is small or memory is short, both compute the scores. Tiles of 64 rows would load the keys twice as often.
    """

    def __init__(self, plan: GluonHopperPlan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        self._plan = plan
        self._rows = q.shape[:3], (plan.num_heads * plan.seqlen_q, plan.seqlen_q, 1)
        self._tiles, _ = _form(plan, q.dtype == torch.bfloat16)
        self._make(_parts(plan, self._tiles), q, k, *_halves(v), *_halves(plan.out_like(q)))

    def _make(self, parts: list[Part], *tensors: torch.Tensor) -> None:
        """Make the launches for each part; without parts, two that compute the scores."""
        q, k, v1, v2, out1, out2 = tensors
        plan, tiles = self._plan, self._tiles
        self._recorded = None
        self._n_blocks = max((schedule.n_blocks for *_, schedule in parts), default=0)
        self._launches = [[Forward(plan, q, k, v1, out1, part)._launch] for part in parts or [None]]
        if not parts:
            self._launches[0].append(Forward(plan, q, k, v2, out2)._launch)
            return
        p, factors = self._rooms(q.new_empty(0, device="meta"))
        kept = Descriptor(p, [1, 1, configs.ROWS, tiles.block_n]), Descriptor(factors, [configs.ROWS])
        makers = (*kept, Descriptor(v2, [1, 1, tiles.block_n, plan.size_v]), None)
        own = {"masked": plan.masked(tiles.block_n), "unpadded_head_dim": plan.head_dim % configs.HALF}
        config = configs.forward_config(plan, replace(tiles, kv_slots=_KEPT_SLOTS), **own)
        strides = tuple(stride // 8 for stride in out2.stride()[:3])
        for launches, (programs, tiling, schedule) in zip(self._launches, parts, strict=True):
            rest = (schedule.entries, _shape(plan, tiling, schedule), strides, config)
            launches.append(Launch(second_half_kernel, (programs, 1, 1), plan.device, makers, rest))

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_slopes: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output and its logsumexp; the caller has made the tensors' device the current one."""
        out, lse = self._plan.new_out(q), self.new_lse()
        given = (q, k, *_halves(v), *_halves(out))
        try:
            self.write(*given, lse)
        except torch.cuda.OutOfMemoryError:
            if not self._n_blocks:
                raise
            self._make([], *given)
            self.write(*given, lse)
        return out, lse

    def _steps(self, rooms: Rooms, *tensors: torch.Tensor) -> list[Step]:
        q, k, v1, v2, out1, out2, lse = tensors
        if not self._n_blocks:
            both = zip(self._launches[0], (v1, v2), (out1, out2), strict=True)
            return [(launch, (q, k, v, out, lse, out, *[lse] * 5)) for launch, v, out in both]
        p, factors = map(rooms.note, self._rooms(q))
        scores, kept = (q, k, v1, out1, lse, out1, factors, p, lse, lse, lse), (p, factors, v2, out2)
        return [step for first, second in self._launches for step in ((first, scores), (second, kept))]

    def _rooms(self, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return room for P and for factors of all blocks of a part."""
        rows = self._n_blocks * self._tiles.consumers * configs.ROWS
        return q.new_empty(1, 1, rows, self._tiles.block_n), q.new_empty(rows, dtype=torch.float32)


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[..., : configs.HALF], x[..., configs.HALF :]


def _shape(plan: GluonHopperPlan, tiling: Tiling, schedule: TileSchedule) -> ForwardShape:
    """Return what the kernels know of the sizes."""
    return ForwardShape(
        *(schedule.entries.shape[1], len(tiling), tiling.n_m, plan.num_heads, plan.n_heads),
        *(plan.group_size, tiling.heads_in_l2, plan.seqlen_q, plan.seqlen_k, plan.window),
    )


def _parts(plan: GluonHopperPlan, tiles: configs.ForwardTiles) -> list[Part]:
    """Return parts of the heads whose P there is room for, as equal as can be and nearly as few.

    None where computing the scores twice takes less time.
    """
    tile_rows = configs.ROWS * tiles.consumers
    _, whole, schedule = _schedule(plan, tiles, tile_rows, False)
    kept_bytes = sum(whole.blocks(whole.first)) * tile_rows * (2 * tiles.block_n + 4)
    most = tuning.number("kept_bytes") // kept_bytes
    fewest = -(-plan.n_heads // most) if most else plan.n_heads + 1
    found = [_divided(plan, whole, count) for count in range(fewest, min(fewest + 3, plan.n_heads + 1))]
    at_once = tuning.number("kept_bytes") * whole.n_m // kept_bytes // plan.multiprocessors * plan.multiprocessors
    if at_once and not (plan.causal or plan.window_size):
        found.append(_in_rounds(plan, whole, at_once))
    time, parts = min(found, key=lambda division: division[0], default=(0.0, []))
    return parts if time <= tuning.number("kept_time") * schedule.time else []


def _divided(plan: GluonHopperPlan, whole: Tiling, count: int) -> tuple[float, list[Part]]:
    """Return the time of so many parts of all heads, and the parts."""
    firsts = [plan.n_heads * part // count for part in range(count + 1)]
    parts = [_part(plan, whole, first, end - first) for first, end in pairwise(firsts)]
    return sum(schedule.time for *_, schedule in parts), parts


def _in_rounds(plan: GluonHopperPlan, whole: Tiling, at_once: int) -> tuple[float, list[Part]]:
    """Return the time of parts that are whole rounds of tiles, whatever heads they are of, and the parts."""
    cuts = [*range(0, len(whole), at_once), len(whole)]
    tilings = [
        (min(end - first, plan.multiprocessors), replace(whole, ends=(first, end))) for first, end in pairwise(cuts)
    ]
    parts = [(n, tiling, tile_schedule(tiling, n, False, plan.device)) for n, tiling in tilings]
    return sum(schedule.time for *_, schedule in parts), parts


def _part(plan: GluonHopperPlan, whole: Tiling, first_head: int, heads: int) -> Part:
    """Return the part of so many of all heads, which take turns in groups as equal as can be."""
    groups = -(-heads // whole.heads_in_l2)
    own = replace(whole, batch=1, num_heads=heads, heads_in_l2=-(-heads // groups), first_head=first_head)
    programs = min(len(own), plan.multiprocessors)
    return programs, own, tile_schedule(own, programs, False, plan.device)


def _form(plan: GluonHopperPlan, bfloat16: bool) -> tuple[configs.ForwardTiles, bool]:
    """Return the tiles, and whether programs split the keys of the last round's; only where rows are not padded."""
    shape = (plan.size, plan.head_dim, plan.seqlen_q)
    tiles = tuning.forward_tiles(*shape, plan.causal, plan.window_size > 0, bfloat16, plan.seqlen_k)
    whole_rows = configs.stores_rows(plan.head_dim, plan.size)
    if plan.window_size or plan.causal and not (whole_rows and tiles.host_schedule and plan.seqlen_q <= plan.seqlen_k):
        return tiles, False
    chip = (plan.multiprocessors, plan.l2_bytes)
    lengths = tuning.Lengths(plan.seqlen_q, plan.seqlen_k, plan.n_heads, *chip, plan.group_size)
    if plan.causal:
        return tuning.causal_form(tiles, plan.size, lengths)
    return tuning.full_mask_form(tiles, plan.size, lengths, whole_rows=whole_rows)


def _schedule(
    plan: GluonHopperPlan, tiles: configs.ForwardTiles, tile_rows: int, split_kv: bool
) -> tuple[int, Tiling, TileSchedule]:
    """Return how many programs there are, the tiles, and their schedule; of one number if programs work it out."""
    group = plan.group_size if tiles.across_heads else 1
    rows = group * -(-plan.seqlen_q // configs.ROWS) * configs.ROWS if group > 1 else plan.seqlen_q
    n_m = -(-rows // tile_rows)
    n_tiles = n_m * plan.n_heads // group
    programs = plan.multiprocessors if split_kv else min(n_tiles, plan.multiprocessors)
    heads_in_l2 = tuning.heads_in_l2(
        *(plan.seqlen_k, (plan.size + plan.size_v) // 2, plan.group_size, plan.n_heads, n_m, programs),
        rounds=1 if tiles.host_schedule else 2,
    )
    lengths = (plan.seqlen_q, plan.seqlen_k)
    together = tuning.heads_dealt_together(plan.size, *lengths, plan.causal, plan.window_size > 0, n_tiles // programs)
    tiling = Tiling(
        *(plan.batch, plan.num_heads // group, rows, plan.seqlen_k, tile_rows, tiles.block_n),
        *(plan.causal and group == 1, plan.window_size, heads_in_l2),
        heads_together=together,
        group=group,
    )
    if not tiles.host_schedule:
        return programs, tiling, TileSchedule(torch.zeros(1, 1, dtype=torch.int32, device=plan.device), None, 0)
    return programs, tiling, tile_schedule(tiling, programs, split_kv, plan.device)
