"""The plan of a call that uses the Hopper kernel of latent attention."""

from __future__ import annotations

from typing import Any

import torch

from ...attention.gluon_hopper.launch import Descriptor, Launch
from ...constants import Constants
from ..triton_decode.launch import INTERPRETED, LaunchOf, prepared, workspace
from ..triton_decode.plan import Machine, Plan, machine_on
from ..triton_decode.request import Request
from ..triton_decode.split import LOG2_E
from ..triton_decode.tuning import DecodeTile
from .kernel import BLOCK_N, PIECE, ROPE, MlaConfig, MlaSizes, MlaStrides, PartTiles, mla_kernel

_TILE = DecodeTile(64, 4, 1, per_sm=1, rows=64, least_rows=64, tickets=False, form="gluon")
_MAX_BATCH = 1024  # lengths that a program sums up in registers
_FEW_ROWS = 16  # rows up to which the portable kernel is as fast, except over many sequences of given lengths
_MANY_SEQUENCES = 16
_WHOLE_BLOCKS = 32  # sequences from which TMA loads a block at once (DESIGN.md, "Latent attention")


def suits(request: Request, machine: Machine | None = None) -> bool:
    """Return whether the kernel can compute a request and is the fastest one."""
    r = request
    aligned = not any(stride % 16 for stride in (*r.strides[:4], r.strides[5]))
    return (
        (machine or machine_on(r.device))[2] == 90
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
        sequence, key = request.strides[3], request.strides[5]
        # Whole blocks of a page or sequence.
        self._by_tma = request.page % _TILE.block_n == 0 and min(sequence, key) > 0
        self._described: dict[bool, tuple[Launch, Any]] = {}

    def kernels(self, store_lse: bool) -> list[LaunchOf]:
        """Return the launches of the Gluon kernel and of the one that combines parts."""
        r, shares = self.request, self.shares
        q_b, q_h, q_m, kv_b, _, kv_n, *_ = r.strides
        scalars = (
            MlaStrides(q_b, q_h, q_m, kv_b, kv_n),
            MlaSizes(
                *(r.strides[11], r.batch, r.num_heads * r.seqlen_q, r.seqlen_q, r.capacity),
                *(shares.slots, shares.least),
            ),
            PartTiles(shares.row_tiles, shares.parts),
            r.softmax_scale * LOG2_E.value,
        )
        config = MlaConfig(
            batch=self._constants(store_lse)["batch"],
            page=r.page,
            causal=r.causal and r.seqlen_q > 1,
            store_lse=store_lse,
            tma=self._by_tma,
            whole=self._by_tma and r.batch >= _WHOLE_BLOCKS,
        )
        constants = {"CONFIG": Constants(config)}
        options = {"num_warps": 4, "launch_pdl": True}
        first = (mla_kernel, (shares.slots * shares.row_tiles, 1, 1), scalars, constants, options)
        return [first, self._combine(store_lse)]

    def _launch(self, tensors: tuple[Any, ...], others: tuple[Any, ...]) -> None:
        if not self._by_tma:
            super()._launch(tensors, others)
            return
        q, k, _, out, lse = tensors
        stream = torch._C._cuda_getCurrentRawStream(q.device.index)
        parts = workspace(self._tickets, self.shares.room, q.device, stream).parts
        rest = (out, lse, parts, *others[:2])
        launches = self._described.get(lse is not None)
        if launches is None:
            launches = self._described[lse is not None] = self._describe(q, k, *rest)
        first, combine = launches
        first(q, k, k, k, *[q if x is None else x for x in rest])  # with descriptors: out, lse, parts, lengths, table
        combine.at(stream, tuple([None if x is None else x.data_ptr() for x in rest[:4]]))

    def _describe(self, q: torch.Tensor, kv: torch.Tensor, *tensors: torch.Tensor | None) -> tuple[Launch, Any]:
        """Return the launches of tensors like these, the first with TMA descriptors of the latents."""
        (kernel, grid, scalars, constants, _), second = self.kernels(tensors[1] is not None)
        pages = kv.unsqueeze(1)
        described = [Descriptor(pages, [1, 1, BLOCK_N.value, width.value]) for width in (PIECE, ROPE)]
        rest = (*scalars, *(constants[name] for name in kernel.arg_names if name in constants))
        makers = (None, *described, *[None] * 6)
        first = Launch(kernel, grid, q.device, makers, rest, pdl=True)
        return first, prepared(second, tensors[:4])

    def _of_split(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the first kernel's arguments where it has no descriptors; q replaces missing tensors."""
        q = arguments[0]
        return tuple([q if arguments[i] is None else arguments[i] for i in (0, 1, 1, 1, 3, 4, 5, 7, 8)])
