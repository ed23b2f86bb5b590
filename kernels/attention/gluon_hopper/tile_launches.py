"""The launch of a backward kernel over the tiles of keys: in which order, and which tiles are cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.launch import Descriptor, Launch
from kernels.attention.gluon_hopper.pieces import Pieces
from kernels.attention.gluon_hopper.steps import Step

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
        launch = lambda grid, cut: Launch(kernel, grid, plan.device, makers, (*arguments, cut), early=True)  # noqa: E731
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
