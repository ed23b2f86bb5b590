"""The warp-specialised kernel of latent attention: 64 rows, blocks of 64 keys of 512 + 64 dimensions, in two slots.

A row's output is 512 float32 values, too many for the registers of one warpgroup, so two ("values") hold half of it
each. Another ("scores") multiplies queries with a block, computes the softmax, and leaves probabilities and the factor
of the rows so far in shared memory; it is at the next block's scores while the values are multiplied. A fourth copies
blocks as memory becomes free: by TMA where a block lies in one page and all of it is in use, else by cp.async.

A block comes and is given back in pieces of 128 dimensions, the rotary one first, as FlashMLA does with pieces of 64.
Shares of key blocks and their parts are those of the portable kernel (triton_decode/schedule.py, combine.py).
"""

from collections import namedtuple
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ...attention.gluon_hopper.compat import tma_load
from ...unspecialized import UnspecializedTuples

ROWS = gl.constexpr(64)
BLOCK_N = gl.constexpr(64)
LATENT = gl.constexpr(512)
HALF = gl.constexpr(256)  # output columns of a warpgroup
PIECE = gl.constexpr(128)  # latent columns that are copied and released at once
PIECES = gl.constexpr(5)  # pieces of a block; the rotary one comes first
ROPE = gl.constexpr(64)
LN_2 = gl.constexpr(0.6931471805599453)

_async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier


# Shared memory of a program. `q`: (64, 512), `q_rope`: (64, 64); `latents`: 2 slots of 4 pieces of (1, 1, 64, 128);
# `ropes`: 2 slots of (1, 1, 64, 64); `p`: (64, 64), probabilities of a block; `factors`: (64,), of the output so far,
# and at the end of all of it. mbarriers: `full`, a piece of a slot is loaded; `empty`, its last reader has finished;
# `p_full`: probabilities and factors are stored; `p_empty`: both halves of the output have read them.
Buffers = namedtuple("Buffers", "q q_rope latents ropes p factors full empty p_full p_empty")
# A program's share of key blocks, from `unit` to `end`, and the sizes and strides of its tensors. `seq`: the sequence
# of the first block, and `begin`: where that one's blocks begin; `strides`: a MlaStrides; `rows`: heads times query
# tokens; `scale`: softmax_scale x log2(e).
Work = namedtuple(
    "Work", "unit end seq begin slot row_tile row_tiles strides table_b rows seqlen_q capacity stats_offset scale"
)
# Strides of batches, heads and rows of q, and of batches or pages and of keys of the cache.
MlaStrides = namedtuple("MlaStrides", "q_b q_h q_m kv_b kv_n")
# Sizes of the tensors of `mla_kernel`, and how key blocks are shared out. `table_b`: stride of a sequence's entries of
# the page table; `rows`: heads times query tokens; `slots`: shares; `least`: key blocks of a share, at least.
MlaSizes = namedtuple("MlaSizes", "table_b batch rows seqlen_q capacity slots least")
# Where a part of a tile is stored. `row_tiles`: tiles of 64 rows of a sequence.
PartTiles = namedtuple("PartTiles", "row_tiles stats_offset")


@dataclass(frozen=True)
class MlaConfig:
    """Compile-time constants of `mla_kernel`."""

    batch: int  # a power of two of at least `batch` sequences with given lengths; 0: all have the capacity's length
    page: int  # keys; 0: the cache is contiguous
    causal: bool
    store_lse: bool
    tma: bool
    whole: bool  # TMA loads a block once all of its memory is free, not piece by piece


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _length(lengths_ptr, seq, capacity, RAGGED: gl.constexpr):
    length = capacity
    if RAGGED:
        length = gl.minimum(gl.maximum(gl.load(lengths_ptr + seq), 0), capacity)
    return length


