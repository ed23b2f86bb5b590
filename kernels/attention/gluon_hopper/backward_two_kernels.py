"""The backward as two kernels, for head_dim 256 and for the same bits on every run: dK and dV, and dQ of 128 queries.

At head_dim 256 dK and dV of 64 keys fill the registers of two warpgroups, so one kernel for all three would add every
score's part of dQ to memory at 4 bytes x 256 / 64: measured, that is bound by the additions (NOTES.md, step 3). Two
kernels do seven products for five, add nothing to memory, and give the same bits on every run.

dQ, and delta on the way: two consumers of 64 queries each walk over the keys (see backward_two_kernels.py for why).

Which tile a program of the backward has.

Programs start in the order of their numbers. Where some tiles take longer than others (UNEVEN), the heads of a group
take turns, all with their longest tile first: so what is left for the last round is short.
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

from kernels.attention.gluon_hopper.backward_common import delta_of, load_out, store_rows, tiles_of_keys_and_queries
from kernels.attention.gluon_hopper.barriers import (
    await_programs,
    count_program,
    pdl_launch_dependents,
    pdl_wait,
)
from kernels.attention.gluon_hopper.compat import keep_p_before_wait, opaque_zero, pair_sync, tma_load, tma_store
from kernels.attention.gluon_hopper.masks import hide_keys, hide_queries, key_blocks, query_blocks


@gluon.jit
def place_of(heads, UNEVEN: gl.constexpr):
    """(tile, head, batch) of a program; a grid is (tiles, heads, batches), or (heads of a group, tiles, groups)."""
    tile = gl.program_id(0)
    head = gl.program_id(1)
    batch = gl.program_id(2)
    if UNEVEN:
        of_all = batch * gl.num_programs(0) + tile
        tile = head
        batch = of_all // heads
        head = of_all - batch * heads
    return tile, head, batch


@gluon.jit
def is_last():
    """Whether no program starts after this one."""
    first_axes = (gl.program_id(0) == gl.num_programs(0) - 1) & (gl.program_id(1) == gl.num_programs(1) - 1)
    return first_axes & (gl.program_id(2) == gl.num_programs(2) - 1)


@gluon.jit
def _load_kv(desc, place, full, tile):
    batch, h_kv, n0, low, left, right, high = place
    mbarrier.expect(full, desc.block_type.nbytes)
    tma_load(desc, [batch, h_kv, n0, 0], full, tile.index(0))


@gluon.jit
def _dkv_producer(descriptors, tiles, barriers, place, sizes, counter, programs, BLOCK_M: gl.constexpr,
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
        pdl_wait()  # who comes next may need both: one that waits is enough


@gluon.jit
def _dkv_scores(count, tiles, barriers, total, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
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
def _dkv_weights(s_token, dp_token, lse, scale, dtype: gl.constexpr):
    """P^T in 16 bits, unmasked, computed while dP^T runs; and dP^T."""
    s_t = warpgroup_mma_wait(1, deps=(s_token,))
    p = gl.exp2(s_t * scale - lse[None, :])  # rows beyond the end hold lse = +inf
    p = keep_p_before_wait(p.to(dtype))
    return p, warpgroup_mma_wait(0, deps=(dp_token,))


@gluon.jit
def _dkv_add(count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, n0, sizes, BLOCK_M: gl.constexpr, HEAD_DIM: gl.constexpr,
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
def _dkv_step(count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, barriers, n0, sizes, scale, BLOCK_M: gl.constexpr,
          BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr, CAUSAL: gl.constexpr,
          WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """What one block of queries adds to dK and dV; meanwhile the next block's scores."""
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    k_full, v_full, q_full, do_full, empty = barriers
    slot = count % SLOTS
    dv_token, dk_token = _dkv_add(count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, n0, sizes, BLOCK_M, HEAD_DIM, SLOTS,
                              CAUSAL, WINDOW, MASKED)  # fmt: skip
    count += 1
    s_token, dp_token, lse, delta = _dkv_scores(count, tiles, barriers, 0, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, False)
    dv, dk = warpgroup_mma_wait(2, deps=(dv_token, dk_token))
    mbarrier.arrive(empty.index(slot), count=1)
    p, dp = _dkv_weights(s_token, dp_token, lse, scale, q_s.dtype)
    return count, p, dp, delta, dk, dv


