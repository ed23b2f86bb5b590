"""The backward for head_dim 256: a program owns 64 keys, and one consumer of two warpgroups does every product.

At this width dK and dV of 64 keys fill the registers of two warpgroups, so the consumers cannot own keys of their own
(backward.py): they share the columns of dK, dV and dQ, and P and dS go through shared memory.
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

from kernels.attention.gluon_hopper.backward import mask, producer, query_blocks
from kernels.attention.gluon_hopper.shim import opaque_zero, pair_sync, reinterpret, tma_add, tma_store


@gluon.jit
def _step(count, m, head, dk, dv, dq_desc, tiles, p_s, ds_s, dq_s, barriers, n0, sizes, scale,
          BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
          CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """What one block of queries adds to dK, dV and dQ."""
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, q_empty, do_full, do_empty = barriers
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    dtype: gl.constexpr = q_s.dtype
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK_M // 2, 16])
    wide_layout: gl.constexpr = dk.type.layout
    columns: gl.constexpr = gl.SliceLayout(0, score_layout)
    zero = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, score_layout)
    zero_dq = gl.zeros([BLOCK_M, HEAD_DIM], gl.float32, wide_layout)
    phase = count & 1
    z = opaque_zero()
    k = k_s.index(z).reshape([BLOCK_N, HEAD_DIM])
    v = v_s.index(z).reshape([BLOCK_N, HEAD_DIM])
    q = q_s.index(z).reshape([BLOCK_M, HEAD_DIM])
    do = do_s.index(z).reshape([BLOCK_M, HEAD_DIM])
    p_tile = p_s.index(z)
    ds_tile = ds_s.index(z)
    mbarrier.wait(q_full.index(0), phase)
    s_token = warpgroup_mma(k, q.permute((1, 0)), zero, use_acc=False, is_async=True)
    mbarrier.wait(do_full.index(0), phase)
    dp_token = warpgroup_mma(v, do.permute((1, 0)), zero, use_acc=False, is_async=True)
    s_t = warpgroup_mma_wait(1, deps=(s_token,))
    p = gl.exp2(s_t * scale - lse_s.index(0).load(columns)[None, :])
    if MASKED:
        p = mask(p, m, n0, seqlen_k - seqlen_q, seqlen_k, window, BLOCK_M, CAUSAL, WINDOW)
    p_tile.store(p.to(dtype))
    delta = delta_s.index(0).load(columns)
    dp = warpgroup_mma_wait(0, deps=(dp_token,))
    ds_tile.store((p * (dp - delta[None, :])).to(dtype))
    fence_async_shared()
    pair_sync()
    dq_token = warpgroup_mma(ds_tile.permute((1, 0)), k, zero_dq, use_acc=False, is_async=True)
    dv_token = warpgroup_mma(p_tile, do, dv, is_async=True)
    dk_token = warpgroup_mma(ds_tile, q, dk, is_async=True)
    dq = warpgroup_mma_wait(2, deps=(dq_token,))
    tma.store_wait(0)  # the tile before has left its buffer
    dq_s.store(dq)
    fence_async_shared()
    tma_add(dq_desc, [(head * n_m + m) * 64, 0], reinterpret(dq_s, gl.float32, [64, 256], dq_desc.layout))
    dv = warpgroup_mma_wait(1, deps=(dv_token,))
    mbarrier.arrive(do_empty.index(0), count=1)
    dk = warpgroup_mma_wait(0, deps=(dk_token,))
    mbarrier.arrive(q_empty.index(0), count=1)
    return count + 1, dk, dv


@gluon.jit
def _consumer(dq_desc, dk_desc, dv_desc, tiles, p_s, ds_s, dq_s, barriers, place, sizes, scale, softmax_scale,
              BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
              CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, q_empty, do_full, do_empty = barriers
    batch, h_kv, n0, low, left, right, high = place
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    dtype: gl.constexpr = q_s.dtype
    wide_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, HEAD_DIM // 2, 16])
    dk = gl.zeros([BLOCK_N, HEAD_DIM], gl.float32, wide_layout)
    dv = gl.zeros([BLOCK_N, HEAD_DIM], gl.float32, wide_layout)
    mbarrier.wait(kv_full, 0)
    count = 0
    for member in range(group_size):
        head = batch * num_heads + h_kv * group_size + member
        if MASKED:
            for m in range(low, left):
                count, dk, dv = _step(
                    count, m, head, dk, dv, dq_desc, tiles, p_s, ds_s, dq_s, barriers, n0, sizes, scale, BLOCK_M,
                    BLOCK_N, HEAD_DIM, CAUSAL, WINDOW, True)  # fmt: skip
        for m in range(left, right):
            count, dk, dv = _step(
                count, m, head, dk, dv, dq_desc, tiles, p_s, ds_s, dq_s, barriers, n0, sizes, scale, BLOCK_M,
                BLOCK_N, HEAD_DIM, CAUSAL, WINDOW, False)  # fmt: skip
        if WINDOW:
            for m in range(right, high):
                count, dk, dv = _step(
                    count, m, head, dk, dv, dq_desc, tiles, p_s, ds_s, dq_s, barriers, n0, sizes, scale, BLOCK_M,
                    BLOCK_N, HEAD_DIM, CAUSAL, WINDOW, True)  # fmt: skip
    pair_sync()  # keys and values have been read: their tiles take the gradients to the copy engine
    k_s.index(0).reshape([BLOCK_N, HEAD_DIM]).store((dk * softmax_scale).to(dtype))
    v_s.index(0).reshape([BLOCK_N, HEAD_DIM]).store(dv.to(dtype))
    fence_async_shared()
    pair_sync()
    tma_store(dk_desc, [batch, h_kv, n0, 0], k_s.index(0))
    tma_store(dv_desc, [batch, h_kv, n0, 0], v_s.index(0))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["num_heads", "group_size", "seqlen_q", "seqlen_k", "padded_q", "n_m", "window"])
def backward_wide_kernel(q_desc, k_desc, v_desc, do_desc, dq_desc, dk_desc, dv_desc, lse_desc, delta_desc, num_heads,
                         group_size, seqlen_q, seqlen_k, padded_q, n_m, window, scale, softmax_scale,
                         BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr,
                         CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """dK and dV of 64 keys, and their part of dQ; arguments as of `backward_kernel`."""
    dtype: gl.constexpr = q_desc.dtype
    q_s = gl.allocate_shared_memory(dtype, [SLOTS, 1, 1, BLOCK_M, HEAD_DIM], q_desc.layout)
    do_s = gl.allocate_shared_memory(dtype, [SLOTS, 1, 1, BLOCK_M, HEAD_DIM], do_desc.layout)
    k_s = gl.allocate_shared_memory(dtype, [1, 1, 1, BLOCK_N, HEAD_DIM], k_desc.layout)
    v_s = gl.allocate_shared_memory(dtype, [1, 1, 1, BLOCK_N, HEAD_DIM], v_desc.layout)
    score_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_M], dtype)
    p_s = gl.allocate_shared_memory(dtype, [1, BLOCK_N, BLOCK_M], score_layout)
    ds_s = gl.allocate_shared_memory(dtype, [1, BLOCK_N, BLOCK_M], score_layout)
    # Four of backward.py's fragments, side by side.
    dq_layout: gl.constexpr = gl.SharedLinearLayout(
        [[0, 1], [8, 0], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [16, 0], [32, 0], [0, 8], [0, 16], [0, 32],
         [0, 64], [0, 128]]
    )  # fmt: skip
    dq_s = gl.allocate_shared_memory(gl.float32, [BLOCK_M, HEAD_DIM], dq_layout)
    lse_s = gl.allocate_shared_memory(gl.float32, [SLOTS, BLOCK_M], lse_desc.layout)
    delta_s = gl.allocate_shared_memory(gl.float32, [SLOTS, BLOCK_M], delta_desc.layout)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    kv_full = gl.allocate_shared_memory(gl.int64, [1], bar)
    q_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bar)
    q_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bar)
    do_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bar)
    do_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bar)
    mbarrier.init(kv_full, count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(do_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
        mbarrier.init(do_empty.index(i), count=1)
    n0 = gl.program_id(0) * BLOCK_N
    h_kv = gl.program_id(1)
    batch = gl.program_id(2)
    low, left, right, high = query_blocks(n0, n_m, seqlen_q, seqlen_k, window, BLOCK_M, BLOCK_N, CAUSAL, WINDOW)
    descriptors = (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc)
    tiles = (q_s, k_s, v_s, do_s, lse_s, delta_s)
    barriers = (kv_full, q_full, q_empty, do_full, do_empty)
    place = (batch, h_kv, n0, low, left, right, high)
    sizes = (num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window)
    # Constants must stand in the call itself: a tuple bound to a name turns them into tensors.
    gl.warp_specialize([
        (producer, (descriptors, tiles, barriers, place, sizes, BLOCK_M, SLOTS)),
        (_consumer, (dq_desc, dk_desc, dv_desc, tiles, p_s, ds_s, dq_s, barriers, place, sizes, scale, softmax_scale,
                     BLOCK_M, BLOCK_N, HEAD_DIM, CAUSAL, WINDOW, MASKED)),
    ], [8], [240])  # fmt: skip