@gluon.jit
def _blocks(length):
    return gl.maximum((length + BLOCK_N - 1) // BLOCK_N, 1)


@UnspecializedTuples
@gluon.jit(do_not_specialize=["sizes"], do_not_specialize_on_alignment=["part_tiles"])
def mla_kernel(q_ptr, latents_desc, ropes_desc, kv_ptr, out_ptr, lse_ptr, parts_ptr, lengths_ptr, table_ptr, strides,
               sizes, part_tiles, scale, CONFIG: gl.constexpr):  # fmt: skip
    """Attend to the share of program_id(0) // row_tiles, for the 64 rows of program_id(0) % row_tiles.

    `strides` is a MlaStrides, `sizes` a MlaSizes, `part_tiles` a PartTiles, `scale` softmax_scale x log2(e), CONFIG a
    MlaConfig. latents_desc and ropes_desc describe blocks (1, 1, BLOCK_N, PIECE) and (1, 1, BLOCK_N, ROPE) of kv as
    (pages or sequences, 1, keys, dims); without TMA they are not read.
    """
    RAGGED: gl.constexpr = CONFIG.batch > 0
    batch, capacity, slots, least = sizes.batch, sizes.capacity, sizes.slots, sizes.least
    row_tiles = part_tiles.row_tiles
    row_tile = gl.program_id(0) % row_tiles
    slot = gl.program_id(0) // row_tiles
    gdc_launch_dependents()
    gdc_wait()
    if RAGGED:
        sequences = gl.arange(0, CONFIG.batch, gl.BlockedLayout([1], [32], [4], [0]))
        lengths = gl.load(lengths_ptr + sequences, mask=sequences < batch, other=0)
        blocks = _blocks(gl.minimum(gl.maximum(lengths, 0), capacity))
        blocks = gl.where(sequences < batch, blocks, 0)
        most = gl.max(blocks, 0)
        total = gl.sum(blocks, 0)
        ends = gl.associative_scan(blocks, 0, _add)
        chunk = gl.maximum((total + slots - 1) // slots, least)
        if total == most * batch:
            aligned = gl.maximum((most + slots // batch - 1) // gl.maximum(slots // batch, 1), least)
            if batch > slots:
                aligned = ((batch + slots - 1) // slots) * most
            if aligned * 10 <= chunk * 11:
                chunk = aligned
        unit = slot * chunk
        passed = ends <= unit
        seq = gl.sum(passed.to(gl.int32), 0)
        begin = gl.max(gl.where(passed, ends, 0), 0)
    else:
        every = _blocks(capacity)
        total = every * batch
        chunk = least
        unit = slot * chunk
        seq = unit // every
        begin = seq * every
    end = gl.minimum(unit + chunk, total)

    dtype: gl.constexpr = q_ptr.dtype.element_ty
    wide: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    loaded: gl.constexpr = gl.NVMMASharedLayout(128, 16, 4)  # TMA loads tiles of four dimensions
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    bars: gl.constexpr = mbarrier.MBarrierLayout()
    buffers = Buffers(
        q=gl.allocate_shared_memory(dtype, [ROWS, LATENT], wide),
        q_rope=gl.allocate_shared_memory(dtype, [ROWS, ROPE], wide),
        latents=gl.allocate_shared_memory(dtype, [2 * (PIECES - 1), 1, 1, BLOCK_N, PIECE], loaded),
        ropes=gl.allocate_shared_memory(dtype, [2, 1, 1, BLOCK_N, ROPE], loaded),
        p=gl.allocate_shared_memory(dtype, [ROWS, BLOCK_N], wide),
        factors=gl.allocate_shared_memory(gl.float32, [ROWS], line),
        full=gl.allocate_shared_memory(gl.int64, [2 * PIECES, 1], bars),
        empty=gl.allocate_shared_memory(gl.int64, [2 * PIECES, 1], bars),
        p_full=gl.allocate_shared_memory(gl.int64, [1], bars),
        p_empty=gl.allocate_shared_memory(gl.int64, [1], bars),
    )
    for i in gl.static_range(2 * PIECES):
        # Without TMA each thread arrives for its copies.
        mbarrier.init(buffers.full.index(i), count=1 if CONFIG.tma else 128)
        mbarrier.init(buffers.empty.index(i), count=1)
    mbarrier.init(buffers.p_full, count=1)
    mbarrier.init(buffers.p_empty, count=2)
    fence_async_shared()
    _barrier()
    work = Work(unit=unit, end=end, seq=seq, begin=begin, slot=slot, row_tile=row_tile, row_tiles=row_tiles,
                strides=strides, table_b=sizes.table_b, rows=sizes.rows, seqlen_q=sizes.seqlen_q, capacity=capacity,
                stats_offset=part_tiles.stats_offset, scale=scale)  # fmt: skip
    gl.warp_specialize([
        (scores_partition, (q_ptr, lse_ptr, parts_ptr, lengths_ptr, buffers, work, RAGGED, CONFIG)),
        (values_partition, (out_ptr, parts_ptr, lengths_ptr, buffers, work, RAGGED, 0)),
        (values_partition, (out_ptr, parts_ptr, lengths_ptr, buffers, work, RAGGED, 1)),
        (copy_partition, (latents_desc, ropes_desc, kv_ptr, lengths_ptr, table_ptr, buffers, work, RAGGED, CONFIG)),
    ], [4, 4, 4], [160, 160, 64])  # fmt: skip


@gluon.jit
def scores_partition(q_ptr, lse_ptr, parts_ptr, lengths_ptr, buffers, work, RAGGED: gl.constexpr,
                     CONFIG: gl.constexpr):  # fmt: skip
    """Compute scores and softmax: probabilities and factors of every block, at the end of a tile its divisors."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    rows = work.row_tile * ROWS + gl.arange(0, ROWS, s_rows)
    token = rows % work.seqlen_q
    columns = gl.arange(0, BLOCK_N, gl.SliceLayout(0, s_layout))
    unit, seq, begin = work.unit, work.seq, work.begin
    n = 0  # blocks
    shakes = 0  # handshakes with the other warpgroups
    while unit < work.end:
        length = _length(lengths_ptr, seq, work.capacity, RAGGED)
        blocks = _blocks(length)
        block = unit - begin
        count = gl.minimum(blocks - block, work.end - unit)
        _copy_queries(q_ptr, seq, buffers, work)
        bound = gl.zeros_like(rows) + (length - 1)
        if CONFIG.causal:
            bound = length - work.seqlen_q + token
        row_max = gl.full([ROWS], float("-inf"), gl.float32, s_rows)
        row_sum = gl.zeros([ROWS], gl.float32, s_rows)
        for j in range(count):
            scores = _scores(buffers, n, s_layout, CONFIG.tma)
            keys = (block + j) * BLOCK_N + columns
            scores = gl.where(keys[None, :] <= bound[:, None], scores * work.scale, float("-inf"))
            new_max = gl.maximum(row_max, gl.max(scores, 1))
            base = gl.where(new_max == float("-inf"), 0.0, new_max)
            p = gl.exp2(scores - base[:, None])
            alpha = gl.exp2(row_max - base)
            row_sum = row_sum * alpha + gl.sum(p, 1)
            row_max = new_max
            if shakes > 0:
                mbarrier.wait(buffers.p_empty, (shakes - 1) & 1)
            buffers.p.store(p.to(dtype))
            buffers.factors.store(alpha)
            fence_async_shared()
            mbarrier.arrive(buffers.p_full, count=1)
            shakes += 1
            n += 1
        divisor = gl.where(row_sum == 0.0, 1.0, row_sum)
        if shakes > 0:
            mbarrier.wait(buffers.p_empty, (shakes - 1) & 1)
        buffers.factors.store(1.0 / divisor)
        mbarrier.arrive(buffers.p_full, count=1)
        shakes += 1
        lse = gl.where(row_sum == 0.0, float("-inf"), row_max + gl.log2(divisor))
        if count == blocks:
            if CONFIG.store_lse:
                gl.store(lse_ptr + gl.cast(seq, gl.int64) * work.rows + rows, lse * LN_2, mask=rows < work.rows)
        else:
            index = gl.cast(work.slot * 2 + (block == 0).to(gl.int32), gl.int64) * work.row_tiles + work.row_tile
            at = index * ROWS + gl.arange(0, ROWS, s_rows)
            gl.store(parts_ptr + work.stats_offset + at, lse, mask=rows < work.rows)
        unit += count
        if block + count == blocks:
            seq += 1
            begin = unit


@gluon.jit
def _scores(buffers, n, layout: gl.constexpr, TMA: gl.constexpr):
    """Return q k^T of block n, its pieces multiplied as they come; give the rotary piece's memory back."""
    first = (n & 1) * PIECES
    phase = (n >> 1) & 1
    mbarrier.wait(buffers.full.index(first), phase)
    if not TMA:
        fence_async_shared()  # the copies were no asynchronous ones in the sense of the tensor cores
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
    rope = buffers.ropes.index(n & 1).reshape([BLOCK_N, ROPE]).permute((1, 0))
    scores = warpgroup_mma(buffers.q_rope, rope, zero, use_acc=False, is_async=True)
    for i in gl.static_range(PIECES - 1):
        mbarrier.wait(buffers.full.index(first + 1 + i), phase)
        if not TMA:
            fence_async_shared()
        piece = _piece(buffers, n, _dims_of(i) // PIECE).permute((1, 0))
        scores = warpgroup_mma(buffers.q.slice(_dims_of(i), PIECE, dim=1), piece, scores, is_async=True)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    mbarrier.arrive(buffers.empty.index(first), count=1)
    return scores


@gluon.jit
def _piece(buffers, n, number: gl.constexpr):
    return buffers.latents.index((n & 1) * (PIECES - 1) + number).reshape([BLOCK_N, PIECE])


@gluon.constexpr_function
def _dims_of(i):
    """Return the column offset of the i-th piece of latents, in the order of release."""
    return (i % 2) * HALF.value + (i // 2) * PIECE.value


@gluon.jit
def values_partition(out_ptr, parts_ptr, lengths_ptr, buffers, work, RAGGED: gl.constexpr, SIDE: gl.constexpr):
    """Compute a half of the output, the first (SIDE 0) or the second (SIDE 1), in two pieces."""
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PIECE, 16])
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    unit, seq, begin = work.unit, work.seq, work.begin
    n = 0
    shakes = 0
    while unit < work.end:
        length = _length(lengths_ptr, seq, work.capacity, RAGGED)
        blocks = _blocks(length)
        block = unit - begin
        count = gl.minimum(blocks - block, work.end - unit)
        left = gl.zeros([ROWS, PIECE], gl.float32, o_layout)
        right = gl.zeros([ROWS, PIECE], gl.float32, o_layout)
        for _ in range(count):
            mbarrier.wait(buffers.p_full, shakes & 1)  # after the block's own barriers, which the scores waited for
            fence_async_shared()
            factors = buffers.factors.load(o_rows)
            empty = (n & 1) * PIECES + 1 + SIDE
            left = left * factors[:, None]
            right = right * factors[:, None]
            left = warpgroup_mma(buffers.p, _piece(buffers, n, 2 * SIDE), left, is_async=True)
            right = warpgroup_mma(buffers.p, _piece(buffers, n, 2 * SIDE + 1), right, is_async=True)
            left = warpgroup_mma_wait(1, deps=(left,))
            mbarrier.arrive(buffers.empty.index(empty), count=1)
            right = warpgroup_mma_wait(0, deps=(right,))
            mbarrier.arrive(buffers.p_empty, count=1)
            mbarrier.arrive(buffers.empty.index(empty + 2), count=1)
            shakes += 1
            n += 1
        mbarrier.wait(buffers.p_full, shakes & 1)
        factors = buffers.factors.load(o_rows)
        mbarrier.arrive(buffers.p_empty, count=1)
        shakes += 1
        _store(left * factors[:, None], SIDE * HALF, out_ptr, parts_ptr, seq, block, count == blocks, work)
        _store(right * factors[:, None], SIDE * HALF + PIECE, out_ptr, parts_ptr, seq, block, count == blocks, work)
        unit += count
        if block + count == blocks:
            seq += 1
            begin = unit


@gluon.jit
def copy_partition(latents_desc, ropes_desc, kv_ptr, lengths_ptr, table_ptr, buffers, work, RAGGED: gl.constexpr,
                   CONFIG: gl.constexpr):  # fmt: skip
    """Copy the blocks of the share, each piece into the memory of that of the block before the last."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [gl.num_warps(), 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    unit, seq, begin = work.unit, work.seq, work.begin
    n = 0
    while unit < work.end:
        length = _length(lengths_ptr, seq, work.capacity, RAGGED)
        blocks = _blocks(length)
        block = unit - begin
        count = gl.minimum(blocks - block, work.end - unit)
        pages = _pages(table_ptr, seq, block * BLOCK_N, length, work, CONFIG.page, layout)
        pages_of_ropes = _pages(table_ptr, seq, block * BLOCK_N, length, work, CONFIG.page, narrow)
        for j in range(count):
            start = (block + j) * BLOCK_N
            row = start % CONFIG.page if CONFIG.page > 0 else start
            if CONFIG.tma and not RAGGED:
                _load_block(latents_desc, ropes_desc, pages, row, buffers, n, CONFIG.whole)
            elif CONFIG.tma:
                if start + BLOCK_N <= length:
                    _load_block(latents_desc, ropes_desc, pages, row, buffers, n, CONFIG.whole)
                else:
                    _copy_block(kv_ptr, pages, pages, start, length, buffers, n, work, CONFIG, layout, narrow)
            else:
                _copy_block(kv_ptr, pages, pages_of_ropes, start, length, buffers, n, work, CONFIG, layout, narrow)
            # Loaded before the wait for free memory, so that no copy waits for a page number.
            pages = _pages(table_ptr, seq, start + BLOCK_N, length, work, CONFIG.page, layout)
            pages_of_ropes = _pages(table_ptr, seq, start + BLOCK_N, length, work, CONFIG.page, narrow)
            n += 1
        unit += count
        if block + count == blocks:
            seq += 1
            begin = unit
    if RAGGED or not CONFIG.tma:
        async_copy.commit_group()
        async_copy.wait_group(0)


@gluon.jit
def _load_block(latents_desc, ropes_desc, page, row, buffers, n, WHOLE: gl.constexpr):
    """Load a block by TMA: each piece as soon as its memory is free, or, if WHOLE, all pieces together."""
    first = (n & 1) * PIECES
    phase = ((n >> 1) - 1) & 1
    if n >= 2:
        for i in gl.static_range(PIECES if WHOLE else 1):
            mbarrier.wait(buffers.empty.index(first + i), phase)
    full = buffers.full.index(first)
    mbarrier.expect(full, ropes_desc.block_type.nbytes)
    tma_load(ropes_desc, [page, 0, row, LATENT], full, buffers.ropes.index(n & 1))
    for i in gl.static_range(PIECES - 1):
        if not WHOLE:  # noqa: SIM102 - decided when it is compiled
            if n >= 2:
                mbarrier.wait(buffers.empty.index(first + 1 + i), phase)
        full = buffers.full.index(first + 1 + i)
        mbarrier.expect(full, latents_desc.block_type.nbytes)
        place = buffers.latents.index((n & 1) * (PIECES - 1) + _dims_of(i) // PIECE)
        tma_load(latents_desc, [page, 0, row, _dims_of(i)], full, place)


@gluon.jit
def _copy_block(kv_ptr, pages, pages_of_ropes, start, length, buffers, n, work, CONFIG: gl.constexpr,
                layout: gl.constexpr, narrow: gl.constexpr):  # fmt: skip
    """Copy a block by cp.async, with zeros beyond the length: any page, and the last block of a length."""
    first = (n & 1) * PIECES
    phase = ((n >> 1) - 1) & 1
    if n >= 2:
        mbarrier.wait(buffers.empty.index(first), phase)
    rope = buffers.ropes.index(n & 1).reshape([BLOCK_N, ROPE])
    _copy_piece(kv_ptr, pages_of_ropes, start, length, rope, LATENT, work, ROPE, CONFIG.page, narrow)
    _copied(buffers.full.index(first), CONFIG.tma)
    for i in gl.static_range(PIECES - 1):
        if n >= 2:
            mbarrier.wait(buffers.empty.index(first + 1 + i), phase)
        piece = _piece(buffers, n, _dims_of(i) // PIECE)
        _copy_piece(kv_ptr, pages, start, length, piece, _dims_of(i), work, PIECE, CONFIG.page, layout)
        _copied(buffers.full.index(first + 1 + i), CONFIG.tma)


@gluon.jit
def _copied(full, TMA: gl.constexpr):
    """Arrive at a piece's barrier once its copies are done; it takes one arrival where TMA copies other blocks."""
    if TMA:
        async_copy.commit_group()
        async_copy.wait_group(0)
        fence_async_shared()
        _barrier()
        mbarrier.arrive(full, count=1)
    else:
        async_copy.mbarrier_arrive(full, increment_count=False)


@gluon.jit
def _pages(table_ptr, seq, start, length, work, PAGE: gl.constexpr, layout: gl.constexpr):
    """Return the pages of a block's keys, one where all lie in it; a contiguous cache's sequences are its pages."""
    if PAGE == 0:
        pages = seq
    else:
        entries = table_ptr + gl.cast(seq, gl.int64) * work.table_b
        if PAGE % BLOCK_N == 0:
            pages = gl.load(entries + start // PAGE, mask=start < length, other=0)
        else:
            keys = start + gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
            pages = gl.load(entries + keys // PAGE, mask=keys < length, other=0)
    return pages


@gluon.jit
def _copy_piece(kv_ptr, pages, start, length, memory, first: gl.constexpr, work, DIMS: gl.constexpr,
                PAGE: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    offsets = gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
    dims = first + gl.arange(0, DIMS, gl.SliceLayout(0, layout))
    keys = start + offsets
    if PAGE == 0:
        in_page = keys.to(gl.int64)
    elif PAGE % BLOCK_N == 0:
        in_page = start % PAGE + offsets
    else:
        in_page = keys % PAGE
    at = gl.cast(pages, gl.int64) * work.strides.kv_b + in_page * work.strides.kv_n
    _async_load(memory, kv_ptr + at[:, None] + dims[None, :], mask=keys[:, None] < length)


@gluon.jit
def _copy_queries(q_ptr, seq, buffers, work):
    """Copy the query rows of a sequence, with zeros where there are none."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    _copy_query_part(q_ptr, seq, buffers.q, 0, work, LATENT, layout)
    _copy_query_part(q_ptr, seq, buffers.q_rope, LATENT, work, ROPE, narrow)
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()
    _barrier()


@gluon.jit
def _copy_query_part(q_ptr, seq, memory, first: gl.constexpr, work, DIMS: gl.constexpr, layout: gl.constexpr):
    rows = work.row_tile * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    dims = first + gl.arange(0, DIMS, gl.SliceLayout(0, layout))
    of = work.strides
    at = gl.cast(seq, gl.int64) * of.q_b + (rows // work.seqlen_q) * of.q_h + (rows % work.seqlen_q) * of.q_m
    _async_load(memory, q_ptr + at[:, None] + dims[None, :], mask=rows[:, None] < work.rows)


@gluon.jit
def _store(acc, first: gl.constexpr, out_ptr, parts_ptr, seq, block, alone, work):
    """Store a piece of the output: of the tile, or of this program's part of it."""
    layout: gl.constexpr = acc.type.layout
    in_tile = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    rows = work.row_tile * ROWS + in_tile
    dims = first + gl.arange(0, PIECE, gl.SliceLayout(0, layout))
    mask = rows[:, None] < work.rows
    if alone:
        at = gl.cast(seq, gl.int64) * work.rows + rows
        gl.store(out_ptr + at[:, None] * LATENT + dims[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        index = gl.cast(work.slot * 2 + (block == 0).to(gl.int32), gl.int64) * work.row_tiles + work.row_tile
        at = index * ROWS + in_tile
        gl.store(parts_ptr + at[:, None] * LATENT + dims[None, :], acc, mask=mask)
