"""The warp-specialised backward in one kernel: a program owns 128 keys of one key head and walks over the queries.

FlashAttention-3's structure (arXiv 2407.08608): scores and their gradient are computed transposed, so that P^T and
dS^T are register operands of dV += P^T dO and dK += dS^T Q. The two consumers own 64 keys each; dQ = dS K needs both,
so dS goes through shared memory, each consumer computes one 64 x 64 fragment of dQ, and TMA adds it to a float32
buffer. The order of these additions is not fixed: dQ may differ in its last bits from run to run.

dQ of a block is computed one step late, together with dV of the next block: the consumers need not wait for each
other's dS, and the tensor cores work while dS^T is computed.
"""

from collections import namedtuple

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
    opaque,
    store_dkv,
    unpacked,
)
from .backward_schedule import packed_key_tile, packed_place, program_key_tile, store_packed_dkv, store_partial_dkv
from .barriers import (
    DO_EMPTY,
    Q_EMPTY,
    acquire_ds_half,
    arrive_at,
    mbarriers,
    pdl_launch_dependents,
    pdl_wait,
    release_ds_half,
    wait_at,
)
from .compat import keep_p_before_wait, opaque_zero, pair_sync, partition_sync, tma_load
from .masks import capped, hide_queries, less_distance
from .pieces import product_over_columns
from .rows import clear_rows

# The mbarriers of a program: keys and values, and a slot each for queries and for dout. With packed sequences, `q_full`
# has one more slot, for blocks that the producer waits for.
SingleKernelBarriers = namedtuple("SingleKernelBarriers", "kv_full q_full do_full")
# Where a consumer's part of dQ goes: dS of a step, then a fragment in shared memory, then memory. `ds` is two tiles
# of (block_m, block_n).
QueryGradient = namedtuple("QueryGradient", "desc ds fragment")


