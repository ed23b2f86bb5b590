"""The warp-specialised forward on 8-bit queries, keys and values: a producer warpgroup and two consumers of 64 rows.

While a consumer computes the exponentials of a block, the tensor cores multiply P of the block before with its values.
Values come transposed and with the keys of every 32 in the order of the registers that hold P
(quantising.py). Each 128 rows have a scale that is a power of two: a consumer multiplies the scores by those of its
queries and of the key block, and keeps its output in units of the value block at hand, so that the next one multiplies
it by a power of two.
"""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from ...unspecialized import UnspecializedTuples
from ..gluon_hopper.barriers import mbarriers
from ..gluon_hopper.compat import keep_before_wait, tma_load
from ..gluon_hopper.forward_tiles import num_static_tiles
from . import tuning
from .memory import Fp8Scales, Fp8Tables, TileScales, by_row, load_queries, store_tile
from .probabilities import begin_scores, begin_values, unpack
from .softmax import first_softmax, softmax
from .tiles import hide_keys, program_tile

SCALE_ROWS = gl.constexpr(tuning.SCALE_ROWS)
REGISTERS = gl.constexpr(240)  # per consumer thread


# Shared memory of a program: tiles, and an mbarrier for each slot, full and empty. `q`: one for each consumer; `v`:
# transposed.
Fp8Buffers = namedtuple("Fp8Buffers", "q k v out q_full q_empty k_full k_empty v_full v_empty")


@UnspecializedTuples
@gluon.jit(do_not_specialize=["shape"])
def forward_kernel(q_desc, k_desc, v_desc, out_desc, q_scales, k_scales, v_scales, shape, scale, CONFIG: gl.constexpr):
    """Compute attention of all query tiles.

    `shape` is an Fp8Shape, `scale` softmax_scale x log2(e), CONFIG a tuning.Fp8Config.
    """
    slots: gl.constexpr = CONFIG.kv_slots
    q_s = gl.allocate_shared_memory(q_desc.dtype, [2, 1, 1, CONFIG.rows, CONFIG.head_dim], q_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, [slots, 1, 1, CONFIG.block_n, CONFIG.head_dim], k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, [slots, 1, 1, CONFIG.head_dim, CONFIG.block_n], v_desc.layout)
    out_s = gl.allocate_shared_memory(out_desc.dtype, [2, 1, 1, CONFIG.rows, CONFIG.head_dim], out_desc.layout)
    buffers = Fp8Buffers(q=q_s, k=k_s, v=v_s, out=out_s, q_full=mbarriers(2), q_empty=mbarriers(2),
                         k_full=mbarriers(slots), k_empty=mbarriers(slots, 2), v_full=mbarriers(slots),
                         v_empty=mbarriers(slots, 2))  # fmt: skip
    scales = Fp8Scales(q=q_scales, k=k_scales, v=v_scales)
    # Constants must be written in the call itself: a tuple bound to a name turns them into tensors.
    gl.warp_specialize([
        (_load_partition, (q_desc, k_desc, v_desc, buffers, shape, CONFIG)),
        (_consumer_partition, (0, out_desc, scales, buffers, shape, scale, CONFIG)),
        (_consumer_partition, (1, out_desc, scales, buffers, shape, scale, CONFIG)),
    ], [4, 4], [REGISTERS, REGISTERS])  # fmt: skip


