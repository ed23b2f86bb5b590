"""The backward as two kernels, dQ of 128 queries, and dK and dV: from head_dim 192 on, and for the same bits every run.

Seven products for five, and nothing is added to memory (DESIGN.md, "Two kernels"). `dq_kernel` runs first: two
consumers of 64 queries each walk over the keys, and compute delta on the way. The programs of `dkv_kernel` begin before
it has ended, and wait for the rows of lse and delta that they need.

Programs start in the order of their numbers. Where some tiles take longer than others (UNEVEN), the heads of a group
take turns, all with their longest tile first: so what is left for the last round is short.
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
from .backward_common import BackwardDescriptors, KeyTile, backward_buffers, delta_of, load_out, store_rows
from .backward_shared_keys import shared_keys_partition
from .backward_wide_keys import wide_keys_partition
from .barriers import await_programs, count_program, mbarriers, pdl_launch_dependents, pdl_wait
from .compat import keep_p_before_wait, opaque_zero, pair_sync, tma_load, tma_store
from .masks import capped, hide_keys, hide_queries, key_blocks, query_blocks
from .pieces import (
    add_products,
    load_pieces,
    pieces_of,
    place_of,
    product_of_rows,
    store_pieces,
    transposed,
    wait_for_pieces,
    zeros_of_pieces,
)

# Shared memory of a program of `dq_kernel`: tiles (q and do: one for each consumer, k: one for each slot, v: one), and
# an mbarrier for each slot, full and empty; `stored`: delta and lse are stored.
DqBuffers = namedtuple("DqBuffers", "q do k v q_full do_full k_full k_empty v_full v_empty stored")
# A tile of queries and the blocks of keys that it sees; those in [left, right) need no mask.
QueryTile = namedtuple("QueryTile", "batch h h_kv m low left right high")
# Where the rows of a head's out, lse (n_heads, seqlen_q) and the padded lse and delta (n_heads, padded_q) are. `head`:
# counted over all sequences; `out_m`: stride of rows, in eights of numbers.
DqRows = namedtuple("DqRows", "out lse lse_padded delta_padded head out_m")
# The mbarriers of a program of `dkv_kernel`: keys, values, slots of queries and of dout, and slots read.
DkvBarriers = namedtuple("DkvBarriers", "k_full v_full q_full do_full empty")
# Sizes of the tensors of `dq_kernel`. `n_rows`: padded rows of all heads; `group_size`: query heads of a key head.
DqSizes = namedtuple("DqSizes", "n_rows kv_heads num_heads group_size seqlen_q seqlen_k padded_q window")
# Counts that tell when the rows of lse and delta that `dkv_kernel` loads are written. `n_rows`: rows of delta, which
# the counters follow; `programs`: programs of `dq_kernel` for the rows of a key head.
ReadyRows = namedtuple("ReadyRows", "n_rows programs kv_heads")
# P and dS of a block of queries in shared memory.
ScoreTiles = namedtuple("ScoreTiles", "p ds")


@UnspecializedTuples
@gluon.jit(do_not_specialize=["out_strides", "sizes"])
def dq_kernel(q_desc, k_desc, v_desc, do_desc, dq_desc, out, lse_rows, lse_padded, delta_padded, out_strides, sizes,
              scales, CONFIG: gl.constexpr):  # fmt: skip
    """Compute dQ of 128 queries, and what `dkv_kernel` needs of them: delta, and lse, padded to whole tiles.

    `sizes` is a DqSizes, `scales` a Scales. Strides of batches, heads and rows of `out`, which has `unpadded_head_dim`
    columns, are in eights of numbers.
    """
    out_b, out_h, out_m = out_strides
    dtype: gl.constexpr = q_desc.dtype
    pieces: gl.constexpr = CONFIG.pieces
    columns: gl.constexpr = CONFIG.head_dim // pieces
    q_s = gl.allocate_shared_memory(dtype, [2 * pieces, 1, 1, CONFIG.block_m, columns], q_desc.layout)
    pieces_v: gl.constexpr = CONFIG.pieces_v
    columns_v: gl.constexpr = CONFIG.head_dim_v // pieces_v
    do_s = gl.allocate_shared_memory(dtype, [2 * pieces_v, 1, 1, CONFIG.block_m, columns_v], do_desc.layout)
    k_s = gl.allocate_shared_memory(dtype, [CONFIG.slots * pieces, 1, 1, CONFIG.block_n, columns], k_desc.layout)
    v_slots: gl.constexpr = CONFIG.v_slots
    v_s = gl.allocate_shared_memory(dtype, [v_slots * pieces_v, 1, 1, CONFIG.block_n, columns_v], v_desc.layout)
    slots: gl.constexpr = CONFIG.slots
    buffers = DqBuffers(
        q=q_s, do=do_s, k=k_s, v=v_s, q_full=mbarriers(2), do_full=mbarriers(2), k_full=mbarriers(slots),
        k_empty=mbarriers(slots, 2), v_full=mbarriers(v_slots), v_empty=mbarriers(v_slots, 2),
        stored=mbarriers(0, 2))  # fmt: skip
    m, h, batch = program_tile_of_grid(sizes.num_heads, CONFIG.causal and not CONFIG.has_window)
    if CONFIG.causal:
        m = gl.cdiv(sizes.seqlen_q, 2 * CONFIG.block_m) - 1 - m  # the longest first
    low, left, right, high = key_blocks(m, sizes, 2 * CONFIG.block_m, CONFIG)
    if not CONFIG.masked:
        right = high
    h_kv = h // sizes.group_size
    tile = QueryTile(batch, h, h_kv // CONFIG.group_splits, m, low, left, right, high)
    head = (batch * sizes.num_heads + h).to(gl.int64)
    counter = delta_padded + (sizes.n_rows + batch * sizes.kv_heads + h_kv)
    out = out + (batch.to(gl.int64) * out_b + h.to(gl.int64) * out_h) * 8
    rows_of = DqRows(out=out, lse=lse_rows, lse_padded=lse_padded, delta_padded=delta_padded, head=head, out_m=out_m)
    # Constants must be written in the call itself: a tuple bound to a name turns them into tensors.
    gl.warp_specialize([
        (_dq_load_partition, (q_desc, k_desc, v_desc, do_desc, counter, buffers, tile, CONFIG)),
        (_dq_consumer_partition, (0, dq_desc, rows_of, buffers, tile, sizes, scales, CONFIG)),
        (_dq_consumer_partition, (1, dq_desc, rows_of, buffers, tile, sizes, scales, CONFIG)),
    ], [4, 4], [240, 240])  # fmt: skip


@gluon.jit
def _dq_load_partition(q_desc, k_desc, v_desc, do_desc, counter, buffers, tile, CONFIG: gl.constexpr):
    """Load the queries and dout of the program once, and each block of keys and values; then count the program."""
    pdl_launch_dependents()
    # The operands of the first product come first.
    first = tile.low * CONFIG.block_n
    _load_rows(0, q_desc, tile, buffers.q_full, buffers.q, CONFIG.pieces, CONFIG)
    load_pieces(k_desc, tile.batch, tile.h_kv, first, buffers.k_full.index(0), buffers.k, 0, CONFIG.pieces)
    _load_rows(1, q_desc, tile, buffers.q_full, buffers.q, CONFIG.pieces, CONFIG)
    _load_rows(0, do_desc, tile, buffers.do_full, buffers.do, CONFIG.pieces_v, CONFIG)
    load_pieces(v_desc, tile.batch, tile.h_kv, first, buffers.v_full.index(0), buffers.v, 0, CONFIG.pieces_v)
    _load_rows(1, do_desc, tile, buffers.do_full, buffers.do, CONFIG.pieces_v, CONFIG)
    for count in range(1, tile.high - tile.low):
        j = tile.low + count
        slot = count % CONFIG.slots
        mbarrier.wait(buffers.k_empty.index(slot), ((count // CONFIG.slots) & 1) ^ 1)
        k_full = buffers.k_full.index(slot)
        load_pieces(k_desc, tile.batch, tile.h_kv, j * CONFIG.block_n, k_full, buffers.k, slot, CONFIG.pieces)
        if count == 1:
            _count_when_stored(buffers.stored, counter)
        v_slot = count % CONFIG.v_slots
        mbarrier.wait(buffers.v_empty.index(v_slot), ((count // CONFIG.v_slots) & 1) ^ 1)
        v_full = buffers.v_full.index(v_slot)
        load_pieces(v_desc, tile.batch, tile.h_kv, j * CONFIG.block_n, v_full, buffers.v, v_slot, CONFIG.pieces_v)
    if tile.high - tile.low == 1:
        _count_when_stored(buffers.stored, counter)


@gluon.jit
def _load_rows(consumer: gl.constexpr, desc, tile, full, tiles, PIECES: gl.constexpr, CONFIG: gl.constexpr):
    """Load a consumer's rows of queries or dout."""
    row = (tile.m * 2 + consumer) * CONFIG.block_m
    load_pieces(desc, tile.batch, tile.h, row, full.index(consumer), tiles, consumer, PIECES)