@UnspecializedTuples
@gluon.jit(do_not_specialize=["shape", "order"])
def backward_kernel(q_desc, k_desc, v_desc, do_desc, dq_desc, dk_desc, dv_desc, lse_desc, delta_desc, split_table,
                    partial_dkv, shape, order, scales, CONFIG: gl.constexpr):  # fmt: skip
    """Compute dK and dV of 128 keys, and their part of dQ.

    `shape` is a BackwardShape, `order` a TileOrder, `scales` a Scales, CONFIG a configs.BackwardConfig. With
    `split_q` the program computes the split of the queries that `split_table` names, and stores dK and dV in
    `partial_dkv` (backward_launch.py), which with `alibi` are slopes, as in `forward_kernel`. With `packed`,
    `split_table` is the list of packed_tiles.py, and dK and dV are addresses of (total_k, num_kv_heads, head_dim).
    """
    if CONFIG.packed:
        place, h_kv = packed_place(split_table, shape.num_heads // shape.group_size)
        if place < 0:
            return
    dtype: gl.constexpr = q_desc.dtype
    buffers = backward_buffers(q_desc, k_desc, v_desc, do_desc, lse_desc, CONFIG)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([CONFIG.block_m, CONFIG.block_n], dtype)
    ds_s = gl.allocate_shared_memory(dtype, [2, CONFIG.block_m, CONFIG.block_n], ds_layout)
    dq_0, dq_1 = fragment_buffers()
    slots: gl.constexpr = CONFIG.slots
    q_slots: gl.constexpr = slots + 1 if CONFIG.packed else slots
    bars = SingleKernelBarriers(kv_full=mbarriers(0), q_full=mbarriers(q_slots), do_full=mbarriers(slots))
    if CONFIG.packed:
        tile, shape = packed_key_tile(split_table, place, h_kv, shape, CONFIG)
        split = place
    else:
        tile, split = program_key_tile(split_table, shape, order, CONFIG, True)
    descs = BackwardDescriptors(q=q_desc, k=k_desc, v=v_desc, do=do_desc, lse=lse_desc, delta=delta_desc)
    # Constants must be written in the call itself: a tuple bound to a name turns them into tensors.
    gl.warp_specialize([
        (_load_partition, (descs, buffers, bars, tile, shape, CONFIG)),
        (_consumer_partition, (0, dq_desc, dk_desc, dv_desc, buffers, ds_s, dq_0, bars, tile, shape, scales,
                               partial_dkv, split, CONFIG)),
        (_consumer_partition, (1, dq_desc, dk_desc, dv_desc, buffers, ds_s, dq_1, bars, tile, shape, scales,
                               partial_dkv, split, CONFIG)),
    ], [4, 4], [240, 240])  # fmt: skip


@gluon.jit
def _load_partition(descs, buffers, bars, tile, shape, CONFIG: gl.constexpr):
    """Load the keys and values of the program once, then each block of queries with its lse, dout and delta."""
    mbarrier.expect(bars.kv_full, descs.k.block_type.nbytes + descs.v.block_type.nbytes)
    first_key, first_query = tile.n0, gl.to_tensor(0)
    if CONFIG.packed:
        first_key, first_query = first_key + shape.first_k, shape.first_q
    keys = [tile.batch, tile.h_kv // CONFIG.group_splits, first_key, 0]
    tma_load(descs.k, keys, bars.kv_full, buffers.k.index(0))
    tma_load(descs.v, keys, bars.kv_full, buffers.v.index(0))
    if not CONFIG.split_q or CONFIG.all_split:
        pdl_wait()  # lse, delta and the zeros of dQ are its
    pdl_launch_dependents()
    count = 0
    for member in range(shape.group_size):
        h = tile.h_kv * shape.group_size + member
        for m in range(tile.low, tile.high):
            slot = count % CONFIG.slots
            row = (tile.batch * shape.num_heads + h) * shape.padded_q + m * CONFIG.block_m
            if CONFIG.packed:
                row += shape.first_m * CONFIG.block_m
            query = first_query + m * CONFIG.block_m
            place = [tile.batch, h, query, 0]
            if CONFIG.packed:
                inside = shape.seqlen_q - m * CONFIG.block_m
                if inside < CONFIG.block_m:
                    _load_last(descs, buffers, bars, place, row, slot, count, inside, member, CONFIG)
                else:
                    _load_block(descs, buffers, bars, place, row, slot, count, CONFIG)
            else:
                _load_block(descs, buffers, bars, place, row, slot, count, CONFIG)
            count += 1
    for last in range(gl.maximum(count - CONFIG.slots, 0), count):  # no load follows into these slots
        wait_at(Q_EMPTY + last % CONFIG.slots)
        wait_at(DO_EMPTY + last % CONFIG.slots)
    if CONFIG.split_q:
        pdl_wait()  # the next kernel waits for this kernel only


@gluon.jit
def _load_block(descs, buffers, bars, place, row, slot, count, CONFIG: gl.constexpr):
    """Load the count-th block of queries with its lse, dout and delta."""
    if count >= CONFIG.slots:
        wait_at(Q_EMPTY + slot)
    mbarrier.expect(bars.q_full.index(slot), descs.q.block_type.nbytes + CONFIG.block_m * 4)
    tma_load(descs.q, place, bars.q_full.index(slot), buffers.q.index(slot))
    tma_load(descs.lse, [row], bars.q_full.index(slot), buffers.lse.index(slot))
    if count >= CONFIG.slots:
        wait_at(DO_EMPTY + slot)
    mbarrier.expect(bars.do_full.index(slot), descs.do.block_type.nbytes + CONFIG.block_m * 4)
    tma_load(descs.do, place, bars.do_full.index(slot), buffers.do.index(slot))
    tma_load(descs.delta, [row], bars.do_full.index(slot), buffers.delta.index(slot))


@gluon.jit
def _load_last(descs, buffers, bars, place, row, slot, count, inside, number, CONFIG: gl.constexpr):
    """Load a sequence's last block of queries, the `number`-th such load, and clear the rows from `inside` on.

    These rows belong to the next sequence. The producer clears them, because consumers have no registers left for it.
    """
    loaded = bars.q_full.index(CONFIG.slots)
    if count >= CONFIG.slots:
        wait_at(Q_EMPTY + slot)
        wait_at(DO_EMPTY + slot)
    mbarrier.expect(loaded, descs.q.block_type.nbytes + descs.do.block_type.nbytes)
    tma_load(descs.q, place, loaded, buffers.q.index(slot))
    tma_load(descs.do, place, loaded, buffers.do.index(slot))
    mbarrier.wait(loaded, number & 1)
    clear_rows(buffers.q.index(slot).reshape([CONFIG.block_m, CONFIG.head_dim]), inside, CONFIG.head_dim)
    clear_rows(buffers.do.index(slot).reshape([CONFIG.block_m, CONFIG.head_dim]), inside, CONFIG.head_dim)
    fence_async_shared()
    partition_sync()
    mbarrier.expect(bars.q_full.index(slot), CONFIG.block_m * 4)
    tma_load(descs.lse, [row], bars.q_full.index(slot), buffers.lse.index(slot))
    mbarrier.expect(bars.do_full.index(slot), CONFIG.block_m * 4)
    tma_load(descs.delta, [row], bars.do_full.index(slot), buffers.delta.index(slot))


@gluon.jit
def _consumer_partition(consumer: gl.constexpr, dq_desc, dk_desc, dv_desc, buffers, ds_s, dq_s, bars, tile, shape,
                        scales, partial_dkv, split, CONFIG: gl.constexpr):  # fmt: skip
    """Compute dK and dV of this consumer's half of the keys, and store them."""
    HALF: gl.constexpr = CONFIG.block_n // 2
    kv_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.head_dim, 16])
    dk = gl.zeros([HALF, CONFIG.head_dim], gl.float32, kv_layout)
    dv = gl.zeros([HALF, CONFIG.head_dim], gl.float32, kv_layout)
    mbarrier.wait(bars.kv_full, 0)
    if CONFIG.packed:  # noqa: SIM102 - decided at compile time
        if tile.n0 + CONFIG.block_n > shape.seqlen_k:  # keys of the next sequence: dS is 0 there, but 0 x inf is not
            inside = shape.seqlen_k - tile.n0
            clear_rows(buffers.k.index(0).reshape([CONFIG.block_n, CONFIG.head_dim]), inside, CONFIG.head_dim)
            clear_rows(buffers.v.index(0).reshape([CONFIG.block_n, CONFIG.head_dim]), inside, CONFIG.head_dim)
            fence_async_shared()
            partition_sync()
    if tile.high > tile.low:
        dq_to = QueryGradient(desc=dq_desc, ds=ds_s, fragment=dq_s)
        dk, dv = _gradients(consumer, dk, dv, dq_to, buffers, bars, tile, shape, scales.log2, partial_dkv, CONFIG)
    if CONFIG.packed:
        store_packed_dkv(consumer, dk, dv, dk_desc, dv_desc, tile, shape, scales.softmax, CONFIG)
        tma.store_wait(0)
    elif CONFIG.split_q:
        store_partial_dkv(consumer, (dk,), (dv,), partial_dkv, split, CONFIG)
        tma.store_wait(0)
    else:
        pair_sync()  # the other consumer has read all keys: their tiles take the gradients to TMA
        store_dkv(consumer, (dk,), (dv,), dk_desc, dv_desc, buffers, tile, scales.softmax, CONFIG)


