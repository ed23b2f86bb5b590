"""The forward's launches for one shape: the kernel, and what may have to follow it.

Where programs share the keys of tiles, these are joined; where sums of weights may outgrow float32, a kernel that looks
at every maximum computes all anew if one did.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.agenda import Agenda, Tiling, agenda
from kernels.attention.gluon_hopper.forward import forward_kernel
from kernels.attention.gluon_hopper.joining import join_kernel
from kernels.attention.gluon_hopper.launch import Descriptor, Launch
from kernels.attention.gluon_hopper.marks import MARKS
from kernels.attention.gluon_hopper.steps import run_in_order

if TYPE_CHECKING:
    from kernels.attention.gluon_hopper.plan import Plan

LOG2_E = math.log2(math.e)
JOINED_ROWS = 16  # of a program that joins parts


class Forward:
    """Computes the output and the base-2 logsumexp of a plan's tensors."""

    def __init__(self, plan: Plan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        self._plan = plan
        shape = (plan.size, plan.head_dim, plan.seqlen_q)
        tiles = tuning.forward_tiles(*shape, plan.causal, plan.window_size > 0, q.dtype == torch.bfloat16)
        tile_rows = tuning.ROWS * tiles.consumers
        programs, tiling, dealt = _dealt(plan, tiles, tile_rows, q.device)
        shared = dealt.joins is not None
        self._parts_shape = (1, 1, dealt.n_parts * tile_rows, plan.size) if shared else None
        rows, keys = [1, 1, tuning.ROWS, plan.size], [1, 1, tiles.block_n, plan.size]
        out = plan.new(q)
        stored = [None, None]
        if not tiles.direct:
            stored = [Descriptor(x, rows) for x in (out, q.new_empty(self._parts_shape) if shared else out)]
        makers = (*map(Descriptor, (q, k, v), (rows, keys, keys)), stored[0], None, stored[1], None, None)
        strides = tuple(stride // 8 for stride in out.stride()[:3])
        rest = (
            *(dealt.entries, dealt.entries.shape[1], len(tiling), tiling.n_m, plan.num_heads, plan.n_heads),
            *(plan.group_size, tiling.together, plan.seqlen_q, plan.seqlen_k, plan.window_size),
            *(plan.softmax_scale * LOG2_E, *strides),
            *(tuning.ROWS, tiles.block_n, plan.size, tiles.consumers, tiles.q_slots, tiles.kv_slots),
            *(plan.causal, plan.window_size > 0, tiles.turns, plan.masked(tiles.block_n), tiles.registers),
            *(tiles.direct, tiles.hold, tiles.by_lane, tiles.by_sum),
        )
        ways = (tiles.by_warp, tiles.dealt, shared)
        grid = (programs, 1, 1)
        self._launch = Launch(forward_kernel, grid, plan.device, makers, (*rest, tiles.unseen, *ways, False))
        self._anew = None
        if tiles.unseen:
            self._anew = Launch(forward_kernel, grid, plan.device, makers, (*rest, False, *ways, True), early=True)
        if shared:
            rest = (dealt.joins, plan.num_heads, plan.seqlen_q, *strides)
            rest += (tile_rows, plan.size, tuning.ENTRY, JOINED_ROWS)
            grid = (dealt.joins.shape[0], tile_rows // JOINED_ROWS, 1)
            self._join = Launch(join_kernel, grid, plan.device, (None,) * 4, rest)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The output and its logsumexp; the caller has made the tensors' device the current one."""
        out = self._plan.new(q)
        lse = q.new_empty(q.shape[:3], dtype=torch.float32)
        if self._anew is not None:
            marks = q.new_empty(MARKS, dtype=torch.int32)
            tensors = (q, k, v, out, lse, out, lse, marks)
            run_in_order([(self._launch, tensors), (self._anew, tensors)])
            return out, lse
        if self._parts_shape is None:
            self._launch(q, k, v, out, lse, out, lse, lse)
            return out, lse
        parts = q.new_empty(self._parts_shape)
        part_log_sums = q.new_empty(self._parts_shape[2], dtype=torch.float32)
        computed = (self._launch, (q, k, v, out, lse, parts, part_log_sums, lse))
        run_in_order([computed, (self._join, (parts, part_log_sums, out, lse))])
        return out, lse


def _dealt(plan: Plan, tiles: tuning.ForwardTiles, tile_rows: int, device: torch.device) -> tuple[int, Tiling, Agenda]:
    """How many programs there are, the tiles, and who takes which; a single number if programs work that out."""
    n_m = -(-plan.seqlen_q // tile_rows)
    n_tiles = n_m * plan.n_heads
    programs = min(n_tiles, torch.cuda.get_device_properties(device).multi_processor_count)
    together = tuning.heads_together(
        *(plan.seqlen_k, plan.size, plan.group_size, plan.n_heads, n_m, programs), rounds=1 if tiles.dealt else 2
    )
    tiling = Tiling(
        *(plan.batch, plan.num_heads, plan.seqlen_q, plan.seqlen_k, tile_rows, tiles.block_n),
        *(plan.causal, plan.window_size, together),
    )
    if not tiles.dealt:
        return programs, tiling, Agenda(torch.zeros(1, 1, dtype=torch.int32, device=device), None, 0)
    every_key = not plan.causal and not plan.window_size and plan.head_dim == plan.size
    in_parts = every_key and tuning.shares_keys(plan.size, n_tiles, programs, tiling.n_blocks)
    return programs, tiling, agenda(tiling, programs, in_parts, device)
