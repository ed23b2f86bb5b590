"""What a consumer of the forward does with one block of keys: computes its scores, or hands it back unread."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from kernels.attention.gluon_hopper.masks import hide_keys
from kernels.attention.gluon_hopper.rare import rescale
from kernels.attention.gluon_hopper.shim import hold_pairs_before_wait, turn_give, turn_wait
from kernels.attention.gluon_hopper.softmax import by_lanes, of_lanes, softmax, softmax_by_lane


@gluon.jit
def first_scores(consumer: gl.constexpr, turn, turns, count, memory, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
                 HEAD_DIM: gl.constexpr, Q_SLOTS: gl.constexpr, KV_SLOTS: gl.constexpr,
                 WAIT: gl.constexpr):  # fmt: skip
    """Begin a tile's product with its first keys; beyond the last tile, one that nobody reads."""
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    slot = count % KV_SLOTS
    q_slot = consumer * Q_SLOTS + turn % Q_SLOTS
    if WAIT:  # noqa: SIM102 - decided at compile time
        if turn < turns:
            mbarrier.wait(q_full.index(q_slot), (turn // Q_SLOTS) & 1)
            mbarrier.wait(k_full.index(slot), (count // KV_SLOTS) & 1)
    k_t = k_s.index(slot).reshape([BLOCK_N, HEAD_DIM]).permute((1, 0))
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
    return warpgroup_mma(q_s.index(q_slot).reshape([ROWS, HEAD_DIM]), k_t, zero, use_acc=False, is_async=True)


@gluon.jit
def block(consumer: gl.constexpr, j, low, count, q, q_done, p, out, m_i, l_i, memory, diagonal, seqlen_k, window,
          scale, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, KV_SLOTS: gl.constexpr,
          CAUSAL: gl.constexpr, WINDOW: gl.constexpr, TURNS: gl.constexpr, MASKED: gl.constexpr,
          DIRECT: gl.constexpr, HOLD: gl.constexpr, BY_LANE: gl.constexpr):  # fmt: skip
    """Scores of key block j while the weights of the block before it meet their values."""
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    out_layout: gl.constexpr = out.type.layout
    p_layout: gl.constexpr = p.type.layout
    dtype: gl.constexpr = p.dtype
    last = count % KV_SLOTS
    last_phase = (count // KV_SLOTS) & 1
    count += 1
    slot = count % KV_SLOTS
    mbarrier.wait(k_full.index(slot), (count // KV_SLOTS) & 1)
    if TURNS:
        turn_wait(consumer)
    k_t = k_s.index(slot).reshape([BLOCK_N, HEAD_DIM]).permute((1, 0))
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
    s_token = warpgroup_mma(q, k_t, zero, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(last), last_phase)
    out_token = warpgroup_mma(p, v_s.index(last).reshape([BLOCK_N, HEAD_DIM]), out, is_async=True)
    if TURNS:
        turn_give(1 - consumer)
    s = warpgroup_mma_wait(1, deps=(s_token,))
    mbarrier.arrive(k_empty.index(slot), count=1)
    if DIRECT:  # noqa: SIM102 - decided at compile time
        if j == low:  # the last product of these queries
            mbarrier.arrive(q_done, count=1)
    if MASKED:
        s = hide_keys(s, -float("inf"), j * BLOCK_N, diagonal, seqlen_k, window, CAUSAL, WINDOW)
    if BY_LANE and not MASKED:
        p_new, m_i, l_i, alpha = softmax_by_lane(s, m_i, l_i, scale, p_layout, dtype)
    else:
        p_new, m_i, l_i, alpha = softmax(s, m_i, l_i, scale, p_layout, dtype, MASKED)
    if HOLD:
        l_i = hold_pairs_before_wait(l_i)
    out, p = warpgroup_mma_wait(0, deps=(out_token, p))  # p must stay in its registers until here
    mbarrier.arrive(v_empty.index(last), count=1)
    lanes = by_lanes(out)
    out = rescale(lanes, of_lanes(alpha, lanes)).reshape([ROWS, HEAD_DIM])
    out = gl.convert_layout(out, out_layout, assert_trivial=True)
    return count, p_new, out, m_i, l_i


@gluon.jit
def pass_on(count, memory, KV_SLOTS: gl.constexpr):
    """Hand back a block of keys and values without having used it."""
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    slot = count % KV_SLOTS
    phase = (count // KV_SLOTS) & 1
    mbarrier.wait(k_full.index(slot), phase)
    mbarrier.arrive(k_empty.index(slot), count=1)
    mbarrier.wait(v_full.index(slot), phase)
    mbarrier.arrive(v_empty.index(slot), count=1)
    return count + 1


@gluon.jit
def pass_values_and_next_keys(count, memory, KV_SLOTS: gl.constexpr):
    """Hand back the values of a block whose keys have been handed back, and the keys of the next block."""
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    slot = count % KV_SLOTS
    mbarrier.wait(v_full.index(slot), (count // KV_SLOTS) & 1)
    mbarrier.arrive(v_empty.index(slot), count=1)
    count += 1
    slot = count % KV_SLOTS
    mbarrier.wait(k_full.index(slot), (count // KV_SLOTS) & 1)
    mbarrier.arrive(k_empty.index(slot), count=1)
    return count
