"""The warp-specialised forward on 8-bit queries, keys and values: a producer warpgroup and consumers of 64 rows.

Up to head_dim 128 three consumers share a tile. One issues the product of its last P with its values and that of its
queries with the next keys, waits for both, and computes the exponentials while the other two have the tensor cores. Its
160 registers hold scores and output, and P is in shared memory. Keys and values of a block share a slot.

At 256 two consumers keep P in registers. While one computes the exponentials of a block, the tensor cores multiply P of
the block before with its values.

Values come transposed and with the keys of every 32 in the order of the registers that hold P (quantising.py). Each 128
rows have a scale that is a power of two: a consumer multiplies the scores by those of its queries and of the key block,
and keeps its output in units of the value block at hand, so that the next one multiplies it by a power of two.
"""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from ...unspecialized import UnspecializedTuples
from ..gluon_hopper.barriers import mbarriers
from ..gluon_hopper.compat import keep_before_wait, tma_load
from ..gluon_hopper.forward_overflow import rescale
from ..gluon_hopper.forward_softmax import by_lane, of_lanes
from ..gluon_hopper.forward_tiles import num_static_tiles
from . import tuning
from .probabilities import begin_scores, begin_values, put, unpack
from .softmax import first_softmax, first_softmax_per_lane, softmax, softmax_per_lane
from .tiles import Fp8Scales, Fp8Tables, TileScales, by_row, hide_keys, load_queries, store_tile, tile_of

SCALE_ROWS = gl.constexpr(tuning.SCALE_ROWS)

# Shared memory of a program: tiles (q, out and p: one for each consumer; v: transposed), and an mbarrier for each slot,
# full and empty. Of three consumers, those of the keys are also those of the values; p is None for two.
Fp8Buffers = namedtuple("Fp8Buffers", "q k v out p q_full q_empty k_full k_empty v_full v_empty")


@UnspecializedTuples
@gluon.jit(do_not_specialize=["shape", "n_long"])
def forward_kernel(q_desc, k_desc, v_desc, out_desc, q_scales, k_scales, v_scales, shape, n_long, scale,
                   CONFIG: gl.constexpr):  # fmt: skip
    """Compute attention of all query tiles.

    `shape` is an Fp8Shape, `scale` softmax_scale x log2(e), CONFIG a tuning.Fp8Config. Of three consumers, `n_long`
    tiles of a head have 192 rows.
    """
    slots: gl.constexpr = CONFIG.kv_slots
    consumers: gl.constexpr = CONFIG.consumers
    q_s = gl.allocate_shared_memory(q_desc.dtype, [consumers, 1, 1, CONFIG.rows, CONFIG.head_dim], q_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, [slots, 1, 1, CONFIG.block_n, CONFIG.head_dim], k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, [slots, 1, 1, CONFIG.head_dim, CONFIG.block_n], v_desc.layout)
    out_s = gl.allocate_shared_memory(out_desc.dtype, [consumers, 1, 1, CONFIG.rows, CONFIG.head_dim], out_desc.layout)
    scales = Fp8Scales(q=q_scales, k=k_scales, v=v_scales)
    # Constants must be written in the call itself: a tuple bound to a name turns them into tensors.
    if CONFIG.consumers == 2:
        buffers = Fp8Buffers(q=q_s, k=k_s, v=v_s, out=out_s, p=None, q_full=mbarriers(2), q_empty=mbarriers(2),
                             k_full=mbarriers(slots), k_empty=mbarriers(slots, 2), v_full=mbarriers(slots),
                             v_empty=mbarriers(slots, 2))  # fmt: skip
        gl.warp_specialize([
            (_load_partition, (q_desc, k_desc, v_desc, buffers, shape, n_long, CONFIG)),
            (_consumer_partition, (0, out_desc, scales, buffers, shape, n_long, scale, CONFIG)),
            (_consumer_partition, (1, out_desc, scales, buffers, shape, n_long, scale, CONFIG)),
        ], [4, 4], [240, 240])  # fmt: skip
    else:
        p_s = gl.allocate_shared_memory(v_desc.dtype, [3, CONFIG.rows, CONFIG.block_n], gl.NVMMASharedLayout(128, 8, 2))
        buffers = Fp8Buffers(q=q_s, k=k_s, v=v_s, out=out_s, p=p_s, q_full=mbarriers(3), q_empty=mbarriers(3),
                             k_full=mbarriers(slots), k_empty=mbarriers(slots, 3), v_full=None,
                             v_empty=None)  # fmt: skip
        gl.warp_specialize([
            (_load_partition, (q_desc, k_desc, v_desc, buffers, shape, n_long, CONFIG)),
            (_consumer_partition, (0, out_desc, scales, buffers, shape, n_long, scale, CONFIG)),
            (_consumer_partition, (1, out_desc, scales, buffers, shape, n_long, scale, CONFIG)),
            (_consumer_partition, (2, out_desc, scales, buffers, shape, n_long, scale, CONFIG)),
        ], [4, 4, 4], [160, 160, 160])  # fmt: skip


