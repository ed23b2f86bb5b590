"""The backward as two kernels, for head_dim 256 and for the same bits on every run: dK and dV, and dQ of 128 queries.

At head_dim 256 dK and dV of 64 keys fill the registers of two warpgroups, so one kernel for all three would add every
score's part of dQ to memory at 4 bytes x 256 / 64: measured, that is bound by the additions (NOTES.md, step 3). Two
kernels do seven products for five, add nothing to memory, and give the same bits on every run.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention.gluon_hopper.arrivals import await_programs
from kernels.attention.gluon_hopper.chain import await_the_kernel_before
from kernels.attention.gluon_hopper.longest_first import is_last, place_of
from kernels.attention.gluon_hopper.masks import hide_queries, query_blocks
from kernels.attention.gluon_hopper.shim import hold_weights, opaque_zero, pair_sync, tma_load, tma_store
from kernels.attention.gluon_hopper.tiles import tiles_of_keys_and_queries


@gluon.jit
def _load_kv(desc, place, full, tile):
    batch, h_kv, n0, low, left, right, high = place
    mbarrier.expect(full, desc.block_type.nbytes)
    tma_load(desc, [batch, h_kv, n0, 0], full, tile.index(0))


@gluon.jit
def _producer(descriptors, tiles, barriers, place, sizes, counter, programs, BLOCK_M: gl.constexpr,
              SLOTS: gl.constexpr):  # fmt: skip
    """Load the keys and values of the program once, then each block of queries with its dout, lse and delta."""
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc = descriptors
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    k_full, v_full, q_full, do_full, empty = barriers
    batch, h_kv, n0, low, left, right, high = place
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    _load_kv(k_desc, place, k_full, k_s)
    count = 0
    for member in range(group_size):
        h = h_kv * group_size + member
        for m in range(low, high):
            slot = count % SLOTS
            phase = (count // SLOTS) & 1
            row = (batch * num_heads + h) * padded_q + m * BLOCK_M
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(q_full.index(slot), q_desc.block_type.nbytes)
            tma_load(q_desc, [batch, h, m * BLOCK_M, 0], q_full.index(slot), q_s.index(slot))
            if count == 0:
                _load_kv(v_desc, place, v_full, v_s)
            mbarrier.expect(do_full.index(slot), do_desc.block_type.nbytes + BLOCK_M * 8)
            tma_load(do_desc, [batch, h, m * BLOCK_M, 0], do_full.index(slot), do_s.index(slot))
            if count == 0:  # lse and delta of all heads that share the keys
                await_programs(counter, programs)
            tma_load(lse_desc, [row], do_full.index(slot), lse_s.index(slot))
            tma_load(delta_desc, [row], do_full.index(slot), delta_s.index(slot))
            count += 1
    if count == 0:
        _load_kv(v_desc, place, v_full, v_s)
    if is_last():
        await_the_kernel_before()  # who comes next may need both: one that waits is enough


@gluon.jit
def _scores(count, tiles, barriers, total, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
            SLOTS: gl.constexpr, FIRST: gl.constexpr):  # fmt: skip
    """Begin S^T and dP^T of a query block; of the first one, if there is any, each as soon as it can."""
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    k_full, v_full, q_full, do_full, empty = barriers
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK_M // 2, 16])
    zero = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout)
    slot = count % SLOTS
    phase = (count // SLOTS) & 1
    z = opaque_zero()
    q_t = q_s.index(slot).reshape([BLOCK_M, HEAD_DIM]).permute((1, 0))
    do_t = do_s.index(slot).reshape([BLOCK_M, HEAD_DIM]).permute((1, 0))
    if FIRST:
        mbarrier.wait(k_full, 0)
        if total > 0:
            mbarrier.wait(q_full.index(0), 0)
    else:
        mbarrier.wait(q_full.index(slot), phase)
        mbarrier.wait(do_full.index(slot), phase)
    s_token = warpgroup_mma(k_s.index(z).reshape([BLOCK_N, HEAD_DIM]), q_t, zero, use_acc=False, is_async=True)
    if FIRST:
        mbarrier.wait(v_full, 0)
        if total > 0:
            mbarrier.wait(do_full.index(0), 0)
    lse = lse_s.index(slot).load(gl.SliceLayout(0, layout))
    delta = delta_s.index(slot).load(gl.SliceLayout(0, layout))
    dp_token = warpgroup_mma(v_s.index(z).reshape([BLOCK_N, HEAD_DIM]), do_t, zero, use_acc=False, is_async=True)
    return s_token, dp_token, lse, delta


@gluon.jit
def _weights(s_token, dp_token, lse, scale, dtype: gl.constexpr):
    """P^T in 16 bits, unmasked, computed while dP^T runs; and dP^T."""
    s_t = warpgroup_mma_wait(1, deps=(s_token,))
    p = gl.exp2(s_t * scale - lse[None, :])  # rows beyond the end hold lse = +inf
    p = hold_weights(p.to(dtype))
    return p, warpgroup_mma_wait(0, deps=(dp_token,))


@gluon.jit
def _add(count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, n0, sizes, BLOCK_M: gl.constexpr, HEAD_DIM: gl.constexpr,
         SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """Begin what one block of queries adds to dV and dK."""
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    dtype: gl.constexpr = q_s.dtype
    slot = count % SLOTS
    z = opaque_zero()
    p_tile = p_s.index(z)
    ds_tile = ds_s.index(z)
    if MASKED:
        p = hide_queries(p, m * BLOCK_M + seqlen_k - seqlen_q, n0, seqlen_k, window, CAUSAL, WINDOW)
    p_tile.store(p)
    ds_tile.store((p.to(gl.float32) * (dp - delta[None, :])).to(dtype))
    fence_async_shared()  # and a barrier of both warpgroups, by the compiler, as one reads what the other has stored
    dv_token = warpgroup_mma(p_tile, do_s.index(slot).reshape([BLOCK_M, HEAD_DIM]), dv, is_async=True)
    dk_token = warpgroup_mma(ds_tile, q_s.index(slot).reshape([BLOCK_M, HEAD_DIM]), dk, is_async=True)
    return dv_token, dk_token


@gluon.jit
def _step(count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, barriers, n0, sizes, scale, BLOCK_M: gl.constexpr,
          BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr, CAUSAL: gl.constexpr,
          WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """What one block of queries adds to dK and dV; meanwhile the next block's scores."""
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    k_full, v_full, q_full, do_full, empty = barriers
    slot = count % SLOTS
    dv_token, dk_token = _add(count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, n0, sizes, BLOCK_M, HEAD_DIM, SLOTS,
                              CAUSAL, WINDOW, MASKED)  # fmt: skip
    count += 1
    s_token, dp_token, lse, delta = _scores(count, tiles, barriers, 0, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, False)
    dv, dk = warpgroup_mma_wait(2, deps=(dv_token, dk_token))
    mbarrier.arrive(empty.index(slot), count=1)
    p, dp = _weights(s_token, dp_token, lse, scale, q_s.dtype)
    return count, p, dp, delta, dk, dv


