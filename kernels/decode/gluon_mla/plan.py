"""The plan of a call that the Hopper kernel of latent attention serves."""

from __future__ import annotations

from typing import Any

import torch

from kernels.decode.gluon_mla.kernel import mla_kernel
from kernels.decode.triton_decode.launch import INTERPRETED
from kernels.decode.triton_decode.plan import LaunchOf, Machine, Plan, machine_of
from kernels.decode.triton_decode.request import Request
from kernels.decode.triton_decode.split import LOG2_E
from kernels.decode.triton_decode.tuning import DecodeTile

_TILE = DecodeTile(64, 4, 1, per_sm=1, rows=64, least_rows=64, tickets=False)
_MAX_BATCH = 1024  # lengths that a program sums up in registers
_FEW_ROWS = 16  # of a tile, up to which the portable kernel is as fast, but not over many sequences of given lengths
_MANY_SEQUENCES = 16


def suits(request: Request, machine: Machine | None = None) -> bool:
    """Whether the kernel can serve a request, and is the faster one."""
    r = request
    aligned = not any(stride % 16 for stride in (*r.strides[:4], r.strides[5]))
    return (
        (machine or machine_of(r.device))[2] == 90
        and not INTERPRETED
        and r.dtype in (torch.bfloat16, torch.float16)
        and (r.head_dim, r.rope_dim) == (512, 64)
        and (r.num_heads * r.seqlen_q > _FEW_ROWS or (r.ragged and r.batch >= _MANY_SEQUENCES))
        and r.batch <= _MAX_BATCH
        and r.strides[6] == 1
        and aligned
    )


class HopperPlan(Plan):
    """Launches the Gluon kernel in the place of the portable one."""

    def __init__(self, request: Request, machine: Machine | None = None) -> None:
        super().__init__(request, _TILE, machine)

    def kernels(self, store_lse: bool) -> list[LaunchOf]:
        """The Gluon kernel, and the one that combines parts."""
        r, shares = self.request, self.shares
        q_b, q_h, q_m, kv_b, _, kv_n, *_ = r.strides
        scalars = (
            *(q_b, q_h, q_m, kv_b, kv_n, r.strides[11], r.batch, r.num_heads * r.seqlen_q, r.seqlen_q, r.capacity),
            *(shares.slots, shares.least, shares.row_tiles, shares.parts, r.softmax_scale * LOG2_E.value),
        )
        constants = {
            "BATCH": self._constants(store_lse)["BATCH"], "PAGE": r.page, "CAUSAL": r.causal and r.seqlen_q > 1,
            "STORE_LSE": store_lse, "CHAINED": True,
        }  # fmt: skip
        options = {"num_warps": 4, "launch_pdl": True}
        first = (mla_kernel, (shares.slots * shares.row_tiles, 1, 1), scalars, constants, options)
        return [first, self._combine(store_lse)]

    def _of_split(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return q, latents, out, lse, parts, lengths and table; q stands for those that there are not."""
        q = arguments[0]
        return tuple([q if arguments[i] is None else arguments[i] for i in (0, 1, 3, 4, 5, 7, 8)])
