"""The backward with a warpgroup of its own for dQ, so that the consumers need not wait for each other.

A program owns 128 keys of one key head and walks over the queries in blocks of 128, or of 64 at head_dim 128. Each of
two consumers has 64 of the keys: S^T, dP^T, dV and dK, the last two with register operands. dS goes to the assistant
(backward_dq_warpgroup.py), which computes dQ and adds it up in float32 (backward_dq_ring.py). Free of barriers with
each other, one consumer computes exponentials while the tensor cores work for the other. dQ may differ in its last bits
from run to run, as the order of its additions is not fixed.

The assistant of the backward: a warpgroup that loads everything, and computes and adds dQ = dS K.

The consumers hand dS over in shared memory and go on. A block of dQ is two fragments (backward_common.py), one after
the other, so that few registers are enough.

delta of a later unit, by consumers that wait for their first keys and queries.

delta = rowsum(dout x out) is bound by memory, of which the backward kernel needs little in long sequences. So
prepare_kernel has only the first `lag` units of backward_dq_ring.py; the programs of unit u share out the rows of unit
u + lag. A program counts itself in afterwards: the full counter of unit u says that unit u + lag has its delta, too.
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

from kernels.attention.gluon_hopper.backward_common import (
    FRAGMENT,
    fragment_buffers,
    hide_scores,
    packed_powers,
    tiles_of_keys_and_queries,
    unpacked,
)
from kernels.attention.gluon_hopper.backward_dq_ring import await_count, convert_share, count_in, counter_of
from kernels.attention.gluon_hopper.backward_schedule import place_of_program, store_sums
from kernels.attention.gluon_hopper.barriers import (
    DO_EMPTY,
    Q_EMPTY,
    arrive_at,
    pdl_launch_dependents,
    pdl_wait,
    wait_at,
)
from kernels.attention.gluon_hopper.compat import opaque_zero, pair_sync, reinterpret, tma_add, tma_load, tma_store

# Named barriers of all three warpgroups; the first is that of the first stage of dS, and that of the second follows.
DS_FULL, ALL_READ = gl.constexpr(6), gl.constexpr(13)
STAGES = gl.constexpr(2)  # tiles of dS under way


@gluon.jit
def _load(number, row, m, descriptors, tiles, barriers, batch, h, BLOCK_M: gl.constexpr, SLOTS: gl.constexpr,
          DELTA: gl.constexpr):  # fmt: skip
    """Begin to load a block of queries, unless DELTA without delta, which dO's barrier then waits for."""
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc = descriptors
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, do_full, ds_empty = barriers
    slot = number % SLOTS
    mbarrier.expect(q_full.index(slot), q_desc.block_type.nbytes + BLOCK_M * 4)
    tma_load(q_desc, [batch, h, m * BLOCK_M, 0], q_full.index(slot), q_s.index(slot))
    tma_load(lse_desc, [row], q_full.index(slot), lse_s.index(slot))
    mbarrier.expect(do_full.index(slot), do_desc.block_type.nbytes + BLOCK_M * 4)
    tma_load(do_desc, [batch, h, m * BLOCK_M, 0], do_full.index(slot), do_s.index(slot))
    if DELTA:
        tma_load(delta_desc, [row], do_full.index(slot), delta_s.index(slot))


@gluon.jit
def _load_first_deltas(count, descriptors, tiles, barriers, place, sizes, BLOCK_M: gl.constexpr):
    """What `_load` left out of the first blocks, as many as there are slots at most."""
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc = descriptors
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, do_full, ds_empty = barriers
    batch, h_kv, n0, low, left, right, high = place
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    for number in range(count):
        head = batch * num_heads + h_kv * group_size + number // (high - low)
        row = head * padded_q + (low + number % (high - low)) * BLOCK_M
        tma_load(delta_desc, [row], do_full.index(number), delta_s.index(number))


