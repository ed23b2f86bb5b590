"""The assistant of the backward: a warpgroup that loads everything, and computes and adds dQ = dS K.

The consumers hand dS over in shared memory and go on. A block of dQ is two fragments (fragments.py), one after
the other, so that few registers are enough.
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

from kernels.attention.gluon_hopper.chain import await_the_kernel_before, let_the_next_begin
from kernels.attention.gluon_hopper.fragments import FRAGMENT
from kernels.attention.gluon_hopper.ring import await_count, convert_share, count_in, counter_of
from kernels.attention.gluon_hopper.shim import opaque_zero, reinterpret, tma_add, tma_load
from kernels.attention.gluon_hopper.slots import DO_EMPTY, Q_EMPTY, give_slot, wait_for_slot

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
    """Have the copy engine add a fragment to global memory; two buffers take turns."""
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
        await_the_kernel_before()  # lse, delta (AHEAD of the first units only) and the zeros of the ring are its
    let_the_next_begin()
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
        wait_for_slot(DS_FULL + stage)
        token = _fragment(0, ds_s.index(stage), k_s, BLOCK_N, HEAD_DIM)
        wait_for_slot(Q_EMPTY + slot)
        wait_for_slot(DO_EMPTY + slot)
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
    give_slot(ALL_READ)
    if AHEAD:
        mbarrier.wait(delta_written, 0)
    if CUT:  # of the last units, whose counters nobody reads
        tma.store_wait(0)
        await_the_kernel_before()  # what comes next waits for this kernel only
    else:
        count_in(counter_of(unit, fragments, places, of_unit))
