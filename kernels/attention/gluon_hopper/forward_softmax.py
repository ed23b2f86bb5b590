"""The online softmax of the forward, in powers of two, and the steps of a consumer over blocks of keys.

Maxima and sums are (rows, lanes), with the same maximum in all lanes of a row. Each of the four lanes that share a row
keeps a separate sum, and these are added once a tile, which saves two exchanges between lanes in every block.

The maximum that probabilities are relative to is raised only when scores exceed it by `RESCALE_THRESHOLD` powers of two
(as in FlashAttention-4): probabilities stay below 2^RESCALE_THRESHOLD, and a block that does not raise it leaves the
output as it is. With `max_logits` each lane keeps the largest of its probabilities, too. Where no key is hidden, three
cheaper ways to find a raised maximum exist: `per_lane_max`, `rescale_by_sum` and `flag_overflow` of
`configs.ForwardTiles`. By the last a maximum may rise a step late (forward_overflow.py).
"""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait

from .barriers import phase_of, release_keys, release_values, skip_keys, slot_of
from .compat import keep_pairs_before_wait, opaque_zero, partition_sync, pingpong_signal, pingpong_wait
from .forward_overflow import (
    RESCALE_THRESHOLD,
    largest_of_lanes,
    probabilities_again,
    renormalise_sums,
    rescale,
    rise_of_rows,
    subtract_rise,
)
from .masks import capped, hide_keys, less_distance
from .pieces import add_values, pieces_of, product_by_piece, product_of_rows, transposed, wait_for_pieces, width_of_sum
from .rows import clear_rows, keep_block, keep_factors

# A consumer's queries of a tile, in pieces (pieces.py), the number of their slot, the mbarrier that releases it, and
# where P is kept.
TileQueries = namedtuple("TileQueries", "q slot done kept")
# What decides which keys a row sees. `diagonal`: the key on the first row's diagonal; `slope`: of the head.
MaskEdges = namedtuple("MaskEdges", "diagonal seqlen_k window slope")


