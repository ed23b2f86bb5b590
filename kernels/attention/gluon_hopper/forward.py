"""The warp-specialised forward kernel: one producer warpgroup feeds two to four consumers of 64 query rows each.

The structure is FlashAttention-3's (arXiv 2407.08608): a persistent kernel whose programs take query tiles from a
schedule (forward_tiles.py). The producer loads a tile's queries, then its blocks of keys and values from the right, so
that masks are needed first (the diagonal, the tail) and, with a window, last. DESIGN.md draws both partitions.

Where programs split the keys of a tile among them, each stores a partial output, and `combine_kernel` adds them up.
"""

import math
from collections import namedtuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_wait

from ...unspecialized import UnspecializedTuples
from .barriers import acquire_keys_slot, acquire_values_slot, pdl_wait, release_keys, release_values
from .compat import pingpong_signal, pingpong_wait, tma_store
from .configs import ROWS, SCHEDULE_FIELDS
from .forward_overflow import any_overflow, clear_overflow, flag_overflow
from .forward_softmax import (
    MaskEdges,
    TileQueries,
    attend_blocks,
    begin_first_scores,
    clear_values,
    first_softmax,
    skip_block,
    skip_values_and_next_keys,
)
from .forward_tiles import (
    ForwardShape,
    blocks_behind,
    blocks_of_split,
    blocks_of_tile,
    consumer_slice,
    consumer_work,
    has_own_blocks,
    load_pages,
    num_program_tiles,
    num_static_tiles,
    packed_heads,
    pages_of_block,
    part_of_tile,
    prefetch_schedule,
    program_tile,
    split_of_keys,
)
from .masks import capped, hide_keys, less_distance
from .pieces import (
    add_values,
    load_keys_by_piece,
    load_pieces,
    pieces_of,
    place_of,
    wait_for_pieces,
    width_of_sum,
    zeros_in_columns,
)
from .rows import keep_block, keep_factors, kept_blocks, store_tile

_FIELDS = gl.constexpr(SCHEDULE_FIELDS)
_LARGE_SCORE = gl.constexpr(64.0)  # in powers of two, above what normal numbers reach
_LN2 = gl.constexpr(math.log(2))
_PART = gl.constexpr(ROWS)
_AT_ONCE = gl.constexpr(4)  # splits that combine_kernel loads at once


# Shared memory of a program, in pieces (pieces.py): `q`: consumers x q_slots tiles of (rows, head_dim), `k`: kv_slots
# tiles of (block_n, head_dim), `v`: kv_slots tiles of (block_n, head_dim_v); mbarriers of each slot, full and empty.
ForwardBuffers = namedtuple("ForwardBuffers", "q k v q_full q_empty k_full k_empty v_full v_empty")
# Where results go. `out`, `partial_out`: descriptors, or addresses with `store_from_registers`; strides of out in units
# of 8 elements; `partial_out`: 64 rows for each split and consumer, one after another; `overflow`: a flag for each
# program; `lse`: (batch, num_heads, seqlen_q), to the base 2, and in the same places `natural_lse`, -inf where no key
# is seen; `max_logits`: (num_heads,).
ForwardOutput = namedtuple(
    "ForwardOutput", "out stride_b stride_h stride_m partial_out partial_lse overflow lse natural_lse max_logits"
)


