"""The warp-specialised kernel of latent attention: 64 rows, blocks of 64 keys of 512 + 64 dimensions, in two slots.

A row's output is 512 float32 values, too many for the registers of one warpgroup. The first warpgroup ("scores")
multiplies queries with a block, computes the softmax, leaves probabilities and the factor of the rows so far in shared
memory, and multiplies them with the first 256 dimensions of the block; the second ("values") does so with the last 256.
A third copies blocks as slots become free (cp.async, so that pages of any size do). FlashMLA divides the output so too;
there each warpgroup computes the scores of every other block.

Shares of key blocks and their parts are those of the portable kernel (triton_decode/schedule.py, combine.py).
"""

from typing import Any, NamedTuple

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

ROWS = gl.constexpr(64)
BLOCK_N = gl.constexpr(64)
LATENT = gl.constexpr(512)
HALF = gl.constexpr(256)
ROPE = gl.constexpr(64)
LN_2 = gl.constexpr(0.6931471805599453)

_async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier


class Buffers(NamedTuple):
    """Shared memory of a program."""

    q: Any  # (64, 512)
    q_rope: Any  # (64, 64)
    latents: Any  # 2 slots of (64, 512)
    ropes: Any  # 2 slots of (64, 64)
    p: Any  # (64, 64): probabilities of a block
    factors: Any  # (64,): of the output so far, and at the end of all of it
    full: Any  # mbarriers, one a slot: the block is there
    empty: Any  # both warpgroups have done with it
    p_full: Any  # probabilities and factors are there
    p_empty: Any  # the second warpgroup has done with them


class Work(NamedTuple):
    """Where a program's share of key blocks lies, and what it needs to find its tensors."""

    unit: Any  # blocks of the share: from unit to end
    end: Any
    seq: Any  # the sequence of the first, and where that one's blocks begin
    begin: Any
    slot: Any
    row_tile: Any
    row_tiles: Any
    q_b: Any
    q_h: Any
    q_m: Any
    kv_b: Any
    kv_n: Any
    table_b: Any
    rows: Any  # heads times query tokens
    seqlen_q: Any
    capacity: Any
    stats_offset: Any
    scale: Any  # softmax_scale x log2(e)


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


@gluon.jit(
    do_not_specialize=["batch", "rows", "seqlen_q", "capacity", "slots", "least", "table_b"],
    do_not_specialize_on_alignment=["row_tiles", "stats_offset"],
)
def mla_kernel(q_ptr, kv_ptr, out_ptr, lse_ptr, parts_ptr, lengths_ptr, table_ptr, q_b, q_h, q_m, kv_b, kv_n, table_b,
               batch, rows, seqlen_q, capacity, slots, least, row_tiles, stats_offset, scale, BATCH: gl.constexpr,
               PAGE: gl.constexpr, CAUSAL: gl.constexpr, STORE_LSE: gl.constexpr,
               CHAINED: gl.constexpr):  # fmt: skip
    """Attend to the share of program_id(0) // row_tiles, for the 64 rows of program_id(0) % row_tiles.

    Arguments as split.split_kernel has them.
    """
    RAGGED: gl.constexpr = BATCH > 0
    row_tile = gl.program_id(0) % row_tiles
    slot = gl.program_id(0) // row_tiles
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()
    if RAGGED:
        sequences = gl.arange(0, BATCH, gl.BlockedLayout([1], [32], [4], [0]))
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
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    bars: gl.constexpr = mbarrier.MBarrierLayout()
    buffers = Buffers(
        q=gl.allocate_shared_memory(dtype, [ROWS, LATENT], wide),
        q_rope=gl.allocate_shared_memory(dtype, [ROWS, ROPE], wide),
        latents=gl.allocate_shared_memory(dtype, [2, BLOCK_N, LATENT], wide),
        ropes=gl.allocate_shared_memory(dtype, [2, BLOCK_N, ROPE], wide),
        p=gl.allocate_shared_memory(dtype, [ROWS, BLOCK_N], wide),
        factors=gl.allocate_shared_memory(gl.float32, [ROWS], line),
        full=gl.allocate_shared_memory(gl.int64, [2, 1], bars),
        empty=gl.allocate_shared_memory(gl.int64, [2, 1], bars),
        p_full=gl.allocate_shared_memory(gl.int64, [1], bars),
        p_empty=gl.allocate_shared_memory(gl.int64, [1], bars),
    )
    for i in gl.static_range(2):
        mbarrier.init(buffers.full.index(i), count=128)  # each thread's copies arrive by themselves
        mbarrier.init(buffers.empty.index(i), count=2)
    mbarrier.init(buffers.p_full, count=1)
    mbarrier.init(buffers.p_empty, count=1)
    fence_async_shared()
    _barrier()
    work = Work(unit=unit, end=end, seq=seq, begin=begin, slot=slot, row_tile=row_tile, row_tiles=row_tiles, q_b=q_b,
                q_h=q_h, q_m=q_m, kv_b=kv_b, kv_n=kv_n, table_b=table_b, rows=rows, seqlen_q=seqlen_q,
                capacity=capacity, stats_offset=stats_offset, scale=scale)  # fmt: skip
    gl.warp_specialize([
        (scores_partition, (q_ptr, out_ptr, lse_ptr, parts_ptr, lengths_ptr, buffers, work, RAGGED, CAUSAL, STORE_LSE)),
        (values_partition, (out_ptr, parts_ptr, lengths_ptr, buffers, work, RAGGED)),
        (copy_partition, (kv_ptr, lengths_ptr, table_ptr, buffers, work, RAGGED, PAGE)),
    ], [4, 4], [208, 56])  # fmt: skip


