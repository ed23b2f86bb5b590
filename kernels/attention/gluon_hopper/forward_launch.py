"""The forward's launch for one shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.agenda import Tiling, agenda
from kernels.attention.gluon_hopper.forward import forward_kernel
from kernels.attention.gluon_hopper.launch import Descriptor, Launch

if TYPE_CHECKING:
    from kernels.attention.gluon_hopper.plan import Plan

LOG2_E = math.log2(math.e)


class Forward:
    """Computes the output and the base-2 logsumexp of a plan's tensors."""

    def __init__(self, plan: Plan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        self._plan = plan
        tiles = tuning.forward_tiles(plan.size, plan.head_dim, plan.seqlen_q, plan.causal, plan.window_size > 0)
        programs, tiling, dealt = _dealt(plan, tiles, q.device)
        rows, keys = [1, 1, tuning.ROWS, plan.size], [1, 1, tiles.block_n, plan.size]
        out = plan.new(q)
        stored = None if tiles.direct else Descriptor(out, rows)
        makers = (*map(Descriptor, (q, k, v), (rows, keys, keys)), stored, None)
        rest = (
            *(dealt, dealt.shape[1], len(tiling), tiling.n_m, plan.num_heads, plan.n_heads),
            *(plan.group_size, tiling.together, plan.seqlen_q, plan.seqlen_k, plan.window_size),
            *(plan.softmax_scale * LOG2_E, *(stride // 8 for stride in out.stride()[:3])),
            *(tuning.ROWS, tiles.block_n, plan.size, tiles.consumers, tiles.q_slots, tiles.kv_slots),
            *(plan.causal, plan.window_size > 0, tiles.turns, plan.masked(tiles.block_n), tiles.registers),
            *(tiles.direct, tiles.hold, tiles.by_lane, tiles.by_warp, tiles.dealt),
        )
        self._launch = Launch(forward_kernel, (programs, 1, 1), plan.device, makers, rest)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The output and its logsumexp; the caller has made the tensors' device the current one."""
        out = self._plan.new(q)
        lse = q.new_empty(q.shape[:3], dtype=torch.float32)
        self._launch(q, k, v, out, lse)
        return out, lse


def _dealt(plan: Plan, tiles: tuning.ForwardTiles, device: torch.device) -> tuple[int, Tiling, torch.Tensor]:
    """How many programs there are, the tiles, and the agenda, or a single number if programs work theirs out."""
    tile_rows = tuning.ROWS * tiles.consumers
    n_m = -(-plan.seqlen_q // tile_rows)
    programs = min(n_m * plan.n_heads, torch.cuda.get_device_properties(device).multi_processor_count)
    together = tuning.heads_together(
        *(plan.seqlen_k, plan.size, plan.group_size, plan.n_heads, n_m, programs), rounds=1 if tiles.dealt else 2
    )
    tiling = Tiling(
        *(plan.batch, plan.num_heads, plan.seqlen_q, plan.seqlen_k, tile_rows, tiles.block_n),
        *(plan.causal, plan.window_size, together),
    )
    if not tiles.dealt:
        return programs, tiling, torch.zeros(1, 1, dtype=torch.int32, device=device)
    return programs, tiling, agenda(tiling, programs, device)
