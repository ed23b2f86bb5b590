"""The consumers of the backward at head_dim 64: the next block's scores are under way while this block's end.

There, exponentials and the other work on scores take as long as two of the five products. A step begins with the
weights P^T (unmasked) and dP^T of its block in registers, and ends with those of the next: S^T of the next block runs
while dQ leaves the registers, dP^T while the exponentials are computed. The last block stands behind the loops.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention.gluon_hopper.fragments import FRAGMENT, add_fragment, dq_operands
from kernels.attention.gluon_hopper.masks import hide_queries
from kernels.attention.gluon_hopper.shim import opaque_zero, pair_sync
from kernels.attention.gluon_hopper.slots import DO_EMPTY, Q_EMPTY, give_slot
from kernels.attention.gluon_hopper.weights import exp2, opaque, unpacked


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
def _weights(s_t, count, lse_s, scale, SLOTS: gl.constexpr):
    lse = lse_s.index(count % SLOTS).load(gl.SliceLayout(0, s_t.type.layout))
    return exp2(s_t * scale - lse[None, :])  # rows beyond the end hold lse = +inf


@gluon.jit
def _products(consumer: gl.constexpr, count, m, p, dp, dk, dv, tiles, ds_s, n0, sizes, BLOCK_M: gl.constexpr,
              BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr, CAUSAL: gl.constexpr,
              WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """dV, with which this waits; dK and dQ under way."""
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    HALF: gl.constexpr = BLOCK_N // 2
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FRAGMENT, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, dv.type.layout, 2)
    slot = count % SLOTS
    ds_tile = ds_s.index(count % 2)
    if MASKED:
        first = m * BLOCK_M + seqlen_k - seqlen_q
        # opaque: else the choice is made of 16-bit halves, one instruction a half
        p = opaque(hide_queries(p, first, n0 + consumer * HALF, seqlen_k, window, CAUSAL, WINDOW))
    p16 = p.to(q_s.dtype)
    p_operand = gl.convert_layout(p16, operand, assert_trivial=True)
    do = do_s.index(slot).reshape([BLOCK_M, HEAD_DIM])
    dv_token = warpgroup_mma(p_operand, do, dv, is_async=True)
    delta = delta_s.index(slot).load(gl.SliceLayout(0, p.type.layout))
    ds16 = (unpacked(p16) * (dp - delta[None, :])).to(q_s.dtype)  # p itself would be 64 registers more
    ds_operand = gl.convert_layout(ds16, operand, assert_trivial=True)
    dk_token = warpgroup_mma(ds_operand, q_s.index(slot).reshape([BLOCK_M, HEAD_DIM]), dk, is_async=True)
    ds_tile.slice(consumer * HALF, HALF, 1).permute((1, 0)).store(ds16)
    fence_async_shared()
    pair_sync()  # both halves of dS are written; two tiles in turn, so that none is overwritten while read
    k = k_s.index(opaque_zero()).reshape([BLOCK_N, HEAD_DIM])
    left_operand, right_operand = dq_operands(ds_tile, k, consumer, BLOCK_M)
    zero = gl.zeros([FRAGMENT, FRAGMENT], gl.float32, dq_layout)
    dq_token = warpgroup_mma(left_operand, right_operand, zero, use_acc=False, is_async=True)
    dv, p_operand = warpgroup_mma_wait(2, deps=(dv_token, p_operand))
    give_slot(DO_EMPTY + slot)
    return dq_token, dk_token, ds_operand, dv


@gluon.jit
def _step(consumer: gl.constexpr, count, m, head, p, dp, dk, dv, dq_desc, tiles, ds_s, dq_s, barriers, n0, sizes, scale,
          BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr,
          CAUSAL: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """What one block of queries adds to the gradients; the weights and dP^T of the next."""
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, do_full = barriers
    dq_token, dk_token, ds_operand, dv = _products(
        consumer, count, m, p, dp, dk, dv, tiles, ds_s, n0, sizes, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW,
        MASKED)  # fmt: skip
    s_token = _scores(consumer, count + 1, k_s, q_full, q_s, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS)
    dq, dk, ds_operand = warpgroup_mma_wait(1, deps=(dq_token, dk_token, ds_operand))
    add_fragment(dq, (head * sizes[5] + m) * 2 + consumer, dq_desc, dq_s)
    give_slot(Q_EMPTY + count % SLOTS)
    dp_token = _scores(consumer, count + 1, v_s, do_full, do_s, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS)
    s_t = warpgroup_mma_wait(1, deps=(s_token,))
    p = _weights(s_t, count + 1, lse_s, scale, SLOTS)
    dp = warpgroup_mma_wait(0, deps=(dp_token,))
    return count + 1, p, dp, dk, dv


@gluon.jit
def overlapped_gradients(
    consumer: gl.constexpr, dk, dv, dq_desc, tiles, ds_s, dq_s, barriers, place, sizes, scale, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
    MASKED: gl.constexpr,
):  # fmt: skip
    """dK and dV of this consumer's keys over all blocks of queries, of which there is at least one."""
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, do_full = barriers
    batch, h_kv, n0, low, left, right, high = place
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    count = 0
    s_token = _scores(consumer, count, k_s, q_full, q_s, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS)
    dp_token = _scores(consumer, count, v_s, do_full, do_s, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS)
    s_t = warpgroup_mma_wait(1, deps=(s_token,))
    p = _weights(s_t, count, lse_s, scale, SLOTS)
    dp = warpgroup_mma_wait(0, deps=(dp_token,))
    head = batch * num_heads + h_kv * group_size
    for member in range(group_size):
        end = high - (member + 1 == group_size).to(gl.int32)
        if MASKED:
            for m in range(low, gl.minimum(left, end)):
                count, p, dp, dk, dv = _step(
                    consumer, count, m, head + member, p, dp, dk, dv, dq_desc, tiles, ds_s, dq_s, barriers, n0, sizes,
                    scale, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
        for m in range(left, gl.minimum(right, end)):
            count, p, dp, dk, dv = _step(
                consumer, count, m, head + member, p, dp, dk, dv, dq_desc, tiles, ds_s, dq_s, barriers, n0, sizes,
                scale, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW, False)  # fmt: skip
        if WINDOW:
            for m in range(right, end):
                count, p, dp, dk, dv = _step(
                    consumer, count, m, head + member, p, dp, dk, dv, dq_desc, tiles, ds_s, dq_s, barriers, n0, sizes,
                    scale, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL, WINDOW, True)  # fmt: skip
    dq_token, dk_token, ds_operand, dv = _products(
        consumer, count, high - 1, p, dp, dk, dv, tiles, ds_s, n0, sizes, BLOCK_M, BLOCK_N, HEAD_DIM, SLOTS, CAUSAL,
        WINDOW, MASKED)  # fmt: skip
    dq, dk, ds_operand = warpgroup_mma_wait(0, deps=(dq_token, dk_token, ds_operand))
    give_slot(Q_EMPTY + count % SLOTS)
    add_fragment(dq, ((head + group_size - 1) * n_m + high - 1) * 2 + consumer, dq_desc, dq_s)
    return dk, dv
