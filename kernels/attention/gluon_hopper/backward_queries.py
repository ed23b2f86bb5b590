"""dQ alone: two consumers of 64 queries each walk over the keys (see backward_wide.py for why)."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention.gluon_hopper.chain import await_the_kernel_before
from kernels.attention.gluon_hopper.masks import hide_keys, key_blocks
from kernels.attention.gluon_hopper.shim import hold_weights, opaque_zero, tma_load, tma_store


@gluon.jit
def _producer(q_desc, k_desc, v_desc, do_desc, memory, place, BLOCK_N: gl.constexpr, ROWS: gl.constexpr,
              K_SLOTS: gl.constexpr):  # fmt: skip
    q_s, do_s, k_s, v_s, rows_full, k_full, k_empty, v_full, v_empty = memory
    batch, h, h_kv, m, low, left, right, high = place
    for c in gl.static_range(2):
        mbarrier.expect(rows_full.index(c), q_desc.block_type.nbytes + do_desc.block_type.nbytes)
        tma_load(q_desc, [batch, h, (m * 2 + c) * ROWS, 0], rows_full.index(c), q_s.index(c))
        tma_load(do_desc, [batch, h, (m * 2 + c) * ROWS, 0], rows_full.index(c), do_s.index(c))
    for count in range(high - low):
        j = low + count
        slot = count % K_SLOTS
        mbarrier.wait(k_empty.index(slot), ((count // K_SLOTS) & 1) ^ 1)
        mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
        tma_load(k_desc, [batch, h_kv, j * BLOCK_N, 0], k_full.index(slot), k_s.index(slot))
        mbarrier.wait(v_empty, (count & 1) ^ 1)
        mbarrier.expect(v_full, v_desc.block_type.nbytes)
        tma_load(v_desc, [batch, h_kv, j * BLOCK_N, 0], v_full, v_s.index(0))
    await_the_kernel_before()  # which needs nothing of this one; but who comes next may need both


@gluon.jit
def _scores(consumer: gl.constexpr, count, total, memory, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
            HEAD_DIM: gl.constexpr, K_SLOTS: gl.constexpr):  # fmt: skip
    """Begin S and dP of a block of keys; beyond the last, products that nobody reads."""
    q_s, do_s, k_s, v_s, rows_full, k_full, k_empty, v_full, v_empty = memory
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
    slot = count % K_SLOTS
    z = opaque_zero()
    q = q_s.index(consumer + z).reshape([ROWS, HEAD_DIM])
    do = do_s.index(consumer + z).reshape([ROWS, HEAD_DIM])
    k_t = k_s.index(slot).reshape([BLOCK_N, HEAD_DIM]).permute((1, 0))
    v_t = v_s.index(z).reshape([BLOCK_N, HEAD_DIM]).permute((1, 0))
    if count < total:
        mbarrier.wait(k_full.index(slot), (count // K_SLOTS) & 1)
        mbarrier.wait(v_full, count & 1)
    s_token = warpgroup_mma(q, k_t, zero, use_acc=False, is_async=True)
    dp_token = warpgroup_mma(do, v_t, zero, use_acc=False, is_async=True)
    return s_token, dp_token


@gluon.jit
def _step(consumer: gl.constexpr, count, total, j, p, dp, dq, lse, delta, memory, diagonal, seqlen_k, window, scale,
          ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, K_SLOTS: gl.constexpr,
          CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """What one block of keys adds to dQ; meanwhile the next block's scores."""
    q_s, do_s, k_s, v_s, rows_full, k_full, k_empty, v_full, v_empty = memory
    dtype: gl.constexpr = q_s.dtype
    operand: gl.constexpr = gl.DotOperandLayout(0, dq.type.layout, 2)
    slot = count % K_SLOTS
    if MASKED:
        p = hide_keys(p, 0.0, j * BLOCK_N, diagonal, seqlen_k, window, CAUSAL, WINDOW)
    ds = gl.convert_layout((p.to(gl.float32) * (dp - delta[:, None])).to(dtype), operand, assert_trivial=True)
    dq_token = warpgroup_mma(ds, k_s.index(slot).reshape([BLOCK_N, HEAD_DIM]), dq, is_async=True)
    count += 1
    s_token, dp_token = _scores(consumer, count, total, memory, ROWS, BLOCK_N, HEAD_DIM, K_SLOTS)
    dq, ds = warpgroup_mma_wait(2, deps=(dq_token, ds))
    mbarrier.arrive(k_empty.index(slot), count=1)
    s = warpgroup_mma_wait(1, deps=(s_token,))
    p = hold_weights(gl.exp2(s * scale - lse[:, None]).to(dtype))  # while dP runs
    dp = warpgroup_mma_wait(0, deps=(dp_token,))
    if count < total:
        mbarrier.arrive(v_empty, count=1)
    return count, p, dp, dq


