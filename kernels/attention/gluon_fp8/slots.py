"""Slots of shared memory: their barriers, and the loads of the queries, of which each consumer has a slot."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernels.attention.gluon_hopper.shim import tma_load


@gluon.jit
def full_and_empty(SLOTS: gl.constexpr, READERS: gl.constexpr):
    """For each slot a barrier that the copy engine completes, and one that those complete who have read it."""
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bar)
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bar)
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=READERS)
    return full, empty


@gluon.jit
def load_queries(turn, batch, head, row, q_desc, q_s, q_full, q_empty, ROWS: gl.constexpr, CONSUMERS: gl.constexpr):
    """Load a tile, of whose rows each consumer has `ROWS`, when the one before has been read."""
    for c in gl.static_range(CONSUMERS):
        q_bar = q_full.index(c)
        mbarrier.wait(q_empty.index(c), (turn & 1) ^ 1)
        mbarrier.expect(q_bar, q_desc.block_type.nbytes)
        tma_load(q_desc, [batch, head, row + c * ROWS, 0], q_bar, q_s.index(c))
