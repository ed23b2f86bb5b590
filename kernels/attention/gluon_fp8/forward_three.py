"""The forward at head_dim 128: a producer warpgroup and three consumers of 64 rows, weights in shared memory.

A consumer issues the product of its last weights with their values and that of its queries with the next keys, waits
for both, and takes the exponentials while the other two have the tensor cores. Its 160 registers hold scores and
output, no weights. Keys and values of a block share a slot and its barriers; scales are as in forward.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from kernels.attention.gluon_fp8 import tuning
from kernels.attention.gluon_fp8.memory import full_and_empty, load_queries, store_tile
from kernels.attention.gluon_fp8.order import LONG_TILE, hide_keys, key_blocks, tile_of_three
from kernels.attention.gluon_fp8.softmax import first_softmax_by_lane, softmax_by_lane
from kernels.attention.gluon_fp8.weights import begin_scores, begin_values, put
from kernels.attention.gluon_hopper.compat import tma_load
from kernels.attention.gluon_hopper.forward_overflow import rescale
from kernels.attention.gluon_hopper.forward_softmax import by_lane, of_lanes
from kernels.attention.gluon_hopper.forward_tiles import num_static_tiles

SCALE_ROWS = gl.constexpr(tuning.SCALE_ROWS)
REGISTERS = gl.constexpr(160)  # of a consumer's thread


@gluon.jit
def _producer(q_desc, k_desc, v_desc, memory, sizes, threes,
              ROWS: gl.constexpr, BLOCK_N: gl.constexpr, KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr):  # fmt: skip
    q_s, k_s, v_s, out_s, p_s, q_full, q_empty, full, empty = memory
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k = sizes
    count = 0
    for turn in range(num_static_tiles(n_tiles)):
        head, row, end = tile_of_three(turn, sizes, threes, CAUSAL)
        right, high = key_blocks(row, sizes, LONG_TILE, BLOCK_N, CAUSAL)
        batch = head // num_heads
        h = head - batch * num_heads
        h_kv = h // group_size
        load_queries(turn, batch, h, row, q_desc, q_s, q_full, q_empty, ROWS, 3)
        for i in range(high):
            key = (high - 1 - i) * BLOCK_N
            slot = count % KV_SLOTS
            bar = full.index(slot)
            mbarrier.wait(empty.index(slot), ((count // KV_SLOTS) & 1) ^ 1)
            mbarrier.expect(bar, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
            tma_load(k_desc, [batch, h_kv, key, 0], bar, k_s.index(slot))
            tma_load(v_desc, [batch, h_kv, 0, key], bar, v_s.index(slot))
            count += 1


@gluon.jit
def _block(j, count, q, p, out, m_i, l_i, v_scale, tables, tile_scale, memory, diagonal, seqlen_k,
           ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, KV_SLOTS: gl.constexpr,
           CAUSAL: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """The weights p of the block before meet their values; scores and weights of block j.

    v_scale: of the values of the block before, in whose units `out` is.
    """
    q_s, k_s, v_s, out_s, p_s, q_full, q_empty, full, empty = memory
    k_table, v_table = tables
    last = count % KV_SLOTS
    count += 1
    slot = count % KV_SLOTS
    out_token = begin_values(p, v_s, last, out, BLOCK_N, HEAD_DIM)
    mbarrier.wait(full.index(slot), (count // KV_SLOTS) & 1)
    s_token = begin_scores(q, k_s, slot, ROWS, BLOCK_N, HEAD_DIM)
    out, s = warpgroup_mma_wait(0, deps=(out_token, s_token))
    mbarrier.arrive(empty.index(last), count=1)
    at = j * BLOCK_N // SCALE_ROWS
    k_scale = gl.load(k_table + at)
    next_v = gl.load(v_table + at)
    if MASKED:
        s = hide_keys(s, j * BLOCK_N, diagonal, seqlen_k, CAUSAL)
    p_new, m_i, l_i, alpha = softmax_by_lane(s, m_i, l_i, tile_scale * k_scale, MASKED)
    put(p_new, p)
    lanes = by_lane(out)
    out = rescale(lanes, of_lanes(alpha * gl.exp2(v_scale - next_v), lanes)).reshape(out.shape)
    out = gl.convert_layout(out, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 32]), assert_trivial=True)
    return count, out, m_i, l_i, next_v


@gluon.jit
def _tile(consumer: gl.constexpr, turn, count, head, row, right, high, out_desc, scales, memory, sizes, scale,
          ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, KV_SLOTS: gl.constexpr,
          CAUSAL: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """64 rows from `row` on."""
    q_s, k_s, v_s, out_s, p_s, q_full, q_empty, full, empty = memory
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k = sizes
    q_scales, k_scales, v_scales = scales
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 32])
    tile_scale = scale * gl.load(q_scales + head * gl.cdiv(seqlen_q, SCALE_ROWS) + row // SCALE_ROWS)
    blocks_before = head // group_size * gl.cdiv(seqlen_k, SCALE_ROWS)
    tables = (k_scales + blocks_before, v_scales + blocks_before)
    first = (high - 1) * BLOCK_N // SCALE_ROWS
    k_scale = gl.load(tables[0] + first)
    v_scale = gl.load(tables[1] + first)
    diagonal = row + seqlen_k - seqlen_q
    q = q_s.index(consumer).reshape([ROWS, HEAD_DIM])
    p = p_s.index(consumer)
    mbarrier.wait(q_full.index(consumer), turn & 1)
    mbarrier.wait(full.index(count % KV_SLOTS), (count // KV_SLOTS) & 1)
    s_token = begin_scores(q, k_s, count % KV_SLOTS, ROWS, BLOCK_N, HEAD_DIM)
    out = gl.zeros([ROWS, HEAD_DIM], gl.float32, out_layout)
    s = warpgroup_mma_wait(0, deps=(s_token,))
    if MASKED:
        s = hide_keys(s, (high - 1) * BLOCK_N, diagonal, seqlen_k, CAUSAL)
    weights, m_i, l_i = first_softmax_by_lane(s, tile_scale * k_scale, MASKED)
    put(weights, p)
    if CAUSAL:
        for i in range(right, high - 1):
            count, out, m_i, l_i, v_scale = _block(
                high - 2 - (i - right), count, q, p, out, m_i, l_i, v_scale, tables, tile_scale, memory, diagonal,
                seqlen_k, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL, True)  # fmt: skip
    for i in range(right):
        count, out, m_i, l_i, v_scale = _block(
            right - 1 - i, count, q, p, out, m_i, l_i, v_scale, tables, tile_scale, memory, diagonal, seqlen_k,
            ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL, False)  # fmt: skip
    mbarrier.arrive(q_empty.index(consumer), count=1)
    slot = count % KV_SLOTS
    out_token = begin_values(p, v_s, slot, out, BLOCK_N, HEAD_DIM)
    out = warpgroup_mma_wait(0, deps=(out_token,))
    mbarrier.arrive(empty.index(slot), count=1)
    store_tile(out, l_i, v_scale, out_desc, out_s, consumer, head, row, num_heads, gl.SliceLayout(1, s_layout))
    return count + 1


@gluon.jit
def _consumer(consumer: gl.constexpr, out_desc, scales, memory, sizes, threes, scale,
              ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, KV_SLOTS: gl.constexpr,
              CAUSAL: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """64 rows of every tile of this program; blocks that these rows do not see are handed back unread."""
    q_s, k_s, v_s, out_s, p_s, q_full, q_empty, full, empty = memory
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k = sizes
    count = gl.to_tensor(0)
    for turn in range(num_static_tiles(n_tiles)):
        head, row, end = tile_of_three(turn, sizes, threes, CAUSAL)
        right, loaded = key_blocks(row, sizes, LONG_TILE, BLOCK_N, CAUSAL)
        row += consumer * ROWS
        right, high = key_blocks(row, sizes, ROWS, BLOCK_N, CAUSAL)
        unseen = loaded - high
        if row >= end:
            unseen = loaded
            mbarrier.wait(q_full.index(consumer), turn & 1)
            mbarrier.arrive(q_empty.index(consumer), count=1)
        for _i in range(unseen):
            mbarrier.wait(full.index(count % KV_SLOTS), (count // KV_SLOTS) & 1)
            mbarrier.arrive(empty.index(count % KV_SLOTS), count=1)
            count += 1
        if row < end:
            count = _tile(consumer, turn, count, head, row, right, high, out_desc, scales, memory, sizes, scale,
                          ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL, MASKED)  # fmt: skip
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_tiles", "n_m", "num_heads", "n_heads", "group_size", "heads_together",
                              "seqlen_q", "seqlen_k", "threes"])  # fmt: skip
def forward_three_kernel(q_desc, k_desc, v_desc, out_desc, q_scales, k_scales, v_scales, n_tiles, n_m, num_heads,
                         n_heads, group_size, heads_together, seqlen_q, seqlen_k, threes, scale,
                         ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, KV_SLOTS: gl.constexpr,
                         CAUSAL: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """Attention of all query tiles, of which each head has n_m; `scale` is softmax_scale x log2(e)."""
    q_s = gl.allocate_shared_memory(q_desc.dtype, [3, 1, 1, ROWS, HEAD_DIM], q_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, [KV_SLOTS, 1, 1, BLOCK_N, HEAD_DIM], k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, [KV_SLOTS, 1, 1, HEAD_DIM, BLOCK_N], v_desc.layout)
    out_s = gl.allocate_shared_memory(out_desc.dtype, [3, 1, 1, ROWS, HEAD_DIM], out_desc.layout)
    p_s = gl.allocate_shared_memory(v_desc.dtype, [3, ROWS, BLOCK_N], gl.NVMMASharedLayout(128, 8, 2))
    q_full, q_empty = full_and_empty(3, 1)
    full, empty = full_and_empty(KV_SLOTS, 3)
    memory = (q_s, k_s, v_s, out_s, p_s, q_full, q_empty, full, empty)
    scales = (q_scales, k_scales, v_scales)
    sizes = (n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k)
    # Constants must stand in the call itself: a tuple bound to a name turns them into tensors.
    gl.warp_specialize([
        (_producer, (q_desc, k_desc, v_desc, memory, sizes, threes, ROWS, BLOCK_N, KV_SLOTS, CAUSAL)),
        (_consumer, (0, out_desc, scales, memory, sizes, threes, scale, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL,
                     MASKED)),
        (_consumer, (1, out_desc, scales, memory, sizes, threes, scale, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL,
                     MASKED)),
        (_consumer, (2, out_desc, scales, memory, sizes, threes, scale, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL,
                     MASKED)),
    ], [4, 4, 4], [REGISTERS, REGISTERS, REGISTERS])  # fmt: skip
