"""The second half of a wide output's columns: P, as the forward of the first half kept it, times the values' others.

Both launches have the same schedule, so a program finds the blocks that it kept itself, in their order: it walks the
same tiles, adds the products of P, and multiplies its sums with a block's factors as the first half did. A consumer
keeps P of a block as its threads hold it, 16 bytes a thread, and reads it in the same order. A factor for each row
comes with it; with the first block of a tile, which needs none, the inverse of the rows' sums.
"""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from ...unspecialized import UnspecializedTuples
from .barriers import mbarriers
from .compat import tma_load
from .configs import SCHEDULE_FIELDS
from .forward_overflow import rescale
from .forward_softmax import by_lane
from .forward_tiles import ForwardShape, consumer_work, num_program_tiles, prefetch_schedule, program_tile
from .masks import key_blocks
from .rows import store_tile

_FIELDS = gl.constexpr(SCHEDULE_FIELDS)
_REGISTERS = gl.constexpr(240)  # per consumer thread

# Shared memory of a program, `kv_slots` of each: values, P and factors of each consumer.
KeptBuffers = namedtuple("KeptBuffers", "v p factors full empty")
KeptDescriptors = namedtuple("KeptDescriptors", "v p factors")


@UnspecializedTuples
@gluon.jit(do_not_specialize=["sizes", "out_strides"])
def second_half_kernel(p_desc, factors_desc, v_desc, out, schedule, sizes, out_strides, CONFIG: gl.constexpr):
    """Compute columns of the output of all query tiles; see `forward_kernel` for schedule, sizes and strides."""
    slots: gl.constexpr = CONFIG.kv_slots
    tiles: gl.constexpr = slots * CONFIG.consumers
    v_s = gl.allocate_shared_memory(v_desc.dtype, [slots, 1, 1, CONFIG.block_n, CONFIG.head_dim_v], v_desc.layout)
    p_s = gl.allocate_shared_memory(p_desc.dtype, [tiles, 1, 1, CONFIG.rows, CONFIG.block_n], p_desc.layout)
    factors_s = gl.allocate_shared_memory(gl.float32, [tiles, CONFIG.rows], factors_desc.layout)
    buffers = KeptBuffers(v=v_s, p=p_s, factors=factors_s, full=mbarriers(slots),
                          empty=mbarriers(slots, CONFIG.consumers))  # fmt: skip
    schedule += gl.program_id(0) * sizes.schedule * _FIELDS
    prefetch_schedule(schedule, sizes.schedule)
    shape = ForwardShape(
        schedule=schedule, n_tiles=sizes.n_tiles, n_m=sizes.n_m, num_heads=sizes.num_heads, n_heads=sizes.n_heads,
        group_size=sizes.group_size, heads_in_l2=sizes.heads_in_l2, seqlen_q=sizes.seqlen_q, seqlen_k=sizes.seqlen_k,
        window=sizes.window)  # fmt: skip
    descs = KeptDescriptors(v=v_desc, p=p_desc, factors=factors_desc)
    gl.warp_specialize([
        (_load_partition, (descs, buffers, shape, CONFIG)),
        (_consumer_partition, (0, out, out_strides, buffers, shape, CONFIG)),
        (_consumer_partition, (1, out, out_strides, buffers, shape, CONFIG)),
    ], [4, 4], [_REGISTERS, _REGISTERS])  # fmt: skip


