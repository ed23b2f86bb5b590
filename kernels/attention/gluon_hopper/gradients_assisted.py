"""The launches of a backward whose dQ has a warpgroup of its own."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.backward_assisted import assisted_kernel
from kernels.attention.gluon_hopper.conversion import finish_kernel
from kernels.attention.gluon_hopper.gradients import FRAGMENT, Backward, Given, Shape, Tensors
from kernels.attention.gluon_hopper.launch import Descriptor, Launch
from kernels.attention.gluon_hopper.steps import Step
from kernels.attention.gluon_hopper.tile_launches import TileLaunches


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
        self._finish = Launch(finish_kernel, grid, plan.device, (None, None), rest, early=True)

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
