"""The warp-specialised forward: one producer warpgroup feeds two to four consumers of 64 query rows each.

The structure is FlashAttention-3's (arXiv 2407.08608): persistent programs, two consumers take turns on the tensor
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

from kernels.attention.gluon_hopper.blocks import block, first_scores, pass_on, pass_values_and_next_keys
from kernels.attention.gluon_hopper.loading import load_tiles
from kernels.attention.gluon_hopper.masks import hide_keys
from kernels.attention.gluon_hopper.order import rounds, work
from kernels.attention.gluon_hopper.output import store_rows
from kernels.attention.gluon_hopper.shim import opaque_zero, tma_store, turn_give, turn_wait
from kernels.attention.gluon_hopper.softmax import first_softmax


@gluon.jit
def _consumer(consumer: gl.constexpr, target, lse, memory, sizes, scale,
              ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr,
              Q_SLOTS: gl.constexpr, KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
              TURNS: gl.constexpr, MASKED: gl.constexpr, DIRECT: gl.constexpr, HOLD: gl.constexpr,
              BY_LANE: gl.constexpr):  # fmt: skip
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window = sizes
    dtype: gl.constexpr = q_s.dtype
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    if TURNS and consumer == 1:
        turn_give(0)
    turns = rounds(n_tiles)
    head, row, low, left, right, high, skipped = work(
        consumer, 0, sizes, ROWS, BLOCK_N, CONSUMERS, CAUSAL, WINDOW, TURNS)  # fmt: skip
    count = 0
    for _i in range(skipped):
        count = pass_on(count, memory, KV_SLOTS)
    if TURNS:
        turn_wait(consumer)
    s_token = first_scores(consumer, 0, turns, count, memory, ROWS, BLOCK_N, HEAD_DIM, Q_SLOTS, KV_SLOTS, True)
    if TURNS:
        turn_give(1 - consumer)
    s = warpgroup_mma_wait(0, deps=(s_token,))
    mbarrier.arrive(k_empty.index(count % KV_SLOTS), count=1)
    for turn in range(turns):
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
                    count = pass_values_and_next_keys(count, memory, KV_SLOTS)
                low, left, right, high = low, low, low, low + 1
        if CAUSAL or WINDOW:
            # indexed anew, as ptxas of triton 3.6 else leaves descriptors that both loops need to a loop of no turns
            for i in range(right, high - 1):
                q_seen = q_s.index(q_slot + opaque_zero()).reshape([ROWS, HEAD_DIM])
                count, p, out, m_i, l_i = block(
                    consumer, high - 2 - (i - right), low, count, q_seen, q_done, p, out, m_i, l_i, memory, diagonal,
                    seqlen_k, window, scale, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL, WINDOW, TURNS, True,
                    DIRECT, HOLD, BY_LANE)  # fmt: skip
        for i in range(left, right):
            count, p, out, m_i, l_i = block(
                consumer, right - 1 - (i - left), low, count, q, q_done, p, out, m_i, l_i, memory, diagonal, seqlen_k,
                window, scale, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL, WINDOW, TURNS, False, DIRECT,
                HOLD, BY_LANE)  # fmt: skip
        if WINDOW:
            for i in range(low, left):
                q_seen = q_s.index(q_slot + opaque_zero()).reshape([ROWS, HEAD_DIM])
                count, p, out, m_i, l_i = block(
                    consumer, left - 1 - (i - low), low, count, q_seen, q_done, p, out, m_i, l_i, memory, diagonal,
                    seqlen_k, window, scale, ROWS, BLOCK_N, HEAD_DIM, KV_SLOTS, CAUSAL, WINDOW, TURNS, True,
                    DIRECT, HOLD, BY_LANE)  # fmt: skip
        slot = count % KV_SLOTS
        mbarrier.wait(v_full.index(slot), (count // KV_SLOTS) & 1)
        count += 1
        this_head, this_row = head, row
        if TURNS:  # while the other consumer has the tensor cores
            head, row, low, left, right, high, skipped = work(
                consumer, turn + 1, sizes, ROWS, BLOCK_N, CONSUMERS, CAUSAL, WINDOW, TURNS)  # fmt: skip
        if Q_SLOTS > 1 and TURNS:  # noqa: SIM102
            if turn + 1 < turns:  # for the next tile's tensors before our turn, not within it
                mbarrier.wait(q_full.index(consumer * Q_SLOTS + (turn + 1) % Q_SLOTS), ((turn + 1) // Q_SLOTS) & 1)
                mbarrier.wait(k_full.index(count % KV_SLOTS), (count // KV_SLOTS) & 1)
        if TURNS:
            turn_wait(consumer)
        out_token = warpgroup_mma(p, v_s.index(slot).reshape([BLOCK_N, HEAD_DIM]), out, is_async=True)
        if not TURNS:
            head, row, low, left, right, high, skipped = work(
                consumer, turn + 1, sizes, ROWS, BLOCK_N, CONSUMERS, CAUSAL, WINDOW, TURNS)  # fmt: skip
        if Q_SLOTS > 1:  # the next tile's first product runs while this tile's output is stored
            if not TURNS:  # noqa: SIM102
                if turn + 1 < turns:
                    for _i in range(skipped):
                        count = pass_on(count, memory, KV_SLOTS)
            s_token = first_scores(
                consumer, turn + 1, turns, count, memory, ROWS, BLOCK_N, HEAD_DIM, Q_SLOTS, KV_SLOTS,
                not TURNS or Q_SLOTS == 1)  # fmt: skip
        if TURNS:
            turn_give(1 - consumer)
        rows = this_row + gl.arange(0, ROWS, row_layout)
        l_i = gl.convert_layout(gl.sum(l_i, 1), row_layout)
        m_i = gl.convert_layout(gl.max(m_i, 1), row_layout)
        log_sum = gl.where(l_i == 0.0, float("inf"), m_i + gl.log2(l_i))  # +inf: no key was seen, no weight later
        gl.store(lse + this_head.to(gl.int64) * seqlen_q + rows, log_sum, mask=rows < seqlen_q)
        inverse = 1.0 / gl.where(l_i == 0.0, 1.0, l_i)
        if Q_SLOTS > 1:
            out, p = warpgroup_mma_wait(1, deps=(out_token, p))
        else:
            out, p = warpgroup_mma_wait(0, deps=(out_token, p))
        mbarrier.arrive(v_empty.index(slot), count=1)
        out = out * gl.convert_layout(inverse, gl.SliceLayout(1, out_layout))[:, None]
        batch = this_head // num_heads
        if DIRECT:
            store_rows(target, out.to(dtype), batch, this_head - batch * num_heads, this_row, seqlen_q)
        else:
            q.store(out.to(dtype))  # the queries have been read: their slot takes the output to the copy engine
            fence_async_shared()
            tma_store(target[0], [batch, this_head - batch * num_heads, this_row, 0], q_s.index(q_slot))
        if Q_SLOTS == 1:
            if not DIRECT:
                tma.store_wait(0)
                mbarrier.arrive(q_empty.index(q_slot), count=1)
            if not TURNS:  # noqa: SIM102
                if turn + 1 < turns:
                    for _i in range(skipped):
                        count = pass_on(count, memory, KV_SLOTS)
            s_token = first_scores(
                consumer, turn + 1, turns, count, memory, ROWS, BLOCK_N, HEAD_DIM, Q_SLOTS, KV_SLOTS,
                not TURNS or Q_SLOTS == 1)  # fmt: skip
        s = warpgroup_mma_wait(0, deps=(s_token,))
        mbarrier.arrive(k_empty.index(count % KV_SLOTS), count=1)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_tiles", "n_m", "num_heads", "n_heads", "group_size", "heads_together",
                              "seqlen_q", "seqlen_k", "window", "out_b", "out_h", "out_m"])  # fmt: skip
def forward_kernel(q_desc, k_desc, v_desc, out, lse, n_tiles, n_m, num_heads, n_heads, group_size, heads_together,
                   seqlen_q, seqlen_k, window, scale, out_b, out_h, out_m,
                   ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr,
                   Q_SLOTS: gl.constexpr, KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
                   TURNS: gl.constexpr, MASKED: gl.constexpr, REGISTERS: gl.constexpr,
                   DIRECT: gl.constexpr, HOLD: gl.constexpr, BY_LANE: gl.constexpr):  # fmt: skip
    """Attention of all query tiles; `scale` is softmax_scale x log2(e), `n_heads` batch x num_heads.

    `out` is a descriptor, or with `DIRECT` an address; `out_b`, `out_h` and `out_m` are its strides in eights.
    """
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
    target = (out, out_b, out_h, out_m)
    # Constants must stand in the call itself: a tuple bound to a name turns them into tensors.
    if CONSUMERS == 2:
        gl.warp_specialize([
            (load_tiles, (q_desc, k_desc, v_desc, memory, sizes, ROWS, BLOCK_N, CONSUMERS, Q_SLOTS, KV_SLOTS, CAUSAL,
                         WINDOW, TURNS)),
            (_consumer, (0, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE)),
            (_consumer, (1, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE)),
        ], [4, 4], [REGISTERS, REGISTERS])  # fmt: skip
    elif CONSUMERS == 3:
        gl.warp_specialize([
            (load_tiles, (q_desc, k_desc, v_desc, memory, sizes, ROWS, BLOCK_N, CONSUMERS, Q_SLOTS, KV_SLOTS, CAUSAL,
                         WINDOW, TURNS)),
            (_consumer, (0, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE)),
            (_consumer, (1, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE)),
            (_consumer, (2, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE)),
        ], [4, 4, 4], [REGISTERS, REGISTERS, REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (load_tiles, (q_desc, k_desc, v_desc, memory, sizes, ROWS, BLOCK_N, CONSUMERS, Q_SLOTS, KV_SLOTS, CAUSAL,
                         WINDOW, TURNS)),
            (_consumer, (0, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE)),
            (_consumer, (1, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE)),
            (_consumer, (2, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE)),
            (_consumer, (3, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE)),
        ], [4, 4, 4, 4], [REGISTERS, REGISTERS, REGISTERS, REGISTERS])  # fmt: skip
