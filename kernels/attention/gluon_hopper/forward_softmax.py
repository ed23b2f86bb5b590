"""What a consumer of the forward does with blocks of keys: computes their scores, or hands them back unread.

The running softmax of the forward, in powers of two.

Each of the four lanes that share a row keeps a sum of its own, and these are added once a tile: two exchanges between
lanes less for every block. The maximum that weights are relative to is raised only when it is outgrown by `SLACK`
powers of two (as in FlashAttention-4): weights stay below 2^SLACK, and a block that does not raise it
leaves the output as it is. Where no key is hidden, maxima are not even looked for: a sum that has become too large
tells that one was outgrown, and only then are the weights made anew. Or (`softmax_unseen`) scores are not even kept
for that: in bfloat16 weights have the exponents of float32, so a maximum may rise a step late, and only a rise by more
than these hold spoils a row, which forward_overflow.py tells. Maxima and sums are (rows, lanes), the same maximum in
all lanes of a row.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from kernels.attention.gluon_hopper.barriers import free_keys, free_values, phase_of, slot_of
from kernels.attention.gluon_hopper.compat import hold_pairs_before_wait, opaque_zero, turn_give, turn_wait
from kernels.attention.gluon_hopper.forward_overflow import (
    SLACK,
    lower,
    lowered_sums,
    rescale,
    rise_of_rows,
    weights_anew,
)
from kernels.attention.gluon_hopper.masks import hide_keys


@gluon.jit
def by_lanes(x):
    """A tile of a product as (rows, groups of eight columns, lanes, pairs): nothing moves."""
    return x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def of_lanes(rows, x):
    """(rows, lanes) beside a tile that is by lanes."""
    layout: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, x.type.layout))
    return gl.expand_dims(gl.expand_dims(gl.convert_layout(rows, layout, assert_trivial=True), 1), 3)


@gluon.jit
def _row_sums(p):
    return gl.sum(gl.sum(p, 3), 1)


@gluon.jit
def row_maxima(s, like):
    """The maxima of whole rows, as (rows, lanes)."""
    rows = gl.convert_layout(gl.max(s, 1), gl.SliceLayout(1, like.type.layout), assert_trivial=True)
    return gl.broadcast(rows[:, None], like)[0]


@gluon.jit
def _operand(p, shape: gl.constexpr, layout: gl.constexpr, dtype: gl.constexpr):
    """Weights as the operand of a product. Left to LLVM, each costs an instruction more in some consumers."""
    if dtype == gl.bfloat16:
        p = gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [p], gl.bfloat16, True, 2)
    else:
        p = gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [p], gl.float16, True, 2)
    return gl.convert_layout(p.reshape(shape), layout, assert_trivial=True)


@gluon.jit
def first_softmax(s, scale, layout: gl.constexpr, dtype: gl.constexpr, MASKED: gl.constexpr):
    """The running softmax of a tile's first block."""
    x = by_lanes(s)
    m_i = row_maxima(s, _row_sums(x)) * scale
    m_used = m_i
    if MASKED:
        m_used = gl.where(m_i == -float("inf"), 0.0, m_i)
    p = gl.exp2(x * scale - of_lanes(m_used, x))
    return _operand(p, s.shape, layout, dtype), m_i, _row_sums(p)


@gluon.jit
def softmax(s, m_i, l_i, scale, layout: gl.constexpr, dtype: gl.constexpr, MASKED: gl.constexpr):
    """One step of the running softmax, in powers of two."""
    x = by_lanes(s)
    m_new = gl.maximum(m_i, row_maxima(s, m_i) * scale)
    m_new = gl.where(m_new - m_i > SLACK, m_new, m_i)
    m_used = m_new
    if MASKED:
        m_used = gl.where(m_new == -float("inf"), 0.0, m_new)  # rows that have seen no key yet
    alpha = gl.exp2(m_i - m_used)
    p = gl.exp2(x * scale - of_lanes(m_used, x))
    l_i = l_i * alpha + _row_sums(p)
    return _operand(p, s.shape, layout, dtype), m_new, l_i, alpha


