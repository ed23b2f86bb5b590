"""Packed sequences: forward and backward, whose tiles a kernel in front lists on the device.

TMA loads tiles from where their sequence begins; what they hold beyond its end is the next one's and is masked. Results
are stored from registers, as a tile that TMA stores would reach into the next sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...features import SequenceBounds
from ...plans import LOG2_E, Masks, PlanCache, Prepare, Tensors, device_guard, plan_key
from . import configs, tuning
from .backward import backward_kernel
from .backward_common import BackwardShape, Scales, TileOrder
from .backward_launch import FRAGMENT, BackwardInputs, fragments_of
from .forward import forward_kernel
from .forward_tiles import ForwardShape
from .launch import Descriptor, Launch, addressable, is_addressable, run_in_order
from .packed_backward import packed_finish_kernel, packed_prepare_kernel
from .packed_tiles import TileListConfig, list_length, list_shape, list_tiles_kernel, most_tiles

LEAST_PAGE = 64  # keys of a page that is not copied: boxes of 16 rows take 1.4 to 2 times as long as contiguous keys
_LAUNCHES: PlanCache[PackedForward | PackedBackward] = PlanCache()


class Pages(NamedTuple):
    """Says that each sequence has room for the keys of all its pages; of the bounds of keys only lengths matter."""

    room: int  # keys
    few: int  # sequences with up to so many queries are left out
    long: int  # about how many have more
    keys: int  # and about how many keys these have
    in_place: bool  # k and v are pages; else the kernel before copies them into rows


class PackedCall:
    """Forward and backward of one call, a `kernels.plans.AttentionPlan`: tensors are (1, heads, total, head_dim).

    `configs.takes_packed` says which head_dims there are; the forward has 256 too. The scale must be positive and there
    must be a sequence. With `pages` there is no backward. Pages in place are (pages, heads, page_size, head_dim) that
    `takes_pages`; their `table` is int32 (sequences, pages of a sequence).
    """

    prepare: Prepare | None = None

    def __init__(
        self, bounds: SequenceBounds, *masks: *Masks, pages: Pages | None = None, table: torch.Tensor | None = None
    ) -> None:
        starts_q, ends_q, starts_k, ends_k = (x.contiguous() for x in bounds[:4])
        self._bounds = SequenceBounds(starts_q, ends_q, starts_k, ends_k, *bounds[4:])
        self._masks, self._table = masks, None if table is None else table.contiguous()
        alignments = tuple((x.dtype, x.data_ptr() & 15) for x in self._bounds[:4])
        self._key = (len(bounds.starts_q), *map(tuning.packed_length, bounds[4:6]), *alignments, *self._masks, pages)

    def output(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return out like q; 0 in rows that are nobody's."""
        return self.forward(q, k, v)[0]

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out and the base-2 logsumexp (1, num_heads, total_q), +inf for a row that sees no key."""
        q, k, v, launches = self._launches(PackedForward, q, k, v)
        with device_guard(q.device):
            return launches(q, k, v, self._bounds, self._table)

    def backward(self, *saved: torch.Tensor) -> Tensors:
        """Return dq, dk and dv; saved: a BackwardInputs."""
        *tensors, launches = self._launches(PackedBackward, *saved[:3])
        with device_guard(saved[0].device):
            return launches(BackwardInputs(*tensors, *saved[3:]), self._bounds)

    def _launches(self, kind: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[Any, ...]:
        """Return q, k and v, copied if TMA cannot address them, and the launches for such tensors."""
        known = _LAUNCHES.get(plan_key(q, k, v, (kind, self._key)))
        if known is not None:
            return q, k, v, known
        q, k, v = map(addressable, (q, k, v))
        key = plan_key(q, k, v, (kind, self._key))
        known = _LAUNCHES.get(key)
        if known is None:
            known = _LAUNCHES.remember(key, kind(q, k, v, self._bounds, self._masks, *filter(None, self._key[-1:])))
        return q, k, v, known


def takes_pages(k: torch.Tensor, v: torch.Tensor) -> bool:
    """Return whether the forward loads pages (pages, heads, page_size, head_dim) where they lie."""
    size = k.shape[2]
    return LEAST_PAGE <= size == 1 << size.bit_length() - 1 and is_addressable(k) and is_addressable(v)


class TileList:
    """Launches the kernel that lists the tiles of `rows` queries, or keys, of packed sequences.

    `blocks`: up to how many blocks of `step` queries a table of them has; 0: there is none.
    """

    def __init__(self, shape: PackedShape, rows: int, step: int, blocks: int = 0, pages: Pages | None = None) -> None:
        of_keys, chained = blocks > 0, pages is not None and not pages.in_place
        self.most = most_tiles(shape.total_k if of_keys else shape.total_q, shape.sequences, rows)
        self.table = list_length(self.most)
        self._length = list_length(self.most, blocks)
        grid, constants = list_shape(shape.sequences)
        sizes = (shape.sequences, shape.total_q, shape.total_k, *(pages[:2] if pages else (0, -1)), self.most)
        flags = (of_keys, shape.causal and not shape.window_size, *constants, True, chained)
        rows_in_l2 = tuning.number("l2_bytes") // (8 * shape.size)  # of a head's queries, dout and sums of dQ
        rest = (*sizes, shape.multiprocessors, rows_in_l2, TileListConfig(rows, step, *flags))
        self.launch = Launch(list_tiles_kernel, grid, shape.device, (None,) * 5, rest, pdl=chained)

    def room(self, like: torch.Tensor) -> torch.Tensor:
        """Return room for the list, and for the table behind it, which begins at `table`."""
        return like.new_empty(self._length, dtype=torch.int32)


class PackedShape:
    """Sizes of packed q (1, num_heads, total_q, head_dim) and k, v with num_kv_heads and total_k."""

    def __init__(self, q: torch.Tensor, k: torch.Tensor, sequences: int, masks: Masks) -> None:
        self.device, self.sequences = q.device, sequences
        _, self.num_heads, self.total_q, self.head_dim = q.shape
        self.size = self.size_v = configs.padded_head_dim(self.head_dim)
        self.pieces = self.pieces_v = 1
        self.total_k = k.shape[2]
        self.group_size = self.num_heads // k.shape[1]
        self.causal, self.softmax_scale = masks[0], masks[2]
        self.window, self.window_size = configs.window_of(*masks[:2], self.total_q + self.total_k)
        self.multiprocessors = torch.cuda.get_device_properties(self.device).multi_processor_count


class PackedForward:
    """Computes the output and the base-2 logsumexp of packed tensors with the shapes and strides of these."""

    def __init__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: SequenceBounds, masks: Masks, pages: Any = None
    ) -> None:
        shape = PackedShape(q, k, len(bounds.starts_q), masks)
        long, total_k = pages[2:4] if pages else (shape.sequences, shape.total_k)
        length_q, length_k = map(tuning.packed_length, bounds[4:6])
        tiles = tuning.packed_forward_tiles(shape.size, length_q, length_k, shape.causal, shape.window_size > 0)
        tile_rows = configs.ROWS * tiles.consumers
        self._tiles = TileList(shape, tile_rows, tiles.block_n, pages=pages)
        programs = min(self._tiles.most * shape.num_heads, shape.multiprocessors)
        tiles_of_head = most_tiles(shape.total_q, long, tile_rows)
        in_l2 = tuning.heads_in_l2(total_k, shape.size, shape.group_size, shape.num_heads, tiles_of_head, programs)
        rows, keys = ([1, 1, n, shape.size] for n in (configs.ROWS, tiles.block_n))
        page_size = k.shape[2] if pages and pages.in_place else 0
        if 0 < page_size < tiles.block_n:
            keys = [1, 1, page_size, configs.BOX_COLUMNS]
        makers = (*map(Descriptor, (q, k, v), (rows, keys, keys)), *(None,) * 9)
        rest = (
            ForwardShape(
                *(0, 0, 0, shape.num_heads, shape.num_heads, shape.group_size, in_l2),
                *(shape.total_q, shape.total_k, shape.window),
            ),
            shape.softmax_scale * LOG2_E,
            tuple(stride // 8 for stride in _packed_like(q).stride()[:3]),
        )
        unpadded = 0 if shape.head_dim == shape.size else shape.head_dim
        own = {"unpadded_head_dim": unpadded, "page_size": page_size}
        config = configs.forward_config(shape, tiles, masked=True, packed=True, **own)
        self._launch = Launch(forward_kernel, (programs, 1, 1), shape.device, makers, (*rest, config), pdl=True)

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: SequenceBounds, table: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out (1, num_heads, total_q, head_dim) and lse (1, num_heads, total_q)."""
        out = _packed_like(q)
        lse = q.new_empty(q.shape[:3], dtype=torch.float32)
        listed = self._tiles.room(q)
        listing = (self._tiles.launch, (listed, *bounds[:4]))
        unused = out, lse, lse, lse, lse, lse if table is None else table
        run_in_order([listing, (self._launch, (q, k, v, out, lse, *unused, listed))])
        return out, lse


