"""The launches of a backward by two kernels, for head_dim 256 and for the same bits on every run."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.attention.gluon_hopper import tuning
from kernels.attention.gluon_hopper.arrivals import zero_kernel
from kernels.attention.gluon_hopper.backward_queries import wide_queries_kernel
from kernels.attention.gluon_hopper.backward_wide import wide_keys_kernel
from kernels.attention.gluon_hopper.gradients import Given, Shape, Tensors, Tiled
from kernels.attention.gluon_hopper.launch import Descriptor, Launch
from kernels.attention.gluon_hopper.steps import Step

_AT_ONCE = 1024  # counters that a program sets to zero


class WideBackward(Tiled):
    """dQ with delta, then dK and dV."""

    def __init__(self, plan: Shape, like: Given) -> None:
        for_keys, for_queries = tuning.BACKWARD_APART[plan.size]
        super().__init__(plan, for_keys, like)
        self._counters = plan.batch * plan.num_kv_heads
        rest = (self.n_rows, self._counters, _AT_ONCE, True)
        self._zero = Launch(zero_kernel, (-(-self._counters // _AT_ONCE), 1, 1), plan.device, [None], rest)
        self._query_tiles = -(-plan.seqlen_q // (2 * for_queries.block_m))
        self._key_tiles = -(-plan.seqlen_k // for_keys.block_n)
        self._queries = self._launch_queries(for_queries, like)
        self._keys = self._launch_keys()

    def _launch_queries(self, tiles: tuning.BackwardTiles, like: Given) -> Launch:
        plan = self.plan
        keys, values = (Descriptor(x, [1, 1, tiles.block_n, plan.size]) for x in (like.k, like.v))
        makers = (self.q, keys, values, self.dout, self.dq, None, None, None, None)
        rest = (
            *(*(stride // 8 for stride in like.out.stride()[:3]), self.n_rows, plan.num_kv_heads, *self.sizes),
            *(plan.window_size, *self.scales, *self.constants_of(tiles), plan.head_dim),
        )
        grid = self._grid(self._query_tiles, plan.num_heads)
        return Launch(wide_queries_kernel, grid, plan.device, makers, rest, early=True)

    def _launch_keys(self) -> Launch:
        plan = self.plan
        makers = (self.q, self.k, self.v, self.dout, self.dk, self.dv, self.row, self.row, None)
        rest = (
            *(self.n_rows, plan.group_size * self._query_tiles, plan.num_kv_heads, *self.sizes, self.n_m),
            *(plan.window_size, *self.scales, *self.constants),
        )
        grid = self._grid(self._key_tiles, plan.num_kv_heads)
        return Launch(wide_keys_kernel, grid, plan.device, makers, rest, early=True)

    def _grid(self, tiles: int, heads: int) -> tuple[int, int, int]:
        """As longest_first has it."""
        if not self.plan.causal or self.plan.window_size:
            return tiles, heads, self.plan.batch
        together = tuning.heads_in_turns(self._key_tiles, heads * self.plan.batch)
        return together, tiles, heads * self.plan.batch // together

    def steps(self, given: Given, gradients: Tensors) -> Iterator[Step]:
        (q, k, v, out, lse, dout), (dq, dk, dv) = given, gradients
        padded, delta = self.row_of(q), self.row_of(q, more=self._counters)
        yield self._zero, (delta,)
        yield self._queries, (q, k, v, dout, dq, out, lse, padded, delta)
        yield self._keys, (q, k, v, dout, dk, dv, padded, delta, delta)