@gluon.jit
def _dkv_consumer(dk_desc, dv_desc, tiles, p_s, ds_s, barriers, place, sizes, scale, softmax_scale,
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
    s_token, dp_token, lse, delta = _dkv_scores(count, tiles, barriers, total, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, True)
    p, dp = _dkv_weights(s_token, dp_token, lse, scale, dtype)
    last = gl.maximum(high - 1, low)
    for member in range(group_size):
        end = high
        if member == group_size - 1:
            end = last  # behind the last block of all come no scores
        if MASKED:
            for m in range(low, gl.minimum(left, end)):
                count, p, dp, delta, dk, dv = _dkv_step(
                    count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, barriers, n0, sizes, scale, BLOCK_M, BLOCK_N,
                    HEAD_DIM, SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
        for m in range(left, gl.minimum(right, end)):
            count, p, dp, delta, dk, dv = _dkv_step(
                count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, barriers, n0, sizes, scale, BLOCK_M, BLOCK_N,
                HEAD_DIM, SLOTS, CAUSAL, WINDOW, False)  # fmt: skip
        if WINDOW:
            for m in range(right, end):
                count, p, dp, delta, dk, dv = _dkv_step(
                    count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, barriers, n0, sizes, scale, BLOCK_M, BLOCK_N,
                    HEAD_DIM, SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
    for m in range(last, high):
        dv_token, dk_token = _dkv_add(count, m, p, dp, delta, dk, dv, tiles, p_s, ds_s, n0, sizes, BLOCK_M, HEAD_DIM,
                                      SLOTS, CAUSAL, WINDOW, MASKED)  # fmt: skip
        dv, dk = warpgroup_mma_wait(0, deps=(dv_token, dk_token))
    pair_sync()  # keys and values have been read: their tiles take the gradients to TMA
    k_s.index(0).reshape([BLOCK_N, HEAD_DIM]).store((dk * softmax_scale).to(dtype))
    v_s.index(0).reshape([BLOCK_N, HEAD_DIM]).store(dv.to(dtype))
    fence_async_shared()
    pair_sync()
    tma_store(dk_desc, [batch, h_kv, n0, 0], k_s.index(0))
    tma_store(dv_desc, [batch, h_kv, n0, 0], v_s.index(0))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_rows", "programs", "num_heads", "kv_heads", "group_size", "seqlen_q", "seqlen_k",
                              "padded_q", "n_m", "window"])  # fmt: skip
def wide_dkv_kernel(q_desc, k_desc, v_desc, do_desc, dk_desc, dv_desc, lse_desc, delta_desc, delta_rows, n_rows,
                     programs, kv_heads, num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window, scale,
                     softmax_scale, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
                     SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
                     MASKED: gl.constexpr):  # fmt: skip
    """dK and dV of BLOCK_N keys, when `programs` programs of the kernel before have counted themselves (barriers.py).

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
        (_dkv_producer, (descriptors, tiles, barriers, place, sizes, counter, programs, BLOCK_M, SLOTS)),
        (_dkv_consumer, (dk_desc, dv_desc, tiles, p_s, ds_s, barriers, place, sizes, scale, softmax_scale,
                     BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW, MASKED)),
    ], [8], [240])  # fmt: skip


@gluon.jit
def _load_rows(consumer: gl.constexpr, desc, place, full, tiles, ROWS: gl.constexpr):
    batch, h, h_kv, m, low, left, right, high = place
    mbarrier.expect(full.index(consumer), desc.block_type.nbytes)
    tma_load(desc, [batch, h, (m * 2 + consumer) * ROWS, 0], full.index(consumer), tiles.index(consumer))


@gluon.jit
def _tell(stored, counter):
    """Both consumers' delta and lse are stored."""
    mbarrier.wait(stored, 0)
    pdl_wait()  # which sets the counters to zero
    count_program(counter)


@gluon.jit
def _dq_producer(q_desc, k_desc, v_desc, do_desc, counter, memory, place, BLOCK_N: gl.constexpr, ROWS: gl.constexpr,
              K_SLOTS: gl.constexpr):  # fmt: skip
    q_s, do_s, k_s, v_s, q_full, do_full, k_full, k_empty, v_full, v_empty, stored = memory
    batch, h, h_kv, m, low, left, right, high = place
    pdl_launch_dependents()
    # what the first product needs comes first
    _load_rows(0, q_desc, place, q_full, q_s, ROWS)
    mbarrier.expect(k_full.index(0), k_desc.block_type.nbytes)
    tma_load(k_desc, [batch, h_kv, low * BLOCK_N, 0], k_full.index(0), k_s.index(0))
    _load_rows(1, q_desc, place, q_full, q_s, ROWS)
    _load_rows(0, do_desc, place, do_full, do_s, ROWS)
    mbarrier.expect(v_full, v_desc.block_type.nbytes)
    tma_load(v_desc, [batch, h_kv, low * BLOCK_N, 0], v_full, v_s.index(0))
    _load_rows(1, do_desc, place, do_full, do_s, ROWS)
    for count in range(1, high - low):
        j = low + count
        slot = count % K_SLOTS
        mbarrier.wait(k_empty.index(slot), ((count // K_SLOTS) & 1) ^ 1)
        mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
        tma_load(k_desc, [batch, h_kv, j * BLOCK_N, 0], k_full.index(slot), k_s.index(slot))
        if count == 1:
            _tell(stored, counter)
        mbarrier.wait(v_empty, (count & 1) ^ 1)
        mbarrier.expect(v_full, v_desc.block_type.nbytes)
        tma_load(v_desc, [batch, h_kv, j * BLOCK_N, 0], v_full, v_s.index(0))
    if high - low == 1:
        _tell(stored, counter)


@gluon.jit
def _dq_scores(consumer: gl.constexpr, count, memory, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
            K_SLOTS: gl.constexpr, FIRST: gl.constexpr):  # fmt: skip
    """Begin S and dP of a block of keys; of the first one each as soon as it can."""
    q_s, do_s, k_s, v_s, q_full, do_full, k_full, k_empty, v_full, v_empty, stored = memory
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
    slot = count % K_SLOTS
    z = opaque_zero()
    q = q_s.index(consumer + z).reshape([ROWS, HEAD_DIM])
    do = do_s.index(consumer + z).reshape([ROWS, HEAD_DIM])
    k_t = k_s.index(slot).reshape([BLOCK_N, HEAD_DIM]).permute((1, 0))
    v_t = v_s.index(z).reshape([BLOCK_N, HEAD_DIM]).permute((1, 0))
    if FIRST:
        mbarrier.wait(q_full.index(consumer), 0)
        mbarrier.wait(k_full.index(0), 0)
    else:
        mbarrier.wait(k_full.index(slot), (count // K_SLOTS) & 1)
        mbarrier.wait(v_full, count & 1)
    s_token = warpgroup_mma(q, k_t, zero, use_acc=False, is_async=True)
    if FIRST:
        mbarrier.wait(do_full.index(consumer), 0)
        mbarrier.wait(v_full, 0)
    dp_token = warpgroup_mma(do, v_t, zero, use_acc=False, is_async=True)
    return s_token, dp_token


@gluon.jit
def _dq_weights(s, j, lse, scale, diagonal, seqlen_k, window, dtype: gl.constexpr, BLOCK_N: gl.constexpr,
             CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """P of a block of keys in 16 bits, computed while dP runs.

    Masked here, not where dP is added: in the long block behind the loops, MLIR's canonicalizer took 3 s for the mask.
    """
    p = gl.exp2(s * scale - lse[:, None]).to(dtype)
    if MASKED:
        p = hide_keys(p, 0.0, j * BLOCK_N, diagonal, seqlen_k, window, CAUSAL, WINDOW)
    return keep_p_before_wait(p)


@gluon.jit
def _dq_add(count, p, dp, dq, delta, memory, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, K_SLOTS: gl.constexpr):
    """Begin what one block of keys adds to dQ; dS must stay in its registers until it has."""
    q_s, do_s, k_s, v_s, q_full, do_full, k_full, k_empty, v_full, v_empty, stored = memory
    dtype: gl.constexpr = q_s.dtype
    operand: gl.constexpr = gl.DotOperandLayout(0, dq.type.layout, 2)
    ds = gl.convert_layout((p.to(gl.float32) * (dp - delta[:, None])).to(dtype), operand, assert_trivial=True)
    keys = k_s.index(count % K_SLOTS).reshape([BLOCK_N, HEAD_DIM])
    return warpgroup_mma(ds, keys, dq, is_async=True), ds


@gluon.jit
def _dq_step(consumer: gl.constexpr, count, j, p, dp, dq, lse, delta, memory, diagonal, seqlen_k, window, scale,
          ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, K_SLOTS: gl.constexpr,
          CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """What one block of keys adds to dQ; meanwhile the next block's scores."""
    q_s, do_s, k_s, v_s, q_full, do_full, k_full, k_empty, v_full, v_empty, stored = memory
    slot = count % K_SLOTS
    dq_token, ds = _dq_add(count, p, dp, dq, delta, memory, BLOCK_N, HEAD_DIM, K_SLOTS)
    count += 1
    s_token, dp_token = _dq_scores(consumer, count, memory, ROWS, BLOCK_N, HEAD_DIM, K_SLOTS, False)
    dq, ds = warpgroup_mma_wait(2, deps=(dq_token, ds))
    mbarrier.arrive(k_empty.index(slot), count=1)
    s = warpgroup_mma_wait(1, deps=(s_token,))
    p = _dq_weights(s, j + 1, lse, scale, diagonal, seqlen_k, window, q_s.dtype, BLOCK_N, CAUSAL, WINDOW, MASKED)
    dp = warpgroup_mma_wait(0, deps=(dp_token,))
    mbarrier.arrive(v_empty, count=1)
    return count, p, dp, dq


@gluon.jit
def _dq_consumer(consumer: gl.constexpr, dq_desc, rows_of, memory, place, sizes, scale, softmax_scale,
              ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, K_SLOTS: gl.constexpr,
              CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr, WIDTH: gl.constexpr):  # fmt: skip
    q_s, do_s, k_s, v_s, q_full, do_full, k_full, k_empty, v_full, v_empty, stored = memory
    batch, h, h_kv, m, low, left, right, high = place
    out, lse_rows, lse_padded, delta_padded, head, out_m = rows_of
    seqlen_q, seqlen_k, padded_q, window = sizes
    dtype: gl.constexpr = q_s.dtype
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    first = (m * 2 + consumer) * ROWS
    out_tile = load_out(out, first, seqlen_q, out_m, ROWS, HEAD_DIM, WIDTH)  # on its way beside TMA's
    diagonal = first + seqlen_k - seqlen_q
    rows = first + gl.arange(0, ROWS, gl.SliceLayout(1, s_layout))
    lse = gl.load(lse_rows + head * seqlen_q + rows, mask=rows < seqlen_q, other=float("inf"))
    dq = gl.zeros([ROWS, HEAD_DIM], gl.float32, dq_layout)
    count = 0
    s_token, dp_token = _dq_scores(consumer, count, memory, ROWS, BLOCK_N, HEAD_DIM, K_SLOTS, True)
    delta = gl.convert_layout(delta_of(out_tile, do_s.index(consumer).reshape([ROWS, HEAD_DIM])), lse.type.layout)
    store_rows(lse_padded, head * padded_q, rows, lse, padded_q)
    store_rows(delta_padded, head * padded_q, rows, delta, padded_q)
    mbarrier.arrive(stored, count=1)
    s = warpgroup_mma_wait(1, deps=(s_token,))
    p = _dq_weights(s, low, lse, scale, diagonal, seqlen_k, window, dtype, BLOCK_N, CAUSAL, WINDOW, MASKED)
    dp = warpgroup_mma_wait(0, deps=(dp_token,))
    mbarrier.arrive(v_empty, count=1)
    # a step makes the weights of the block behind its own: those of [left, right) need no mask
    unmasked = gl.maximum(left - 1, low)
    masked = gl.maximum(right - 1, low)
    if WINDOW:
        for j in range(low, unmasked):
            count, p, dp, dq = _dq_step(
                consumer, count, j, p, dp, dq, lse, delta, memory, diagonal, seqlen_k, window, scale, ROWS,
                BLOCK_N, HEAD_DIM, K_SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
    for j in range(unmasked, masked):
        count, p, dp, dq = _dq_step(
            consumer, count, j, p, dp, dq, lse, delta, memory, diagonal, seqlen_k, window, scale, ROWS,
            BLOCK_N, HEAD_DIM, K_SLOTS, CAUSAL, WINDOW, False)  # fmt: skip
    if MASKED:
        for j in range(masked, high - 1):
            count, p, dp, dq = _dq_step(
                consumer, count, j, p, dp, dq, lse, delta, memory, diagonal, seqlen_k, window, scale, ROWS,
                BLOCK_N, HEAD_DIM, K_SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
    dq_token, ds = _dq_add(count, p, dp, dq, delta, memory, BLOCK_N, HEAD_DIM, K_SLOTS)
    dq, ds = warpgroup_mma_wait(0, deps=(dq_token, ds))
    q_s.index(consumer).reshape([ROWS, HEAD_DIM]).store((dq * softmax_scale).to(dtype))
    fence_async_shared()
    tma_store(dq_desc, [batch, h, first, 0], q_s.index(consumer))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["out_b", "out_h", "out_m", "n_rows", "kv_heads", "num_heads", "group_size", "seqlen_q",
                              "seqlen_k", "padded_q", "window"])  # fmt: skip
def wide_dq_kernel(q_desc, k_desc, v_desc, do_desc, dq_desc, out, lse_rows, lse_padded, delta_padded, out_b, out_h,
                        out_m, n_rows, kv_heads, num_heads, group_size, seqlen_q, seqlen_k, padded_q, window,
                        scale, softmax_scale, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
                        K_SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr,
                        WIDTH: gl.constexpr):  # fmt: skip
    """dQ of 128 queries, and what the kernel behind it needs of them: delta, and lse, padded to whole tiles.

    `scale` is softmax_scale x log2(e); strides of `out` are in eights of numbers, WIDTH is how many columns it has.
    """
    dtype: gl.constexpr = q_desc.dtype
    q_s = gl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, HEAD_DIM], q_desc.layout)
    do_s = gl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, HEAD_DIM], do_desc.layout)
    k_s = gl.allocate_shared_memory(dtype, [K_SLOTS, 1, 1, BLOCK_N, HEAD_DIM], k_desc.layout)
    v_s = gl.allocate_shared_memory(dtype, [1, 1, 1, BLOCK_N, HEAD_DIM], v_desc.layout)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    do_full = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    k_full = gl.allocate_shared_memory(gl.int64, [K_SLOTS, 1], bar)
    k_empty = gl.allocate_shared_memory(gl.int64, [K_SLOTS, 1], bar)
    v_full = gl.allocate_shared_memory(gl.int64, [1], bar)
    v_empty = gl.allocate_shared_memory(gl.int64, [1], bar)
    stored = gl.allocate_shared_memory(gl.int64, [1], bar)
    for i in gl.static_range(2):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(do_full.index(i), count=1)
    mbarrier.init(v_full, count=1)
    mbarrier.init(v_empty, count=2)
    mbarrier.init(stored, count=2)
    for i in gl.static_range(K_SLOTS):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
    m, h, batch = place_of(num_heads, CAUSAL and not WINDOW)
    if CAUSAL:
        m = gl.cdiv(seqlen_q, 2 * ROWS) - 1 - m  # the longest first
    low, left, right, high = key_blocks(m, seqlen_q, seqlen_k, window, 2 * ROWS, BLOCK_N, CAUSAL, WINDOW)
    if not MASKED:
        right = high
    memory = (q_s, do_s, k_s, v_s, q_full, do_full, k_full, k_empty, v_full, v_empty, stored)
    place = (batch, h, h // group_size, m, low, left, right, high)
    sizes = (seqlen_q, seqlen_k, padded_q, window)
    head = (batch * num_heads + h).to(gl.int64)
    counter = delta_padded + (n_rows + batch * kv_heads + h // group_size)
    out = out + (batch.to(gl.int64) * out_b + h.to(gl.int64) * out_h) * 8
    rows_of = (out, lse_rows, lse_padded, delta_padded, head, out_m)
    # Constants must stand in the call itself: a tuple bound to a name turns them into tensors.
    gl.warp_specialize([
        (_dq_producer, (q_desc, k_desc, v_desc, do_desc, counter, memory, place, BLOCK_N, ROWS, K_SLOTS)),
        (_dq_consumer, (0, dq_desc, rows_of, memory, place, sizes, scale, softmax_scale, ROWS, BLOCK_N, HEAD_DIM,
                        K_SLOTS, CAUSAL, WINDOW, MASKED, WIDTH)),
        (_dq_consumer, (1, dq_desc, rows_of, memory, place, sizes, scale, softmax_scale, ROWS, BLOCK_N, HEAD_DIM,
                        K_SLOTS, CAUSAL, WINDOW, MASKED, WIDTH)),
    ], [4, 4], [240, 240])  # fmt: skip
