"""The backward with a warpgroup of its own for dQ, so that the consumers need not wait for each other.

A program owns 128 keys of one key head and walks over the queries in blocks of 128, or of 64 at head_dim 128. Each of
two consumers has 64 of the keys: S^T, dP^T, dV and dK, the last two with register operands. dS goes to the assistant
(assistant.py), which computes dQ and adds it up in float32 (ring.py). Free of barriers with each other, one consumer
computes exponentials while the tensor cores work for the other. dQ may differ in its last bits from run to run, as the
order of its additions is not fixed.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention.gluon_hopper.assistant import ALL_READ, DS_FULL, STAGES, load_and_add
from kernels.attention.gluon_hopper.fragments import fragment_buffers
from kernels.attention.gluon_hopper.key_tiles import place_of_program, store_sums
from kernels.attention.gluon_hopper.later import read_rows, write_delta
from kernels.attention.gluon_hopper.powers import hide_scores, packed_powers
from kernels.attention.gluon_hopper.shim import opaque_zero, pair_sync, tma_store
from kernels.attention.gluon_hopper.slots import DO_EMPTY, Q_EMPTY, give_slot, wait_for_slot
from kernels.attention.gluon_hopper.tiles import tiles_of_keys_and_queries
from kernels.attention.gluon_hopper.weights import unpacked

# Triton 3.9's ptxas would spill in the loop.
_DELTA_AHEAD = gl.constexpr(tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9))


@gluon.jit
def _scores(consumer: gl.constexpr, count, keys_s, full, rows_s, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
            HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr):  # fmt: skip
    """Begin S^T (of K and Q) or dP^T (of V and dO) of a block of queries."""
    HALF: gl.constexpr = BLOCK_N // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    zero = gl.zeros([HALF, BLOCK_M], gl.float32, layout)
    slot = count % SLOTS
    keys = keys_s.index(opaque_zero()).reshape([BLOCK_N, HEAD_DIM]).slice(consumer * HALF, HALF, 0)
    mbarrier.wait(full.index(slot), (count // SLOTS) & 1)
    rows = rows_s.index(slot).reshape([BLOCK_M, HEAD_DIM])
    return warpgroup_mma(keys, rows.permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def _products(consumer: gl.constexpr, count, m, s_t, lse, dk, dv, tiles, ds_s, barriers, n0, sizes, scale,
              BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr,
              CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """dV; dK under way, and dS handed over."""
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, do_full, ds_empty = barriers
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    HALF: gl.constexpr = BLOCK_N // 2
    columns: gl.constexpr = gl.SliceLayout(0, s_t.type.layout)
    operand: gl.constexpr = gl.DotOperandLayout(0, dv.type.layout, 2)
    slot = count % SLOTS
    AHEAD: gl.constexpr = HEAD_DIM > 64  # smaller blocks of queries leave registers to read before waiting
    if not AHEAD:
        lse = lse_s.index(slot).load(columns)
    x = s_t * scale - lse[None, :]  # rows beyond the end hold lse = +inf
    if MASKED:
        first = m * BLOCK_M + seqlen_k - seqlen_q
        x = hide_scores(x, first, n0 + consumer * HALF, seqlen_k, window, CAUSAL, WINDOW)
    p16 = packed_powers(x, q_s.dtype)
    dp_token = _scores(consumer, count, v_s, do_full, do_s, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS)
    p_operand = gl.convert_layout(p16, operand, assert_trivial=True)
    do = do_s.index(slot).reshape([BLOCK_M, HEAD_DIM])
    dv_token = warpgroup_mma(p_operand, do, dv, is_async=True)
    if AHEAD and _DELTA_AHEAD:
        delta = delta_s.index(slot).load(columns)
    dp = warpgroup_mma_wait(1, deps=(dp_token,))
    if not (AHEAD and _DELTA_AHEAD):
        delta = delta_s.index(slot).load(columns)
    ds16 = (unpacked(p16) * (dp - delta[None, :])).to(q_s.dtype)  # p itself would be 64 registers more
    ds_operand = gl.convert_layout(ds16, operand, assert_trivial=True)
    _hand_over(consumer, count, ds16, ds_s, ds_empty, HALF)
    dk_token = warpgroup_mma(ds_operand, q_s.index(slot).reshape([BLOCK_M, HEAD_DIM]), dk, is_async=True)
    dv, p_operand = warpgroup_mma_wait(1, deps=(dv_token, p_operand))
    give_slot(DO_EMPTY + slot)
    return dv, dk_token, ds_operand


@gluon.jit
def _hand_over(consumer: gl.constexpr, count, ds16, ds_s, ds_empty, HALF: gl.constexpr):
    """Give dS to the assistant."""
    stage = count % STAGES
    mbarrier.wait(ds_empty.index(stage), ((count // STAGES) & 1) ^ 1)
    ds_s.index(stage).slice(consumer * HALF, HALF, 1).permute((1, 0)).store(ds16)
    fence_async_shared()
    give_slot(DS_FULL + stage)


@gluon.jit
def _step(consumer: gl.constexpr, count, m, s_t, lse, dk, dv, tiles, ds_s, barriers, n0, sizes, scale,
          BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr,
          CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """What one block of queries adds to the gradients; the scores of the next."""
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, do_full, ds_empty = barriers
    dv, dk_token, ds_operand = _products(
        consumer, count, m, s_t, lse, dk, dv, tiles, ds_s, barriers, n0, sizes, scale, BLOCK_M, BLOCK_N, HEAD_DIM,
        SLOTS, CAUSAL, WINDOW, MASKED)  # fmt: skip
    s_token = _scores(consumer, count + 1, k_s, q_full, q_s, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS)
    if HEAD_DIM > 64:
        lse = lse_s.index((count + 1) % SLOTS).load(gl.SliceLayout(0, s_t.type.layout))
    dk, ds_operand = warpgroup_mma_wait(1, deps=(dk_token, ds_operand))
    give_slot(Q_EMPTY + count % SLOTS)
    s_t = warpgroup_mma_wait(0, deps=(s_token,))
    return count + 1, s_t, lse, dk, dv


@gluon.jit
def _gradients(
    consumer: gl.constexpr, dk, dv, o, do, later, unit, tiles, ds_s, barriers, place, sizes, scale,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr, CAUSAL: gl.constexpr,
    WINDOW: gl.constexpr, MASKED: gl.constexpr, AHEAD: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """dK and dV of this consumer's keys over all blocks of queries, of which there is at least one."""
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, do_full, ds_empty = barriers
    batch, h_kv, n0, low, left, right, high = place
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    count = 0
    s_token = _scores(consumer, count, k_s, q_full, q_s, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS)
    if AHEAD:
        write_delta(consumer, o, do, later, unit, sizes, HEAD_DIM, WIDTH)
    s_t = warpgroup_mma_wait(0, deps=(s_token,))
    lse = gl.to_tensor(0)  # that of the scores under way, where it is read ahead
    if HEAD_DIM > 64:
        lse = lse_s.index(0).load(gl.SliceLayout(0, s_t.type.layout))
    for member in range(group_size):
        end = high - (member + 1 == group_size).to(gl.int32)
        if MASKED:
            for m in range(low, gl.minimum(left, end)):
                count, s_t, lse, dk, dv = _step(
                    consumer, count, m, s_t, lse, dk, dv, tiles, ds_s, barriers, n0, sizes, scale, BLOCK_M, BLOCK_N,
                    HEAD_DIM, SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
        for m in range(left, gl.minimum(right, end)):
            count, s_t, lse, dk, dv = _step(
                consumer, count, m, s_t, lse, dk, dv, tiles, ds_s, barriers, n0, sizes, scale, BLOCK_M, BLOCK_N,
                HEAD_DIM, SLOTS, CAUSAL, WINDOW, False)  # fmt: skip
        if WINDOW:
            for m in range(right, end):
                count, s_t, lse, dk, dv = _step(
                    consumer, count, m, s_t, lse, dk, dv, tiles, ds_s, barriers, n0, sizes, scale, BLOCK_M, BLOCK_N,
                    HEAD_DIM, SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
    dv, dk_token, ds_operand = _products(
        consumer, count, high - 1, s_t, lse, dk, dv, tiles, ds_s, barriers, n0, sizes, scale, BLOCK_M, BLOCK_N,
        HEAD_DIM, SLOTS, CAUSAL, WINDOW, MASKED)  # fmt: skip
    dk, ds_operand = warpgroup_mma_wait(0, deps=(dk_token, ds_operand))
    give_slot(Q_EMPTY + count % SLOTS)
    return dk, dv


@gluon.jit
def _consumer(consumer: gl.constexpr, dk_desc, dv_desc, later, tiles, ds_s, barriers, place, sizes, scale,
              softmax_scale, sums, room, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
              SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr,
              AHEAD: gl.constexpr, WIDTH: gl.constexpr, CUT: gl.constexpr):  # fmt: skip
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, do_full, ds_empty = barriers
    batch, h_kv, n0, low, left, right, high = place
    dtype: gl.constexpr = q_s.dtype
    unit = batch * gl.num_programs(1) + h_kv
    o, do = 0, 0
    if AHEAD:
        o, do = read_rows(consumer, later, unit, sizes, HEAD_DIM, WIDTH)
    HALF: gl.constexpr = BLOCK_N // 2
    kv_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    dk = gl.zeros([HALF, HEAD_DIM], gl.float32, kv_layout)
    dv = gl.zeros([HALF, HEAD_DIM], gl.float32, kv_layout)
    mbarrier.wait(kv_full, 0)
    if high > low:
        dk, dv = _gradients(consumer, dk, dv, o, do, later, unit, tiles, ds_s, barriers, place, sizes, scale, BLOCK_M,
                            BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW, MASKED, AHEAD, WIDTH)  # fmt: skip
    elif AHEAD:
        write_delta(consumer, o, do, later, unit, sizes, HEAD_DIM, WIDTH)
    wait_for_slot(ALL_READ)  # the others have read all keys: their tiles take the gradients to the copy engine
    if CUT:
        store_sums(consumer, dk, dv, sums, room, BLOCK_N, HEAD_DIM)
    else:
        k_s.index(0).reshape([BLOCK_N, HEAD_DIM]).slice(consumer * HALF, HALF, 0).store((dk * softmax_scale).to(dtype))
        v_s.index(0).reshape([BLOCK_N, HEAD_DIM]).slice(consumer * HALF, HALF, 0).store(dv.to(dtype))
        fence_async_shared()
        pair_sync()
        if consumer == 0:
            tma_store(dk_desc, [batch, h_kv, n0, 0], k_s.index(0))
        else:
            tma_store(dv_desc, [batch, h_kv, n0, 0], v_s.index(0))
        tma.store_wait(0)


@gluon.jit(do_not_specialize=["num_heads", "group_size", "seqlen_q", "seqlen_k", "padded_q", "n_m", "window", "places",
                              "lag", "alone", "together"])  # fmt: skip
def assisted_kernel(q_desc, k_desc, v_desc, do_desc, fragments_desc, dk_desc, dv_desc, lse_desc, delta_desc, dq_desc,
                    fragments, out, dout, delta, pieces, sums, num_heads, group_size, seqlen_q, seqlen_k, padded_q,
                    n_m, window, places, lag, out_b, out_h, out_m, do_b, do_h, do_m, alone, together, scale,
                    softmax_scale,
                    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr,
                    CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr,
                    AHEAD: gl.constexpr, WIDTH: gl.constexpr, NUMBERED: gl.constexpr,
                    CUT: gl.constexpr):  # fmt: skip
    """dK and dV of 128 keys, and their part of dQ; `scale` is softmax_scale x log2(e), `padded_q` n_m x BLOCK_M.

    `fragments_desc` and `fragments` are the same tensor, and so are `delta_desc` and `delta`, `do_desc` and `dout`.
    AHEAD: consumers compute delta of a later unit (later.py), from tensors of head_dim WIDTH.
    CUT: of a part of the queries, as `pieces` says; dK and dV then go to `sums` (pieces.py).
    """
    dtype: gl.constexpr = q_desc.dtype
    tiles = tiles_of_keys_and_queries(q_desc, k_desc, do_desc, lse_desc, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_N], dtype)
    ds_s = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, BLOCK_N], ds_layout)
    dq_0, dq_1 = fragment_buffers()
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    kv_full = gl.allocate_shared_memory(gl.int64, [1], bar)
    q_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bar)
    do_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], bar)
    ds_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    part_full = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    delta_written = gl.allocate_shared_memory(gl.int64, [1], bar)
    mbarrier.init(kv_full, count=1)
    mbarrier.init(delta_written, count=2)
    mbarrier.init(part_full.index(0), count=1)
    mbarrier.init(part_full.index(1), count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(do_full.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(ds_empty.index(i), count=1)
    sizes = (num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window)
    place, room = place_of_program(
        pieces, sizes, alone, together, BLOCK_M, BLOCK_N, CAUSAL, WINDOW, HEAD_DIM > 64, NUMBERED, CUT
    )
    descriptors = (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc)
    barriers = (kv_full, q_full, do_full, ds_empty)
    ring = (fragments, fragments_desc, dq_desc, places, lag, softmax_scale)
    later = (out, dout, delta, delta_written, lag, out_b, out_h, out_m, do_b, do_h, do_m)
    # Constants must stand in the call itself: a tuple bound to a name turns them into tensors.
    gl.warp_specialize([
        (load_and_add, (descriptors, ring, tiles, ds_s, dq_0, dq_1, barriers, part_full, delta_written, place,
                        sizes, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, AHEAD, NUMBERED, CUT)),
        (_consumer, (0, dk_desc, dv_desc, later, tiles, ds_s, barriers, place, sizes, scale, softmax_scale, sums, room,
                     BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW, MASKED, AHEAD, WIDTH, CUT)),
        (_consumer, (1, dk_desc, dv_desc, later, tiles, ds_s, barriers, place, sizes, scale, softmax_scale, sums, room,
                     BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW, MASKED, AHEAD, WIDTH, CUT)),
    ], [4, 4], [216, 216])  # fmt: skip
