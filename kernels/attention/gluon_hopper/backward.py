"""The warp-specialised backward in one kernel: a program owns 128 keys of one key head and walks over the queries.

FlashAttention-3's structure (arXiv 2407.08608): scores and their gradient are computed transposed, so that P^T and
dS^T are register operands of dV += P^T dO and dK += dS^T Q. The two consumers own 64 keys each; dQ = dS K needs both,
so dS goes through shared memory, each consumer computes one 64 x 64 fragment of dQ, and TMA adds it to
a float32 buffer. The order of these additions is not fixed: dQ may differ in its last bits from run to run.

dQ of a block is computed a step later, beside dV of the next block: the consumers then need not wait for each other's
dS, and the tensor cores work while dS^T is computed.
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

from kernels.attention.gluon_hopper.backward_common import (
    FRAGMENT,
    add_fragment,
    fragment_buffers,
    opaque,
    tiles_of_keys_and_queries,
    unpacked,
)
from kernels.attention.gluon_hopper.backward_schedule import place_of_program, store_sums
from kernels.attention.gluon_hopper.barriers import (
    DO_EMPTY,
    Q_EMPTY,
    acquire_ds_half,
    arrive_at,
    pdl_launch_dependents,
    pdl_wait,
    release_ds_half,
    wait_at,
)
from kernels.attention.gluon_hopper.compat import keep_p_before_wait, opaque_zero, pair_sync, tma_load, tma_store
from kernels.attention.gluon_hopper.masks import hide_queries


@gluon.jit
def _producer(descriptors, tiles, barriers, place, sizes, BLOCK_M: gl.constexpr, SLOTS: gl.constexpr,
              CUT: gl.constexpr):  # fmt: skip
    """Load the keys and values of the program once, then each block of queries with its lse, dout and delta."""
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc = descriptors
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, do_full = barriers
    batch, h_kv, n0, low, left, right, high = place
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    mbarrier.expect(kv_full, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma_load(k_desc, [batch, h_kv, n0, 0], kv_full, k_s.index(0))
    tma_load(v_desc, [batch, h_kv, n0, 0], kv_full, v_s.index(0))
    if not CUT:
        pdl_wait()  # lse, delta and the zeros of dQ are its
    pdl_launch_dependents()
    count = 0
    for member in range(group_size):
        h = h_kv * group_size + member
        for m in range(low, high):
            slot = count % SLOTS
            row = (batch * num_heads + h) * padded_q + m * BLOCK_M
            if count >= SLOTS:
                wait_at(Q_EMPTY + slot)
            mbarrier.expect(q_full.index(slot), q_desc.block_type.nbytes + BLOCK_M * 4)
            tma_load(q_desc, [batch, h, m * BLOCK_M, 0], q_full.index(slot), q_s.index(slot))
            tma_load(lse_desc, [row], q_full.index(slot), lse_s.index(slot))
            if count >= SLOTS:
                wait_at(DO_EMPTY + slot)
            mbarrier.expect(do_full.index(slot), do_desc.block_type.nbytes + BLOCK_M * 4)
            tma_load(do_desc, [batch, h, m * BLOCK_M, 0], do_full.index(slot), do_s.index(slot))
            tma_load(delta_desc, [row], do_full.index(slot), delta_s.index(slot))
            count += 1
    for last in range(gl.maximum(count - SLOTS, 0), count):  # nobody loads into these again
        wait_at(Q_EMPTY + last % SLOTS)
        wait_at(DO_EMPTY + last % SLOTS)
    if CUT:
        pdl_wait()  # what comes next waits for this kernel only


@gluon.jit
def _begin_dq(consumer: gl.constexpr, tile, k, ds_s):
    """Begin this consumer's fragment of the dQ that a tile of dS belongs to: half of the columns."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FRAGMENT, 16])
    zero = gl.zeros([FRAGMENT, FRAGMENT], gl.float32, layout)
    acquire_ds_half(consumer, tile)
    columns = k.slice(consumer * FRAGMENT, FRAGMENT, 1)
    return warpgroup_mma(ds_s.index(tile), columns, zero, use_acc=False, is_async=True)