@gluon.jit
def _count_when_stored(stored, counter):
    """Count the program when both consumers' delta and lse are stored."""
    mbarrier.wait(stored, 0)
    pdl_wait()  # the previous kernel clears the counters
    count_program(counter)


@gluon.jit
def _dq_consumer_partition(consumer: gl.constexpr, dq_desc, rows_of, buffers, tile, shape, scales,
                           CONFIG: gl.constexpr):  # fmt: skip
    """Compute dQ, delta and padded lse of this consumer's 64 queries over all blocks of keys, and store them."""
    scale = scales.log2
    dtype: gl.constexpr = buffers.q.dtype
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.block_n, 16])
    columns: gl.constexpr = CONFIG.head_dim // CONFIG.pieces
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])
    first = (tile.m * 2 + consumer) * CONFIG.block_m
    # Loaded at the same time as the TMA tiles.
    out_tile = load_out(rows_of.out, first, shape.seqlen_q, rows_of.out_m, CONFIG)
    diagonal = first + shape.seqlen_k - shape.seqlen_q
    rows = first + gl.arange(0, CONFIG.block_m, gl.SliceLayout(1, s_layout))
    lse = gl.load(rows_of.lse + rows_of.head * shape.seqlen_q + rows, mask=rows < shape.seqlen_q, other=float("inf"))
    dq = zeros_of_pieces(CONFIG.block_m, columns, dq_layout, CONFIG.pieces)
    count = 0
    s_token, dp_token = _dq_scores(consumer, count, buffers, CONFIG, True)
    do = pieces_of(buffers.do, consumer, CONFIG.pieces_v)
    delta = gl.convert_layout(delta_of(out_tile, do, CONFIG.pieces_v), lse.type.layout)
    store_rows(rows_of.lse_padded, rows_of.head * shape.padded_q, rows, lse, shape.padded_q)
    store_rows(rows_of.delta_padded, rows_of.head * shape.padded_q, rows, delta, shape.padded_q)
    mbarrier.arrive(buffers.stored, count=1)
    s = warpgroup_mma_wait(0 if CONFIG.scores_in_turn else CONFIG.pieces_v, deps=(s_token,))
    p = _dq_probabilities(s, tile.low, lse, scale, diagonal, shape, dtype, CONFIG, CONFIG.masked)
    if CONFIG.scores_in_turn:
        dp_token = _dq_begin_dp(consumer, count, buffers, CONFIG)
    dp = warpgroup_mma_wait(0, deps=(dp_token,))
    mbarrier.arrive(buffers.v_empty.index(0), count=1)
    # a step computes P of the block behind its own: those of [left, right) need no mask
    unmasked = gl.maximum(tile.left - 1, tile.low)
    masked = gl.maximum(tile.right - 1, tile.low)
    edges = (tile.low, unmasked, masked)
    for PART in gl.static_range(3):
        if PART == 1 or (CONFIG.has_window if PART == 0 else CONFIG.masked):
            for j in range(edges[PART], tile.high - 1 if PART == 2 else edges[PART + 1]):
                count, p, dp, dq = _dq_step(
                    consumer, count, j, p, dp, dq, lse, delta, buffers, diagonal, shape, scale, CONFIG, PART != 1
                )
    dq, ds = _dq_add(count, p, dp, dq, delta, buffers, CONFIG)
    dq, ds = wait_for_pieces(0, dq, ds, CONFIG.pieces)
    store_pieces(dq_desc, tile.batch, tile.h, first, buffers.q, consumer, dq, scales.softmax, CONFIG.pieces)