@gluon.jit
def _consumer(consumer: gl.constexpr, dq_desc, lse_rows, delta_rows, memory, place, sizes, scale, softmax_scale,
              ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, K_SLOTS: gl.constexpr,
              CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    q_s, do_s, k_s, v_s, rows_full, k_full, k_empty, v_full, v_empty = memory
    batch, h, h_kv, m, low, left, right, high = place
    num_heads, seqlen_q, seqlen_k, padded_q, window = sizes
    dtype: gl.constexpr = q_s.dtype
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    first = (m * 2 + consumer) * ROWS
    diagonal = first + seqlen_k - seqlen_q
    rows = first + gl.arange(0, ROWS, gl.SliceLayout(1, s_layout))
    base = (batch * num_heads + h).to(gl.int64) * padded_q
    lse = gl.load(lse_rows + base + rows, mask=rows < seqlen_q, other=float("inf"))
    delta = gl.load(delta_rows + base + rows, mask=rows < seqlen_q, other=0.0)
    dq = gl.zeros([ROWS, HEAD_DIM], gl.float32, dq_layout)
    total = high - low
    count = 0
    mbarrier.wait(rows_full.index(consumer), 0)
    s_token, dp_token = _scores(consumer, count, total, memory, ROWS, BLOCK_N, HEAD_DIM, K_SLOTS)
    s = warpgroup_mma_wait(1, deps=(s_token,))
    p = hold_weights(gl.exp2(s * scale - lse[:, None]).to(dtype))  # while dP runs
    dp = warpgroup_mma_wait(0, deps=(dp_token,))
    mbarrier.arrive(v_empty, count=1)
    if WINDOW:
        for j in range(low, left):
            count, p, dp, dq = _step(
                consumer, count, total, j, p, dp, dq, lse, delta, memory, diagonal, seqlen_k, window, scale, ROWS,
                BLOCK_N, HEAD_DIM, K_SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
    for j in range(left, right):
        count, p, dp, dq = _step(
            consumer, count, total, j, p, dp, dq, lse, delta, memory, diagonal, seqlen_k, window, scale, ROWS,
            BLOCK_N, HEAD_DIM, K_SLOTS, CAUSAL, WINDOW, False)  # fmt: skip
    if MASKED:
        for j in range(right, high):
            count, p, dp, dq = _step(
                consumer, count, total, j, p, dp, dq, lse, delta, memory, diagonal, seqlen_k, window, scale, ROWS,
                BLOCK_N, HEAD_DIM, K_SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
    q_s.index(consumer).reshape([ROWS, HEAD_DIM]).store((dq * softmax_scale).to(dtype))
    fence_async_shared()
    tma_store(dq_desc, [batch, h, first, 0], q_s.index(consumer))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["num_heads", "group_size", "seqlen_q", "seqlen_k", "padded_q", "window"])
def wide_queries_kernel(q_desc, k_desc, v_desc, do_desc, dq_desc, lse_rows, delta_rows, num_heads, group_size,
                        seqlen_q, seqlen_k, padded_q, window, scale, softmax_scale,
                        ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, K_SLOTS: gl.constexpr,
                        CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """dQ of 128 queries; `scale` is softmax_scale x log2(e)."""
    dtype: gl.constexpr = q_desc.dtype
    q_s = gl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, HEAD_DIM], q_desc.layout)
    do_s = gl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, HEAD_DIM], do_desc.layout)
    k_s = gl.allocate_shared_memory(dtype, [K_SLOTS, 1, 1, BLOCK_N, HEAD_DIM], k_desc.layout)
    v_s = gl.allocate_shared_memory(dtype, [1, 1, 1, BLOCK_N, HEAD_DIM], v_desc.layout)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    rows_full = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    k_full = gl.allocate_shared_memory(gl.int64, [K_SLOTS, 1], bar)
    k_empty = gl.allocate_shared_memory(gl.int64, [K_SLOTS, 1], bar)
    v_full = gl.allocate_shared_memory(gl.int64, [1], bar)
    v_empty = gl.allocate_shared_memory(gl.int64, [1], bar)
    mbarrier.init(rows_full.index(0), count=1)
    mbarrier.init(rows_full.index(1), count=1)
    mbarrier.init(v_full, count=1)
    mbarrier.init(v_empty, count=2)
    for i in gl.static_range(K_SLOTS):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
    m = gl.program_id(0)
    if CAUSAL:
        m = gl.num_programs(0) - 1 - m  # the longest first
    h = gl.program_id(1)
    batch = gl.program_id(2)
    low, left, right, high = key_blocks(m, seqlen_q, seqlen_k, window, 2 * ROWS, BLOCK_N, CAUSAL, WINDOW)
    if not MASKED:
        right = high
    memory = (q_s, do_s, k_s, v_s, rows_full, k_full, k_empty, v_full, v_empty)
    place = (batch, h, h // group_size, m, low, left, right, high)
    sizes = (num_heads, seqlen_q, seqlen_k, padded_q, window)
    # Constants must stand in the call itself: a tuple bound to a name turns them into tensors.
    gl.warp_specialize([
        (_producer, (q_desc, k_desc, v_desc, do_desc, memory, place, BLOCK_N, ROWS, K_SLOTS)),
        (_consumer, (0, dq_desc, lse_rows, delta_rows, memory, place, sizes, scale, softmax_scale, ROWS, BLOCK_N,
                     HEAD_DIM, K_SLOTS, CAUSAL, WINDOW, MASKED)),
        (_consumer, (1, dq_desc, lse_rows, delta_rows, memory, place, sizes, scale, softmax_scale, ROWS, BLOCK_N,
                     HEAD_DIM, K_SLOTS, CAUSAL, WINDOW, MASKED)),
    ], [4, 4], [240, 240])  # fmt: skip