@gluon.jit
def _consumer(dk_desc, dv_desc, tiles, p_s, ds_s, barriers, place, sizes, scale, softmax_scale,
              BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr,
              CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    k_full, v_full, q_full, do_full, empty = barriers
    batch, h_kv, n0, low, left, right, high = place
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    dtype: gl.constexpr = q_s.dtype
    wide_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, HEAD_DIM // 2, 16])
    dk = gl.zeros([BLOCK_N, HEAD_DIM], gl.float32, wide_layout)
    dv = gl.zeros([BLOCK_N, HEAD_DIM], gl.float32, wide_layout)
    total = group_size * (high - low)
    count = 0
    s_token, dp_token, lse, delta = _scores(count, tiles, barriers, total, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, True)
    p, dp = _weights(s_token, dp_token, lse, scale, dtype)
    last = gl.maximum(high - 1, low)
    for member in range(group_size):
        end = high
        if member == group_size - 1:
            end = last  # behind the last block of all come no scores
        if MASKED:
            for m in range(low, gl.minimum(left, end)):
                count, p, dp, delta, dk, dv = _step(
                    count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, barriers, n0, sizes, scale, BLOCK_M, BLOCK_N,
                    HEAD_DIM, SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
        for m in range(left, gl.minimum(right, end)):
            count, p, dp, delta, dk, dv = _step(
                count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, barriers, n0, sizes, scale, BLOCK_M, BLOCK_N,
                HEAD_DIM, SLOTS, CAUSAL, WINDOW, False)  # fmt: skip
        if WINDOW:
            for m in range(right, end):
                count, p, dp, delta, dk, dv = _step(
                    count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, barriers, n0, sizes, scale, BLOCK_M, BLOCK_N,
                    HEAD_DIM, SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
    for m in range(last, high):
        dv_token, dk_token = _add(count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, n0, sizes, BLOCK_M, HEAD_DIM, SLOTS,
                                  CAUSAL, WINDOW, MASKED)  # fmt: skip
        dv, dk = warpgroup_mma_wait(0, deps=(dv_token, dk_token))
    pair_sync()  # keys and values have been read: their tiles take the gradients to the copy engine
    k_s.index(0).reshape([BLOCK_N, HEAD_DIM]).store((dk * softmax_scale).to(dtype))
    v_s.index(0).reshape([BLOCK_N, HEAD_DIM]).store(dv.to(dtype))
    fence_async_shared()
    pair_sync()
    tma_store(dk_desc, [batch, h_kv, n0, 0], k_s.index(0))
    tma_store(dv_desc, [batch, h_kv, n0, 0], v_s.index(0))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_rows", "programs", "num_heads", "kv_heads", "group_size", "seqlen_q", "seqlen_k",
                              "padded_q", "n_m", "window"])  # fmt: skip
def wide_keys_kernel(q_desc, k_desc, v_desc, do_desc, dk_desc, dv_desc, lse_desc, delta_desc, delta_rows, n_rows,
                     programs, kv_heads, num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window, scale,
                     softmax_scale, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
                     SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
                     MASKED: gl.constexpr):  # fmt: skip
    """dK and dV of BLOCK_N keys, when `programs` programs of the kernel before have counted themselves (arrivals.py).

    The counters stand behind `n_rows` numbers of delta; other arguments as of `backward_kernel`.
    """
    dtype: gl.constexpr = q_desc.dtype
    tiles = tiles_of_keys_and_queries(q_desc, k_desc, do_desc, lse_desc, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS)
    score_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_M], dtype)
    p_s = gl.allocate_shared_memory(dtype, [1, BLOCK_N, BLOCK_M], score_layout)
    ds_s = gl.allocate_shared_memory(dtype, [1, BLOCK_N, BLOCK_M], score_layout)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    k_full = gl.allocate_shared_memory(gl.int64, [1], bar)
    v_full = gl.allocate_shared_memory(gl.int64, [1], bar)
    q_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bar)
    do_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bar)
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bar)
    mbarrier.init(k_full, count=1)
    mbarrier.init(v_full, count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(do_full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    tile, h_kv, batch = place_of(kv_heads, CAUSAL and not WINDOW)
    n0 = tile * BLOCK_N
    low, left, right, high = query_blocks(n0, n_m, seqlen_q, seqlen_k, window, BLOCK_M, BLOCK_N, CAUSAL, WINDOW)
    descriptors = (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc)
    barriers = (k_full, v_full, q_full, do_full, empty)
    place = (batch, h_kv, n0, low, left, right, high)
    sizes = (num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window)
    counter = delta_rows + (n_rows + batch * kv_heads + h_kv)
    # Constants must stand in the call itself: a tuple bound to a name turns them into tensors.
    gl.warp_specialize([
        (_producer, (descriptors, tiles, barriers, place, sizes, counter, programs, BLOCK_M, SLOTS)),
        (_consumer, (dk_desc, dv_desc, tiles, p_s, ds_s, barriers, place, sizes, scale, softmax_scale,
                     BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW, MASKED)),
    ], [8], [240])  # fmt: skip