@gluon.jit
def _step(consumer: gl.constexpr, count, m, head, before, dk, dv, dq_desc, tiles, ds_s, dq_s, barriers, n0, sizes,
          scale, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr,
          CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """What one block of queries adds to dK and dV of this consumer's keys, and the fragment of dQ of the block before.

    In the first step, that is a product of what is in shared memory, which nobody reads.
    """
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, do_full = barriers
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    dtype: gl.constexpr = q_s.dtype
    HALF: gl.constexpr = BLOCK_N // 2
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, dk.type.layout, 2)
    columns: gl.constexpr = gl.SliceLayout(0, score_layout)
    zero = gl.zeros([HALF, BLOCK_M], gl.float32, score_layout)
    slot = count % SLOTS
    phase = (count // SLOTS) & 1
    z = opaque_zero()
    k = k_s.index(z).reshape([BLOCK_N, HEAD_DIM])
    v = v_s.index(z).reshape([BLOCK_N, HEAD_DIM]).slice(consumer * HALF, HALF, 0)
    q = q_s.index(slot).reshape([BLOCK_M, HEAD_DIM])
    do = do_s.index(slot).reshape([BLOCK_M, HEAD_DIM])
    mbarrier.wait(q_full.index(slot), phase)
    k_half = k.slice(consumer * HALF, HALF, 0)
    s_token = warpgroup_mma(k_half, q.permute((1, 0)), zero, use_acc=False, is_async=True)
    lse = lse_s.index(slot).load(columns)
    mbarrier.wait(do_full.index(slot), phase)
    dp_token = warpgroup_mma(v, do.permute((1, 0)), zero, use_acc=False, is_async=True)
    s_t = warpgroup_mma_wait(1, deps=(s_token,))
    p = gl.exp2(s_t * scale - lse[None, :])  # rows beyond the end hold lse = +inf
    if MASKED:
        first = m * BLOCK_M + seqlen_k - seqlen_q
        # opaque: else the choice is made of 16-bit halves, one instruction a half
        p = opaque(hide_queries(p, first, n0 + consumer * HALF, seqlen_k, window, CAUSAL, WINDOW))
    p16 = keep_p_before_wait(p.to(dtype))
    p_operand = gl.convert_layout(p16, operand, assert_trivial=True)
    dv_token = warpgroup_mma(p_operand, do, dv, is_async=True)
    dq_token = _begin_dq(consumer, (count + 1) % 2, k, ds_s)
    delta = delta_s.index(slot).load(columns)
    dp = warpgroup_mma_wait(2, deps=(dp_token,))
    ds16 = (unpacked(p16) * (dp - delta[None, :])).to(dtype)  # p itself would be 32 registers more
    ds_operand = gl.convert_layout(ds16, operand, assert_trivial=True)
    ds_s.index(count % 2).slice(consumer * HALF, HALF, 1).permute((1, 0)).store(ds16)
    fence_async_shared()
    dv, p_operand = warpgroup_mma_wait(1, deps=(dv_token, p_operand))
    arrive_at(DO_EMPTY + slot)
    dk_token = warpgroup_mma(ds_operand, q, dk, is_async=True)
    dq = warpgroup_mma_wait(1, deps=(dq_token,))
    release_ds_half(consumer, count % 2)
    if count > 0:
        add_fragment(dq, before, dq_desc, dq_s)
    dk, ds_operand = warpgroup_mma_wait(0, deps=(dk_token, ds_operand))
    arrive_at(Q_EMPTY + slot)
    return count + 1, (head * n_m + m) * 2 + consumer, dk, dv


@gluon.jit
def _gradients(consumer: gl.constexpr, dk, dv, dq_desc, tiles, ds_s, dq_s, barriers, place, sizes, scale,
               BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr,
               CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """dK and dV of this consumer's keys over all blocks of queries, of which there is at least one."""
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    batch, h_kv, n0, low, left, right, high = place
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    count = 0
    before = gl.to_tensor(0)
    release_ds_half(consumer, 1)  # for the first step
    for member in range(group_size):
        head = batch * num_heads + h_kv * group_size + member
        if MASKED:
            for m in range(low, left):
                count, before, dk, dv = _step(
                    consumer, count, m, head, before, dk, dv, dq_desc, tiles, ds_s, dq_s, barriers, n0, sizes, scale,
                    BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
        for m in range(left, right):
            count, before, dk, dv = _step(
                consumer, count, m, head, before, dk, dv, dq_desc, tiles, ds_s, dq_s, barriers, n0, sizes, scale,
                BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW, False)  # fmt: skip
        if WINDOW:
            for m in range(right, high):
                count, before, dk, dv = _step(
                    consumer, count, m, head, before, dk, dv, dq_desc, tiles, ds_s, dq_s, barriers, n0, sizes, scale,
                    BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
    token = _begin_dq(consumer, (count + 1) % 2, k_s.index(0).reshape([BLOCK_N, HEAD_DIM]), ds_s)
    dq = warpgroup_mma_wait(0, deps=(token,))
    add_fragment(dq, before, dq_desc, dq_s)
    return dk, dv


@gluon.jit
def _consumer(consumer: gl.constexpr, dq_desc, dk_desc, dv_desc, tiles, ds_s, dq_s, barriers, place, sizes, scale,
              softmax_scale, sums, room, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
              SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr,
              CUT: gl.constexpr):  # fmt: skip
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, do_full = barriers
    batch, h_kv, n0, low, left, right, high = place
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    dtype: gl.constexpr = q_s.dtype
    HALF: gl.constexpr = BLOCK_N // 2
    kv_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    dk = gl.zeros([HALF, HEAD_DIM], gl.float32, kv_layout)
    dv = gl.zeros([HALF, HEAD_DIM], gl.float32, kv_layout)
    mbarrier.wait(kv_full, 0)
    if high > low:
        dk, dv = _gradients(
            consumer, dk, dv, dq_desc, tiles, ds_s, dq_s, barriers, place, sizes, scale, BLOCK_M, BLOCK_N, HEAD_DIM,
            SLOTS, CAUSAL, WINDOW, MASKED)  # fmt: skip
    if CUT:
        store_sums(consumer, dk, dv, sums, room, BLOCK_N, HEAD_DIM)
        tma.store_wait(0)
    else:
        pair_sync()  # the other consumer has read all keys: their tiles take the gradients to TMA
        k_s.index(0).reshape([BLOCK_N, HEAD_DIM]).slice(consumer * HALF, HALF, 0).store((dk * softmax_scale).to(dtype))
        v_s.index(0).reshape([BLOCK_N, HEAD_DIM]).slice(consumer * HALF, HALF, 0).store(dv.to(dtype))
        fence_async_shared()
        pair_sync()
        if consumer == 0:
            tma_store(dk_desc, [batch, h_kv, n0, 0], k_s.index(0))
        else:
            tma_store(dv_desc, [batch, h_kv, n0, 0], v_s.index(0))
        tma.store_wait(0)


@gluon.jit(do_not_specialize=["num_heads", "group_size", "seqlen_q", "seqlen_k", "padded_q", "n_m", "window",
                              "alone", "together"])  # fmt: skip
def backward_kernel(q_desc, k_desc, v_desc, do_desc, dq_desc, dk_desc, dv_desc, lse_desc, delta_desc, pieces, sums,
                    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window, alone, together, scale,
                    softmax_scale,
                    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr,
                    CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr, NUMBERED: gl.constexpr,
                    CUT: gl.constexpr):  # fmt: skip
    """dK and dV of 128 keys, and their part of dQ; `scale` is softmax_scale x log2(e), `padded_q` n_m x BLOCK_M.

    CUT: of a part of the queries, as `pieces` says; dK and dV then go to `sums` (backward_launch.py).
    """
    dtype: gl.constexpr = q_desc.dtype
    tiles = tiles_of_keys_and_queries(q_desc, k_desc, do_desc, lse_desc, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_N], dtype)
    ds_s = gl.allocate_shared_memory(dtype, [2, BLOCK_M, BLOCK_N], ds_layout)
    dq_0, dq_1 = fragment_buffers()
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    kv_full = gl.allocate_shared_memory(gl.int64, [1], bar)
    q_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bar)
    do_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bar)
    mbarrier.init(kv_full, count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(do_full.index(i), count=1)
    sizes = (num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window)
    place, room = place_of_program(
        pieces, sizes, alone, together, BLOCK_M, BLOCK_N, CAUSAL, WINDOW, True, NUMBERED, CUT
    )
    descriptors = (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc)
    barriers = (kv_full, q_full, do_full)
    # Constants must stand in the call itself: a tuple bound to a name turns them into tensors.
    gl.warp_specialize([
        (_producer, (descriptors, tiles, barriers, place, sizes, BLOCK_M, SLOTS, CUT)),
        (_consumer, (0, dq_desc, dk_desc, dv_desc, tiles, ds_s, dq_0, barriers, place, sizes, scale, softmax_scale,
                     sums, room, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW, MASKED, CUT)),
        (_consumer, (1, dq_desc, dk_desc, dv_desc, tiles, ds_s, dq_1, barriers, place, sizes, scale, softmax_scale,
                     sums, room, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW, MASKED, CUT)),
    ], [4, 4], [240, 240])  # fmt: skip