@gluon.jit
def _load_partition(q_desc, k_desc, v_desc, buffers, shape, CONFIG: gl.constexpr):
    """Load what the consumers of this program need by TMA, as slots become free."""
    count = 0
    blocks = gl.cdiv(shape.seqlen_k, CONFIG.block_n)
    for i_tile in range(num_static_tiles(shape.n_tiles)):
        head, row = program_tile(i_tile, shape)
        batch = head // shape.num_heads
        h = head - batch * shape.num_heads
        h_kv = h // shape.group_size
        load_queries(i_tile, batch, h, row, q_desc, buffers.q, buffers.q_full, buffers.q_empty, CONFIG, 2)
        for i in range(blocks):
            j = blocks - 1 - i
            slot = count % CONFIG.kv_slots
            phase = (count // CONFIG.kv_slots) & 1
            mbarrier.wait(buffers.k_empty.index(slot), phase ^ 1)
            mbarrier.expect(buffers.k_full.index(slot), k_desc.block_type.nbytes)
            tma_load(k_desc, [batch, h_kv, j * CONFIG.block_n, 0], buffers.k_full.index(slot), buffers.k.index(slot))
            mbarrier.wait(buffers.v_empty.index(slot), phase ^ 1)
            mbarrier.expect(buffers.v_full.index(slot), v_desc.block_type.nbytes)
            tma_load(v_desc, [batch, h_kv, 0, j * CONFIG.block_n], buffers.v_full.index(slot), buffers.v.index(slot))
            count += 1


@gluon.jit
def _consumer_partition(consumer: gl.constexpr, out_desc, scales, buffers, shape, scale, CONFIG: gl.constexpr):
    """Compute 64 rows of every tile of this program."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.block_n, 32])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.head_dim, 32])
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    count = gl.to_tensor(0)
    blocks = gl.cdiv(shape.seqlen_k, CONFIG.block_n)
    for i_tile in range(num_static_tiles(shape.n_tiles)):
        head, row = program_tile(i_tile, shape)
        row += consumer * CONFIG.rows
        tables, q_scale, k_scale, next_k, v_scale, next_v = _scales_of(head, row, blocks, shape, scales, CONFIG)
        tile_scale = scale * q_scale
        factors = TileScales(tables=tables, q=tile_scale)
        q = buffers.q.index(consumer).reshape([CONFIG.rows, CONFIG.head_dim])
        mbarrier.wait(buffers.q_full.index(consumer), i_tile & 1)
        mbarrier.wait(buffers.k_full.index(count % CONFIG.kv_slots), (count // CONFIG.kv_slots) & 1)
        s_token = begin_scores(q, buffers.k, count % CONFIG.kv_slots, CONFIG)
        out = gl.zeros([CONFIG.rows, CONFIG.head_dim], gl.float32, out_layout)
        s = warpgroup_mma_wait(0, deps=(s_token,))
        mbarrier.arrive(buffers.k_empty.index(count % CONFIG.kv_slots), count=1)
        if CONFIG.masked:
            s = hide_keys(s, (blocks - 1) * CONFIG.block_n, shape.seqlen_k)
        p, m_i, l_i = first_softmax(s, tile_scale * k_scale, CONFIG.masked)
        k_scale = next_k
        for i in range(blocks - 1):
            count, p, out, m_i, l_i, k_scale, v_scale, next_v = _block(
                blocks - 2 - i, count, q, p, out, m_i, l_i, k_scale, v_scale, next_v, factors, buffers, CONFIG
            )
        mbarrier.arrive(buffers.q_empty.index(consumer), count=1)
        slot = count % CONFIG.kv_slots
        operand = unpack(p, gl.DotOperandLayout(0, out_layout, 4))
        mbarrier.wait(buffers.v_full.index(slot), (count // CONFIG.kv_slots) & 1)
        count += 1
        out_token = begin_values(operand, buffers.v, slot, out, CONFIG)
        out, p = warpgroup_mma_wait(0, deps=(out_token, p))
        mbarrier.arrive(buffers.v_empty.index(slot), count=1)
        store_tile(out, l_i, v_scale, out_desc, buffers.out, consumer, head, row, shape.num_heads, row_layout)
    tma.store_wait(0)


@gluon.jit
def _block(j, count, q, p, out, m_i, l_i, k_scale, v_scale, next_v, factors, buffers, CONFIG: gl.constexpr):
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
def _scales_of(head, row, blocks, shape, scales, CONFIG: gl.constexpr):
    """Return where the scales of a tile's keys and values are, and those of its queries and of its first two blocks."""
    q_blocks = gl.cdiv(shape.seqlen_q, SCALE_ROWS)
    k_blocks = gl.cdiv(shape.seqlen_k, SCALE_ROWS)
    of_q = gl.load(scales.q + head * q_blocks + gl.minimum(row // SCALE_ROWS, q_blocks - 1))
    k_table = scales.k + head // shape.group_size * k_blocks
    v_table = scales.v + head // shape.group_size * k_blocks
    first = (blocks - 1) * CONFIG.block_n // SCALE_ROWS
    second = gl.maximum(blocks - 2, 0) * CONFIG.block_n // SCALE_ROWS
    tables = Fp8Tables(k=k_table, v=v_table)
    return tables, of_q, gl.load(k_table + first), gl.load(k_table + second), gl.load(v_table + first), \
        gl.load(v_table + second)  # fmt: skip