@gluon.jit
def _load_partition(descs, buffers, shape, CONFIG: gl.constexpr):
    """Load values, and P and factors of each consumer, by TMA, as slots become free."""
    first = gl.load(shape.schedule + 1)
    count = 0
    size: gl.constexpr = descs.v.block_type.nbytes
    kept: gl.constexpr = CONFIG.consumers * (descs.p.block_type.nbytes + descs.factors.block_type.nbytes)
    for i_tile in range(num_program_tiles(shape, CONFIG)):
        m, head, sequence = program_tile(i_tile, shape, CONFIG)
        batch = head // shape.num_heads
        h_kv = (head - batch * shape.num_heads) // shape.group_size
        low, left, right, high = key_blocks(m, sequence, CONFIG.rows * CONFIG.consumers, CONFIG)
        for i in range(low, high):
            row = (high - 1 - (i - low)) * CONFIG.block_n
            slot = count % CONFIG.kv_slots
            full = buffers.full.index(slot)
            mbarrier.wait(buffers.empty.index(slot), ((count // CONFIG.kv_slots) & 1) ^ 1)
            mbarrier.expect(full, size + kept)
            tma_load(descs.v, [batch, h_kv, row, 0], full, buffers.v.index(slot))
            for c in gl.static_range(CONFIG.consumers):
                tile = (first + count) * CONFIG.consumers + c
                own = slot * CONFIG.consumers + c
                tma_load(descs.p, [0, 0, tile * CONFIG.rows, 0], full, buffers.p.index(own))
                tma_load(descs.factors, [tile * CONFIG.rows], full, buffers.factors.index(own))
            count += 1


@gluon.jit
def _consumer_partition(consumer: gl.constexpr, out, out_strides, buffers, shape, CONFIG: gl.constexpr):
    """Compute this consumer's 64 rows of every tile."""
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.head_dim_v, 16])
    out_b, out_h, out_m = out_strides
    count = gl.to_tensor(0)
    for i_tile in range(num_program_tiles(shape, CONFIG)):
        tile, low, left, right, high, skipped = consumer_work(consumer, i_tile, shape, CONFIG)
        n = high - low
        if tile.row >= tile.sequence.seqlen_q:  # rows beyond the end
            skipped += n - 1
            n = gl.to_tensor(1)
        for _i in range(skipped):
            mbarrier.wait(buffers.full.index(count % CONFIG.kv_slots), (count // CONFIG.kv_slots) & 1)
            mbarrier.arrive(buffers.empty.index(count % CONFIG.kv_slots), count=1)
            count += 1
        acc = gl.zeros([CONFIG.rows, CONFIG.head_dim_v], gl.float32, out_layout)
        p, inverse = _kept_block(consumer, count, buffers, out_layout, CONFIG)
        for _i in range(n - 1):
            token = _begin_product(p, count, acc, buffers, CONFIG)
            next_p, factor = _kept_block(consumer, count + 1, buffers, out_layout, CONFIG)
            acc, p = warpgroup_mma_wait(0, deps=(token, p))
            mbarrier.arrive(buffers.empty.index(count % CONFIG.kv_slots), count=1)
            lanes = by_lane(acc)
            acc = rescale(lanes, _of_rows(factor, lanes)).reshape([CONFIG.rows, CONFIG.head_dim_v])
            acc = gl.convert_layout(acc, out_layout, assert_trivial=True)
            p = next_p
            count += 1
        token = _begin_product(p, count, acc, buffers, CONFIG)
        batch = tile.head // shape.num_heads
        h = tile.head - batch * shape.num_heads
        address = out + (batch.to(gl.int64) * out_b + h.to(gl.int64) * out_h) * 8
        acc, p = warpgroup_mma_wait(0, deps=(token, p))
        mbarrier.arrive(buffers.empty.index(count % CONFIG.kv_slots), count=1)
        count += 1
        acc = acc * gl.convert_layout(inverse, gl.SliceLayout(1, out_layout), assert_trivial=True)[:, None]
        store_tile(address, out_m, tile.row, shape.seqlen_q, acc.to(p.dtype), CONFIG.unpadded_head_dim)


@gluon.jit
def _begin_product(p, count, acc, buffers, CONFIG: gl.constexpr):
    """Begin the product of P with the count-th block's values."""
    values = buffers.v.index(count % CONFIG.kv_slots).reshape([CONFIG.block_n, CONFIG.head_dim_v])
    return warpgroup_mma(p, values, acc, is_async=True)


@gluon.jit
def _kept_block(consumer: gl.constexpr, count, buffers, out_layout: gl.constexpr, CONFIG: gl.constexpr):
    """Wait for the count-th block; return P as a product takes it, and its factors of the rows."""
    slot = count % CONFIG.kv_slots
    mbarrier.wait(buffers.full.index(slot), (count // CONFIG.kv_slots) & 1)
    own = slot * CONFIG.consumers + consumer
    p = buffers.p.index(own).reshape([CONFIG.rows, CONFIG.block_n]).load(_as_kept())
    p = p.reshape([4, 4, 8, 4, 2, 2, 2]).permute((1, 5, 2, 0, 4, 3, 6)).reshape([CONFIG.rows, CONFIG.block_n])
    p = gl.convert_layout(p, gl.DotOperandLayout(0, out_layout, 2), assert_trivial=True)
    return p, buffers.factors.index(own).load(gl.SliceLayout(1, out_layout))


@gluon.jit
def _of_rows(factor, lanes):
    """View factors of rows, to be broadcast, in the shape of `by_lane`."""
    layout: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, lanes.type.layout)))
    factor = gl.convert_layout(factor, layout, assert_trivial=True)
    return gl.expand_dims(gl.expand_dims(gl.expand_dims(factor, 1), 2), 3)


@gluon.constexpr_function
def _as_kept():
    """Return a layout of 64 x 64 numbers: eight neighbors a thread, one thread after another, four times."""
    registers = [[0, 1], [0, 2], [0, 4], [16, 0], [32, 0]]
    return gl.DistributedLinearLayout(
        registers, [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], [[4, 0], [8, 0]], [], [64, 64]
    )