@gluon.jit
def _fragment(part: gl.constexpr, ds_tile, k_s, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Begin a fragment of dQ: half of its rows, or half of its columns."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FRAGMENT, 16])
    zero = gl.zeros([FRAGMENT, FRAGMENT], gl.float32, layout)
    k = k_s.index(opaque_zero()).reshape([BLOCK_N, HEAD_DIM])
    if HEAD_DIM == FRAGMENT:
        rows = ds_tile.slice(part * FRAGMENT, FRAGMENT, 0)
        columns = k
    else:
        rows = ds_tile
        columns = k.slice(part * FRAGMENT, FRAGMENT, 1)
    return warpgroup_mma(rows, columns, zero, use_acc=False, is_async=True)


@gluon.jit
def _add(dq, number, fragments_desc, dq_s):
    """Have TMA add a fragment to global memory; two buffers take turns."""
    tma.store_wait(1)  # what left this buffer before has left it
    dq_s.store(dq)
    fence_async_shared()
    tma_add(fragments_desc, [number * 16, 0], reinterpret(dq_s, gl.float32, [16, 256], fragments_desc.layout))


@gluon.jit
def _convert_what_is_left(ring, part_full, dq_0, dq_1, share, key_tiles, heads, unit, of_unit, group_size,
                          HEAD_DIM: gl.constexpr):  # fmt: skip
    """A share, of as many as a head has tiles of keys, of the unit that is `lag` before this one."""
    fragments, fragments_desc, dq_desc, places, lag, softmax_scale = ring
    old = unit - lag
    if old >= 0:
        convert_share(
            share, key_tiles, old % places * of_unit, fragments, fragments_desc, dq_desc, part_full, dq_0, dq_1,
            old // heads, old % heads * group_size, group_size, of_unit // group_size, softmax_scale,
            HEAD_DIM // FRAGMENT)  # fmt: skip


@gluon.jit
def load_and_add(descriptors, ring, tiles, ds_s, dq_0, dq_1, barriers, part_full, delta_written, place, sizes,
                 BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr,
                 AHEAD: gl.constexpr, NUMBERED: gl.constexpr, CUT: gl.constexpr):  # fmt: skip
    """Load everything; dQ = dS K, added to the fragments in global memory; dQ of a unit before this one.

    AHEAD: delta comes from that unit's programs, too, and the consumers write that of a unit behind this one.
    """
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc = descriptors
    fragments, fragments_desc, dq_desc, places, lag, softmax_scale = ring
    q_s, k_s, v_s, do_s, lse_s, delta_s = tiles
    kv_full, q_full, do_full, ds_empty = barriers
    batch, h_kv, n0, low, left, right, high = place
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    mbarrier.expect(kv_full, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma_load(k_desc, [batch, h_kv, n0, 0], kv_full, k_s.index(0))
    tma_load(v_desc, [batch, h_kv, n0, 0], kv_full, v_s.index(0))
    if not CUT:
        pdl_wait()  # lse, delta (AHEAD of the first units only) and the zeros of the ring are its
    pdl_launch_dependents()
    total = group_size * (high - low)
    h = h_kv * group_size
    m = low
    for number in range(gl.minimum(total, SLOTS)):
        row = (batch * num_heads + h) * padded_q + m * BLOCK_M
        _load(number, row, m, descriptors, tiles, barriers, batch, h, BLOCK_M, SLOTS, not AHEAD)
        m += 1
        if m == high:
            m = low
            h += 1
    heads = num_heads // group_size if NUMBERED else gl.num_programs(1)
    unit = batch * heads + h_kv
    of_unit = group_size * n_m * 2
    key_tiles = gl.cdiv(seqlen_k, BLOCK_N)
    share = n0 // BLOCK_N
    if CUT:
        share += low * of_unit  # the first piece has the tile's share
    if unit >= lag:
        await_count(counter_of(unit - lag, fragments, places, of_unit), key_tiles)
    if AHEAD:
        _load_first_deltas(gl.minimum(total, SLOTS), descriptors, tiles, barriers, place, sizes, BLOCK_M)
    _convert_what_is_left(ring, part_full, dq_0, dq_1, share, key_tiles, heads, unit, of_unit, group_size, HEAD_DIM)
    mbarrier.wait(kv_full, 0)
    fragment = unit % places * of_unit + low * 2
    line = low
    for count in range(total):
        stage = count % STAGES
        slot = count % SLOTS
        wait_at(DS_FULL + stage)
        token = _fragment(0, ds_s.index(stage), k_s, BLOCK_N, HEAD_DIM)
        wait_at(Q_EMPTY + slot)
        wait_at(DO_EMPTY + slot)
        if count + SLOTS < total:
            row = (batch * num_heads + h) * padded_q + m * BLOCK_M
            _load(count + SLOTS, row, m, descriptors, tiles, barriers, batch, h, BLOCK_M, SLOTS, True)
            m += 1
            if m == high:
                m = low
                h += 1
        dq = warpgroup_mma_wait(0, deps=(token,))
        _add(dq, fragment, fragments_desc, dq_0)
        token = _fragment(1, ds_s.index(stage), k_s, BLOCK_N, HEAD_DIM)
        dq = warpgroup_mma_wait(0, deps=(token,))
        mbarrier.arrive(ds_empty.index(stage), count=1)
        _add(dq, fragment + 1, fragments_desc, dq_1)
        fragment += 2
        line += 1
        if line == high:
            line = low
            fragment += (n_m - (high - low)) * 2
    arrive_at(ALL_READ)
    if AHEAD:
        mbarrier.wait(delta_written, 0)
    if CUT:  # of the last units, whose counters nobody reads
        tma.store_wait(0)
        pdl_wait()  # what comes next waits for this kernel only
    else:
        count_in(counter_of(unit, fragments, places, of_unit))


ROWS = gl.constexpr(64)  # that a consumer takes at a time; tiles of queries are multiples
_LAYOUT = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]))


