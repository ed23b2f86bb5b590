"""The backward with a separate warpgroup for dQ, so that the consumers need not wait for each other.

A program owns 128 keys of one key head and walks over the queries in blocks of 128, or of 64 at head_dim 128. Each of
two consumers has 64 of the keys: S^T, dP^T, dV and dK, the last two with register operands. dS goes through shared
memory to the dQ warpgroup, which loads everything, computes dQ = dS K and adds it up in float32 (backward_dq_ring.py),
a block as two fragments (backward_common.py), one after the other, so that few registers are enough. Free of barriers
with each other, one consumer computes exponentials while the tensor cores work for the other. dQ may differ in its last
bits from run to run, as the order of its additions is not fixed.

With `next_delta`, prepare_kernel computes only delta of the first `delay` key heads, and consumers compute that of a
later one while they wait for their first keys and queries: the programs of key head i share out the rows of key head
i + delay, and then count themselves. Key heads are counted over all sequences here.
"""

from collections import namedtuple

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

from ...unspecialized import UnspecializedTuples
from .backward_common import (
    FRAGMENT,
    BackwardDescriptors,
    add_fragment,
    backward_buffers,
    fragment_buffers,
    fragment_width,
    packed_powers,
    store_dkv,
    unpacked,
)
from .backward_dq_ring import DqRing, convert_share, count_finished, counter_of
from .backward_schedule import heads_of_part, num_key_heads, program_key_tile, store_partial_dkv
from .barriers import DO_EMPTY, Q_EMPTY, arrive_at, await_programs, mbarriers, pdl_launch_dependents, pdl_wait, wait_at
from .compat import opaque_zero, tma_load
from .masks import hide_queries
from .pieces import add_in_columns, product_over_columns, wait_for_pieces, zeros_in_columns

# Named barriers of all three warpgroups; the first is that of the first stage of dS, and that of the second follows.
DS_FULL, ALL_READ = gl.constexpr(6), gl.constexpr(13)
STAGES = gl.constexpr(2)  # tiles of dS under way
ROWS = gl.constexpr(64)  # rows of out and dout that a consumer reads at a time; tiles of queries are multiples of it
_LAYOUT = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]))
# Triton 3.9's ptxas would spill in the loop.
_DELTA_BEFORE_WAIT = gl.constexpr(tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9))


# The mbarriers of a program: keys and values, slots of queries and dout, stages of dS.
DqWarpgroupBarriers = namedtuple("DqWarpgroupBarriers", "kv_full q_full do_full ds_empty")
# What consumers need that compute delta of the key head `delay` after theirs: addresses, an mbarrier that this
# program's delta is written, and an OutStrides.
NextDelta = namedtuple("NextDelta", "out dout delta written delay strides")
# How many key heads have room in the ring of dQ's fragments, and after how many a key head is converted.
RingSize = namedtuple("RingSize", "slots delay")
# Strides of batches, heads and rows of out and of dout.
OutStrides = namedtuple("OutStrides", "out_b out_h out_m do_b do_h do_m")


