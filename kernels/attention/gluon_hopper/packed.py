"""Packed sequences: the forward, whose tiles a kernel in front lists on the device.

TMA loads tiles from where their sequence begins; what they hold beyond its end is the next one's and is masked. Output
is stored from registers, as a tile that TMA stores would reach into the next sequence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.forward import forward_kernel
from kernels.attention.gluon_hopper.launch import Descriptor, Launch, empty_addressable, run_in_order
from kernels.attention.gluon_hopper.packed_tiles import constants_of, grid_of, list_tiles_kernel, most_tiles
from kernels.features import SequenceBounds
from kernels.plans import LOG2_E

Masks = tuple[bool, int, float]  # causal, window_size, softmax_scale


class TileList:
    """Launches the kernel that lists the tiles of `rows` queries, or keys, of packed sequences."""

    def __init__(self, shape: PackedShape, rows: int, step: int, *, of_keys: bool) -> None:
        total = shape.total_k if of_keys else shape.total_q
        self.most = most_tiles(total, shape.sequences, rows)
        rest = (
            *(shape.sequences, shape.total_q, shape.total_k, shape.window_size, self.most),
            *(rows, step, of_keys, shape.causal, shape.window_size > 0, tuning.PACKED_FIELDS),
            *constants_of(shape.sequences),
        )
        self.launch = Launch(list_tiles_kernel, grid_of(self.most), shape.device, (None,) * 5, rest)

    def room(self, like: torch.Tensor) -> torch.Tensor:
        """Return room for the list."""
        return like.new_empty((1 + self.most) * tuning.PACKED_FIELDS, dtype=torch.int32)


class PackedShape:
    """Sizes of packed q (1, num_heads, total_q, head_dim) and k, v with num_kv_heads and total_k."""

    def __init__(self, q: torch.Tensor, k: torch.Tensor, sequences: int, masks: Masks) -> None:
        self.device, self.sequences = q.device, sequences
        _, self.num_heads, self.total_q, self.size = q.shape
        self.total_k = k.shape[2]
        self.group_size = self.num_heads // k.shape[1]
        self.causal, self.window_size, self.softmax_scale = masks


class PackedForward:
    """Computes the output and the base-2 logsumexp of packed tensors with the shapes and strides of these."""

    def __init__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: SequenceBounds, masks: Masks, tiles: Any = None
    ) -> None:
        shape = PackedShape(q, k, len(bounds.starts_q), masks)
        tiles = tiles or tuning.packed_forward_tiles(
            shape.size, bounds.longest_q, bounds.longest_k, shape.causal, shape.window_size > 0
        )
        tile_rows = tuning.ROWS * tiles.consumers
        self._tiles = TileList(shape, tile_rows, tiles.block_n, of_keys=False)
        multiprocessors = torch.cuda.get_device_properties(shape.device).multi_processor_count
        programs = min(self._tiles.most * shape.num_heads, multiprocessors)
        in_l2 = tuning.heads_in_l2(
            shape.total_k, shape.size, shape.group_size, shape.num_heads, self._tiles.most, programs
        )
        rows, keys = ([1, 1, n, shape.size] for n in (tuning.ROWS, tiles.block_n))
        makers = (*map(Descriptor, (q, k, v), (rows, keys, keys)), *(None,) * 6)
        rest = (
            *(0, 0, 0, shape.num_heads, shape.num_heads, shape.group_size, in_l2),
            *(shape.total_q, shape.total_k, shape.window_size, shape.softmax_scale * LOG2_E),
            *(stride // 8 for stride in empty_addressable(q).stride()[:3]),
        )
        config = tuning.ForwardConfig(
            **vars(tiles),
            head_dim=shape.size,
            head_dim_v=shape.size,
            causal=shape.causal,
            has_window=shape.window_size > 0,
            masked=True,
            packed=True,
        )
        self._launch = Launch(forward_kernel, (programs, 1, 1), shape.device, makers, (*rest, config))

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: SequenceBounds
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out (1, num_heads, total_q, head_dim) and lse (1, num_heads, total_q)."""
        out = empty_addressable(q)
        lse = q.new_empty(q.shape[:3], dtype=torch.float32)
        listed = self._tiles.room(q)
        listing = (self._tiles.launch, (listed, *bounds[:4]))
        run_in_order([listing, (self._launch, (q, k, v, out, lse, out, lse, lse, listed))])
        return out, lse