@gluon.jit
def _dq_step(consumer: gl.constexpr, count, j, p, dp, dq, lse, delta, buffers, diagonal, shape, scale,
             CONFIG: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """Add one block of keys to dQ; meanwhile compute the next block's scores."""
    slot = count % CONFIG.slots
    dq, ds = _dq_add(count, p, dp, dq, delta, buffers, CONFIG)
    count += 1
    s_token, dp_token = _dq_scores(consumer, count, buffers, CONFIG, False)
    pending: gl.constexpr = CONFIG.pieces + (0 if CONFIG.scores_in_turn else CONFIG.pieces_v)
    dq, ds = wait_for_pieces(pending, dq, ds, CONFIG.pieces)
    mbarrier.arrive(buffers.k_empty.index(slot), count=1)
    s = warpgroup_mma_wait(0 if CONFIG.scores_in_turn else CONFIG.pieces_v, deps=(s_token,))
    p = _dq_probabilities(s, j + 1, lse, scale, diagonal, shape, buffers.q.dtype, CONFIG, MASKED)
    if CONFIG.scores_in_turn:
        dp_token = _dq_begin_dp(consumer, count, buffers, CONFIG)
    dp = warpgroup_mma_wait(0, deps=(dp_token,))
    mbarrier.arrive(buffers.v_empty.index(count % CONFIG.v_slots), count=1)
    return count, p, dp, dq


@gluon.jit
def _dq_scores(consumer: gl.constexpr, count, buffers, CONFIG: gl.constexpr, FIRST: gl.constexpr):
    """Begin S and, unless it is in turn, dP of a block of keys; of the first one each as soon as it can."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.block_n, 16])
    zero = gl.zeros([CONFIG.block_m, CONFIG.block_n], gl.float32, layout)
    slot = count % CONFIG.slots
    z = opaque_zero()
    q = pieces_of(buffers.q, consumer + z, CONFIG.pieces)
    do = pieces_of(buffers.do, consumer + z, CONFIG.pieces_v)
    k_t = transposed(pieces_of(buffers.k, slot, CONFIG.pieces), CONFIG.pieces)
    v_slot = count % CONFIG.v_slots + z
    v_t = transposed(pieces_of(buffers.v, v_slot, CONFIG.pieces_v), CONFIG.pieces_v)
    if FIRST:
        mbarrier.wait(buffers.q_full.index(consumer), 0)
        mbarrier.wait(buffers.k_full.index(0), 0)
    else:
        mbarrier.wait(buffers.k_full.index(slot), (count // CONFIG.slots) & 1)
        if not CONFIG.scores_in_turn:
            mbarrier.wait(buffers.v_full.index(count % CONFIG.v_slots), (count // CONFIG.v_slots) & 1)
    s_token = product_of_rows(q, k_t, zero, CONFIG.pieces)
    if FIRST:
        mbarrier.wait(buffers.do_full.index(consumer), 0)
        if not CONFIG.scores_in_turn:
            mbarrier.wait(buffers.v_full.index(0), 0)
    dp_token = s_token
    if not CONFIG.scores_in_turn:
        dp_token = product_of_rows(do, v_t, zero, CONFIG.pieces_v)
    return s_token, dp_token


@gluon.jit
def _dq_begin_dp(consumer: gl.constexpr, count, buffers, CONFIG: gl.constexpr):
    """Begin dP of a block of keys, whose S has become P."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.block_n, 16])
    zero = gl.zeros([CONFIG.block_m, CONFIG.block_n], gl.float32, layout)
    z = opaque_zero()
    do = pieces_of(buffers.do, consumer + z, CONFIG.pieces_v)
    v_slot = count % CONFIG.v_slots + z
    v_t = transposed(pieces_of(buffers.v, v_slot, CONFIG.pieces_v), CONFIG.pieces_v)
    mbarrier.wait(buffers.v_full.index(count % CONFIG.v_slots), (count // CONFIG.v_slots) & 1)
    return product_of_rows(do, v_t, zero, CONFIG.pieces_v)


@gluon.jit
def _dq_probabilities(s, j, lse, scale, diagonal, shape, dtype: gl.constexpr, CONFIG: gl.constexpr,
                      MASKED: gl.constexpr):  # fmt: skip
    """Compute P of a block of keys in 16 bits, while dP runs.

    Masked here, not where dP is added: in the long block behind the loops, MLIR's canonicalizer took 3 s for the mask.
    """
    s = capped(s, CONFIG.bend)
    p = gl.exp2(s * scale - lse[:, None])
    if CONFIG.bend > 0:  # dS has the derivative of the softcap as a factor
        p = p * (1.0 - s * s)
    p = p.to(dtype)
    if MASKED:
        p = hide_keys(p, 0.0, j * CONFIG.block_n, diagonal, shape, CONFIG)
    return keep_p_before_wait(p)


@gluon.jit
def _dq_add(count, p, dp, dq, delta, buffers, CONFIG: gl.constexpr):
    """Begin what one block of keys adds to dQ; dS must stay in its registers until it has."""
    dtype: gl.constexpr = buffers.q.dtype
    operand: gl.constexpr = gl.DotOperandLayout(0, dq[0].type.layout, 2)
    ds = gl.convert_layout((p.to(gl.float32) * (dp - delta[:, None])).to(dtype), operand, assert_trivial=True)
    return add_products(ds, buffers.k, count % CONFIG.slots, dq, CONFIG.pieces), ds


@UnspecializedTuples
@gluon.jit(do_not_specialize=["ready", "shape"])
def dkv_kernel(q_desc, k_desc, v_desc, do_desc, dk_desc, dv_desc, lse_desc, delta_desc, delta_rows, ready, shape,
               scales, CONFIG: gl.constexpr):  # fmt: skip
    """Compute dK and dV of block_n keys, when the programs of `dq_kernel` have counted themselves (barriers.py).

    One consumer of eight warps has all the keys, or where these are wider than values two have half each
    (backward_wide_keys.py). `ready` is a ReadyRows, `shape` a BackwardShape, `scales` a Scales.
    """
    dtype: gl.constexpr = q_desc.dtype
    buffers = backward_buffers(q_desc, k_desc, v_desc, do_desc, lse_desc, CONFIG)
    if CONFIG.pieces == 1:
        score_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([CONFIG.block_n, CONFIG.block_m], dtype)
        p_s = gl.allocate_shared_memory(dtype, [1, CONFIG.block_n, CONFIG.block_m], score_layout)
        ds_s = gl.allocate_shared_memory(dtype, [1, CONFIG.block_n, CONFIG.block_m], score_layout)
        tiles = ScoreTiles(p=p_s, ds=ds_s)
    slots: gl.constexpr = CONFIG.slots
    readers: gl.constexpr = 1 if CONFIG.pieces == 1 else 2
    bars = DkvBarriers(k_full=mbarriers(0), v_full=mbarriers(0), q_full=mbarriers(slots), do_full=mbarriers(slots),
                       empty=mbarriers(slots, readers))  # fmt: skip
    n, h_kv, batch = program_tile_of_grid(ready.kv_heads, CONFIG.causal and not CONFIG.has_window)
    n0 = n * CONFIG.block_n
    low, left, right, high = query_blocks(n0, shape.n_m, shape, CONFIG)
    descs = BackwardDescriptors(q=q_desc, k=k_desc, v=v_desc, do=do_desc, lse=lse_desc, delta=delta_desc)
    tile = KeyTile(batch=batch, h_kv=h_kv, n0=n0, low=low, left=left, right=right, high=high)
    counter = delta_rows + (ready.n_rows + batch * ready.kv_heads + h_kv)
    programs = ready.programs
    # Constants must be written in the call itself: a tuple bound to a name turns them into tensors.
    if CONFIG.pieces == 1:
        gl.warp_specialize([
            (_dkv_load_partition, (descs, buffers, bars, tile, shape, counter, programs, CONFIG)),
            (_dkv_consumer_partition, (dk_desc, dv_desc, buffers, tiles, bars, tile, shape, scales, CONFIG)),
        ], [8], [240])  # fmt: skip
    elif CONFIG.pieces_v > 1:
        ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([CONFIG.block_n, CONFIG.block_m], dtype)
        scores_s = gl.allocate_shared_memory(dtype, [4, CONFIG.block_n, CONFIG.block_m], ds_layout)
        gl.warp_specialize([
            (_dkv_load_partition, (descs, buffers, bars, tile, shape, counter, programs, CONFIG)),
            (shared_keys_partition, (0, dv_desc, buffers, scores_s, bars, tile, shape, scales, CONFIG)),
            (shared_keys_partition, (1, dk_desc, buffers, scores_s, bars, tile, shape, scales, CONFIG)),
        ], [4, 4], [240, 240])  # fmt: skip
    else:
        gl.warp_specialize([
            (_dkv_load_partition, (descs, buffers, bars, tile, shape, counter, programs, CONFIG)),
            (wide_keys_partition, (0, dk_desc, dv_desc, buffers, bars, tile, shape, scales, CONFIG)),
            (wide_keys_partition, (1, dk_desc, dv_desc, buffers, bars, tile, shape, scales, CONFIG)),
        ], [4, 4], [240, 240])  # fmt: skip


@gluon.jit
def _dkv_load_partition(descs, buffers, bars, tile, shape, counter, programs, CONFIG: gl.constexpr):
    """Load the keys and values of the program once, then each block of queries with its dout, lse and delta."""
    h_kv = tile.h_kv // CONFIG.group_splits
    load_pieces(descs.k, tile.batch, h_kv, tile.n0, bars.k_full, buffers.k, 0, CONFIG.pieces)
    count = 0
    for member in range(shape.group_size):
        h = tile.h_kv * shape.group_size + member
        for m in range(tile.low, tile.high):
            slot = count % CONFIG.slots
            phase = (count // CONFIG.slots) & 1
            row = (tile.batch * shape.num_heads + h) * shape.padded_q + m * CONFIG.block_m
            mbarrier.wait(bars.empty.index(slot), phase ^ 1)
            q_full = bars.q_full.index(slot)
            load_pieces(descs.q, tile.batch, h, m * CONFIG.block_m, q_full, buffers.q, slot, CONFIG.pieces)
            if count == 0:
                load_pieces(descs.v, tile.batch, h_kv, tile.n0, bars.v_full, buffers.v, 0, CONFIG.pieces_v)
            do_full = bars.do_full.index(slot)
            mbarrier.expect(do_full, CONFIG.pieces_v * descs.do.block_type.nbytes + CONFIG.block_m * 8)
            for piece in gl.static_range(CONFIG.pieces_v):
                place = [tile.batch, h, m * CONFIG.block_m, piece * buffers.do.shape[4]]
                tma_load(descs.do, place, do_full, place_of(buffers.do, slot, piece, CONFIG.pieces_v))
            if count == 0:  # lse and delta of all heads that share the keys
                await_programs(counter, programs)
            tma_load(descs.lse, [row], bars.do_full.index(slot), buffers.lse.index(slot))
            tma_load(descs.delta, [row], bars.do_full.index(slot), buffers.delta.index(slot))
            count += 1
    if count == 0:
        load_pieces(descs.v, tile.batch, h_kv, tile.n0, bars.v_full, buffers.v, 0, CONFIG.pieces_v)
    if is_last():
        pdl_wait()  # the next kernel may need both: one program that waits is enough


@gluon.jit
def _dkv_consumer_partition(dk_desc, dv_desc, buffers, tiles, bars, tile, shape, scales, CONFIG: gl.constexpr):
    """Compute dK and dV of the program's keys over all blocks of queries, and store them."""
    scale = scales.log2
    dtype: gl.constexpr = buffers.q.dtype
    kv_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, CONFIG.head_dim // 2, 16])
    dk = gl.zeros([CONFIG.block_n, CONFIG.head_dim], gl.float32, kv_layout)
    dv = gl.zeros([CONFIG.block_n, CONFIG.head_dim], gl.float32, kv_layout)
    total = shape.group_size * (tile.high - tile.low)
    count = 0
    s_token, dp_token, lse, delta = _dkv_scores(count, buffers, bars, total, CONFIG, True)
    p, dp = _dkv_probabilities(s_token, dp_token, lse, delta, scale, dtype, CONFIG)
    last = gl.maximum(tile.high - 1, tile.low)
    edges = (tile.low, tile.left, tile.right)
    for member in range(shape.group_size):
        end = tile.high
        if member == shape.group_size - 1:
            end = last  # behind the last block of all come no scores
        for PART in gl.static_range(3):
            if PART == 1 or (CONFIG.masked if PART == 0 else CONFIG.has_window):
                for m in range(edges[PART], end if PART == 2 else gl.minimum(edges[PART + 1], end)):
                    count, p, dp, delta, dk, dv = _dkv_step(
                        count, m, p, dp, delta, dk, dv, buffers, tiles, bars, tile.n0, shape, scale, CONFIG,
                        PART != 1)  # fmt: skip
    for m in range(last, tile.high):
        dv_token, dk_token = _dkv_add(count, m, p, dp, delta, dk, dv, buffers, tiles, tile.n0, shape, CONFIG,
                                      CONFIG.masked)  # fmt: skip
        dv, dk = warpgroup_mma_wait(0, deps=(dv_token, dk_token))
    pair_sync()  # keys and values have been read: their tiles take the gradients to TMA
    buffers.k.index(0).reshape([CONFIG.block_n, CONFIG.head_dim]).store((dk * scales.softmax).to(dtype))
    buffers.v.index(0).reshape([CONFIG.block_n, CONFIG.head_dim]).store(dv.to(dtype))
    fence_async_shared()
    pair_sync()
    tma_store(dk_desc, [tile.batch, tile.h_kv, tile.n0, 0], buffers.k.index(0))
    tma_store(dv_desc, [tile.batch, tile.h_kv, tile.n0, 0], buffers.v.index(0))
    tma.store_wait(0)


@gluon.jit
def _dkv_step(count, m, p, dp, delta, dk, dv, buffers, tiles, bars, n0, shape, scale, CONFIG: gl.constexpr,
              MASKED: gl.constexpr):  # fmt: skip
    """Add one block of queries to dK and dV; meanwhile compute the next block's scores."""
    slot = count % CONFIG.slots
    dv_token, dk_token = _dkv_add(count, m, p, dp, delta, dk, dv, buffers, tiles, n0, shape, CONFIG, MASKED)
    count += 1
    s_token, dp_token, lse, delta = _dkv_scores(count, buffers, bars, 0, CONFIG, False)
    dv, dk = warpgroup_mma_wait(2, deps=(dv_token, dk_token))
    mbarrier.arrive(bars.empty.index(slot), count=1)
    p, dp = _dkv_probabilities(s_token, dp_token, lse, delta, scale, buffers.q.dtype, CONFIG)
    return count, p, dp, delta, dk, dv


@gluon.jit
def _dkv_scores(count, buffers, bars, total, CONFIG: gl.constexpr, FIRST: gl.constexpr):
    """Begin S^T and dP^T of a query block; of the first one, if there is any, each as soon as it can."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, CONFIG.block_m // 2, 16])
    zero = gl.zeros([CONFIG.block_n, CONFIG.block_m], gl.float32, layout)
    slot = count % CONFIG.slots
    phase = (count // CONFIG.slots) & 1
    z = opaque_zero()
    q_t = buffers.q.index(slot).reshape([CONFIG.block_m, CONFIG.head_dim]).permute((1, 0))
    do_t = buffers.do.index(slot).reshape([CONFIG.block_m, CONFIG.head_dim]).permute((1, 0))
    if FIRST:
        mbarrier.wait(bars.k_full, 0)
        if total > 0:
            mbarrier.wait(bars.q_full.index(0), 0)
    else:
        mbarrier.wait(bars.q_full.index(slot), phase)
        mbarrier.wait(bars.do_full.index(slot), phase)
    k = buffers.k.index(z).reshape([CONFIG.block_n, CONFIG.head_dim])
    s_token = warpgroup_mma(k, q_t, zero, use_acc=False, is_async=True)
    if FIRST:
        mbarrier.wait(bars.v_full, 0)
        if total > 0:
            mbarrier.wait(bars.do_full.index(0), 0)
    lse = buffers.lse.index(slot).load(gl.SliceLayout(0, layout))
    delta = buffers.delta.index(slot).load(gl.SliceLayout(0, layout))
    v = buffers.v.index(z).reshape([CONFIG.block_n, CONFIG.head_dim])
    dp_token = warpgroup_mma(v, do_t, zero, use_acc=False, is_async=True)
    return s_token, dp_token, lse, delta


@gluon.jit
def _dkv_probabilities(s_token, dp_token, lse, delta, scale, dtype: gl.constexpr, CONFIG: gl.constexpr):
    """Compute P^T in 16 bits, unmasked, while dP^T runs, and wait for dP^T; a softcap makes it dS^T / P^T."""
    s_t = capped(warpgroup_mma_wait(1, deps=(s_token,)), CONFIG.bend)
    p = gl.exp2(s_t * scale - lse[None, :])  # rows beyond the end hold lse = +inf
    p = keep_p_before_wait(p.to(dtype))
    dp = warpgroup_mma_wait(0, deps=(dp_token,))
    if CONFIG.bend > 0:
        dp = (dp - delta[None, :]) * (1.0 - s_t * s_t)
    return p, dp


@gluon.jit
def _dkv_add(count, m, p, dp, delta, dk, dv, buffers, tiles, n0, shape, CONFIG: gl.constexpr, MASKED: gl.constexpr):
    """Begin what one block of queries adds to dV and dK."""
    dtype: gl.constexpr = buffers.q.dtype
    slot = count % CONFIG.slots
    z = opaque_zero()
    p_tile = tiles.p.index(z)
    ds_tile = tiles.ds.index(z)
    if MASKED:
        diagonal = m * CONFIG.block_m + shape.seqlen_k - shape.seqlen_q
        p = hide_queries(p, 0.0, diagonal, n0, shape, CONFIG)
    p_tile.store(p)
    ds_tile.store((p.to(gl.float32) * (dp if CONFIG.bend > 0 else dp - delta[None, :])).to(dtype))
    fence_async_shared()  # and a barrier of both warpgroups, by the compiler, as one reads what the other has stored
    do = buffers.do.index(slot).reshape([CONFIG.block_m, CONFIG.head_dim])
    dv_token = warpgroup_mma(p_tile, do, dv, is_async=True)
    q = buffers.q.index(slot).reshape([CONFIG.block_m, CONFIG.head_dim])
    dk_token = warpgroup_mma(ds_tile, q, dk, is_async=True)
    return dv_token, dk_token


@gluon.jit
def program_tile_of_grid(heads, UNEVEN: gl.constexpr):
    """Return a program's tile, head and batch.

    A grid is (tiles, heads, batches), or with UNEVEN (heads of a group, tiles, groups).
    """
    tile = gl.program_id(0)
    head = gl.program_id(1)
    batch = gl.program_id(2)
    if UNEVEN:
        of_all = batch * gl.num_programs(0) + tile
        tile = head
        batch = of_all // heads
        head = of_all - batch * heads
    return tile, head, batch


@gluon.jit
def is_last():
    """Return whether no program starts after this one."""
    first_axes = (gl.program_id(0) == gl.num_programs(0) - 1) & (gl.program_id(1) == gl.num_programs(1) - 1)
    return first_axes & (gl.program_id(2) == gl.num_programs(2) - 1)
