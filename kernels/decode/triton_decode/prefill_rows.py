"""Decoding with the prefill kernel of gluon_hopper: the query heads of a key head are the rows of one tile of 128.

One query token sees every key of a full cache, so its heads are rows of attention without a mask. A program computes a
tile, so the kernel is used if there are about as many tiles as multiprocessors (DESIGN.md, "Prefill rows").
"""

import torch

from ...plans import device_guard
from .launch import INTERPRETED
from .plan import Machine, Plan, machine_on
from .request import Caches, Request

_ROWS = (65, 128)  # fewest and most rows of a tile
_LEAST_KEYS = 2048  # shorter caches were not timed
_BUSY = 0.9  # smallest share of busy multiprocessors, averaged over the rounds of tiles
_LN_2 = 0.6931471805599453


def suits(request: Request, machine: Machine | None = None) -> bool:
    """Return whether the prefill kernel can serve a request, and is the faster one (DESIGN.md)."""
    r = request
    _, multiprocessors, capability = machine or machine_on(r.device)
    tiles = r.batch * r.num_kv_heads
    rounds = -(-tiles // multiprocessors)
    return (
        capability == 90
        and not INTERPRETED
        and r.dtype == r.cache_dtype
        and r.dtype in (torch.bfloat16, torch.float16)
        and not (r.ragged or r.page or r.rope_dim or r.window_size)
        and (r.seqlen_q, r.head_dim, r.head_dim_v) == (1, 128, 128)
        and _ROWS[0] <= r.num_heads // r.num_kv_heads <= _ROWS[1]
        and r.capacity >= _LEAST_KEYS
        and r.softmax_scale > 0
        and tiles >= _BUSY * rounds * multiprocessors
    )


class PrefillRowsPlan(Plan):
    """Launches the prefill kernel where TMA can address the tensors, else the split-KV kernel."""

    def __call__(self, q: torch.Tensor, caches: Caches, return_lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return out (batch, num_heads, 1, head_dim_v) and, if asked for, its natural logsumexp in float32."""
        found = self._attended(q, *caches[:2])
        if found is None:
            return super().__call__(q, caches, return_lse)
        out, lse = found
        return out.view(self._out_shape), lse.view(self._out_shape[:3]) * _LN_2 if return_lse else None

    def output(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return out of a contiguous cache that is completely in use. The current device may be another one."""
        with device_guard(q.device):
            found = self._attended(q, k, v)
        return super().output(q, k, v) if found is None else found[0].view(self._out_shape)

    def _attended(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return out and the base-2 logsumexp of the heads as rows; None if TMA cannot address the tensors."""
        from ...attention.gluon_hopper.plan import plan_of

        r = self.request
        rows = q.reshape(r.batch, r.num_kv_heads, r.num_heads // r.num_kv_heads, r.head_dim)
        plan = plan_of(rows, k, v, False, 0, r.softmax_scale)
        return None if plan is None else plan.forward(rows, k, v)