@UnspecializedTuples
@gluon.jit(do_not_specialize=["shape", "ring_size", "order"])
def dq_warpgroup_kernel(q_desc, k_desc, v_desc, do_desc, fragments_desc, dk_desc, dv_desc, lse_desc, delta_desc,
                        dq_desc, fragments, out, dout, delta, split_table, partial_dkv, shape, ring_size, strides,
                        order, scales, CONFIG: gl.constexpr):  # fmt: skip
    """Compute dK and dV of 128 keys, and their part of dQ.

    `fragments_desc` and `fragments` are the same tensor, and so are `delta_desc` and `delta`, `do_desc` and `dout`.
    `shape` is a BackwardShape, `order` a TileOrder, `scales` a Scales, CONFIG a configs.BackwardConfig. With
    `split_q` the program computes the split of the queries that `split_table` names, and stores dK and dV in
    `partial_dkv` (backward_launch.py).
    """
    dtype: gl.constexpr = q_desc.dtype
    buffers = backward_buffers(q_desc, k_desc, v_desc, do_desc, lse_desc, CONFIG)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([CONFIG.block_m, CONFIG.block_n], dtype)
    ds_s = gl.allocate_shared_memory(dtype, [STAGES, CONFIG.block_m, CONFIG.block_n], ds_layout)
    dq_0, dq_1 = fragment_buffers()
    slots: gl.constexpr = CONFIG.slots
    bars = DqWarpgroupBarriers(kv_full=mbarriers(0), q_full=mbarriers(slots), do_full=mbarriers(slots),
                               ds_empty=mbarriers(STAGES))  # fmt: skip
    part_full = mbarriers(2)
    delta_written = mbarriers(0, 2)
    by_length: gl.constexpr = CONFIG.head_dim > 64
    tile, split = program_key_tile(split_table, shape, order, CONFIG, by_length)
    descs = BackwardDescriptors(q=q_desc, k=k_desc, v=v_desc, do=do_desc, lse=lse_desc, delta=delta_desc)
    ring = DqRing(fragments=fragments, fragments_desc=fragments_desc, dq_desc=dq_desc, slots=ring_size.slots,
                  delay=ring_size.delay, softmax_scale=scales.softmax)  # fmt: skip
    next_delta = NextDelta(out=out, dout=dout, delta=delta, written=delta_written, delay=ring_size.delay,
                           strides=strides)  # fmt: skip
    # Constants must be written in the call itself: a tuple bound to a name turns them into tensors.
    gl.warp_specialize([
        (_load_and_dq_partition, (descs, ring, buffers, ds_s, dq_0, dq_1, bars, part_full, delta_written, tile, shape,
                                  CONFIG)),
        (_consumer_partition, (0, dk_desc, dv_desc, next_delta, buffers, ds_s, bars, tile, shape, scales, partial_dkv,
                               split, CONFIG)),
        (_consumer_partition, (1, dk_desc, dv_desc, next_delta, buffers, ds_s, bars, tile, shape, scales, partial_dkv,
                               split, CONFIG)),
    ], [4, 4], [216, 216])  # fmt: skip


