"""The launches of a backward at head_dim 64."""

from __future__ import annotations

import torch

from kernels.attention.gluon_hopper.backward_assisted import assisted_kernel
from kernels.attention.gluon_hopper.gradients import FRAGMENT, NarrowBackward, Shape
from kernels.attention.gluon_hopper.launch import Descriptor


class AssistedBackward(NarrowBackward):
    """delta, all gradients by the kernel with an assistant, and dQ from float32 fragments to its own dtype."""

    def __init__(self, plan: Shape, q: torch.Tensor, *others: torch.Tensor) -> None:
        super().__init__(plan, q, *others)
        fragment = Descriptor(q.new_empty(self._fragments_shape, dtype=torch.float32), [FRAGMENT // 256, 256])
        makers = (self.q, self.k, self.v, self.dout, fragment, self.dk, self.dv, self.row, self.row)
        rest = (*self.sizes, self.n_m, plan.window_size, *self.scales, *self.constants)
        self._main = self.over_keys(assisted_kernel, makers, rest)
