"""The forward at head_dim 128: a producer warpgroup and three consumers of 64 rows, P in shared memory.

A consumer issues the product of its last P with its values and that of its queries with the next keys, waits
for both, and computes the exponentials while the other two have the tensor cores. Its 160 registers hold scores and
output, not P. Keys and values of a block share a slot and its barriers; scales are as in forward.py.
"""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from ...unspecialized import UnspecializedTuples
from ..gluon_hopper.barriers import mbarriers
from ..gluon_hopper.compat import tma_load
from ..gluon_hopper.forward_overflow import rescale
from ..gluon_hopper.forward_softmax import by_lane, of_lanes
from ..gluon_hopper.forward_tiles import num_static_tiles
from . import tuning
from .memory import Fp8Scales, Fp8Tables, TileScales, load_queries, store_tile
from .probabilities import begin_scores, begin_values, put
from .softmax import first_softmax_per_lane, softmax_per_lane
from .tiles import hide_keys, tile_of_three

SCALE_ROWS = gl.constexpr(tuning.SCALE_ROWS)
REGISTERS = gl.constexpr(160)  # per consumer thread


# Shared memory of a program: tiles (q: one for each consumer, v: transposed), and an mbarrier for each slot, full and
# empty; keys and values of a block share one.
ThreeConsumerBuffers = namedtuple("ThreeConsumerBuffers", "q k v out p q_full q_empty full empty")


@UnspecializedTuples
@gluon.jit(do_not_specialize=["shape", "n_long"])
def forward_three_kernel(q_desc, k_desc, v_desc, out_desc, q_scales, k_scales, v_scales, shape, n_long, scale,
                         CONFIG: gl.constexpr):  # fmt: skip
    """Compute attention of all query tiles.

    `shape` is an Fp8Shape, `scale` softmax_scale x log2(e), CONFIG a tuning.Fp8Config. `n_long` tiles of a head
    have 192 rows.
    """
    slots: gl.constexpr = CONFIG.kv_slots
    q_s = gl.allocate_shared_memory(q_desc.dtype, [3, 1, 1, CONFIG.rows, CONFIG.head_dim], q_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, [slots, 1, 1, CONFIG.block_n, CONFIG.head_dim], k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, [slots, 1, 1, CONFIG.head_dim, CONFIG.block_n], v_desc.layout)
    out_s = gl.allocate_shared_memory(out_desc.dtype, [3, 1, 1, CONFIG.rows, CONFIG.head_dim], out_desc.layout)
    p_s = gl.allocate_shared_memory(v_desc.dtype, [3, CONFIG.rows, CONFIG.block_n], gl.NVMMASharedLayout(128, 8, 2))
    buffers = ThreeConsumerBuffers(q=q_s, k=k_s, v=v_s, out=out_s, p=p_s, q_full=mbarriers(3), q_empty=mbarriers(3),
                                   full=mbarriers(slots), empty=mbarriers(slots, 3))  # fmt: skip
    scales = Fp8Scales(q=q_scales, k=k_scales, v=v_scales)
    # Constants must be written in the call itself: a tuple bound to a name turns them into tensors.
    gl.warp_specialize([
        (_load_partition, (q_desc, k_desc, v_desc, buffers, shape, n_long, CONFIG)),
        (_consumer_partition, (0, out_desc, scales, buffers, shape, n_long, scale, CONFIG)),
        (_consumer_partition, (1, out_desc, scales, buffers, shape, n_long, scale, CONFIG)),
        (_consumer_partition, (2, out_desc, scales, buffers, shape, n_long, scale, CONFIG)),
    ], [4, 4, 4], [REGISTERS, REGISTERS, REGISTERS])  # fmt: skip