@gluon.jit
def _gradients(consumer: gl.constexpr, dk, dv, dq_to, buffers, bars, tile, shape, scale, slopes,
               CONFIG: gl.constexpr):  # fmt: skip
    """Compute dK and dV of this consumer's keys over all blocks of queries, of which there is at least one."""
    count = 0
    before = gl.to_tensor(0)
    edges = (tile.low, tile.left, tile.right, tile.high)
    release_ds_half(consumer, 1)  # for the first step
    for member in range(shape.group_size):
        head = tile.batch * shape.num_heads + tile.h_kv * shape.group_size + member
        slope = gl.load(slopes + head) if CONFIG.alibi else gl.to_tensor(0)
        for PART in gl.static_range(3):
            if PART == 1 or (CONFIG.masked if PART == 0 else CONFIG.has_window or CONFIG.packed):
                for m in range(edges[PART], edges[PART + 1]):
                    count, before, dk, dv = _step(
                        consumer, count, m, head, before, dk, dv, dq_to, buffers, bars, tile.n0, shape, scale, slope,
                        CONFIG, PART != 1)  # fmt: skip
    stage = (count + 1) % 2
    keys = buffers.k.index(0).reshape([CONFIG.block_n, CONFIG.head_dim])
    token = _begin_dq(consumer, stage, keys, dq_to.ds)
    dq = warpgroup_mma_wait(0, deps=(token,))
    add_fragment(dq, before, dq_to.desc, dq_to.fragment, CONFIG)
    return dk, dv