@gluon.jit
def softmax_by_lane(s, m_i, l_i, scale, layout: gl.constexpr, dtype: gl.constexpr):
    """The same where every row has seen a key and sees all of these: lanes talk only where a maximum is outgrown."""
    x = by_lanes(s)
    top = gl.convert_layout(gl.max(gl.max(x, 1), 2), m_i.type.layout, assert_trivial=True)
    rise, alpha = rise_of_rows(top * scale - m_i)
    x = lower(x * scale - of_lanes(m_i, x), of_lanes(rise, x))
    p = gl.exp2(x)
    l_i = l_i * alpha + _row_sums(p)
    return _operand(p, s.shape, layout, dtype), m_i + rise, l_i, alpha


@gluon.jit
def weights_by_lane(s, m_i, scale):
    """Weights where every row has seen a key and sees all of these, and their sums; the maxima may be outgrown."""
    x = by_lanes(s)
    p = gl.exp2(x * scale - of_lanes(m_i, x))
    return p, _row_sums(p)


@gluon.jit
def softmax_unseen(s, m_i, l_i, scale, layout: gl.constexpr, dtype: gl.constexpr):
    """The same with nobody looking at the scores: `lowered_sums` is for the step before."""
    p, sums = weights_by_lane(s, m_i, scale)
    return _operand(p, s.shape, layout, dtype), l_i + sums


@gluon.jit
def mended(p, s, m_i, l_i, sums, scale, layout: gl.constexpr, dtype: gl.constexpr):
    """One step of the running softmax with these weights, made anew where they have grown too large."""
    x = by_lanes(s)
    p, of_rows = weights_anew(p, x, of_lanes(m_i, x), of_lanes(sums, x), scale)
    first, second = of_rows.split()
    m_i, alpha = _first_groups(first, m_i)
    sums, _ = _first_groups(second, m_i)
    return _operand(p, s.shape, layout, dtype), m_i, l_i * alpha + sums, alpha


@gluon.jit
def _first_groups(x, like):
    """The first two of (rows, groups, lanes), each as (rows, lanes)."""
    rows: gl.constexpr = x.shape[0]
    half: gl.constexpr = x.shape[1] // 2
    if half > 1:
        x, _ = x.reshape([rows, 2, half, 4]).permute((0, 2, 3, 1)).split()
        return _first_groups(x, like)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        first, second = x.permute((0, 2, 1)).split()
        layout: gl.constexpr = like.type.layout
        return (
            gl.convert_layout(first, layout, assert_trivial=True),
            gl.convert_layout(second, layout, assert_trivial=True),
        )


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
def walk(consumer: gl.constexpr, first, end, low, count, q, q_slot, q_done, p, out, m_i, l_i, memory, diagonal,
         seqlen_k, window, scale, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
         CONSUMERS: gl.constexpr, KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
         TURNS: gl.constexpr, MASKED: gl.constexpr, DIRECT: gl.constexpr, HOLD: gl.constexpr, BY_LANE: gl.constexpr,
         BY_SUM: gl.constexpr, UNSEEN: gl.constexpr, BY_WARP: gl.constexpr):  # fmt: skip
    """Key blocks [first, end), from the right."""
    for i in range(first, end):
        queries = q
        if MASKED:
            # indexed anew, as ptxas of triton 3.6 else leaves descriptors that both loops need to a loop of no turns
            queries = memory[0].index(q_slot + opaque_zero()).reshape([ROWS, HEAD_DIM])
        count, p, out, m_i, l_i = block(
            consumer, end - 1 - (i - first), low, count, queries, q_done, p, out, m_i, l_i, memory, diagonal, seqlen_k,
            window, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, KV_SLOTS, CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD,
            BY_LANE, BY_SUM, UNSEEN, BY_WARP)  # fmt: skip
    return count, p, out, m_i, l_i


