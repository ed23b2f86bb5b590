"""The warp-specialised forward on 8-bit queries, keys and values: a producer warpgroup and two consumers of 64 rows.

While a consumer takes the exponentials of a block, the tensor cores add the weighted values of the block before it.
Values come transposed and with the keys of every 32 in the order of the registers that hold the weights
(quantising.py). Each 128 rows have a scale that is a power of two: a consumer multiplies the scores by those of its
queries and of the key block, and keeps its output in units of the value block at hand, so that the next one multiplies
it by a power of two.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from kernels.attention.gluon_fp8 import tuning
from kernels.attention.gluon_fp8.memory import by_row, full_and_empty, load_queries, store_tile
from kernels.attention.gluon_fp8.order import hide_keys, tile
from kernels.attention.gluon_fp8.softmax import first_softmax, softmax
from kernels.attention.gluon_fp8.weights import begin_scores, begin_values, unpack
from kernels.attention.gluon_hopper.compat import keep_before_wait, tma_load
from kernels.attention.gluon_hopper.forward_tiles import num_static_tiles

SCALE_ROWS = gl.constexpr(tuning.SCALE_ROWS)
REGISTERS = gl.constexpr(240)  # of a consumer's thread


@gluon.jit
def _producer(q_desc, k_desc, v_desc, memory, sizes,
              ROWS: gl.constexpr, BLOCK_N: gl.constexpr, KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr):  # fmt: skip
    q_s, k_s, v_s, out_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k = sizes
    count = 0
    for turn in range(num_static_tiles(n_tiles)):
        head, row, right, high = tile(turn, sizes, BLOCK_N, CAUSAL)
        batch = head // num_heads
        h = head - batch * num_heads
        h_kv = h // group_size
        load_queries(turn, batch, h, row, q_desc, q_s, q_full, q_empty, ROWS, 2)
        for i in range(high):
            j = high - 1 - i
            slot = count % KV_SLOTS
            phase = (count // KV_SLOTS) & 1
            mbarrier.wait(k_empty.index(slot), phase ^ 1)
            mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
            tma_load(k_desc, [batch, h_kv, j * BLOCK_N, 0], k_full.index(slot), k_s.index(slot))
            mbarrier.wait(v_empty.index(slot), phase ^ 1)
            mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
            tma_load(v_desc, [batch, h_kv, 0, j * BLOCK_N], v_full.index(slot), v_s.index(slot))
            count += 1


@gluon.jit
def _scales_of(head, row, high, sizes, scales, BLOCK_N: gl.constexpr):
    """Where the scales of a tile's keys and values are, and those of its queries and of its first two blocks."""
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k = sizes
    q_scales, k_scales, v_scales = scales
    q_blocks = gl.cdiv(seqlen_q, SCALE_ROWS)
    k_blocks = gl.cdiv(seqlen_k, SCALE_ROWS)
    of_q = gl.load(q_scales + head * q_blocks + gl.minimum(row // SCALE_ROWS, q_blocks - 1))
    k_table = k_scales + head // group_size * k_blocks
    v_table = v_scales + head // group_size * k_blocks
    first = (high - 1) * BLOCK_N // SCALE_ROWS
    second = gl.maximum(high - 2, 0) * BLOCK_N // SCALE_ROWS
    return (k_table, v_table), of_q, gl.load(k_table + first), gl.load(k_table + second), gl.load(v_table + first), \
        gl.load(v_table + second)  # fmt: skip


@gluon.jit
def _block(j, count, q, p, out, m_i, l_i, k_scale, v_scale, next_v, tables, tile_scale, memory, diagonal, seqlen_k,
           ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, KV_SLOTS: gl.constexpr,
           CAUSAL: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """Scores and weights of block j while the weights p of the block before it meet their values.

    v_scale: of the values of the block before, in whose units `out` is; k_scale, next_v: of block j.
    """
    q_s, k_s, v_s, out_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    k_table, v_table = tables
    out_layout: gl.constexpr = out.type.layout
    last = count % KV_SLOTS
    last_phase = (count // KV_SLOTS) & 1
    count += 1
    slot = count % KV_SLOTS
    after = gl.maximum(j - 1, 0) * BLOCK_N // SCALE_ROWS
    after_k = gl.load(k_table + after)
    after_v = gl.load(v_table + after)
    weights = unpack(p, gl.DotOperandLayout(0, out_layout, 4))
    mbarrier.wait(k_full.index(slot), (count // KV_SLOTS) & 1)
    s_token = begin_scores(q, k_s, slot, ROWS, BLOCK_N, HEAD_DIM)
    mbarrier.wait(v_full.index(last), last_phase)
    out_token = begin_values(weights, v_s, last, out, BLOCK_N, HEAD_DIM)
    s = warpgroup_mma_wait(1, deps=(s_token,))
    mbarrier.arrive(k_empty.index(slot), count=1)
    if MASKED:
        s = hide_keys(s, j * BLOCK_N, diagonal, seqlen_k, CAUSAL)
    p_new, m_i, l_i, alpha = softmax(s, m_i, l_i, tile_scale * k_scale, MASKED)
    alpha *= gl.exp2(v_scale - next_v)
    l_i = keep_before_wait(l_i)
    out, p = warpgroup_mma_wait(0, deps=(out_token, p))  # p must stay in its registers until here
    mbarrier.arrive(v_empty.index(last), count=1)
    out = out * by_row(alpha, out)
    return count, p_new, out, m_i, l_i, after_k, next_v, after_v


@gluon.jit
def _consumer(consumer: gl.constexpr, out_desc, scales, memory, sizes, scale,
              ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, KV_SLOTS: gl.constexpr,
              CAUSAL: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """64 rows of every tile of this program."""
    q_s, k_s, v_s, out_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k = sizes
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 32])
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    count = gl.to_tensor(0)
    for turn in range(num_static_tiles(n_tiles)):
        head, row, right, high = tile(turn, sizes, BLOCK_N, CAUSAL)
        row += consumer * ROWS
        tables, q_scale, k_scale, next_k, v_scale, next_v = _scales_of(head, row, high, sizes, scales, BLOCK_N)
        diagonal = row + seqlen_k - seqlen_q
        tile_scale = scale * q_scale
        q = q_s.index(consumer).reshape([ROWS, HEAD_DIM])
        mbarrier.wait(q_full.index(consumer), turn & 1)
        mbarrier.wait(k_full.index(count % KV_SLOTS), (count // KV_SLOTS) & 1)
        s_token = begin_scores(q, k_s, count % KV_SLOTS, ROWS, BLOCK_N, HEAD_DIM)
        out = gl.zeros([ROWS, HEAD_DIM], gl.float32, out_layout)
        s = warpgroup_mma_wait(0, deps=(s_token,))
        mbarrier.arrive(k_empty.index(count % KV_SLOTS), count=1)
        if MASKED:
            s = hide_keys(s, (high - 1) * BLOCK_N, diagonal, seqlen_k, CAUSAL)
        p, m_i, l_i = first_softmax(s, tile_scale * k_scale, MASKED)
        k_scale = next_k
        if CAUSAL:
            for i in range(right, high - 1):
                count, p, out, m_i, l_i, k_scale, v_scale, next_v = _block(
                    high - 2 - (i - right), count, q, p, out, m_i, l_i, k_scale, v_scale, next_v, tables, tile_scale,
                    memory, diagonal, seqlen_k, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL, True)  # fmt: skip
        for i in range(right):
            count, p, out, m_i, l_i, k_scale, v_scale, next_v = _block(
                right - 1 - i, count, q, p, out, m_i, l_i, k_scale, v_scale, next_v, tables, tile_scale, memory,
                diagonal, seqlen_k, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL, False)  # fmt: skip
        mbarrier.arrive(q_empty.index(consumer), count=1)
        slot = count % KV_SLOTS
        weights = unpack(p, gl.DotOperandLayout(0, out_layout, 4))
        mbarrier.wait(v_full.index(slot), (count // KV_SLOTS) & 1)
        count += 1
        out_token = begin_values(weights, v_s, slot, out, BLOCK_N, HEAD_DIM)
        out, p = warpgroup_mma_wait(0, deps=(out_token, p))
        mbarrier.arrive(v_empty.index(slot), count=1)
        store_tile(out, l_i, v_scale, out_desc, out_s, consumer, head, row, num_heads, row_layout)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_tiles", "n_m", "num_heads", "n_heads", "group_size", "heads_together",
                              "seqlen_q", "seqlen_k"])  # fmt: skip
def forward_kernel(q_desc, k_desc, v_desc, out_desc, q_scales, k_scales, v_scales, n_tiles, n_m, num_heads, n_heads,
                   group_size, heads_together, seqlen_q, seqlen_k, scale,
                   ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, KV_SLOTS: gl.constexpr,
                   CAUSAL: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """Attention of all query tiles; `scale` is softmax_scale x log2(e), `n_heads` batch x num_heads."""
    q_s = gl.allocate_shared_memory(q_desc.dtype, [2, 1, 1, ROWS, HEAD_DIM], q_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, [KV_SLOTS, 1, 1, BLOCK_N, HEAD_DIM], k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, [KV_SLOTS, 1, 1, HEAD_DIM, BLOCK_N], v_desc.layout)
    out_s = gl.allocate_shared_memory(out_desc.dtype, [2, 1, 1, ROWS, HEAD_DIM], out_desc.layout)
    q_full, q_empty = full_and_empty(2, 1)
    k_full, k_empty = full_and_empty(KV_SLOTS, 2)
    v_full, v_empty = full_and_empty(KV_SLOTS, 2)
    memory = (q_s, k_s, v_s, out_s, q_full, q_empty, k_full, k_empty, v_full, v_empty)
    scales = (q_scales, k_scales, v_scales)
    sizes = (n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k)
    # Constants must stand in the call itself: a tuple bound to a name turns them into tensors.
    gl.warp_specialize([
        (_producer, (q_desc, k_desc, v_desc, memory, sizes, ROWS, BLOCK_N, KV_SLOTS, CAUSAL)),
        (_consumer, (0, out_desc, scales, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL, MASKED)),
        (_consumer, (1, out_desc, scales, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL, MASKED)),
    ], [4, 4], [REGISTERS, REGISTERS])  # fmt: skip