@gluon.jit
def _load_partition(q_desc, k_desc, v_desc, buffers, shape, n_long, CONFIG: gl.constexpr):
    """Load what the consumers of this program need by TMA, as slots become free."""
    count = 0
    blocks = gl.cdiv(shape.seqlen_k, CONFIG.block_n)
    for i_tile in range(num_static_tiles(shape.n_tiles)):
        head, row, end = tile_of(i_tile, shape, n_long, CONFIG)
        batch = head // shape.num_heads
        h = head - batch * shape.num_heads
        h_kv = h // shape.group_size
        load_queries(i_tile, batch, h, row, q_desc, buffers.q, buffers.q_full, buffers.q_empty, CONFIG)
        for i in range(blocks):
            key = (blocks - 1 - i) * CONFIG.block_n
            slot = count % CONFIG.kv_slots
            phase = ((count // CONFIG.kv_slots) & 1) ^ 1
            k_full = buffers.k_full.index(slot)
            v_full = k_full
            mbarrier.wait(buffers.k_empty.index(slot), phase)
            if CONFIG.consumers == 2:
                v_full = buffers.v_full.index(slot)
                mbarrier.expect(k_full, k_desc.block_type.nbytes)
            else:
                mbarrier.expect(k_full, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
            tma_load(k_desc, [batch, h_kv, key, 0], k_full, buffers.k.index(slot))
            if CONFIG.consumers == 2:
                mbarrier.wait(buffers.v_empty.index(slot), phase)
                mbarrier.expect(v_full, v_desc.block_type.nbytes)
            tma_load(v_desc, [batch, h_kv, 0, key], v_full, buffers.v.index(slot))
            count += 1


@gluon.jit
def _consumer_partition(consumer: gl.constexpr, out_desc, scales, buffers, shape, n_long, scale, CONFIG: gl.constexpr):
    """Compute 64 rows of every tile of this program; the blocks of rows beyond the end are released unread."""
    count = gl.to_tensor(0)
    blocks = gl.cdiv(shape.seqlen_k, CONFIG.block_n)
    for i_tile in range(num_static_tiles(shape.n_tiles)):
        head, row, end = tile_of(i_tile, shape, n_long, CONFIG)
        row += consumer * CONFIG.rows
        if CONFIG.consumers == 2:
            count = _tile(consumer, i_tile, count, head, row, blocks, out_desc, scales, buffers, shape, scale, CONFIG)
        else:
            unread = gl.to_tensor(0)
            if row >= end:
                unread = gl.cdiv(shape.seqlen_k, CONFIG.block_n)
                mbarrier.wait(buffers.q_full.index(consumer), i_tile & 1)
                mbarrier.arrive(buffers.q_empty.index(consumer), count=1)
            for _i in range(unread):
                mbarrier.wait(buffers.k_full.index(count % CONFIG.kv_slots), (count // CONFIG.kv_slots) & 1)
                mbarrier.arrive(buffers.k_empty.index(count % CONFIG.kv_slots), count=1)
                count += 1
            if row < end:
                count = _tile(
                    consumer, i_tile, count, head, row, blocks, out_desc, scales, buffers, shape, scale, CONFIG
                )
    tma.store_wait(0)


@gluon.jit
def _tile(consumer: gl.constexpr, i_tile, count, head, row, blocks, out_desc, scales, buffers, shape, scale,
          CONFIG: gl.constexpr):  # fmt: skip
    """Compute 64 rows from `row` on."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.block_n, 32])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.head_dim, 32])
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    q_blocks = gl.cdiv(shape.seqlen_q, SCALE_ROWS)
    k_blocks = gl.cdiv(shape.seqlen_k, SCALE_ROWS)
    q_block = row // SCALE_ROWS
    if CONFIG.consumers == 2:  # whose tiles may have rows beyond the last block of queries
        q_block = gl.minimum(q_block, q_blocks - 1)
    tile_scale = scale * gl.load(scales.q + head * q_blocks + q_block)
    blocks_before = head // shape.group_size * k_blocks
    tables = Fp8Tables(k=scales.k + blocks_before, v=scales.v + blocks_before)
    factors = TileScales(tables=tables, q=tile_scale)
    last_block = blocks - 1
    first = last_block * CONFIG.block_n // SCALE_ROWS
    k_scale = gl.load(tables.k + first)
    v_scale = gl.load(tables.v + first)
    if CONFIG.consumers == 2:  # whose blocks load the scales of the next one
        second = gl.maximum(blocks - 2, 0) * CONFIG.block_n // SCALE_ROWS
        next_k = gl.load(tables.k + second)
        next_v = gl.load(tables.v + second)
    q = buffers.q.index(consumer).reshape([CONFIG.rows, CONFIG.head_dim])
    mbarrier.wait(buffers.q_full.index(consumer), i_tile & 1)
    mbarrier.wait(buffers.k_full.index(count % CONFIG.kv_slots), (count // CONFIG.kv_slots) & 1)
    s_token = begin_scores(q, buffers.k, count % CONFIG.kv_slots, CONFIG)
    out = gl.zeros([CONFIG.rows, CONFIG.head_dim], gl.float32, out_layout)
    s = warpgroup_mma_wait(0, deps=(s_token,))
    if CONFIG.consumers == 2:
        mbarrier.arrive(buffers.k_empty.index(count % CONFIG.kv_slots), count=1)
    if CONFIG.masked:
        s = hide_keys(s, last_block * CONFIG.block_n, shape.seqlen_k)
    if CONFIG.consumers == 2:
        p, m_i, l_i = first_softmax(s, tile_scale * k_scale, CONFIG.masked)
        k_scale = next_k
        for i in range(last_block):
            count, p, out, m_i, l_i, k_scale, v_scale, next_v = _block_of_two(
                last_block - 1 - i, count, q, p, out, m_i, l_i, k_scale, v_scale, next_v, factors, buffers, CONFIG
            )
        mbarrier.arrive(buffers.q_empty.index(consumer), count=1)
        slot = count % CONFIG.kv_slots
        operand = unpack(p, gl.DotOperandLayout(0, out_layout, 4))
        mbarrier.wait(buffers.v_full.index(slot), (count // CONFIG.kv_slots) & 1)
        out_token = begin_values(operand, buffers.v, slot, out, CONFIG)
        out, p = warpgroup_mma_wait(0, deps=(out_token, p))
        mbarrier.arrive(buffers.v_empty.index(slot), count=1)
    else:
        p = buffers.p.index(consumer)
        packed, m_i, l_i = first_softmax_per_lane(s, tile_scale * k_scale, CONFIG.masked)
        put(packed, p)
        for i in range(last_block):
            count, out, m_i, l_i, v_scale = _block_of_three(
                last_block - 1 - i, count, q, p, out, m_i, l_i, v_scale, factors, buffers, CONFIG
            )
        mbarrier.arrive(buffers.q_empty.index(consumer), count=1)
        slot = count % CONFIG.kv_slots
        out_token = begin_values(p, buffers.v, slot, out, CONFIG)
        out = warpgroup_mma_wait(0, deps=(out_token,))
        mbarrier.arrive(buffers.k_empty.index(slot), count=1)
    store_tile(out, l_i, v_scale, out_desc, buffers.out, consumer, head, row, shape.num_heads, row_layout)
    return count + 1


@gluon.jit
def _block_of_two(j, count, q, p, out, m_i, l_i, k_scale, v_scale, next_v, factors, buffers, CONFIG: gl.constexpr):
    """Compute scores and softmax of block j, while P of the block before is multiplied with its values.

    v_scale: of the values of the block before, in whose units `out` is; k_scale, next_v: of block j.
    """
    out_layout: gl.constexpr = out.type.layout
    last = count % CONFIG.kv_slots
    last_phase = (count // CONFIG.kv_slots) & 1
    count += 1
    slot = count % CONFIG.kv_slots
    after = gl.maximum(j - 1, 0) * CONFIG.block_n // SCALE_ROWS
    after_k = gl.load(factors.tables.k + after)
    after_v = gl.load(factors.tables.v + after)
    operand = unpack(p, gl.DotOperandLayout(0, out_layout, 4))
    mbarrier.wait(buffers.k_full.index(slot), (count // CONFIG.kv_slots) & 1)
    s_token = begin_scores(q, buffers.k, slot, CONFIG)
    mbarrier.wait(buffers.v_full.index(last), last_phase)
    out_token = begin_values(operand, buffers.v, last, out, CONFIG)
    s = warpgroup_mma_wait(1, deps=(s_token,))
    mbarrier.arrive(buffers.k_empty.index(slot), count=1)
    p_new, m_i, l_i, alpha = softmax(s, m_i, l_i, factors.q * k_scale)
    alpha *= gl.exp2(v_scale - next_v)
    l_i = keep_before_wait(l_i)
    out, p = warpgroup_mma_wait(0, deps=(out_token, p))  # p must stay in its registers until here
    mbarrier.arrive(buffers.v_empty.index(last), count=1)
    out = out * by_row(alpha, out)
    return count, p_new, out, m_i, l_i, after_k, next_v, after_v


@gluon.jit
def _block_of_three(j, count, q, p, out, m_i, l_i, v_scale, factors, buffers, CONFIG: gl.constexpr):
    """Multiply P of the block before with its values, and compute scores and softmax of block j.

    v_scale: of the values of the block before, in whose units `out` is.
    """
    last = count % CONFIG.kv_slots
    count += 1
    slot = count % CONFIG.kv_slots
    out_token = begin_values(p, buffers.v, last, out, CONFIG)
    mbarrier.wait(buffers.k_full.index(slot), (count // CONFIG.kv_slots) & 1)
    s_token = begin_scores(q, buffers.k, slot, CONFIG)
    out, s = warpgroup_mma_wait(0, deps=(out_token, s_token))
    mbarrier.arrive(buffers.k_empty.index(last), count=1)
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