@gluon.jit
def block(consumer: gl.constexpr, j, low, count, q, q_done, p, out, m_i, l_i, memory, diagonal, seqlen_k, window,
          scale, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr,
          KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, TURNS: gl.constexpr,
          MASKED: gl.constexpr, DIRECT: gl.constexpr, HOLD: gl.constexpr, BY_LANE: gl.constexpr, BY_SUM: gl.constexpr,
          UNSEEN: gl.constexpr, BY_WARP: gl.constexpr):  # fmt: skip
    """Scores of key block j while the weights of the block before it meet their values."""
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    out_layout: gl.constexpr = out.type.layout
    p_layout: gl.constexpr = p.type.layout
    dtype: gl.constexpr = p.dtype
    last = slot_of(count, KV_SLOTS, UNSEEN)
    last_phase = phase_of(count, KV_SLOTS, UNSEEN)
    count += 1
    slot = slot_of(count, KV_SLOTS, UNSEEN)
    mbarrier.wait(k_full.index(slot), phase_of(count, KV_SLOTS, UNSEEN))
    if TURNS:
        turn_wait(consumer)
    k_t = k_s.index(slot).reshape([BLOCK_N, HEAD_DIM]).permute((1, 0))
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
    s_token = warpgroup_mma(q, k_t, zero, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(last), last_phase)
    out_token = warpgroup_mma(p, v_s.index(last).reshape([BLOCK_N, HEAD_DIM]), out, is_async=True)
    if TURNS:
        turn_give((consumer + 1) % CONSUMERS)
    if UNSEEN and not MASKED:  # behind what it would hold up
        m_i, l_i, alpha = lowered_sums(m_i, l_i)
    s = warpgroup_mma_wait(1, deps=(s_token,))
    free_keys(slot, memory, CONSUMERS, BY_WARP)
    if DIRECT:  # noqa: SIM102 - decided at compile time
        if j == low:  # the last product of these queries
            mbarrier.arrive(q_done, count=1)
    if MASKED:
        s = hide_keys(s, -float("inf"), j * BLOCK_N, diagonal, seqlen_k, window, CAUSAL, WINDOW)
    by_sum: gl.constexpr = BY_SUM and not UNSEEN and not MASKED
    if by_sum:
        p_new, sums = weights_by_lane(s, m_i, scale)
        if HOLD:
            p_new, m_i, l_i, alpha = mended(p_new, s, m_i, l_i, sums, scale, p_layout, dtype)
    else:
        if UNSEEN and not MASKED:
            p_new, l_i = softmax_unseen(s, m_i, l_i, scale, p_layout, dtype)
        elif BY_LANE and not MASKED:
            p_new, m_i, l_i, alpha = softmax_by_lane(s, m_i, l_i, scale, p_layout, dtype)
        else:
            p_new, m_i, l_i, alpha = softmax(s, m_i, l_i, scale, p_layout, dtype, MASKED)
        if HOLD:
            l_i = hold_pairs_before_wait(l_i)
    out, p = warpgroup_mma_wait(0, deps=(out_token, p))  # p must stay in its registers until here
    free_values(last, memory, CONSUMERS, KV_SLOTS, BY_WARP)
    if by_sum and not HOLD:
        p_new, m_i, l_i, alpha = mended(p_new, s, m_i, l_i, sums, scale, p_layout, dtype)
    lanes = by_lanes(out)
    together: gl.constexpr = 64 if (BY_SUM or UNSEEN) and HEAD_DIM > 64 else 32
    out = rescale(lanes, of_lanes(alpha, lanes), together).reshape([ROWS, HEAD_DIM])
    out = gl.convert_layout(out, out_layout, assert_trivial=True)
    return count, p_new, out, m_i, l_i


@gluon.jit
def pass_on(count, memory, CONSUMERS: gl.constexpr, KV_SLOTS: gl.constexpr, BY_WARP: gl.constexpr):
    """Hand back a block of keys and values without having used it."""
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    slot = count % KV_SLOTS
    phase = (count // KV_SLOTS) & 1
    mbarrier.wait(k_full.index(slot), phase)
    free_keys(slot, memory, CONSUMERS, BY_WARP)
    mbarrier.wait(v_full.index(slot), phase)
    free_values(slot, memory, CONSUMERS, KV_SLOTS, BY_WARP)
    return count + 1


@gluon.jit
def pass_values_and_next_keys(count, memory, CONSUMERS: gl.constexpr, KV_SLOTS: gl.constexpr, BY_WARP: gl.constexpr):
    """Hand back the values of a block whose keys have been handed back, and the keys of the next block."""
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    slot = count % KV_SLOTS
    mbarrier.wait(v_full.index(slot), (count // KV_SLOTS) & 1)
    free_values(slot, memory, CONSUMERS, KV_SLOTS, BY_WARP)
    count += 1
    slot = count % KV_SLOTS
    mbarrier.wait(k_full.index(slot), (count // KV_SLOTS) & 1)
    free_keys(slot, memory, CONSUMERS, BY_WARP)
    return count