@UnspecializedTuples
@gluon.jit(do_not_specialize=["sizes", "out_strides"])
def forward_kernel(q_desc, k_desc, v_desc, out, lse, partial_out, partial_lse, overflow, natural_lse, max_logits,
                   page_table, schedule, sizes, scale, out_strides, CONFIG: gl.constexpr):  # fmt: skip
    """Compute attention of all query tiles; `scale` is softmax_scale x log2(e), CONFIG a configs.ForwardConfig.

    `sizes` is a ForwardShape, whose `schedule` is the number of entries of a program. Strides of batches, heads and
    rows of `out` are in units of 8 elements.

    - `flag_overflow`: programs flag sums that exceed float32.
    - `recompute`: the kernel computes everything again, but only if a flag is set.
    - `split_kv`: programs split the keys of some tiles (forward_schedule.py) and store their parts in `partial_out`.
    - `packed`: `schedule` is the list of packed_tiles.py, which also gives `n_m` and `n_tiles`; `seqlen_q` and
      `seqlen_k` are the totals of all sequences.
    - `page_size`: k and v are pages of so many keys, whose numbers are in `page_table` (forward_tiles.py).
    - `natural_lse`, `max_logits`: both are stored, too; `max_logits` holds -inf before.
    - `alibi`: `max_logits` are slopes instead, (batch, num_heads), over what multiplies scores before log2(e).
    """
    if CONFIG.flag_overflow:
        clear_overflow(overflow)
    if CONFIG.recompute:
        pdl_wait()
        if not any_overflow(overflow):
            return
    q_slots: gl.constexpr = CONFIG.consumers * CONFIG.q_slots
    kv_slots: gl.constexpr = CONFIG.kv_slots
    dtype: gl.constexpr = q_desc.dtype
    pieces: gl.constexpr = CONFIG.pieces
    columns: gl.constexpr = CONFIG.head_dim // pieces
    q_s = gl.allocate_shared_memory(dtype, [q_slots * pieces, 1, 1, CONFIG.rows, columns], q_desc.layout)
    k_s = gl.allocate_shared_memory(dtype, [kv_slots * pieces, 1, 1, CONFIG.block_n, columns], k_desc.layout)
    columns_v: gl.constexpr = CONFIG.head_dim_v // CONFIG.pieces_v
    v_s = gl.allocate_shared_memory(dtype, [kv_slots * CONFIG.pieces_v, 1, 1, CONFIG.block_n, columns_v], v_desc.layout)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    k_parts: gl.constexpr = pieces if kv_slots == 1 else kv_slots
    q_full = gl.allocate_shared_memory(gl.int64, [q_slots, 1], bar)
    q_empty = gl.allocate_shared_memory(gl.int64, [q_slots, 1], bar)
    k_full = gl.allocate_shared_memory(gl.int64, [k_parts, 1], bar)
    k_empty = gl.allocate_shared_memory(gl.int64, [k_parts, 1], bar)
    v_full = gl.allocate_shared_memory(gl.int64, [kv_slots, 1], bar)
    v_empty = gl.allocate_shared_memory(gl.int64, [kv_slots, 1], bar)
    for i in gl.static_range(q_slots):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(kv_slots):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=CONFIG.consumers)
        mbarrier.init(v_empty.index(i), count=CONFIG.consumers)
    for i in gl.static_range(kv_slots, k_parts):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=CONFIG.consumers)
    buffers = ForwardBuffers(q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty)
    n_tiles, n_m, heads_in_l2 = sizes.n_tiles, sizes.n_m, sizes.heads_in_l2
    if CONFIG.packed:
        pdl_wait()  # the list is written by the kernel before this one
        n_m = gl.load(schedule)
        n_tiles = n_m * sizes.n_heads
        heads_in_l2 = packed_heads(schedule, sizes.n_heads, heads_in_l2)
        if num_static_tiles(n_tiles) == 0:
            return
    elif CONFIG.host_schedule:
        schedule += gl.program_id(0) * sizes.schedule * _FIELDS
        prefetch_schedule(schedule, sizes.schedule)
    shape = ForwardShape(
        schedule=schedule, n_tiles=n_tiles, n_m=n_m, num_heads=sizes.num_heads, n_heads=sizes.n_heads,
        group_size=sizes.group_size, heads_in_l2=heads_in_l2, seqlen_q=sizes.seqlen_q, seqlen_k=sizes.seqlen_k,
        window=sizes.window)  # fmt: skip
    out_b, out_h, out_m = out_strides
    output = ForwardOutput(out=out, stride_b=out_b, stride_h=out_h, stride_m=out_m, partial_out=partial_out,
                           partial_lse=partial_lse, overflow=overflow, lse=lse, natural_lse=natural_lse,
                           max_logits=max_logits)  # fmt: skip
    # Constants must be written in the call itself: a tuple bound to a name turns them into tensors.
    if CONFIG.consumers == 2:
        gl.warp_specialize([
            (load_partition, (q_desc, k_desc, v_desc, page_table, buffers, shape, CONFIG)),
            (consumer_partition, (0, output, buffers, shape, scale, CONFIG)),
            (consumer_partition, (1, output, buffers, shape, scale, CONFIG)),
        ], [4, 4], [CONFIG.registers, CONFIG.registers])  # fmt: skip
    elif CONFIG.consumers == 3:
        gl.warp_specialize([
            (load_partition, (q_desc, k_desc, v_desc, page_table, buffers, shape, CONFIG)),
            (consumer_partition, (0, output, buffers, shape, scale, CONFIG)),
            (consumer_partition, (1, output, buffers, shape, scale, CONFIG)),
            (consumer_partition, (2, output, buffers, shape, scale, CONFIG)),
        ], [4, 4, 4], [CONFIG.registers, CONFIG.registers, CONFIG.registers])  # fmt: skip
    else:
        gl.warp_specialize([
            (load_partition, (q_desc, k_desc, v_desc, page_table, buffers, shape, CONFIG)),
            (consumer_partition, (0, output, buffers, shape, scale, CONFIG)),
            (consumer_partition, (1, output, buffers, shape, scale, CONFIG)),
            (consumer_partition, (2, output, buffers, shape, scale, CONFIG)),
            (consumer_partition, (3, output, buffers, shape, scale, CONFIG)),
        ], [4, 4, 4, 4], [CONFIG.registers, CONFIG.registers, CONFIG.registers, CONFIG.registers])  # fmt: skip


