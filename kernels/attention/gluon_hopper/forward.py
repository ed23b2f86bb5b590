"""The warp-specialised forward: one producer warpgroup feeds two to four consumers of 64 query rows each.

The structure is FlashAttention-3's (arXiv 2407.08608): persistent programs, and consumers that take turns on the tensor
cores. Consumers: forward.py.

The forward's producer: a program's query tiles, and for each the blocks of keys and values, from the right.

One consumer warpgroup of the forward: 64 query rows of each of its program's tiles.

The product with the keys of one block runs while the softmax of the block before it is computed, and the next tile's
first product while a tile's output is stored. Key blocks are walked from the right, so that masks are needed first
(the diagonal, the tail) and, with a window, last.

Storing a consumer's rows of the output and their logsumexps, or those of a part of the keys, to be joined later.

`target` is the output, its strides in eights of numbers, and room for parts: 64 rows a consumer and part, one after
another, and their logsumexps. Outputs are descriptors, or with `DIRECT` addresses.
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

from kernels.attention.gluon_hopper.barriers import (
    await_keys_slot,
    await_the_kernel_before,
    await_values_slot,
    free_keys,
    free_values,
)
from kernels.attention.gluon_hopper.compat import tma_load, tma_store, turn_give, turn_wait
from kernels.attention.gluon_hopper.forward_overflow import any_mark, clear_mark, leave_mark
from kernels.attention.gluon_hopper.forward_softmax import (
    first_scores,
    first_softmax,
    pass_on,
    pass_values_and_next_keys,
    walk,
)
from kernels.attention.gluon_hopper.forward_tiles import (
    fetch_agenda,
    own_rounds,
    own_tile,
    rows_of,
    shared_blocks,
    work,
)
from kernels.attention.gluon_hopper.masks import hide_keys, key_blocks
from kernels.attention.gluon_hopper.tuning import ENTRY


@gluon.jit
def load_tiles(q_desc, k_desc, v_desc, memory, sizes,
               ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, Q_SLOTS: gl.constexpr,
               KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, TURNS: gl.constexpr,
               BY_WARP: gl.constexpr, DEALT: gl.constexpr, SHARED: gl.constexpr):  # fmt: skip
    """Load what the consumers of this program need, as slots become free."""
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    agenda, n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window = sizes
    count = 0
    for turn in range(own_rounds(sizes, DEALT)):
        m, head = own_tile(turn, sizes, DEALT, CAUSAL and not WINDOW)
        batch = head // num_heads
        h = head - batch * num_heads
        h_kv = h // group_size
        low, left, right, high = key_blocks(m, seqlen_q, seqlen_k, window, ROWS * CONSUMERS, BLOCK_N, CAUSAL, WINDOW)
        if SHARED:
            shared, low, left, right, high = shared_blocks(turn, sizes, BLOCK_N)
        q_slot = turn % Q_SLOTS
        q_phase = (turn // Q_SLOTS) & 1
        for c in gl.static_range(CONSUMERS):
            q_bar = q_full.index(c * Q_SLOTS + q_slot)
            mbarrier.wait(q_empty.index(c * Q_SLOTS + q_slot), q_phase ^ 1)
            mbarrier.expect(q_bar, q_desc.block_type.nbytes)
            row = (m * CONSUMERS + rows_of(c, turn, CONSUMERS, CAUSAL, WINDOW, TURNS)) * ROWS
            tma_load(q_desc, [batch, h, row, 0], q_bar, q_s.index(c * Q_SLOTS + q_slot))
        for i in range(low, high):
            j = high - 1 - (i - low)
            slot = count % KV_SLOTS
            await_keys_slot(count, memory, CONSUMERS, KV_SLOTS, BY_WARP)
            mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
            tma_load(k_desc, [batch, h_kv, j * BLOCK_N, 0], k_full.index(slot), k_s.index(slot))
            await_values_slot(count, memory, CONSUMERS, KV_SLOTS, BY_WARP)
            mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
            tma_load(v_desc, [batch, h_kv, j * BLOCK_N, 0], v_full.index(slot), v_s.index(slot))
            count += 1


@gluon.constexpr_function
def _rows_of_lanes(width):
    """A layout of 64 rows for one warpgroup: lanes hold 8 neighbours of a row, and a warp the rows of its products."""
    columns = [[0, 1 << bit] for bit in range(width.bit_length() - 1)]
    lanes = [*columns[3:5], [1, 0], [2, 0], [4, 0]]
    registers = [*columns[:3], [8, 0], *columns[5:]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, width])


@gluon.jit
def store_log_sums(consumer: gl.constexpr, target, lse, place, m_i, l_i, seqlen_q, ROWS: gl.constexpr,
                   BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, SHARED: gl.constexpr):  # fmt: skip
    """Store the logsumexps; gives the inverse sums."""
    layout: gl.constexpr = gl.SliceLayout(1, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16]))
    head, row, shared = place
    own = gl.arange(0, ROWS, layout)
    rows = row + own
    l_i = gl.convert_layout(gl.sum(l_i, 1), layout)
    m_i = gl.convert_layout(gl.max(m_i, 1), layout)
    log_sum = gl.where(l_i == 0.0, float("inf"), m_i + gl.log2(l_i))  # +inf: no key was seen, no weight later
    first = head.to(gl.int64) * seqlen_q
    if SHARED:
        if shared < 0:
            gl.store(lse + first + rows, log_sum, mask=rows < seqlen_q)
        else:
            gl.store(target[5] + (shared * CONSUMERS + consumer) * ROWS + own, log_sum)
    else:
        gl.store(lse + first + rows, log_sum, mask=rows < seqlen_q)
    return 1.0 / gl.where(l_i == 0.0, 1.0, l_i)


@gluon.jit
def store_output(consumer: gl.constexpr, target, place, slot, x, num_heads, seqlen_q, CONSUMERS: gl.constexpr,
                 DIRECT: gl.constexpr, SHARED: gl.constexpr):  # fmt: skip
    """Store the rows x, by lanes or through the slot of the queries, which have been read."""
    out, out_b, out_h, out_m, parts, part_log_sums, marks = target
    head, row, shared = place
    batch = head // num_heads
    head -= batch * num_heads
    if DIRECT:
        address = out + (batch.to(gl.int64) * out_b + head.to(gl.int64) * out_h) * 8
        if SHARED:  # noqa: SIM102 - decided at compile time
            if shared >= 0:
                address = parts
                row = (shared * CONSUMERS + consumer) * x.shape[0]
                out_m = gl.to_tensor(x.shape[1] // 8)
                seqlen_q = row + x.shape[0]
        _store_rows(address, out_m, row, seqlen_q, x)
    else:
        slot.reshape([x.shape[0], x.shape[1]]).store(x)
        fence_async_shared()
        if SHARED:
            if shared < 0:
                tma_store(out, [batch, head, row, 0], slot)
            else:
                tma_store(parts, [0, 0, (shared * CONSUMERS + consumer) * x.shape[0], 0], slot)
        else:
            tma_store(out, [batch, head, row, 0], slot)


@gluon.jit
def _store_rows(address, stride, row, end, x):
    """Rows from `row` on and before `end`: 16 bytes a lane, which leaves the slot of the queries to the next."""
    layout: gl.constexpr = _rows_of_lanes(x.shape[1])
    x = gl.convert_layout(x, layout)  # within a warp
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, layout))
    columns = gl.arange(0, x.shape[1], gl.SliceLayout(0, layout))
    address = address + (rows.to(gl.int64) * stride)[:, None] * 8
    gl.store(address + columns[None, :], x, mask=(rows < end)[:, None])


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


_ENTRY = gl.constexpr(ENTRY)


@gluon.jit(do_not_specialize=["entries", "n_tiles", "n_m", "num_heads", "n_heads", "group_size", "heads_together",
                              "seqlen_q", "seqlen_k", "window", "out_b", "out_h", "out_m"])  # fmt: skip
def forward_kernel(q_desc, k_desc, v_desc, out, lse, parts, part_log_sums, marks, agenda, entries, n_tiles, n_m,
                   num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window, scale, out_b, out_h,
                   out_m, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr,
                   Q_SLOTS: gl.constexpr, KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
                   TURNS: gl.constexpr, MASKED: gl.constexpr, REGISTERS: gl.constexpr,
                   DIRECT: gl.constexpr, HOLD: gl.constexpr, BY_LANE: gl.constexpr, BY_SUM: gl.constexpr,
                   UNSEEN: gl.constexpr, BY_WARP: gl.constexpr, DEALT: gl.constexpr, SHARED: gl.constexpr,
                   ANEW: gl.constexpr):  # fmt: skip
    """Attention of all query tiles; `scale` is softmax_scale x log2(e).

    `out` and `parts` are descriptors, or with `DIRECT` addresses; `out_b`, `out_h` and `out_m` are strides in eights.
    With `UNSEEN`, programs leave marks where sums have outgrown float32; with `ANEW`, all is done only if one did.
    With `SHARED`, programs share the keys of some tiles (forward_schedule.py), and `parts` takes what each has of them.
    """
    if UNSEEN:
        clear_mark(marks)
    if ANEW:  # noqa: SIM102 - decided at compile time
        await_the_kernel_before()
        if not any_mark(marks):
            return
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
    if DEALT:
        agenda += gl.program_id(0) * entries * _ENTRY
        fetch_agenda(agenda, entries)
    sizes = (agenda, n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window)
    target = (out, out_b, out_h, out_m, parts, part_log_sums, marks)
    # Constants must stand in the call itself: a tuple bound to a name turns them into tensors.
    if CONSUMERS == 2:
        gl.warp_specialize([
            (load_tiles, (q_desc, k_desc, v_desc, memory, sizes, ROWS, BLOCK_N, CONSUMERS, Q_SLOTS, KV_SLOTS, CAUSAL,
                         WINDOW, TURNS, BY_WARP, DEALT, SHARED)),
            (consume, (0, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
            (consume, (1, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
        ], [4, 4], [REGISTERS, REGISTERS])  # fmt: skip
    elif CONSUMERS == 3:
        gl.warp_specialize([
            (load_tiles, (q_desc, k_desc, v_desc, memory, sizes, ROWS, BLOCK_N, CONSUMERS, Q_SLOTS, KV_SLOTS, CAUSAL,
                         WINDOW, TURNS, BY_WARP, DEALT, SHARED)),
            (consume, (0, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
            (consume, (1, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
            (consume, (2, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
        ], [4, 4, 4], [REGISTERS, REGISTERS, REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (load_tiles, (q_desc, k_desc, v_desc, memory, sizes, ROWS, BLOCK_N, CONSUMERS, Q_SLOTS, KV_SLOTS, CAUSAL,
                         WINDOW, TURNS, BY_WARP, DEALT, SHARED)),
            (consume, (0, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
            (consume, (1, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
            (consume, (2, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
            (consume, (3, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
        ], [4, 4, 4, 4], [REGISTERS, REGISTERS, REGISTERS, REGISTERS])  # fmt: skip
