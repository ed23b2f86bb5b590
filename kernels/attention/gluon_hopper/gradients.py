"""The launches of a backward by one kernel that adds up dQ in float32, and what all kinds of backward have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
import triton

from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.backward import backward_kernel
from kernels.attention.gluon_hopper.conversion import finish_kernel, prepare_kernel
from kernels.attention.gluon_hopper.launch import Descriptor, Launch
from kernels.attention.gluon_hopper.steps import Step, run_in_order
from kernels.attention.gluon_hopper.tile_launches import TileLaunches

LOG2_E = math.log2(math.e)
FRAGMENT = 64 * 64  # numbers of dQ that a consumer adds at once
SLOTS = 2  # blocks of queries under way
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Given(NamedTuple):
    """What a backward is given, (batch, heads, seqlen, head_dim) each, but lse: (batch, num_heads, seqlen_q)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor  # to the base 2
    dout: torch.Tensor


class Shape(Protocol):
    """What a plan knows."""

    device: torch.device
    batch: int
    num_heads: int
    num_kv_heads: int
    n_heads: int
    group_size: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    size: int
    causal: bool
    window_size: int
    softmax_scale: float

    def masked(self, block_n: int) -> bool: ...
    def new(self, like: torch.Tensor) -> torch.Tensor: ...


class Tiled:
    """What all have: descriptors of the tiles of inputs and gradients."""

    def __init__(self, plan: Shape, tiles: tuning.BackwardTiles, like: Given) -> None:
        self.plan, self.tiles = plan, tiles
        q, k, v = like[:3]
        self.n_m = -(-plan.seqlen_q // self.tiles.block_m)
        self.padded_q = self.n_m * self.tiles.block_m
        block_q, block_kv = [1, 1, self.tiles.block_m, plan.size], [1, 1, self.tiles.block_n, plan.size]
        self.q, self.dq, self.dout = (Descriptor(x, block_q) for x in (q, plan.new(q), like.dout))
        self.k, self.v = Descriptor(k, block_kv), Descriptor(v, block_kv)
        self.dk, self.dv = Descriptor(plan.new(k), block_kv), Descriptor(plan.new(v), block_kv)
        self.n_rows = plan.n_heads * self.padded_q
        self.row = Descriptor(self.row_of(q), [self.tiles.block_m])
        self.sizes = (plan.num_heads, plan.group_size, plan.seqlen_q, plan.seqlen_k, self.padded_q)
        self.scales = (plan.softmax_scale * LOG2_E, plan.softmax_scale)
        self.constants = self.constants_of(tiles)

    def __call__(self, given: Given) -> Tensors:
        """dq, dk and dv; the caller has made the tensors' device the current one."""
        dq, dk, dv = map(self.plan.new, given[:3])
        run_in_order(list(self.steps(given, (dq, dk, dv))))
        return dq, dk, dv

    def steps(self, given: Given, gradients: Tensors) -> Iterator[Step]:
        """The launches that fill the gradients."""
        raise NotImplementedError

    def constants_of(self, tiles: tuning.BackwardTiles) -> tuple[Any, ...]:
        """What a kernel is compiled for."""
        plan = self.plan
        masks = (plan.causal, plan.window_size > 0, plan.masked(tiles.block_n))
        return (tiles.block_m, tiles.block_n, plan.size, SLOTS, *masks)

    def row_of(self, like: torch.Tensor, more: int = 0) -> torch.Tensor:
        """Room for lse or delta, padded to whole tiles, and for more numbers behind."""
        return like.new_empty(self.n_rows + more, dtype=torch.float32)

    def over_keys(
        self, kernel: Any, makers: tuple[Descriptor | None, ...], rest: tuple[Any, ...], *, early: bool = False
    ) -> Launch:
        """A launch with a program for each tile of keys."""
        grid = (-(-self.plan.seqlen_k // self.tiles.block_n), self.plan.num_kv_heads, self.plan.batch)
        return Launch(kernel, grid, self.plan.device, makers, rest, early=early)


class Backward(Tiled):
    """Those that add up dQ: zeros for its sums, and delta, by a kernel in front."""

    def __init__(self, plan: Shape, tiles: tuning.BackwardTiles, like: Given) -> None:
        super().__init__(plan, tiles, like)
        self.prepare = self.preparing(like, plan.n_heads)

    def preparing(self, like: Given, heads: int) -> Launch:
        """delta of the first so many heads; zeros, and lse of all heads."""
        plan, rows, zeros = self.plan, tuning.PREPARED_ROWS, self.zeros()
        programs = heads * (self.padded_q // rows)
        rest = (
            *(*like.out.stride()[:3], *like.dout.stride()[:3], plan.num_heads, plan.seqlen_q, self.padded_q),
            *(self.n_rows, zeros),
            *(rows, plan.head_dim, plan.size, triton.next_power_of_2(-(-zeros // programs)), True),
        )
        return Launch(prepare_kernel, (programs, 1, 1), plan.device, [None] * 6, rest)

    def zeros(self) -> int:
        """How many numbers of dQ's fragments must be zero when a kernel begins to add to them."""
        return self.plan.n_heads * self.n_m * self.tiles.fragments * FRAGMENT


class NarrowBackward(Backward):
    """delta, all gradients, and dQ from float32 fragments to its own dtype."""

    def __init__(self, plan: Shape, like: Given) -> None:
        super().__init__(plan, tuning.BACKWARD[plan.size], like)
        q = like.q
        self._fragments_shape = (self.zeros() // 256, 256)
        fragment = Descriptor(q.new_empty(self._fragments_shape, dtype=torch.float32), [FRAGMENT // 256, 256])
        makers = (self.q, self.k, self.v, self.dout, fragment, self.dk, self.dv, self.row, self.row)
        self._main = TileLaunches(self, backward_kernel, makers)
        rest = (
            *(*plan.new(q).stride()[:3], plan.num_heads, plan.seqlen_q, self.n_m, plan.softmax_scale),
            *(0, plan.n_heads),
            *(self.tiles.block_m, self.tiles.fragments, plan.head_dim, True),
        )
        grid = (plan.n_heads * self.n_m * self.tiles.fragments, 1, 1)
        self._finish = Launch(finish_kernel, grid, plan.device, (None, None), rest, early=True)

    def steps(self, given: Given, gradients: Tensors) -> Iterator[Step]:
        (q, k, v, out, lse, dout), (dq, dk, dv) = given, gradients
        fragments = q.new_empty(self._fragments_shape, dtype=torch.float32)
        padded, delta = self.row_of(q), self.row_of(q)
        yield self.prepare, (out, dout, lse, padded, delta, fragments)
        yield from self._main.steps(q, k, v, dout, fragments, dk, dv, padded, delta)
        yield self._finish, (fragments, dq)