class PackedBackward:
    """Computes the gradients of packed tensors with the shapes and strides of these.

    The last bits of dq depend on the order of additions.
    """

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: SequenceBounds, masks: Masks) -> None:
        shape = self._shape = PackedShape(q, k, len(bounds.starts_q), masks)
        tiles = self._block = tuning.backward_tiles("sums", shape.size)
        self._n_m = most_tiles(shape.total_q, shape.sequences, tiles.block_m)
        self._tiles = TileList(shape, tiles.block_n, tiles.block_m, self._n_m)
        self._prepare, self._finish = self._launches_of_queries(q)
        queries, keys = ([1, 1, n, shape.size] for n in (tiles.block_m, tiles.block_n))
        blocks = shape.num_heads * self._n_m
        self._sums, self._rows = blocks * tiles.fragments * FRAGMENT, blocks * tiles.block_m  # of dQ; of lse or delta
        fragment = fragments_of(shape, self._sums)
        row = Descriptor(torch.empty(self._rows, dtype=torch.float32, device="meta"), [tiles.block_m])
        inputs = map(Descriptor, (q, k, v, _packed_like(q)), (queries, keys, keys, queries))
        makers = (*inputs, fragment, None, None, row, row, None, None)
        rest = (
            BackwardShape(
                *(shape.num_heads, shape.group_size, shape.total_q, shape.total_k),
                *(self._n_m * tiles.block_m, self._n_m, shape.window),
            ),
            TileOrder(0, 1),
            Scales(shape.softmax_scale * LOG2_E, shape.softmax_scale),
        )
        config = configs.backward_config(shape, tiles, masked=True, packed=True, unpadded_head_dim=shape.head_dim)
        grid = (self._tiles.most, k.shape[1], 1)
        self._main = Launch(backward_kernel, grid, shape.device, makers, (*rest, config), pdl=True)

    def _launches_of_queries(self, q: torch.Tensor) -> tuple[Launch, Launch]:
        """Return the launches in front of and behind the kernel that adds up dQ."""
        shape, tiles, table = self._shape, self._block, self._tiles.table
        strides = _packed_like(q).stride()[1:3]
        blocks = self._n_m * shape.num_heads
        rest: tuple[Any, ...] = ((strides, strides), table, shape.total_q, self._n_m)
        rest += (tiles.block_m, shape.head_dim, shape.size, True)
        prepare = Launch(packed_prepare_kernel, (blocks, 1, 1), shape.device, (None,) * 7, rest, pdl=True)
        rest = (*strides, table, self._n_m, shape.softmax_scale, tiles.block_m, tiles.fragments, shape.head_dim, True)
        grid = (blocks * tiles.fragments, 1, 1)
        return prepare, Launch(packed_finish_kernel, grid, shape.device, (None,) * 3, rest, pdl=True)

    def __call__(self, given: BackwardInputs, bounds: SequenceBounds) -> Tensors:
        """Return dq, dk and dv."""
        q, k, v, out, lse, dout = given[:6]
        out, dout = map(_as_packed, (out, dout))
        dq, dk, dv = map(_packed_like, (q, k, v))
        padded, delta, fragments = (q.new_empty(n, dtype=torch.float32) for n in (self._rows, self._rows, self._sums))
        listed = self._tiles.room(q)
        run_in_order(
            [
                (self._tiles.launch, (listed, *bounds[:4])),
                (self._prepare, (out, dout, lse, padded, delta, fragments, listed)),
                (self._main, (q, k, v, dout, fragments, dk, dv, padded, delta, listed, delta)),
                (self._finish, (fragments, dq, listed)),
            ]
        )
        return dq, dk, dv


def _packed_like(x: torch.Tensor) -> torch.Tensor:
    """Return room for (1, heads, total, head_dim) that lies in memory as (total, heads, head_dim)."""
    _, heads, total, head_dim = x.shape
    return x.new_empty(total, heads, head_dim).transpose(0, 1)[None]


def _as_packed(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if it lies in memory as (total, heads, head_dim), else a copy that does."""
    lies = x.stride()[1:] == (x.shape[3], x.shape[1] * x.shape[3], 1) and x.data_ptr() % 16 == 0
    return x if lies else _packed_like(x).copy_(x)