@gluon.jit
def begin_first_scores(consumer: gl.constexpr, i_tile, n_tiles, count, buffers, CONFIG: gl.constexpr,
                       WAIT: gl.constexpr):  # fmt: skip
    """Begin a tile's product with its first keys; beyond the last tile, one that nobody reads."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.block_n, 16])
    slot = count % CONFIG.kv_slots
    q_slot = consumer * CONFIG.q_slots + i_tile % CONFIG.q_slots
    if WAIT:  # noqa: SIM102 - decided at compile time
        if i_tile < n_tiles:
            mbarrier.wait(buffers.q_full.index(q_slot), (i_tile // CONFIG.q_slots) & 1)
            if CONFIG.kv_slots > 1:
                mbarrier.wait(buffers.k_full.index(slot), (count // CONFIG.kv_slots) & 1)
    if CONFIG.kv_slots == 1:
        q = pieces_of(buffers.q, q_slot, CONFIG.pieces)
        return product_by_piece(q, i_tile < n_tiles, count, buffers, s_layout, CONFIG)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        k_t = transposed(pieces_of(buffers.k, slot, CONFIG.pieces), CONFIG.pieces)
        zero = gl.zeros([CONFIG.rows, CONFIG.block_n], gl.float32, s_layout)
        q = pieces_of(buffers.q, q_slot, CONFIG.pieces)
        return product_of_rows(q, k_t, zero, CONFIG.pieces, CONFIG.columns)


@gluon.jit
def attend_blocks(consumer: gl.constexpr, first, end, low, count, queries, p, out, m_i, l_i, top, buffers, edges, scale,
                  CONFIG: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """Attend to the key blocks [first, end), from the right, of a tile whose first block is `low`."""
    for i in range(first, end):
        q = queries.q
        if MASKED:
            # Indexed again: otherwise ptxas of Triton 3.6 computes descriptors that both loops need in only one loop.
            q = pieces_of(buffers.q, queries.slot + opaque_zero(), CONFIG.pieces)
        count, p, out, m_i, l_i, top = _attend_block(
            consumer, end - 1 - (i - first), low, count, q, queries, p, out, m_i, l_i, top, buffers, edges, scale,
            CONFIG, MASKED)  # fmt: skip
    return count, p, out, m_i, l_i, top


@gluon.jit
def _attend_block(consumer: gl.constexpr, j, low, count, q, queries, p, out, m_i, l_i, top, buffers, edges, scale,
                  CONFIG: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """Compute scores and softmax of key block j, while P of the block before is multiplied with its values."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.block_n, 16])
    p_layout: gl.constexpr = p.type.layout
    dtype: gl.constexpr = p.dtype
    last = slot_of(count, CONFIG)
    last_phase = phase_of(count, CONFIG)
    count += 1
    slot = slot_of(count, CONFIG)
    if CONFIG.kv_slots > 1:
        mbarrier.wait(buffers.k_full.index(slot), phase_of(count, CONFIG))
    if CONFIG.pingpong:
        pingpong_wait(consumer)
    if CONFIG.kv_slots == 1:
        s_token = product_by_piece(q, True, count, buffers, s_layout, CONFIG)
    else:
        k_t = transposed(pieces_of(buffers.k, slot, CONFIG.pieces), CONFIG.pieces)
        zero = gl.zeros([CONFIG.rows, CONFIG.block_n], gl.float32, s_layout)
        s_token = product_of_rows(q, k_t, zero, CONFIG.pieces, CONFIG.columns)
    mbarrier.wait(buffers.v_full.index(last), last_phase)
    out_token = add_values(p, buffers.v, last, out, CONFIG)
    if CONFIG.pingpong:
        pingpong_signal((consumer + 1) % CONFIG.consumers)
    if CONFIG.flag_overflow and not MASKED:  # behind what it would hold up
        m_i, l_i, alpha = renormalise_sums(m_i, l_i)
    s = warpgroup_mma_wait(CONFIG.sums, deps=(s_token,))
    release_keys(slot, buffers, CONFIG)
    if CONFIG.store_from_registers:  # noqa: SIM102 - decided at compile time
        if j == low:  # the last product of these queries
            mbarrier.arrive(queries.done, count=1)
    s = capped(s, CONFIG.bend)
    if CONFIG.alibi:
        s = less_distance(s, edges.slope, edges.diagonal - j * CONFIG.block_n, False, CONFIG.causal)
    if MASKED:
        s = hide_keys(s, -float("inf"), j * CONFIG.block_n, edges.diagonal, edges, CONFIG)
    by_sum: gl.constexpr = CONFIG.rescale_by_sum and not CONFIG.flag_overflow and not MASKED
    if by_sum:
        p_new, sums = _probabilities(s, m_i, scale)
        if CONFIG.exp_before_wait:
            p_new, m_i, l_i, top, alpha = _rescale_by_sum(p_new, s, m_i, l_i, top, sums, scale, p_layout, dtype, CONFIG)
    else:
        if CONFIG.flag_overflow and not MASKED:
            p_new, l_i, top = _softmax_without_max(s, m_i, l_i, top, alpha, scale, p_layout, dtype, CONFIG)
        elif CONFIG.per_lane_max and not MASKED:
            p_new, m_i, l_i, top, alpha = _softmax_per_lane(s, m_i, l_i, top, scale, p_layout, dtype, CONFIG)
        else:
            p_new, m_i, l_i, top, alpha = _softmax(s, m_i, l_i, top, scale, p_layout, dtype, CONFIG, MASKED)
        if CONFIG.exp_before_wait:
            l_i = keep_pairs_before_wait(l_i)
    if CONFIG.exp_before_wait and CONFIG.max_logits:
        top = keep_pairs_before_wait(top)
    if CONFIG.keeps_p:  # behind the wait it takes up to 9 % longer
        keep_block(queries.kept, count, p_new, CONFIG)
        keep_factors(queries.kept, count, alpha, CONFIG, True)
    out, p = wait_for_pieces(0, out_token, p, CONFIG.sums)  # p must stay in its registers until here
    release_values(last, buffers, CONFIG)
    if by_sum and not CONFIG.exp_before_wait:
        p_new, m_i, l_i, top, alpha = _rescale_by_sum(p_new, s, m_i, l_i, top, sums, scale, p_layout, dtype, CONFIG)
    rescaled = (_rescaled(out, 0, alpha, CONFIG),)
    for piece in gl.static_range(1, CONFIG.sums):
        rescaled = rescaled + (_rescaled(out, piece, alpha, CONFIG),)
    return count, p_new, rescaled, m_i, l_i, top