@gluon.jit
def _load_and_dq_partition(descs, ring, buffers, ds_s, dq_0, dq_1, bars, part_full, delta_written, tile, shape,
                           CONFIG: gl.constexpr):  # fmt: skip
    """Load everything, convert dQ of an earlier key head, and add dQ = dS K to the fragments in global memory.

    With `next_delta`, delta comes from that key head's programs, too.
    """
    mbarrier.expect(bars.kv_full, descs.k.block_type.nbytes + descs.v.block_type.nbytes)
    keys = [tile.batch, tile.h_kv // CONFIG.group_splits, tile.n0, 0]
    tma_load(descs.k, keys, bars.kv_full, buffers.k.index(0))
    tma_load(descs.v, keys, bars.kv_full, buffers.v.index(0))
    if not CONFIG.split_q or CONFIG.all_split:
        pdl_wait()  # lse, delta (with next_delta of the first heads only) and the zeros of the ring are its
    pdl_launch_dependents()
    h, members = heads_of_part(tile.h_kv, shape.group_size, CONFIG)
    total = members * (tile.high - tile.low)
    m = tile.low
    for number in range(gl.minimum(total, CONFIG.slots)):
        row = (tile.batch * shape.num_heads + h) * shape.padded_q + m * CONFIG.block_m
        _load(number, row, m, descs, buffers, bars, tile.batch, h, CONFIG, not CONFIG.next_delta)
        m += 1
        if m == tile.high:
            m = tile.low
            h += 1
    heads = num_key_heads(shape, CONFIG) if CONFIG.linear_grid else gl.num_programs(1)
    kv_head = tile.batch * heads + tile.h_kv
    per_head = shape.group_size * shape.n_m * 2
    key_tiles = gl.cdiv(shape.seqlen_k, CONFIG.block_n)
    share = tile.n0 // CONFIG.block_n
    if CONFIG.split_q:
        share += tile.low * per_head  # the first split has the tile's share
    if kv_head >= ring.delay:
        await_programs(counter_of(kv_head - ring.delay, ring.fragments, ring.slots, per_head), key_tiles)
    if CONFIG.next_delta:
        _load_first_deltas(gl.minimum(total, CONFIG.slots), descs, buffers, bars, tile, shape, CONFIG)
    _convert_earlier_head(
        ring, part_full, dq_0, dq_1, share, key_tiles, heads, kv_head, per_head, shape.group_size, CONFIG
    )
    mbarrier.wait(bars.kv_full, 0)
    fragment = kv_head % ring.slots * per_head + tile.low * 2
    line = tile.low
    for count in range(total):
        stage = count % STAGES
        slot = count % CONFIG.slots
        wait_at(DS_FULL + stage)
        token = _fragment(0, ds_s.index(stage), buffers.k, CONFIG)
        wait_at(Q_EMPTY + slot)
        wait_at(DO_EMPTY + slot)
        if count + CONFIG.slots < total:
            row = (tile.batch * shape.num_heads + h) * shape.padded_q + m * CONFIG.block_m
            _load(count + CONFIG.slots, row, m, descs, buffers, bars, tile.batch, h, CONFIG, True)
            m += 1
            if m == tile.high:
                m = tile.low
                h += 1
        dq = warpgroup_mma_wait(0, deps=(token,))
        add_fragment(dq, fragment, ring.fragments_desc, dq_0, CONFIG, 1, fragment_width(CONFIG, 0))
        token = _fragment(1, ds_s.index(stage), buffers.k, CONFIG)
        dq = warpgroup_mma_wait(0, deps=(token,))
        mbarrier.arrive(bars.ds_empty.index(stage), count=1)
        add_fragment(dq, fragment + 1, ring.fragments_desc, dq_1, CONFIG, 1, fragment_width(CONFIG, 1))
        fragment += 2
        line += 1
        if line == tile.high:
            line = tile.low
            fragment += (shape.n_m - (tile.high - tile.low)) * 2
    arrive_at(ALL_READ)
    if CONFIG.next_delta:
        mbarrier.wait(delta_written, 0)
    if CONFIG.split_q:  # splits belong to the last key heads, whose counters are not read
        tma.store_wait(0)
        pdl_wait()  # the next kernel waits for this kernel only
    else:
        count_finished(counter_of(kv_head, ring.fragments, ring.slots, per_head))


@gluon.jit
def _load(number, row, m, descs, buffers, bars, batch, h, CONFIG: gl.constexpr, DELTA: gl.constexpr):
    """Begin to load a block of queries, unless DELTA without delta, which dO's barrier then waits for."""
    slot = number % CONFIG.slots
    mbarrier.expect(bars.q_full.index(slot), descs.q.block_type.nbytes + CONFIG.block_m * 4)
    tma_load(descs.q, [batch, h, m * CONFIG.block_m, 0], bars.q_full.index(slot), buffers.q.index(slot))
    tma_load(descs.lse, [row], bars.q_full.index(slot), buffers.lse.index(slot))
    mbarrier.expect(bars.do_full.index(slot), descs.do.block_type.nbytes + CONFIG.block_m * 4)
    tma_load(descs.do, [batch, h, m * CONFIG.block_m, 0], bars.do_full.index(slot), buffers.do.index(slot))
    if DELTA:
        tma_load(descs.delta, [row], bars.do_full.index(slot), buffers.delta.index(slot))


@gluon.jit
def _load_first_deltas(count, descs, buffers, bars, tile, shape, CONFIG: gl.constexpr):
    """Load what `_load` left out of the first blocks, as many as there are slots at most."""
    for number in range(count):
        head = tile.batch * shape.num_heads + tile.h_kv * shape.group_size + number // (tile.high - tile.low)
        row = head * shape.padded_q + (tile.low + number % (tile.high - tile.low)) * CONFIG.block_m
        tma_load(descs.delta, [row], bars.do_full.index(number), buffers.delta.index(number))


@gluon.jit
def _convert_earlier_head(ring, part_full, dq_0, dq_1, share, key_tiles, heads, kv_head, per_head, group_size,
                          CONFIG: gl.constexpr):  # fmt: skip
    """Convert a share of dQ of the key head that is `ring.delay` before this one; a head has `key_tiles` shares."""
    old = kv_head - ring.delay
    if old >= 0:
        h, members = heads_of_part(old % heads, group_size, CONFIG)
        convert_share(
            share, key_tiles, old % ring.slots * per_head, ring, part_full, dq_0, dq_1, old // heads, h, members,
            per_head // group_size, CONFIG.head_dim // FRAGMENT)  # fmt: skip


@gluon.jit
def _fragment(part: gl.constexpr, ds_tile, k_s, CONFIG: gl.constexpr):
    """Begin a fragment of dQ: half of its rows, or half of its columns."""
    WIDTH: gl.constexpr = fragment_width(CONFIG, part)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    zero = gl.zeros([FRAGMENT, WIDTH], gl.float32, layout)
    k = k_s.index(opaque_zero()).reshape([CONFIG.block_n, CONFIG.head_dim])
    if CONFIG.head_dim == FRAGMENT:
        rows = ds_tile.slice(part * FRAGMENT, FRAGMENT, 0)
        columns = k.slice(0, WIDTH, 1)
    else:
        rows = ds_tile
        columns = k.slice(part * FRAGMENT, WIDTH, 1)
    return warpgroup_mma(rows, columns, zero, use_acc=False, is_async=True)


@gluon.jit
def _consumer_partition(consumer: gl.constexpr, dk_desc, dv_desc, next_delta, buffers, ds_s, bars, tile, shape, scales,
                        partial_dkv, split, CONFIG: gl.constexpr):  # fmt: skip
    """Compute dK and dV of this consumer's half of the keys, and store them."""
    kv_head = tile.batch * gl.num_programs(1) + tile.h_kv
    o, do = 0, 0
    if CONFIG.next_delta:
        o, do = read_next_rows(consumer, next_delta, kv_head, shape, CONFIG)
    HALF: gl.constexpr = CONFIG.block_n // 2
    dk = zeros_in_columns(HALF, CONFIG)
    dv = zeros_in_columns(HALF, CONFIG)
    mbarrier.wait(bars.kv_full, 0)
    if tile.high > tile.low:
        dk, dv = _gradients(
            consumer, dk, dv, o, do, next_delta, kv_head, buffers, ds_s, bars, tile, shape, scales.log2, CONFIG
        )
    elif CONFIG.next_delta:
        write_next_delta(consumer, o, do, next_delta, kv_head, shape, CONFIG)
    wait_at(ALL_READ)  # the others have read all keys: their tiles take the gradients to TMA
    if CONFIG.split_q:
        store_partial_dkv(consumer, dk, dv, partial_dkv, split, CONFIG)
    else:
        store_dkv(consumer, dk, dv, dk_desc, dv_desc, buffers, tile, scales.softmax, CONFIG)


@gluon.jit
def _gradients(consumer: gl.constexpr, dk, dv, o, do, next_delta, kv_head, buffers, ds_s, bars, tile, shape, scale,
               CONFIG: gl.constexpr):  # fmt: skip
    """Compute dK and dV of this consumer's keys over all blocks of queries, of which there is at least one."""
    count = 0
    edges = (tile.low, tile.left, tile.right)
    s_token = _scores(consumer, count, buffers.k, bars.q_full, buffers.q, CONFIG)
    if CONFIG.next_delta:
        write_next_delta(consumer, o, do, next_delta, kv_head, shape, CONFIG)
    s_t = warpgroup_mma_wait(0, deps=(s_token,))
    lse = gl.to_tensor(0)  # lse of the pending scores, where it is read ahead
    if CONFIG.head_dim > 64:
        lse = buffers.lse.index(0).load(gl.SliceLayout(0, s_t.type.layout))
    _h, members = heads_of_part(tile.h_kv, shape.group_size, CONFIG)
    for member in range(members):
        end = tile.high - (member + 1 == members).to(gl.int32)
        for PART in gl.static_range(3):
            if PART == 1 or (CONFIG.masked if PART == 0 else CONFIG.has_window):
                for m in range(edges[PART], end if PART == 2 else gl.minimum(edges[PART + 1], end)):
                    count, s_t, lse, dk, dv = _step(
                        consumer, count, m, s_t, lse, dk, dv, buffers, ds_s, bars, tile.n0, shape, scale, CONFIG,
                        PART != 1)  # fmt: skip
    dv, dk_token, ds_operand = _products(
        consumer, count, tile.high - 1, s_t, lse, dk, dv, buffers, ds_s, bars, tile.n0, shape, scale, CONFIG,
        CONFIG.masked)  # fmt: skip
    dk, ds_operand = wait_for_pieces(0, dk_token, ds_operand, CONFIG.sums)
    arrive_at(Q_EMPTY + count % CONFIG.slots)
    return dk, dv


@gluon.jit
def _step(consumer: gl.constexpr, count, m, s_t, lse, dk, dv, buffers, ds_s, bars, n0, shape, scale,
          CONFIG: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """Add one block of queries to the gradients, and compute the scores of the next."""
    dv, dk_token, ds_operand = _products(
        consumer, count, m, s_t, lse, dk, dv, buffers, ds_s, bars, n0, shape, scale, CONFIG, MASKED)  # fmt: skip
    s_token = _scores(consumer, count + 1, buffers.k, bars.q_full, buffers.q, CONFIG)
    if CONFIG.head_dim > 64:
        lse = buffers.lse.index((count + 1) % CONFIG.slots).load(gl.SliceLayout(0, s_t.type.layout))
    dk, ds_operand = wait_for_pieces(CONFIG.sums, dk_token, ds_operand, CONFIG.sums)
    arrive_at(Q_EMPTY + count % CONFIG.slots)
    s_t = warpgroup_mma_wait(0, deps=(s_token,))
    return count + 1, s_t, lse, dk, dv


@gluon.jit
def _products(consumer: gl.constexpr, count, m, s_t, lse, dk, dv, buffers, ds_s, bars, n0, shape, scale,
              CONFIG: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """Compute dV, begin dK, and pass dS to the dQ warpgroup."""
    HALF: gl.constexpr = CONFIG.block_n // 2
    columns: gl.constexpr = gl.SliceLayout(0, s_t.type.layout)
    operand: gl.constexpr = gl.DotOperandLayout(0, dv[0].type.layout, 2)
    slot = count % CONFIG.slots
    READ_BEFORE_WAIT: gl.constexpr = CONFIG.head_dim > 64  # smaller blocks of queries leave registers for it
    if not READ_BEFORE_WAIT:
        lse = buffers.lse.index(slot).load(columns)
    x = s_t * scale - lse[None, :]  # rows beyond the end hold lse = +inf
    if MASKED:
        first = m * CONFIG.block_m + shape.seqlen_k - shape.seqlen_q
        x = hide_queries(x, float("-inf"), first, n0 + consumer * HALF, shape, CONFIG)
    p16 = packed_powers(x, buffers.q.dtype)
    dp_token = _scores(consumer, count, buffers.v, bars.do_full, buffers.do, CONFIG)
    p_operand = gl.convert_layout(p16, operand, assert_trivial=True)
    do = buffers.do.index(slot).reshape([CONFIG.block_m, CONFIG.head_dim])
    dv_token = add_in_columns(p_operand, do, dv, CONFIG)
    if READ_BEFORE_WAIT and _DELTA_BEFORE_WAIT:
        delta = buffers.delta.index(slot).load(columns)
    dp = warpgroup_mma_wait(CONFIG.sums, deps=(dp_token,))
    if not (READ_BEFORE_WAIT and _DELTA_BEFORE_WAIT):
        delta = buffers.delta.index(slot).load(columns)
    ds16 = (unpacked(p16) * (dp - delta[None, :])).to(buffers.q.dtype)  # p itself would be 64 registers more
    ds_operand = gl.convert_layout(ds16, operand, assert_trivial=True)
    _pass_ds(consumer, count, ds16, ds_s, bars.ds_empty, HALF)
    q = buffers.q.index(slot).reshape([CONFIG.block_m, CONFIG.head_dim])
    dk_token = add_in_columns(ds_operand, q, dk, CONFIG)
    dv, p_operand = wait_for_pieces(CONFIG.sums, dv_token, p_operand, CONFIG.sums)
    arrive_at(DO_EMPTY + slot)
    return dv, dk_token, ds_operand


@gluon.jit
def _scores(consumer: gl.constexpr, count, keys_s, full, rows_s, CONFIG: gl.constexpr):
    """Begin S^T (of K and Q) or dP^T (of V and dO) of a block of queries."""
    HALF: gl.constexpr = CONFIG.block_n // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.block_m, 16])
    zero = gl.zeros([HALF, CONFIG.block_m], gl.float32, layout)
    slot = count % CONFIG.slots
    keys = keys_s.index(opaque_zero()).reshape([CONFIG.block_n, CONFIG.head_dim]).slice(consumer * HALF, HALF, 0)
    mbarrier.wait(full.index(slot), (count // CONFIG.slots) & 1)
    rows = rows_s.index(slot).reshape([CONFIG.block_m, CONFIG.head_dim])
    return product_over_columns(keys, rows, zero, CONFIG.columns)


@gluon.jit
def _pass_ds(consumer: gl.constexpr, count, ds16, ds_s, ds_empty, HALF: gl.constexpr):
    """Store dS for the dQ warpgroup, and tell it."""
    stage = count % STAGES
    mbarrier.wait(ds_empty.index(stage), ((count // STAGES) & 1) ^ 1)
    ds_s.index(stage).slice(consumer * HALF, HALF, 1).permute((1, 0)).store(ds16)
    fence_async_shared()
    arrive_at(DS_FULL + stage)


@gluon.jit
def read_next_rows(consumer: gl.constexpr, next_delta, kv_head, shape, CONFIG: gl.constexpr):
    """Read the first rows of out and dout that this consumer has of a later key head; zeros if it has none."""
    number = 2 * gl.program_id(0) + consumer
    exists = (kv_head + next_delta.delay < gl.num_programs(1) * gl.num_programs(2)) & (
        number < shape.group_size * (shape.padded_q // ROWS)
    )
    return _read_rows(number, exists, next_delta, kv_head, shape, CONFIG)


@gluon.jit
def write_next_delta(consumer: gl.constexpr, o, do, next_delta, kv_head, shape, CONFIG: gl.constexpr):
    """Store delta of these rows, and of all others that this consumer has."""
    first = 2 * gl.program_id(0) + consumer
    if kv_head + next_delta.delay < gl.num_programs(1) * gl.num_programs(2):
        for number in range(first, shape.group_size * (shape.padded_q // ROWS), 2 * gl.num_programs(0)):
            if number > first:
                o, do = _read_rows(number, True, next_delta, kv_head, shape, CONFIG)
            line = (kv_head + next_delta.delay) * shape.group_size * shape.padded_q + number * ROWS
            line += gl.arange(0, ROWS, gl.SliceLayout(1, _LAYOUT))
            gl.store(next_delta.delta + line, gl.sum(o.to(gl.float32) * do.to(gl.float32), 1))
    mbarrier.arrive(next_delta.written, count=1)


@gluon.jit
def _read_rows(number, exists, next_delta, kv_head, shape, CONFIG: gl.constexpr):
    """Read 64 rows of out and dout of a later key head, zeros beyond their ends or unless `exists`."""
    columns = gl.arange(0, CONFIG.head_dim, gl.SliceLayout(0, _LAYOUT))[None, :]
    head = (kv_head + next_delta.delay) * shape.group_size + number * ROWS // shape.padded_q
    rows = number * ROWS % shape.padded_q + gl.arange(0, ROWS, gl.SliceLayout(1, _LAYOUT))
    batch, h = (head // shape.num_heads).to(gl.int64), (head % shape.num_heads).to(gl.int64)
    down = rows[:, None].to(gl.int64)
    mask = (rows < shape.seqlen_q)[:, None] & exists
    if CONFIG.unpadded_head_dim < CONFIG.head_dim:
        mask = mask & (columns < CONFIG.unpadded_head_dim)
    strides = next_delta.strides
    place = next_delta.out + (batch * strides.out_b + h * strides.out_h) + down * strides.out_m + columns
    o = gl.load(place, mask, 0.0, eviction_policy="evict_first")
    place = next_delta.dout + (batch * strides.do_b + h * strides.do_h) + down * strides.do_m + columns
    do = gl.load(place, mask, 0.0)
    return o, do