@gluon.jit
def scores_partition(q_ptr, out_ptr, lse_ptr, parts_ptr, lengths_ptr, buffers, work, RAGGED: gl.constexpr,
                     CAUSAL: gl.constexpr, STORE_LSE: gl.constexpr):  # fmt: skip
    """Scores, softmax, and the first half of the output."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    rows = work.row_tile * ROWS + gl.arange(0, ROWS, s_rows)
    token = rows % work.seqlen_q
    columns = gl.arange(0, BLOCK_N, gl.SliceLayout(0, s_layout))
    unit, seq, begin = work.unit, work.seq, work.begin
    n = 0  # blocks, and then handshakes with the second warpgroup
    shakes = 0
    while unit < work.end:
        length = _length(lengths_ptr, seq, work.capacity, RAGGED)
        blocks = _blocks(length)
        block = unit - begin
        count = gl.minimum(blocks - block, work.end - unit)
        _copy_queries(q_ptr, seq, buffers, work)
        bound = gl.zeros_like(rows) + (length - 1)
        if CAUSAL:
            bound = length - work.seqlen_q + token
        acc = gl.zeros([ROWS, HALF], gl.float32, o_layout)
        row_max = gl.full([ROWS], float("-inf"), gl.float32, s_rows)
        row_sum = gl.zeros([ROWS], gl.float32, s_rows)
        for j in range(count):
            slot = n & 1
            mbarrier.wait(buffers.full.index(slot), (n >> 1) & 1)
            fence_async_shared()  # the copies were no asynchronous ones in the sense of the tensor cores
            latents = buffers.latents.index(slot)
            zero = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
            scores = warpgroup_mma(buffers.q, latents.permute((1, 0)), zero, use_acc=False, is_async=True)
            ropes = buffers.ropes.index(slot).permute((1, 0))
            scores = warpgroup_mma(buffers.q_rope, ropes, scores, is_async=True)
            scores = warpgroup_mma_wait(0, deps=(scores,))
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
            acc = acc * gl.convert_layout(alpha, o_rows)[:, None]
            acc = warpgroup_mma(buffers.p, latents.slice(0, HALF, dim=1), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(buffers.empty.index(slot), count=1)
            n += 1
        divisor = gl.where(row_sum == 0.0, 1.0, row_sum)
        inverse = 1.0 / divisor
        if shakes > 0:
            mbarrier.wait(buffers.p_empty, (shakes - 1) & 1)
        buffers.factors.store(inverse)
        mbarrier.arrive(buffers.p_full, count=1)
        shakes += 1
        acc = acc * gl.convert_layout(inverse, o_rows)[:, None]
        lse = gl.where(row_sum == 0.0, float("-inf"), row_max + gl.log2(divisor))
        _store(acc, 0, out_ptr, parts_ptr, seq, block, count == blocks, work)
        if count == blocks:
            if STORE_LSE:
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
def values_partition(out_ptr, parts_ptr, lengths_ptr, buffers, work, RAGGED: gl.constexpr):
    """The second half of the output."""
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    unit, seq, begin = work.unit, work.seq, work.begin
    n = 0
    shakes = 0
    while unit < work.end:
        length = _length(lengths_ptr, seq, work.capacity, RAGGED)
        blocks = _blocks(length)
        block = unit - begin
        count = gl.minimum(blocks - block, work.end - unit)
        acc = gl.zeros([ROWS, HALF], gl.float32, o_layout)
        for _ in range(count):
            slot = n & 1
            mbarrier.wait(buffers.full.index(slot), (n >> 1) & 1)
            fence_async_shared()
            mbarrier.wait(buffers.p_full, shakes & 1)
            acc = acc * buffers.factors.load(o_rows)[:, None]
            values = buffers.latents.index(slot).slice(HALF, HALF, dim=1)
            acc = warpgroup_mma(buffers.p, values, acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(buffers.p_empty, count=1)
            mbarrier.arrive(buffers.empty.index(slot), count=1)
            shakes += 1
            n += 1
        mbarrier.wait(buffers.p_full, shakes & 1)
        acc = acc * buffers.factors.load(o_rows)[:, None]
        mbarrier.arrive(buffers.p_empty, count=1)
        shakes += 1
        _store(acc, HALF, out_ptr, parts_ptr, seq, block, count == blocks, work)
        unit += count
        if block + count == blocks:
            seq += 1
            begin = unit


@gluon.jit
def copy_partition(kv_ptr, lengths_ptr, table_ptr, buffers, work, RAGGED: gl.constexpr, PAGE: gl.constexpr):
    """The blocks of the share, each into the slot of the one before the last."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    seq, begin = work.seq, work.begin
    for unit in range(work.unit, work.end):
        n = unit - work.unit
        slot = n & 1
        length = _length(lengths_ptr, seq, work.capacity, RAGGED)
        start = (unit - begin) * BLOCK_N
        if n >= 2:
            mbarrier.wait(buffers.empty.index(slot), ((n >> 1) - 1) & 1)
        _copy_part(kv_ptr, table_ptr, seq, start, length, buffers.latents.index(slot), 0, work, LATENT, PAGE, layout)
        _copy_part(kv_ptr, table_ptr, seq, start, length, buffers.ropes.index(slot), LATENT, work, ROPE, PAGE, narrow)
        async_copy.mbarrier_arrive(buffers.full.index(slot), increment_count=False)
        if unit + 1 - begin == _blocks(length):
            seq += 1
            begin = unit + 1
    async_copy.commit_group()
    async_copy.wait_group(0)