@gluon.jit
def load_partition(q_desc, k_desc, v_desc, page_table, buffers, shape, CONFIG: gl.constexpr):
    """Load what the consumers of this program need by TMA, as slots become free."""
    count = 0
    for i_tile in range(num_program_tiles(shape, CONFIG)):
        m, head, sequence = program_tile(i_tile, shape, CONFIG)
        batch = head // shape.num_heads
        h = head - batch * shape.num_heads
        h_kv = h // shape.group_size
        low, left, right, high = blocks_of_tile(m, sequence, CONFIG)
        if CONFIG.split_kv:
            _split, first, end = split_of_keys(i_tile, high, shape)
            low, left, right, high = blocks_of_split(first, end, right, high)
        q_slot = i_tile % CONFIG.q_slots
        q_phase = (i_tile // CONFIG.q_slots) & 1
        for c in gl.static_range(CONFIG.consumers):
            q_bar = buffers.q_full.index(c * CONFIG.q_slots + q_slot)
            mbarrier.wait(buffers.q_empty.index(c * CONFIG.q_slots + q_slot), q_phase ^ 1)
            number = m * CONFIG.consumers + consumer_slice(c, i_tile, CONFIG)
            own_head, number = part_of_tile(number, head, sequence, shape, CONFIG)
            own_h, row = own_head - batch * shape.num_heads, sequence.first_q + number * CONFIG.rows
            load_pieces(q_desc, batch, own_h, row, q_bar, buffers.q, c * CONFIG.q_slots + q_slot, CONFIG.pieces)
        for i in range(low, high):
            j = high - 1 - (i - low)
            row = sequence.first_k + j * CONFIG.block_n
            slot = count % CONFIG.kv_slots
            if CONFIG.kv_slots == 1:  # keys of a block before the values of the block in front of it, as they are used
                load_keys_by_piece(k_desc, batch, h_kv, row, count, buffers, CONFIG)
                if i > low:
                    _load_values(v_desc, batch, h_kv, row + CONFIG.block_n, count - 1, buffers, CONFIG)
                if i == high - 1:
                    _load_values(v_desc, batch, h_kv, row, count, buffers, CONFIG)
            elif CONFIG.page_size > 0:
                pages = pages_of_block(page_table, sequence, j, CONFIG)
                acquire_keys_slot(count, buffers, CONFIG)
                load_pages(k_desc, pages, h_kv, j, buffers.k_full.index(slot), buffers.k, slot, CONFIG)
                acquire_values_slot(count, buffers, CONFIG)
                load_pages(v_desc, pages, h_kv, j, buffers.v_full.index(slot), buffers.v, slot, CONFIG)
            else:
                acquire_keys_slot(count, buffers, CONFIG)
                k_full = buffers.k_full.index(slot)
                load_pieces(k_desc, batch, h_kv, row, k_full, buffers.k, slot, CONFIG.pieces)
                _load_values(v_desc, batch, h_kv, row, count, buffers, CONFIG)
            count += 1


@gluon.jit
def _load_values(v_desc, batch, h_kv, row, count, buffers, CONFIG: gl.constexpr):
    """Load the count-th block's values into their slot."""
    slot = count % CONFIG.kv_slots
    acquire_values_slot(count, buffers, CONFIG)
    load_pieces(v_desc, batch, h_kv, row, buffers.v_full.index(slot), buffers.v, slot, CONFIG.pieces_v)


@gluon.jit
def consumer_partition(consumer: gl.constexpr, output, buffers, shape, scale, CONFIG: gl.constexpr):
    """Compute scores, softmax and output of this consumer's 64 rows of every tile."""
    dtype: gl.constexpr = buffers.q.dtype
    width: gl.constexpr = width_of_sum(0, CONFIG)
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    if CONFIG.pingpong and consumer == CONFIG.consumers - 1:
        pingpong_signal(0)
    n_tiles = num_program_tiles(shape, CONFIG)
    kept = kept_blocks(consumer, output.overflow, output.partial_lse, shape.schedule, CONFIG)
    tile, low, left, right, high, skipped = consumer_work(consumer, 0, shape, CONFIG)
    count = 0
    for _i in range(skipped):
        count = skip_block(count, buffers, CONFIG)
    if CONFIG.pingpong:
        pingpong_wait(consumer)
    s_token = begin_first_scores(consumer, 0, n_tiles, count, buffers, CONFIG, True)
    if CONFIG.pingpong:
        pingpong_signal((consumer + 1) % CONFIG.consumers)
    s = warpgroup_mma_wait(0, deps=(s_token,))
    release_keys(count % CONFIG.kv_slots, buffers, CONFIG)
    for i_tile in range(n_tiles):
        sequence = tile.sequence
        diagonal = tile.row + sequence.seqlen_k - sequence.seqlen_q
        q_slot = consumer * CONFIG.q_slots + i_tile % CONFIG.q_slots
        q = pieces_of(buffers.q, q_slot, CONFIG.pieces)
        q_done = buffers.q_empty.index(q_slot)
        queries = TileQueries(q=q, slot=q_slot, done=q_done, kept=kept)
        slope = gl.load(output.max_logits + tile.head) if CONFIG.alibi else gl.to_tensor(0)
        edges = MaskEdges(diagonal=diagonal, seqlen_k=sequence.seqlen_k, window=sequence.window, slope=slope)
        if CONFIG.store_from_registers:
            only = high - 1 == low
            if not CONFIG.pingpong:
                only = only | (tile.row >= sequence.seqlen_q)
            if only:  # one block, or none of ours: no product with these queries follows
                mbarrier.arrive(q_done, count=1)
        out = zeros_in_columns(CONFIG.rows, CONFIG)
        s = capped(s, CONFIG.bend)
        if CONFIG.alibi:
            s = less_distance(s, slope, diagonal - (high - 1) * CONFIG.block_n, False, CONFIG.causal)
        if CONFIG.masked:
            s = hide_keys(s, -float("inf"), (high - 1) * CONFIG.block_n, diagonal, sequence, CONFIG)
        p, m_i, l_i = first_softmax(s, scale, p_layout, dtype, CONFIG.masked)
        top = gl.full_like(m_i, 1.0) if CONFIG.max_logits else gl.to_tensor(0)
        first = count
        if CONFIG.keeps_p:
            keep_block(kept, count, p, CONFIG)
        if CONFIG.packed:  # noqa: SIM102 - decided at compile time
            if high * CONFIG.block_n > sequence.seqlen_k:
                clear_values(count, sequence.seqlen_k - (high - 1) * CONFIG.block_n, buffers, CONFIG)
        if CONFIG.q_slots > 1 and not CONFIG.store_from_registers:  # noqa: SIM102 - decided at compile time
            if i_tile > 0:  # the output of the tile before has left its slot by now
                tma.store_wait(0)
                last_slot = consumer * CONFIG.q_slots + (i_tile - 1) % CONFIG.q_slots
                mbarrier.arrive(buffers.q_empty.index(last_slot), count=1)
        if not CONFIG.pingpong:  # noqa: SIM102
            if tile.row >= sequence.seqlen_q:  # rows beyond the end: the blocks are the other consumers'
                for _i in range(low, high - 1):
                    count = skip_values_and_next_keys(count, buffers, CONFIG)
                low, left, right, high = low, low, low, low + 1
        if CONFIG.causal or CONFIG.has_window:
            count, p, out, m_i, l_i, top = attend_blocks(
                consumer, right, high - 1, low, count, queries, p, out, m_i, l_i, top, buffers, edges, scale, CONFIG,
                True)  # fmt: skip
        count, p, out, m_i, l_i, top = attend_blocks(
            consumer, left, right, low, count, queries, p, out, m_i, l_i, top, buffers, edges, scale, CONFIG,
            False)  # fmt: skip
        if CONFIG.has_window:
            count, p, out, m_i, l_i, top = attend_blocks(
                consumer, low, left, low, count, queries, p, out, m_i, l_i, top, buffers, edges, scale, CONFIG,
                True)  # fmt: skip
        slot = count % CONFIG.kv_slots
        mbarrier.wait(buffers.v_full.index(slot), (count // CONFIG.kv_slots) & 1)
        count += 1
        this_tile = tile
        behind = blocks_behind(tile, low, CONFIG)
        if CONFIG.pingpong:  # while the other consumer uses the tensor cores
            tile, low, left, right, high, skipped = consumer_work(consumer, i_tile + 1, shape, CONFIG)
        if CONFIG.q_slots > 1 and CONFIG.pingpong:  # noqa: SIM102
            if i_tile + 1 < n_tiles:  # wait for the next tile's tensors before our turn
                next_slot = consumer * CONFIG.q_slots + (i_tile + 1) % CONFIG.q_slots
                mbarrier.wait(buffers.q_full.index(next_slot), ((i_tile + 1) // CONFIG.q_slots) & 1)
                mbarrier.wait(buffers.k_full.index(count % CONFIG.kv_slots), (count // CONFIG.kv_slots) & 1)
        if CONFIG.pingpong:
            pingpong_wait(consumer)
        out_token = add_values(p, buffers.v, slot, out, CONFIG)
        if not CONFIG.pingpong:
            tile, low, left, right, high, skipped = consumer_work(consumer, i_tile + 1, shape, CONFIG)
        if CONFIG.q_slots > 1:  # the next tile's first product runs while this tile's output is stored
            count, s_token = _begin_next_tile(consumer, i_tile + 1, n_tiles, skipped, count, buffers, CONFIG)
        if CONFIG.pingpong:
            pingpong_signal((consumer + 1) % CONFIG.consumers)
        inverse = _store_lse(consumer, output, this_tile, m_i, l_i, top, shape, dtype, CONFIG)
        if CONFIG.keeps_p:
            keep_factors(kept, first, inverse, CONFIG, False)
        if CONFIG.q_slots > 1:
            behind_out: gl.constexpr = 2 if CONFIG.columns < CONFIG.head_dim else 1
            out, p = wait_for_pieces(behind_out, out_token, p, CONFIG.sums)
        else:
            out, p = wait_for_pieces(0, out_token, p, CONFIG.sums)
        release_values(slot, buffers, CONFIG)
        place = place_of(buffers.q, q_slot, 0, CONFIG.pieces)
        for piece in gl.static_range(CONFIG.sums):
            _store_output(output, this_tile, place, piece, out[piece], inverse, dtype, shape, CONFIG)
        if CONFIG.q_slots == 1:
            if not CONFIG.store_from_registers:
                tma.store_wait(0)
                mbarrier.arrive(q_done, count=1)
            count, s_token = _begin_next_tile(consumer, i_tile + 1, n_tiles, behind + skipped, count, buffers, CONFIG)
        s = warpgroup_mma_wait(0, deps=(s_token,))
        if i_tile + 1 < n_tiles:  # beyond the last tile there are no keys to hand back
            release_keys(count % CONFIG.kv_slots, buffers, CONFIG)
    tma.store_wait(0)


@gluon.jit
def _begin_next_tile(consumer: gl.constexpr, i_tile, n_tiles, skipped, count, buffers, CONFIG: gl.constexpr):
    """Skip the blocks that this consumer does not compute, and begin its first product of a tile."""
    if not CONFIG.pingpong or has_own_blocks(CONFIG):  # noqa: SIM102 - decided at compile time
        if i_tile < n_tiles:
            for _i in range(skipped):
                count = skip_block(count, buffers, CONFIG)
    wait: gl.constexpr = not CONFIG.pingpong or CONFIG.q_slots == 1
    return count, begin_first_scores(consumer, i_tile, n_tiles, count, buffers, CONFIG, wait)


@gluon.jit
def _store_lse(consumer: gl.constexpr, output, tile, m_i, l_i, top, shape, dtype: gl.constexpr,
               CONFIG: gl.constexpr):  # fmt: skip
    """Store the logsumexps of a consumer's rows, or of its split of their keys, and return the inverse sums."""
    layout: gl.constexpr = gl.SliceLayout(1, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.block_n, 16]))
    own = gl.arange(0, CONFIG.rows, layout)
    rows = tile.row + own
    largest = gl.convert_layout(gl.max(l_i, 1), layout)
    l_i = gl.convert_layout(gl.sum(l_i, 1), layout)
    m_i = gl.convert_layout(gl.max(m_i, 1), layout)
    lse = gl.where(l_i == 0.0, float("inf"), m_i + gl.log2(l_i))  # +inf: no key was seen, P is 0 in the backward
    first = tile.head.to(gl.int64) * shape.seqlen_q + tile.sequence.first_q
    seqlen_q = tile.sequence.seqlen_q
    if CONFIG.natural_lse:
        inside = (rows < seqlen_q) & (tile.split < 0)  # combine_kernel stores the others'
        natural = gl.where(l_i == 0.0, -float("inf"), lse * _LN2)
        gl.store(output.natural_lse + first + rows, natural, mask=inside)
    if CONFIG.max_logits:
        h = tile.head - tile.head // shape.num_heads * shape.num_heads
        top = gl.convert_layout(gl.max(top, 1), layout)
        there = (rows < seqlen_q) & (top < float("inf"))  # else of nobody, or flagged and computed again
        _store_largest(output.max_logits + h, gl.where(there, (m_i + gl.log2(top)) * _LN2, -float("inf")))
    if CONFIG.split_kv:
        if tile.split < 0:
            gl.store(output.lse + first + rows, lse, mask=rows < seqlen_q)
        else:
            seen = gl.where(l_i == 0.0, -float("inf"), lse)
            gl.store(output.partial_lse + _row_of_split(tile, shape, CONFIG) + own, seen)
    else:
        gl.store(output.lse + first + rows, lse, mask=rows < seqlen_q)
    return 1.0 / gl.where(l_i == 0.0, 1.0, _sum_of_rounded(l_i, largest, m_i, dtype))


@gluon.jit
def _row_of_split(tile, shape, CONFIG: gl.constexpr):
    """Return where the 64 rows of a consumer's tile are among those of all splits."""
    part = tile.row // CONFIG.rows
    if CONFIG.across_heads:
        part += tile.head % shape.group_size * gl.cdiv(tile.sequence.seqlen_q, CONFIG.rows)
    return (tile.split * CONFIG.consumers + part % CONFIG.consumers) * CONFIG.rows


@gluon.jit
def _store_largest(place, logits):
    """Raise the number at `place` to the largest of 64 logits of a warpgroup; each warp does so for its 16."""
    largest = gl.max(logits.reshape([4, 16]), 1)
    gl.atomic_max(place + gl.zeros_like(largest).to(gl.int32), largest, sem="relaxed")


@gluon.jit
def _sum_of_rounded(total, largest, m_i, dtype: gl.constexpr):
    """Return a row's sum of P as the product with V takes P, in 16 bits, where scores are large and one key has it all.

    P of that key is not 1: m_i may be a maximum of earlier blocks, and m_i x scale is rounded. Divided by the unrounded
    sum, its V would come out a rounding off, and delta with it, of which dP - delta keeps nothing else
    (triton_fa2/tile_ops.py). `largest` is the largest of the sums of the row's four lanes.
    """
    one_key = (total == largest) & ((m_i > _LARGE_SCORE) | (m_i < -_LARGE_SCORE))
    return gl.where(one_key, total.to(dtype).to(gl.float32), total)


@gluon.jit
def _store_output(output, tile, slot, piece: gl.constexpr, x, inverse, dtype: gl.constexpr, shape,
                  CONFIG: gl.constexpr):  # fmt: skip
    """Store a piece of the output, x times `inverse`, from registers or through the slot of the queries, now read.

    TMA stores all pieces after the last.
    """
    inverse = gl.convert_layout(inverse, gl.SliceLayout(1, x.type.layout))
    x = x * inverse[:, None]
    if CONFIG.flag_overflow:
        flag_overflow(output.overflow, x, inverse)
    x = x.to(dtype)
    first: gl.constexpr = piece * width_of_sum(0, CONFIG)
    stride = output.stride_m
    batch = tile.head // shape.num_heads
    head = tile.head - batch * shape.num_heads
    row = tile.row
    if CONFIG.store_from_registers:
        address = output.out + (batch.to(gl.int64) * output.stride_b + head.to(gl.int64) * output.stride_h) * 8
        seqlen_q = tile.sequence.seqlen_q
        if CONFIG.packed:
            address += tile.sequence.first_q.to(gl.int64) * stride * 8
        if CONFIG.split_kv:  # noqa: SIM102 - decided at compile time
            if tile.split >= 0:
                address = output.partial_out
                row = _row_of_split(tile, shape, CONFIG)
                width: gl.constexpr = CONFIG.unpadded_head_dim if CONFIG.unpadded_head_dim > 0 else CONFIG.columns
                stride = gl.to_tensor(width // 8)
                seqlen_q = row + x.shape[0]
        store_tile(address + first, stride, row, seqlen_q, x, CONFIG.unpadded_head_dim - first)
    else:
        tile_of_slot = slot.reshape([x.shape[0], CONFIG.head_dim_v])
        if CONFIG.sums == 1:
            tile_of_slot.store(x)
        else:
            tile_of_slot.slice(first, x.shape[1], 1).store(x)
        if piece == CONFIG.sums - 1:
            fence_async_shared()
            if CONFIG.split_kv:
                if tile.split < 0:
                    tma_store(output.out, [batch, head, row, 0], slot)
                else:
                    tma_store(output.partial_out, [0, 0, _row_of_split(tile, shape, CONFIG), 0], slot)
            else:
                tma_store(output.out, [batch, head, row, 0], slot)


@triton.jit(do_not_specialize=["num_heads", "group", "seqlen_q", "out_b", "out_h", "out_m"])
def combine_kernel(partial_out, partial_lse, out, lse, natural_lse, combines, num_heads, group, seqlen_q, out_b, out_h,
                   out_m, TILE: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
                   NATURAL: tl.constexpr, PDL: tl.constexpr = False):  # fmt: skip
    """Combine ROWS rows of a tile whose keys were split: outputs, weighted by their logsumexps.

    `partial_out` holds TILE normalised rows of HEAD_DIM numbers, at most PADDED, for each split, `partial_lse` -inf
    where a row sees no key of it; all see some of the first. `combines` has four numbers for each tile, whose rows go
    on to the next of `group` heads: query tile, head, first split, number of splits. Strides of `out` are in eights of
    numbers. PDL: the kernel before this one may not have ended.
    """
    entry = combines + _FIELDS * tl.program_id(0)
    m, head = tl.load(entry), tl.load(entry + 1).to(tl.int64)
    first, n = tl.load(entry + 2), tl.load(entry + 3)
    within = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, PADDED)
    used = (columns < HEAD_DIM)[None, :]
    parts = tl.cdiv(seqlen_q, _PART)
    heads_before = tl.minimum((m * TILE + tl.program_id(1) * ROWS) // _PART // parts, group - 1)
    rows = m * TILE + within - heads_before * parts * _PART
    head += heads_before
    batch = head // num_heads
    h = head - batch * num_heads
    top = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, PADDED], tl.float32)
    if PDL:
        gdc_wait()
    for i in tl.range(0, n, _AT_ONCE, num_stages=1):
        lses, outs = (), ()
        for split in tl.static_range(_AT_ONCE):
            own = (first + i + split) * TILE + within
            there = own < (first + n) * TILE
            lses += (tl.load(partial_lse + own, there, float("-inf")),)  # type: ignore[assignment]  # a longer tuple
            own = own.to(tl.int64)[:, None] * HEAD_DIM + columns[None, :]
            outs += (tl.load(partial_out + own, there[:, None] & used, 0.0),)  # type: ignore[assignment]
        for _ in tl.range(tl.minimum(n - i, 1), num_stages=1):  # a loop, which ptxas moves no load into
            before = top
            for split in tl.static_range(_AT_ONCE):
                top = tl.maximum(top, lses[split])
            weight *= tl.exp2(before - top)
            total *= tl.exp2(before - top)[:, None]
            for split in tl.static_range(_AT_ONCE):
                own_weight = tl.exp2(lses[split] - top)
                weight += own_weight
                total += own_weight[:, None] * outs[split].to(tl.float32)
    inside = rows < seqlen_q
    found = top + tl.log2(weight)
    tl.store(lse + head * seqlen_q + rows, found, inside)
    if NATURAL:
        tl.store(natural_lse + head * seqlen_q + rows, found * _LN2, inside)
    place = out + (batch * out_b + h * out_h) * 8 + (rows.to(tl.int64) * out_m)[:, None] * 8
    tl.store(place + columns[None, :], (total / weight[:, None]).to(out.dtype.element_ty), inside[:, None] & used)