@gluon.jit
def _read(number, exists, later, unit, sizes, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr):
    out, dout, delta, written, lag, out_b, out_h, out_m, do_b, do_h, do_m = later
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, _LAYOUT))[None, :]
    head = (unit + lag) * group_size + number * ROWS // padded_q
    rows = number * ROWS % padded_q + gl.arange(0, ROWS, gl.SliceLayout(1, _LAYOUT))
    batch, h = (head // num_heads).to(gl.int64), (head % num_heads).to(gl.int64)
    down = rows[:, None].to(gl.int64)
    mask = (rows < seqlen_q)[:, None] & exists
    if WIDTH < HEAD_DIM:
        mask = mask & (columns < WIDTH)
    place = out + (batch * out_b + h * out_h) + down * out_m + columns
    o = gl.load(place, mask, 0.0, eviction_policy="evict_first")
    do = gl.load(dout + (batch * do_b + h * do_h) + down * do_m + columns, mask, 0.0)
    return o, do


@gluon.jit
def read_rows(consumer: gl.constexpr, later, unit, sizes, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr):
    """The first rows of out and dout that this consumer has of the unit `lag` later; zeros if it has none.

    WIDTH is the tensors' own head_dim.
    """
    out, dout, delta, written, lag, out_b, out_h, out_m, do_b, do_h, do_m = later
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    number = 2 * gl.program_id(0) + consumer
    exists = (unit + lag < gl.num_programs(1) * gl.num_programs(2)) & (number < group_size * (padded_q // ROWS))
    return _read(number, exists, later, unit, sizes, HEAD_DIM, WIDTH)


@gluon.jit
def write_delta(consumer: gl.constexpr, o, do, later, unit, sizes, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr):
    """delta of these rows, and of all others that this consumer has."""
    out, dout, delta, written, lag, out_b, out_h, out_m, do_b, do_h, do_m = later
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    first = 2 * gl.program_id(0) + consumer
    if unit + lag < gl.num_programs(1) * gl.num_programs(2):
        for number in range(first, group_size * (padded_q // ROWS), 2 * gl.num_programs(0)):
            if number > first:
                o, do = _read(number, True, later, unit, sizes, HEAD_DIM, WIDTH)
            line = (unit + lag) * group_size * padded_q + number * ROWS
            line += gl.arange(0, ROWS, gl.SliceLayout(1, _LAYOUT))
            gl.store(delta + line, gl.sum(o.to(gl.float32) * do.to(gl.float32), 1))
    mbarrier.arrive(written, count=1)


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
    arrive_at(DO_EMPTY + slot)
    return dv, dk_token, ds_operand


@gluon.jit
def _hand_over(consumer: gl.constexpr, count, ds16, ds_s, ds_empty, HALF: gl.constexpr):
    """Give dS to the assistant."""
    stage = count % STAGES
    mbarrier.wait(ds_empty.index(stage), ((count // STAGES) & 1) ^ 1)
    ds_s.index(stage).slice(consumer * HALF, HALF, 1).permute((1, 0)).store(ds16)
    fence_async_shared()
    arrive_at(DS_FULL + stage)


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
    arrive_at(Q_EMPTY + count % SLOTS)
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
    arrive_at(Q_EMPTY + count % SLOTS)
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
    wait_at(ALL_READ)  # the others have read all keys: their tiles take the gradients to TMA
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
    AHEAD: consumers compute delta of a later unit (backward_dq_warpgroup.py), from tensors of head_dim WIDTH.
    CUT: of a part of the queries, as `pieces` says; dK and dV then go to `sums` (backward_launch.py).
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