@gluon.jit
def _load_partition(q_desc, k_desc, v_desc, buffers, shape, n_long, CONFIG: gl.constexpr):
    """Load what the consumers of this program need by TMA, as slots become free."""
    count = 0
    blocks = gl.cdiv(shape.seqlen_k, CONFIG.block_n)
    for i_tile in range(num_static_tiles(shape.n_tiles)):
        head, row, end = tile_of_three(i_tile, shape, n_long)
        batch = head // shape.num_heads
        h = head - batch * shape.num_heads
        h_kv = h // shape.group_size
        load_queries(i_tile, batch, h, row, q_desc, buffers.q, buffers.q_full, buffers.q_empty, CONFIG, 3)
        for i in range(blocks):
            key = (blocks - 1 - i) * CONFIG.block_n
            slot = count % CONFIG.kv_slots
            bar = buffers.full.index(slot)
            mbarrier.wait(buffers.empty.index(slot), ((count // CONFIG.kv_slots) & 1) ^ 1)
            mbarrier.expect(bar, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
            tma_load(k_desc, [batch, h_kv, key, 0], bar, buffers.k.index(slot))
            tma_load(v_desc, [batch, h_kv, 0, key], bar, buffers.v.index(slot))
            count += 1


@gluon.jit
def _consumer_partition(consumer: gl.constexpr, out_desc, scales, buffers, shape, n_long, scale, CONFIG: gl.constexpr):
    """Compute 64 rows of every tile of this program; the blocks of rows beyond the end are released unread."""
    count = gl.to_tensor(0)
    for i_tile in range(num_static_tiles(shape.n_tiles)):
        head, row, end = tile_of_three(i_tile, shape, n_long)
        row += consumer * CONFIG.rows
        unread = gl.to_tensor(0)
        if row >= end:
            unread = gl.cdiv(shape.seqlen_k, CONFIG.block_n)
            mbarrier.wait(buffers.q_full.index(consumer), i_tile & 1)
            mbarrier.arrive(buffers.q_empty.index(consumer), count=1)
        for _i in range(unread):
            mbarrier.wait(buffers.full.index(count % CONFIG.kv_slots), (count // CONFIG.kv_slots) & 1)
            mbarrier.arrive(buffers.empty.index(count % CONFIG.kv_slots), count=1)
            count += 1
        if row < end:
            count = _tile(consumer, i_tile, count, head, row, out_desc, scales, buffers, shape, scale, CONFIG)
    tma.store_wait(0)


@gluon.jit
def _tile(consumer: gl.constexpr, i_tile, count, head, row, out_desc, scales, buffers, shape, scale,
          CONFIG: gl.constexpr):  # fmt: skip
    """Compute 64 rows from `row` on."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.block_n, 32])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.head_dim, 32])
    tile_scale = scale * gl.load(scales.q + head * gl.cdiv(shape.seqlen_q, SCALE_ROWS) + row // SCALE_ROWS)
    blocks_before = head // shape.group_size * gl.cdiv(shape.seqlen_k, SCALE_ROWS)
    tables = Fp8Tables(k=scales.k + blocks_before, v=scales.v + blocks_before)
    last_block = gl.cdiv(shape.seqlen_k, CONFIG.block_n) - 1
    first = last_block * CONFIG.block_n // SCALE_ROWS
    k_scale = gl.load(tables.k + first)
    v_scale = gl.load(tables.v + first)
    factors = TileScales(tables=tables, q=tile_scale)
    q = buffers.q.index(consumer).reshape([CONFIG.rows, CONFIG.head_dim])
    p = buffers.p.index(consumer)
    mbarrier.wait(buffers.q_full.index(consumer), i_tile & 1)
    mbarrier.wait(buffers.full.index(count % CONFIG.kv_slots), (count // CONFIG.kv_slots) & 1)
    s_token = begin_scores(q, buffers.k, count % CONFIG.kv_slots, CONFIG)
    out = gl.zeros([CONFIG.rows, CONFIG.head_dim], gl.float32, out_layout)
    s = warpgroup_mma_wait(0, deps=(s_token,))
    if CONFIG.masked:
        s = hide_keys(s, last_block * CONFIG.block_n, shape.seqlen_k)
    packed, m_i, l_i = first_softmax_per_lane(s, tile_scale * k_scale, CONFIG.masked)
    put(packed, p)
    for i in range(last_block):
        count, out, m_i, l_i, v_scale = _block(
            last_block - 1 - i, count, q, p, out, m_i, l_i, v_scale, factors, buffers, CONFIG
        )
    mbarrier.arrive(buffers.q_empty.index(consumer), count=1)
    slot = count % CONFIG.kv_slots
    out_token = begin_values(p, buffers.v, slot, out, CONFIG)
    out = warpgroup_mma_wait(0, deps=(out_token,))
    mbarrier.arrive(buffers.empty.index(slot), count=1)
    store_tile(
        out, l_i, v_scale, out_desc, buffers.out, consumer, head, row, shape.num_heads, gl.SliceLayout(1, s_layout)
    )
    return count + 1


@gluon.jit
def _block(j, count, q, p, out, m_i, l_i, v_scale, factors, buffers, CONFIG: gl.constexpr):
    """Multiply P of the block before with its values, and compute scores and softmax of block j.

    v_scale: of the values of the block before, in whose units `out` is.
    """
    last = count % CONFIG.kv_slots
    count += 1
    slot = count % CONFIG.kv_slots
    out_token = begin_values(p, buffers.v, last, out, CONFIG)
    mbarrier.wait(buffers.full.index(slot), (count // CONFIG.kv_slots) & 1)
    s_token = begin_scores(q, buffers.k, slot, CONFIG)
    out, s = warpgroup_mma_wait(0, deps=(out_token, s_token))
    mbarrier.arrive(buffers.empty.index(last), count=1)
    at = j * CONFIG.block_n // SCALE_ROWS
    k_scale = gl.load(factors.tables.k + at)
    next_v = gl.load(factors.tables.v + at)
    p_new, m_i, l_i, alpha = softmax_per_lane(s, m_i, l_i, factors.q * k_scale)
    put(p_new, p)
    lanes = by_lane(out)
    out = rescale(lanes, of_lanes(alpha * gl.exp2(v_scale - next_v), lanes)).reshape(out.shape)
    out = gl.convert_layout(
        out, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.head_dim, 32]), assert_trivial=True
    )
    return count, out, m_i, l_i, next_v