@gluon.jit
def _step(consumer: gl.constexpr, count, m, head, before, dk, dv, dq_to, buffers, bars, n0, shape, scale, slope,
          CONFIG: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """Add one block of queries to dK and dV of this consumer's keys, and the block before to dQ.

    In the first step, the latter is a product of arbitrary shared memory, whose result is not used.
    """
    dtype: gl.constexpr = buffers.q.dtype
    HALF: gl.constexpr = CONFIG.block_n // 2
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.block_m, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, dk.type.layout, 2)
    columns: gl.constexpr = gl.SliceLayout(0, score_layout)
    zero = gl.zeros([HALF, CONFIG.block_m], gl.float32, score_layout)
    slot = count % CONFIG.slots
    phase = (count // CONFIG.slots) & 1
    z = opaque_zero()
    k = buffers.k.index(z).reshape([CONFIG.block_n, CONFIG.head_dim])
    v = buffers.v.index(z).reshape([CONFIG.block_n, CONFIG.head_dim]).slice(consumer * HALF, HALF, 0)
    q = buffers.q.index(slot).reshape([CONFIG.block_m, CONFIG.head_dim])
    do = buffers.do.index(slot).reshape([CONFIG.block_m, CONFIG.head_dim])
    mbarrier.wait(bars.q_full.index(slot), phase)
    k_half = k.slice(consumer * HALF, HALF, 0)
    s_token = product_over_columns(k_half, q, zero, CONFIG.columns)
    lse = buffers.lse.index(slot).load(columns)
    mbarrier.wait(bars.do_full.index(slot), phase)
    dp_token = product_over_columns(v, do, zero, CONFIG.columns)
    s_t = capped(warpgroup_mma_wait(1, deps=(s_token,)), CONFIG.bend)
    if CONFIG.alibi:
        distance = m * CONFIG.block_m + shape.seqlen_k - shape.seqlen_q - (n0 + consumer * HALF)
        s_t = less_distance(s_t, slope, distance, True, CONFIG.causal)
    p = gl.exp2(s_t * scale - lse[None, :])  # rows beyond the end hold lse = +inf
    if MASKED:
        first = m * CONFIG.block_m + shape.seqlen_k - shape.seqlen_q
        # opaque: else the choice is made of 16-bit halves, one instruction a half
        p = opaque(hide_queries(p, 0.0, first, n0 + consumer * HALF, shape, CONFIG))
    p16 = keep_p_before_wait(p.to(dtype))
    p_operand = gl.convert_layout(p16, operand, assert_trivial=True)
    dv_token = warpgroup_mma(p_operand, do, dv, is_async=True)
    dq_token = _begin_dq(consumer, (count + 1) % 2, k, dq_to.ds)
    delta = buffers.delta.index(slot).load(columns)
    dp = warpgroup_mma_wait(2, deps=(dp_token,))
    if CONFIG.bend > 0:
        dp = (dp - delta[None, :]) * _slope_of_cap(p16, buffers.lse.index(slot).load(columns), scale)
    # p itself would be 32 registers more
    ds16 = (unpacked(p16) * (dp if CONFIG.bend > 0 else dp - delta[None, :])).to(dtype)
    ds_operand = gl.convert_layout(ds16, operand, assert_trivial=True)
    dq_to.ds.index(count % 2).slice(consumer * HALF, HALF, 1).permute((1, 0)).store(ds16)
    fence_async_shared()
    dv, p_operand = warpgroup_mma_wait(1, deps=(dv_token, p_operand))
    arrive_at(DO_EMPTY + slot)
    dk_token = warpgroup_mma(ds_operand, q, dk, is_async=True)
    dq = warpgroup_mma_wait(1, deps=(dq_token,))
    release_ds_half(consumer, count % 2)
    if count > 0:
        add_fragment(dq, before, dq_to.desc, dq_to.fragment, CONFIG)
    dk, ds_operand = warpgroup_mma_wait(0, deps=(dk_token, ds_operand))
    arrive_at(Q_EMPTY + slot)
    if CONFIG.packed:
        m += shape.first_m
    return count + 1, (head * shape.n_m + m) * 2 + consumer, dk, dv


@gluon.jit
def _slope_of_cap(p16, lse, scale):
    """Return 1 - tanh^2 of a softcap's scores, found again from P: kept, it would be 16 registers more."""
    log2 = gl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [unpacked(p16)], gl.float32, True, 1)
    bend = gl.minimum(gl.maximum((log2 + lse[None, :]) * (1.0 / scale), -1.0), 1.0)  # where P is 0, -1 or 1
    return 1.0 - bend * bend


@gluon.jit
def _begin_dq(consumer: gl.constexpr, stage, k, ds_s):
    """Begin this consumer's fragment of the dQ that a tile of dS belongs to: half of the columns, or of the rows."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FRAGMENT, 16])
    zero = gl.zeros([FRAGMENT, FRAGMENT], gl.float32, layout)
    acquire_ds_half(consumer, stage)
    ds = ds_s.index(stage)
    if k.shape[1] > FRAGMENT:
        k = k.slice(consumer * FRAGMENT, FRAGMENT, 1)
    else:
        ds = ds.slice(consumer * FRAGMENT, FRAGMENT, 0)
    return warpgroup_mma(ds, k, zero, use_acc=False, is_async=True)
