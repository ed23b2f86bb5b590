"""One consumer warpgroup of the forward: 64 query rows of each of its program's tiles.

The product with the keys of one block runs while the softmax of the block before it is computed, and the next tile's
first product while a tile's output is stored. Key blocks are walked from the right, so that masks are needed first
(the diagonal, the tail) and, with a window, last.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from kernels.attention.gluon_hopper.blocks import first_scores, pass_on, pass_values_and_next_keys, walk
from kernels.attention.gluon_hopper.kv_slots import free_keys, free_values
from kernels.attention.gluon_hopper.marks import leave_mark
from kernels.attention.gluon_hopper.masks import hide_keys
from kernels.attention.gluon_hopper.output import store_log_sums, store_output
from kernels.attention.gluon_hopper.own_tiles import own_rounds, work
from kernels.attention.gluon_hopper.shim import turn_give, turn_wait
from kernels.attention.gluon_hopper.softmax import first_softmax


@gluon.jit
def consume(consumer: gl.constexpr, target, lse, memory, sizes, scale,
            ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr,
            Q_SLOTS: gl.constexpr, KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
            TURNS: gl.constexpr, MASKED: gl.constexpr, DIRECT: gl.constexpr, HOLD: gl.constexpr,
            BY_LANE: gl.constexpr, BY_SUM: gl.constexpr, UNSEEN: gl.constexpr, BY_WARP: gl.constexpr,
            DEALT: gl.constexpr, SHARED: gl.constexpr):  # fmt: skip
    """Scores, softmax and output of this consumer's rows."""
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    agenda, n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window = sizes
    dtype: gl.constexpr = q_s.dtype
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    if TURNS and consumer == CONSUMERS - 1:
        turn_give(0)
    turns = own_rounds(sizes, DEALT)
    place, low, left, right, high, skipped = work(
        consumer, 0, sizes, ROWS, BLOCK_N, CONSUMERS, CAUSAL, WINDOW, TURNS, DEALT, SHARED)  # fmt: skip
    count = 0
    for _i in range(skipped):
        count = pass_on(count, memory, CONSUMERS, KV_SLOTS, BY_WARP)
    if TURNS:
        turn_wait(consumer)
    s_token = first_scores(consumer, 0, turns, count, memory, ROWS, BLOCK_N, HEAD_DIM, Q_SLOTS, KV_SLOTS, True)
    if TURNS:
        turn_give((consumer + 1) % CONSUMERS)
    s = warpgroup_mma_wait(0, deps=(s_token,))
    free_keys(count % KV_SLOTS, memory, CONSUMERS, BY_WARP)
    for turn in range(turns):
        row = place[1]
        diagonal = row + seqlen_k - seqlen_q
        q_slot = consumer * Q_SLOTS + turn % Q_SLOTS
        q = q_s.index(q_slot).reshape([ROWS, HEAD_DIM])
        q_done = q_empty.index(q_slot)
        if DIRECT:
            only = high - 1 == low
            if not TURNS:
                only = only | (row >= seqlen_q)
            if only:  # one block, or none of ours: no product with these queries follows
                mbarrier.arrive(q_done, count=1)
        out = gl.zeros([ROWS, HEAD_DIM], gl.float32, out_layout)
        if MASKED:
            s = hide_keys(s, -float("inf"), (high - 1) * BLOCK_N, diagonal, seqlen_k, window, CAUSAL, WINDOW)
        p, m_i, l_i = first_softmax(s, scale, p_layout, dtype, MASKED)
        if Q_SLOTS > 1 and not DIRECT:  # noqa: SIM102 - decided at compile time
            if turn > 0:  # the output of the tile before has left its slot by now
                tma.store_wait(0)
                mbarrier.arrive(q_empty.index(consumer * Q_SLOTS + (turn - 1) % Q_SLOTS), count=1)
        if not TURNS:  # noqa: SIM102
            if row >= seqlen_q:  # rows beyond the end: the blocks are the other consumers'
                for _i in range(low, high - 1):
                    count = pass_values_and_next_keys(count, memory, CONSUMERS, KV_SLOTS, BY_WARP)
                low, left, right, high = low, low, low, low + 1
        if CAUSAL or WINDOW:
            count, p, out, m_i, l_i = walk(
                consumer, right, high - 1, low, count, q, q_slot, q_done, p, out, m_i, l_i, memory, diagonal, seqlen_k,
                window, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, KV_SLOTS, CAUSAL, WINDOW, TURNS, True, DIRECT, HOLD,
                BY_LANE, BY_SUM, UNSEEN, BY_WARP)  # fmt: skip
        count, p, out, m_i, l_i = walk(
            consumer, left, right, low, count, q, q_slot, q_done, p, out, m_i, l_i, memory, diagonal, seqlen_k,
            window, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, KV_SLOTS, CAUSAL, WINDOW, TURNS, False, DIRECT, HOLD,
            BY_LANE, BY_SUM, UNSEEN, BY_WARP)  # fmt: skip
        if WINDOW:
            count, p, out, m_i, l_i = walk(
                consumer, low, left, low, count, q, q_slot, q_done, p, out, m_i, l_i, memory, diagonal, seqlen_k,
                window, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, KV_SLOTS, CAUSAL, WINDOW, TURNS, True, DIRECT, HOLD,
                BY_LANE, BY_SUM, UNSEEN, BY_WARP)  # fmt: skip
        slot = count % KV_SLOTS
        mbarrier.wait(v_full.index(slot), (count // KV_SLOTS) & 1)
        count += 1
        this_place = place
        if TURNS:  # while others have the tensor cores
            place, low, left, right, high, skipped = work(
                consumer, turn + 1, sizes, ROWS, BLOCK_N, CONSUMERS, CAUSAL, WINDOW, TURNS, DEALT, SHARED)  # fmt: skip
        if Q_SLOTS > 1 and TURNS:  # noqa: SIM102
            if turn + 1 < turns:  # for the next tile's tensors before our turn, not within it
                mbarrier.wait(q_full.index(consumer * Q_SLOTS + (turn + 1) % Q_SLOTS), ((turn + 1) // Q_SLOTS) & 1)
                mbarrier.wait(k_full.index(count % KV_SLOTS), (count // KV_SLOTS) & 1)
        if TURNS:
            turn_wait(consumer)
        out_token = warpgroup_mma(p, v_s.index(slot).reshape([BLOCK_N, HEAD_DIM]), out, is_async=True)
        if not TURNS:
            place, low, left, right, high, skipped = work(
                consumer, turn + 1, sizes, ROWS, BLOCK_N, CONSUMERS, CAUSAL, WINDOW, TURNS, DEALT, SHARED)  # fmt: skip
        if Q_SLOTS > 1:  # the next tile's first product runs while this tile's output is stored
            count, s_token = begin(consumer, turn + 1, turns, skipped, count, memory, ROWS, BLOCK_N, HEAD_DIM, Q_SLOTS,
                                   CONSUMERS, KV_SLOTS, TURNS, BY_WARP)  # fmt: skip
        if TURNS:
            turn_give((consumer + 1) % CONSUMERS)
        inverse = store_log_sums(
            consumer, target, lse, this_place, m_i, l_i, seqlen_q, ROWS, BLOCK_N, CONSUMERS, SHARED)  # fmt: skip
        if Q_SLOTS > 1:
            out, p = warpgroup_mma_wait(1, deps=(out_token, p))
        else:
            out, p = warpgroup_mma_wait(0, deps=(out_token, p))
        free_values(slot, memory, CONSUMERS, KV_SLOTS, BY_WARP)
        out = out * gl.convert_layout(inverse, gl.SliceLayout(1, out_layout))[:, None]
        if UNSEEN:
            leave_mark(target[6], out, gl.convert_layout(inverse, gl.SliceLayout(1, out_layout)))
        store_output(consumer, target, this_place, q_s.index(q_slot), out.to(dtype), num_heads, seqlen_q, CONSUMERS,
                     DIRECT, SHARED)  # fmt: skip
        if Q_SLOTS == 1:
            if not DIRECT:
                tma.store_wait(0)
                mbarrier.arrive(q_done, count=1)
            count, s_token = begin(consumer, turn + 1, turns, skipped, count, memory, ROWS, BLOCK_N, HEAD_DIM, Q_SLOTS,
                                   CONSUMERS, KV_SLOTS, TURNS, BY_WARP)  # fmt: skip
        s = warpgroup_mma_wait(0, deps=(s_token,))
        if turn + 1 < turns:  # beyond the last tile there are no keys to hand back
            free_keys(count % KV_SLOTS, memory, CONSUMERS, BY_WARP)
    tma.store_wait(0)


@gluon.jit
def begin(consumer: gl.constexpr, turn, turns, skipped, count, memory, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
          HEAD_DIM: gl.constexpr, Q_SLOTS: gl.constexpr, CONSUMERS: gl.constexpr,
          KV_SLOTS: gl.constexpr, TURNS: gl.constexpr, BY_WARP: gl.constexpr):  # fmt: skip
    """Let the blocks pass that a consumer does not compute, and begin its first product of a tile."""
    if not TURNS:  # noqa: SIM102 - decided at compile time
        if turn < turns:
            for _i in range(skipped):
                count = pass_on(count, memory, CONSUMERS, KV_SLOTS, BY_WARP)
    s_token = first_scores(
        consumer, turn, turns, count, memory, ROWS, BLOCK_N, HEAD_DIM, Q_SLOTS, KV_SLOTS,
        not TURNS or Q_SLOTS == 1)  # fmt: skip
    return count, s_token