@gluon.jit
def _copy_queries(q_ptr, seq, buffers, work):
    """The rows of a sequence, zeros where there are none."""
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
    at = gl.cast(seq, gl.int64) * work.q_b + (rows // work.seqlen_q) * work.q_h + (rows % work.seqlen_q) * work.q_m
    _async_load(memory, q_ptr + at[:, None] + dims[None, :], mask=rows[:, None] < work.rows)


@gluon.jit
def _copy_part(kv_ptr, table_ptr, seq, start, length, memory, first: gl.constexpr, work, DIMS: gl.constexpr,
               PAGE: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    keys = start + gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
    dims = first + gl.arange(0, DIMS, gl.SliceLayout(0, layout))
    if PAGE == 0:
        at = gl.cast(seq, gl.int64) * work.kv_b + keys.to(gl.int64) * work.kv_n
    else:
        pages = gl.load(table_ptr + gl.cast(seq, gl.int64) * work.table_b + keys // PAGE, mask=keys < length, other=0)
        at = pages.to(gl.int64) * work.kv_b + (keys % PAGE) * work.kv_n
    _async_load(memory, kv_ptr + at[:, None] + dims[None, :], mask=keys[:, None] < length)


@gluon.jit
def _store(acc, first: gl.constexpr, out_ptr, parts_ptr, seq, block, alone, work):
    """A half of the output: of the tile, or of this program's part of it."""
    layout: gl.constexpr = acc.type.layout
    in_tile = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    rows = work.row_tile * ROWS + in_tile
    dims = first + gl.arange(0, HALF, gl.SliceLayout(0, layout))
    mask = rows[:, None] < work.rows
    if alone:
        at = gl.cast(seq, gl.int64) * work.rows + rows
        gl.store(out_ptr + at[:, None] * LATENT + dims[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        index = gl.cast(work.slot * 2 + (block == 0).to(gl.int32), gl.int64) * work.row_tiles + work.row_tile
        at = index * ROWS + in_tile
        gl.store(parts_ptr + at[:, None] * LATENT + dims[None, :], acc, mask=mask)