@gluon.jit
def _rescaled(out, piece: gl.constexpr, alpha, CONFIG: gl.constexpr):
    """Return a sum of the output times the factor of its rows."""
    layout: gl.constexpr = out[piece].type.layout
    lanes = by_lane(out[piece])
    x = rescale(lanes, of_lanes(alpha, lanes), _rescaled_together(piece, CONFIG))
    return gl.convert_layout(x.reshape([CONFIG.rows, width_of_sum(piece, CONFIG)]), layout, assert_trivial=True)


@gluon.constexpr_function
def _rescaled_together(piece, config):
    """Return how many of a thread's numbers are skipped together where no row of a warp rises."""
    return min(width_of_sum(piece, config) // 2, 64 if config.rescale_by_sum or config.flag_overflow else 32)


@gluon.jit
def clear_values(count, inside, buffers, CONFIG: gl.constexpr):
    """Clear the rows from `inside` on of the count-th block's values, which belong to the next sequence.

    P is 0 there, but 0 times inf is not. Every consumer writes the same zeros before its own product reads them.
    """
    slot = count % CONFIG.kv_slots
    mbarrier.wait(buffers.v_full.index(slot), (count // CONFIG.kv_slots) & 1)
    clear_rows(buffers.v.index(slot).reshape([CONFIG.block_n, CONFIG.head_dim_v]), inside, CONFIG.head_dim_v)
    fence_async_shared()
    partition_sync()


@gluon.jit
def skip_block(count, buffers, CONFIG: gl.constexpr):
    """Release a block of keys and values without having used it."""
    slot = count % CONFIG.kv_slots
    phase = (count // CONFIG.kv_slots) & 1
    skip_keys(slot, count, buffers, CONFIG)
    mbarrier.wait(buffers.v_full.index(slot), phase)
    release_values(slot, buffers, CONFIG)
    return count + 1


@gluon.jit
def skip_values_and_next_keys(count, buffers, CONFIG: gl.constexpr):
    """Release the values of a block whose keys have been released, and the keys of the next block."""
    slot = count % CONFIG.kv_slots
    mbarrier.wait(buffers.v_full.index(slot), (count // CONFIG.kv_slots) & 1)
    release_values(slot, buffers, CONFIG)
    count += 1
    skip_keys(count % CONFIG.kv_slots, count, buffers, CONFIG)
    return count


@gluon.jit
def first_softmax(s, scale, layout: gl.constexpr, dtype: gl.constexpr, MASKED: gl.constexpr):
    """Compute P in 16 bits, maxima and sums of a tile's first block of scores s, float32 (rows, block_n)."""
    x = by_lane(s)
    m_i = row_maxima(s, row_sums(x)) * scale
    m_used = m_i
    if MASKED:
        m_used = gl.where(m_i == -float("inf"), 0.0, m_i)
    p = gl.exp2(x * scale - of_lanes(m_used, x))
    return _operand(p, s.shape, layout, dtype), m_i, row_sums(p)


@gluon.jit
def _softmax(s, m_i, l_i, top, scale, layout: gl.constexpr, dtype: gl.constexpr, CONFIG: gl.constexpr,
             MASKED: gl.constexpr):  # fmt: skip
    """Compute P of a block and update maxima, sums and largest P; returns also the factor of what was summed."""
    x = by_lane(s)
    m_new = gl.maximum(m_i, row_maxima(s, m_i) * scale)
    m_new = gl.where(m_new - m_i > RESCALE_THRESHOLD, m_new, m_i)
    m_used = m_new
    if MASKED:
        m_used = gl.where(m_new == -float("inf"), 0.0, m_new)  # rows that have seen no key yet
    alpha = gl.exp2(m_i - m_used)
    p = gl.exp2(x * scale - of_lanes(m_used, x))
    l_i = l_i * alpha + row_sums(p)
    return _operand(p, s.shape, layout, dtype), m_new, l_i, _largest(p, top, alpha, CONFIG), alpha


@gluon.jit
def _softmax_per_lane(s, m_i, l_i, top, scale, layout: gl.constexpr, dtype: gl.constexpr, CONFIG: gl.constexpr):
    """Update the online softmax of rows that see all keys; lanes exchange maxima only where one is exceeded."""
    x = by_lane(s)
    rise, alpha = rise_of_rows(lane_maxima(s, m_i) * scale - m_i)
    x = subtract_rise(x * scale - of_lanes(m_i, x), of_lanes(rise, x))
    p = gl.exp2(x)
    l_i = l_i * alpha + row_sums(p)
    return _operand(p, s.shape, layout, dtype), m_i + rise, l_i, _largest(p, top, alpha, CONFIG), alpha


@gluon.jit
def _softmax_without_max(s, m_i, l_i, top, alpha, scale, layout: gl.constexpr, dtype: gl.constexpr,
                         CONFIG: gl.constexpr):  # fmt: skip
    """Compute P relative to the old maxima and update sums; `renormalise_sums` corrects both a step later."""
    p, sums = _probabilities(s, m_i, scale)
    return _operand(p, s.shape, layout, dtype), l_i + sums, _largest(p, top, alpha, CONFIG)


@gluon.jit
def _rescale_by_sum(p, s, m_i, l_i, top, sums, scale, layout: gl.constexpr, dtype: gl.constexpr,
                    CONFIG: gl.constexpr):  # fmt: skip
    """Update the online softmax with the block's P, computed again where its sums have grown too large."""
    x = by_lane(s)
    p, of_rows = probabilities_again(p, x, of_lanes(m_i, x), of_lanes(sums, x), scale)
    first, second = of_rows.split()
    m_i, alpha = _first_groups(first, m_i)
    sums, _ = _first_groups(second, m_i)
    top = _largest(p, top, alpha, CONFIG)
    return _operand(p, s.shape, layout, dtype), m_i, l_i * alpha + sums, top, alpha


@gluon.jit
def _probabilities(s, m_i, scale):
    """Compute P relative to the old maxima, and its sums, for rows that have seen a key and see all of these."""
    x = by_lane(s)
    p = gl.exp2(x * scale - of_lanes(m_i, x))
    return p, row_sums(p)


@gluon.jit
def _first_groups(x, like):
    """Return the first two groups of (rows, groups, lanes), each as (rows, lanes)."""
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
def _operand(p, shape: gl.constexpr, layout: gl.constexpr, dtype: gl.constexpr):
    """Convert P to a product's operand. Left to LLVM, each costs an instruction more in some consumers."""
    if dtype == gl.bfloat16:
        p = gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [p], gl.bfloat16, True, 2)
    else:
        p = gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [p], gl.float16, True, 2)
    return gl.convert_layout(p.reshape(shape), layout, assert_trivial=True)


@gluon.jit
def by_lane(x):
    """View a tile of a product as (rows, groups of eight columns, lanes, pairs): nothing moves."""
    return x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def of_lanes(rows, x):
    """View (rows, lanes) in the shape of `by_lane`, to be broadcast."""
    layout: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, x.type.layout))
    return gl.expand_dims(gl.expand_dims(gl.convert_layout(rows, layout, assert_trivial=True), 1), 3)


@gluon.jit
def row_sums(p):
    """Return the sums of each of the lanes that share a row, (rows, lanes), of a tile as `by_lane` views it."""
    return gl.sum(gl.sum(p, 3), 1)


@gluon.jit
def _largest(p, top, alpha, CONFIG: gl.constexpr):
    """Return the largest P of each lane so far, (rows, lanes): of a block, or `top`, of those before, times alpha."""
    if CONFIG.max_logits:
        first, _ = largest_of_lanes(p, of_lanes(top * alpha, p)).split()
        top, _ = _first_groups(first, top)
    return top


@gluon.jit
def lane_maxima(s, like):
    """Return the maxima of each of the lanes that share a row, (rows, lanes)."""
    return gl.convert_layout(gl.max(gl.max(by_lane(s), 1), 2), like.type.layout, assert_trivial=True)


@gluon.jit
def row_maxima(s, like):
    """Return the maxima of whole rows as (rows, lanes)."""
    rows = gl.convert_layout(gl.max(s, 1), gl.SliceLayout(1, like.type.layout), assert_trivial=True)
    return gl.broadcast(rows[:, None], like)[0]
