"""The warp-specialised forward: one producer warpgroup feeds two or three consumers of 64 query rows each.

The structure is FlashAttention-3's (arXiv 2407.08608): persistent programs, the consumers take turns on the tensor
cores, and the product with the keys of one block runs while the softmax of the block before it is computed. Key
blocks are walked from the right, so that masks are needed first (the diagonal, the tail) and, with a window, last.
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

from kernels.attention.gluon_hopper.masks import hide_keys, key_blocks
from kernels.attention.gluon_hopper.shim import hold_before_wait, tma_load, tma_store, turn_give, turn_wait


@gluon.jit
def _rounds(n_tiles):
    """How many tiles this program takes: the direction turns every round, so the last one may start from its end."""
    programs = gl.num_programs(0)
    full = n_tiles // programs
    place = gl.program_id(0)
    if full % 2 == 1:
        place = programs - 1 - place
    return full + (place < n_tiles - full * programs).to(gl.int32)


@gluon.jit
def _tile(turn, n_m, n_heads, heads_together, BY_LENGTH: gl.constexpr):
    """The query tile and head of this program's turn-th tile.

    With `BY_LENGTH` (causal) the tiles of a group of heads come by length, falling and rising from group to group
    and falling in the last, so that every round deals nearly equal tiles; a group's keys and values fit in L2.
    """
    programs = gl.num_programs(0)
    place = gl.program_id(0)
    if turn % 2 == 1:
        place = programs - 1 - place
    index = turn * programs + place
    if BY_LENGTH:
        group = index // (heads_together * n_m)
        first = group * heads_together
        index -= first * n_m
        width = gl.minimum(heads_together, n_heads - first)
        m = index // width
        head = first + index - m * width
        groups_after = (n_heads - 1) // heads_together - group
        if groups_after % 2 == 0:
            m = n_m - 1 - m
    else:
        head = index // n_m
        m = index - head * n_m
    return m, head


@gluon.jit
def _producer(q_desc, k_desc, v_desc, memory, sizes,
              ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, Q_SLOTS: gl.constexpr,
              KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr):  # fmt: skip
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window = sizes
    count = 0
    for turn in range(_rounds(n_tiles)):
        m, head = _tile(turn, n_m, n_heads, heads_together, CAUSAL and not WINDOW)
        batch = head // num_heads
        h = head - batch * num_heads
        h_kv = h // group_size
        low, left, right, high = key_blocks(m, seqlen_q, seqlen_k, window, ROWS * CONSUMERS, BLOCK_N, CAUSAL, WINDOW)
        q_slot = turn % Q_SLOTS
        q_phase = (turn // Q_SLOTS) & 1
        for c in gl.static_range(CONSUMERS):
            q_bar = q_full.index(c * Q_SLOTS + q_slot)
            mbarrier.wait(q_empty.index(c * Q_SLOTS + q_slot), q_phase ^ 1)
            mbarrier.expect(q_bar, q_desc.block_type.nbytes)
            tma_load(q_desc, [batch, h, (m * CONSUMERS + c) * ROWS, 0], q_bar, q_s.index(c * Q_SLOTS + q_slot))
        for i in range(low, high):
            j = high - 1 - (i - low)
            slot = count % KV_SLOTS
            phase = (count // KV_SLOTS) & 1
            mbarrier.wait(k_empty.index(slot), phase ^ 1)
            mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
            tma_load(k_desc, [batch, h_kv, j * BLOCK_N, 0], k_full.index(slot), k_s.index(slot))
            mbarrier.wait(v_empty.index(slot), phase ^ 1)
            mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
            tma_load(v_desc, [batch, h_kv, j * BLOCK_N, 0], v_full.index(slot), v_s.index(slot))
            count += 1


@gluon.jit
def _softmax(s, m_i, l_i, scale, layout: gl.constexpr, dtype: gl.constexpr, MASKED: gl.constexpr):
    """One step of the running softmax, in powers of two."""
    m_new = gl.maximum(m_i, gl.max(s, 1) * scale)
    m_used = m_new
    if MASKED:
        m_used = gl.where(m_new == -float("inf"), 0.0, m_new)  # rows that have seen no key yet
    alpha = gl.exp2(m_i - m_used)
    p = gl.exp2(s * scale - m_used[:, None])
    l_i = l_i * alpha + gl.sum(p, 1)
    return gl.convert_layout(p.to(dtype), layout, assert_trivial=True), m_new, l_i, alpha


@gluon.jit
def _first_scores(consumer: gl.constexpr, turn, turns, count, memory, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
                  HEAD_DIM: gl.constexpr, Q_SLOTS: gl.constexpr, KV_SLOTS: gl.constexpr):  # fmt: skip
    """Begin a tile's product with its first keys; beyond the last tile, one that nobody reads."""
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    slot = count % KV_SLOTS
    q_slot = consumer * Q_SLOTS + turn % Q_SLOTS
    if turn < turns:
        mbarrier.wait(q_full.index(q_slot), (turn // Q_SLOTS) & 1)
        mbarrier.wait(k_full.index(slot), (count // KV_SLOTS) & 1)
    k_t = k_s.index(slot).reshape([BLOCK_N, HEAD_DIM]).permute((1, 0))
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
    return warpgroup_mma(q_s.index(q_slot).reshape([ROWS, HEAD_DIM]), k_t, zero, use_acc=False, is_async=True)


@gluon.jit
def _block(consumer: gl.constexpr, j, count, q, p, out, m_i, l_i, memory, diagonal, seqlen_k, window, scale,
           ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, KV_SLOTS: gl.constexpr,
           CAUSAL: gl.constexpr, WINDOW: gl.constexpr, TURNS: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
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
    if MASKED:
        s = hide_keys(s, -float("inf"), j * BLOCK_N, diagonal, seqlen_k, window, CAUSAL, WINDOW)
    p_new, m_i, l_i, alpha = _softmax(s, m_i, l_i, scale, p_layout, dtype, MASKED)
    l_i = hold_before_wait(l_i)
    out, p = warpgroup_mma_wait(0, deps=(out_token, p))  # p must stay in its registers until here
    mbarrier.arrive(v_empty.index(last), count=1)
    out = out * gl.convert_layout(alpha, gl.SliceLayout(1, out_layout))[:, None]
    return count, p_new, out, m_i, l_i


@gluon.jit
def _consumer(consumer: gl.constexpr, out_desc, lse, memory, sizes, scale,
              ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr,
              Q_SLOTS: gl.constexpr, KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
              TURNS: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window = sizes
    dtype: gl.constexpr = q_s.dtype
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    if TURNS and consumer == 1:
        turn_give(0)
    turns = _rounds(n_tiles)
    count = 0
    if TURNS:
        turn_wait(consumer)
    s_token = _first_scores(consumer, 0, turns, count, memory, ROWS, BLOCK_N, HEAD_DIM, Q_SLOTS, KV_SLOTS)
    if TURNS:
        turn_give(1 - consumer)
    s = warpgroup_mma_wait(0, deps=(s_token,))
    mbarrier.arrive(k_empty.index(0), count=1)
    for turn in range(turns):
        m, head = _tile(turn, n_m, n_heads, heads_together, CAUSAL and not WINDOW)
        low, left, right, high = key_blocks(m, seqlen_q, seqlen_k, window, ROWS * CONSUMERS, BLOCK_N, CAUSAL, WINDOW)
        row = (m * CONSUMERS + consumer) * ROWS
        diagonal = row + seqlen_k - seqlen_q
        q_slot = consumer * Q_SLOTS + turn % Q_SLOTS
        q = q_s.index(q_slot).reshape([ROWS, HEAD_DIM])
        m_i = gl.full([ROWS], -float("inf"), gl.float32, row_layout)
        l_i = gl.full([ROWS], 0.0, gl.float32, row_layout)
        out = gl.zeros([ROWS, HEAD_DIM], gl.float32, out_layout)
        if MASKED:
            s = hide_keys(s, -float("inf"), (high - 1) * BLOCK_N, diagonal, seqlen_k, window, CAUSAL, WINDOW)
        p, m_i, l_i, alpha = _softmax(s, m_i, l_i, scale, p_layout, dtype, MASKED)
        if Q_SLOTS > 1:  # noqa: SIM102 - decided at compile time
            if turn > 0:  # the output of the tile before has left its slot by now
                tma.store_wait(0)
                mbarrier.arrive(q_empty.index(consumer * Q_SLOTS + (turn - 1) % Q_SLOTS), count=1)
        if CAUSAL or WINDOW:
            for i in range(right, high - 1):
                count, p, out, m_i, l_i = _block(
                    consumer, high - 2 - (i - right), count, q, p, out, m_i, l_i, memory, diagonal, seqlen_k, window,
                    scale, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL, WINDOW, TURNS, True)  # fmt: skip
        for i in range(left, right):
            count, p, out, m_i, l_i = _block(
                consumer, right - 1 - (i - left), count, q, p, out, m_i, l_i, memory, diagonal, seqlen_k, window,
                scale, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL, WINDOW, TURNS, False)  # fmt: skip
        if WINDOW:
            for i in range(low, left):
                count, p, out, m_i, l_i = _block(
                    consumer, left - 1 - (i - low), count, q, p, out, m_i, l_i, memory, diagonal, seqlen_k, window,
                    scale, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL, WINDOW, TURNS, True)  # fmt: skip
        slot = count % KV_SLOTS
        mbarrier.wait(v_full.index(slot), (count // KV_SLOTS) & 1)
        count += 1
        if TURNS:
            turn_wait(consumer)
        out_token = warpgroup_mma(p, v_s.index(slot).reshape([BLOCK_N, HEAD_DIM]), out, is_async=True)
        if Q_SLOTS > 1:  # the next tile's first product runs while this tile's output is stored
            s_token = _first_scores(
                consumer, turn + 1, turns, count, memory, ROWS, BLOCK_N, HEAD_DIM, Q_SLOTS, KV_SLOTS)  # fmt: skip
        if TURNS:
            turn_give(1 - consumer)
        rows = row + gl.arange(0, ROWS, row_layout)
        log_sum = gl.where(l_i == 0.0, float("inf"), m_i + gl.log2(l_i))  # +inf: no key was seen, no weight later
        gl.store(lse + head.to(gl.int64) * seqlen_q + rows, log_sum, mask=rows < seqlen_q)
        inverse = 1.0 / gl.where(l_i == 0.0, 1.0, l_i)
        if Q_SLOTS > 1:
            out, p = warpgroup_mma_wait(1, deps=(out_token, p))
        else:
            out, p = warpgroup_mma_wait(0, deps=(out_token, p))
        mbarrier.arrive(v_empty.index(slot), count=1)
        out = out * gl.convert_layout(inverse, gl.SliceLayout(1, out_layout))[:, None]
        q.store(out.to(dtype))  # the queries have been read: their slot takes the output to the copy engine
        fence_async_shared()
        batch = head // num_heads
        tma_store(out_desc, [batch, head - batch * num_heads, row, 0], q_s.index(q_slot))
        if Q_SLOTS == 1:
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index(q_slot), count=1)
            s_token = _first_scores(
                consumer, turn + 1, turns, count, memory, ROWS, BLOCK_N, HEAD_DIM, Q_SLOTS, KV_SLOTS)  # fmt: skip
        s = warpgroup_mma_wait(0, deps=(s_token,))
        mbarrier.arrive(k_empty.index(count % KV_SLOTS), count=1)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_tiles", "n_m", "num_heads", "n_heads", "group_size", "heads_together",
                              "seqlen_q", "seqlen_k", "window"])  # fmt: skip
def forward_kernel(q_desc, k_desc, v_desc, out_desc, lse, n_tiles, n_m, num_heads, n_heads, group_size, heads_together,
                   seqlen_q, seqlen_k, window, scale,
                   ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr,
                   Q_SLOTS: gl.constexpr, KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
                   TURNS: gl.constexpr, MASKED: gl.constexpr, REGISTERS: gl.constexpr):  # fmt: skip
    """Attention of all query tiles; `scale` is softmax_scale x log2(e), `n_heads` batch x num_heads."""
    dtype: gl.constexpr = q_desc.dtype
    q_s = gl.allocate_shared_memory(dtype, [CONSUMERS * Q_SLOTS, 1, 1, ROWS, HEAD_DIM], q_desc.layout)
    k_s = gl.allocate_shared_memory(dtype, [KV_SLOTS, 1, 1, BLOCK_N, HEAD_DIM], k_desc.layout)
    v_s = gl.allocate_shared_memory(dtype, [KV_SLOTS, 1, 1, BLOCK_N, HEAD_DIM], v_desc.layout)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [CONSUMERS * Q_SLOTS, 1], bar)
    q_empty = gl.allocate_shared_memory(gl.int64, [CONSUMERS * Q_SLOTS, 1], bar)
    k_full = gl.allocate_shared_memory(gl.int64, [KV_SLOTS, 1], bar)
    k_empty = gl.allocate_shared_memory(gl.int64, [KV_SLOTS, 1], bar)
    v_full = gl.allocate_shared_memory(gl.int64, [KV_SLOTS, 1], bar)
    v_empty = gl.allocate_shared_memory(gl.int64, [KV_SLOTS, 1], bar)
    for i in gl.static_range(CONSUMERS * Q_SLOTS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(KV_SLOTS):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=CONSUMERS)
        mbarrier.init(v_empty.index(i), count=CONSUMERS)
    memory = (q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty)
    sizes = (n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window)
    # Constants must stand in the call itself: a tuple bound to a name turns them into tensors.
    if CONSUMERS == 2:
        gl.warp_specialize([
            (_producer, (q_desc, k_desc, v_desc, memory, sizes, ROWS, BLOCK_N, CONSUMERS, Q_SLOTS, KV_SLOTS, CAUSAL,
                         WINDOW)),
            (_consumer, (0, out_desc, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS,
                         KV_SLOTS, CAUSAL, WINDOW, TURNS, MASKED)),
            (_consumer, (1, out_desc, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS,
                         KV_SLOTS, CAUSAL, WINDOW, TURNS, MASKED)),
        ], [4, 4], [REGISTERS, REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (_producer, (q_desc, k_desc, v_desc, memory, sizes, ROWS, BLOCK_N, CONSUMERS, Q_SLOTS, KV_SLOTS, CAUSAL,
                         WINDOW)),
            (_consumer, (0, out_desc, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS,
                         KV_SLOTS, CAUSAL, WINDOW, TURNS, MASKED)),
            (_consumer, (1, out_desc, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS,
                         KV_SLOTS, CAUSAL, WINDOW, TURNS, MASKED)),
            (_consumer, (2, out_desc, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS,
                         KV_SLOTS, CAUSAL, WINDOW, TURNS, MASKED)),
        ], [4, 4, 4], [REGISTERS, REGISTERS, REGISTERS])  # fmt: skip
