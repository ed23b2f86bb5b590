"""Shared parts of the backward kernels: named tuples, delta, conversions of P, fragments of dQ, and small kernels.

dQ of a block of queries is added up as two fragments of 64 x 64: of blocks of 64 queries (head_dim 128) half of the
columns each, of blocks of 128 (head_dim 64) half of the rows.

`prepare_kernel` comes before the kernel that adds up dQ, `finish_kernel` after it, and `merge_kernel` adds up dK and dV
of tiles of keys that were split by queries (backward_launch.py). The first two take the heads from the last to the
first, so that each kernel begins with what the one before it has left in the L2.
"""

from collections import namedtuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .compat import pair_sync, reinterpret, tma_add, tma_store
from .pieces import columns_of, piece_of

FRAGMENT = gl.constexpr(64)  # rows and columns of a fragment of dQ


# Descriptors of the tensors that a kernel that owns keys loads.
BackwardDescriptors = namedtuple("BackwardDescriptors", "q k v do lse delta")
# Shared memory of a program that owns keys: keys and values, and slots for blocks of queries, dout, lse and delta;
# queries and keys are in pieces (pieces.py).
BackwardBuffers = namedtuple("BackwardBuffers", "q k v do lse delta")
# Sizes that the partitions of a kernel that owns keys need. `group_size`: query heads of a key head; `n_m`: blocks of
# queries; `padded_q`: n_m x block_m.
BackwardShape = namedtuple("BackwardShape", "num_heads group_size seqlen_q seqlen_k padded_q n_m window")
# Factors of the scores. `log2`: softmax_scale x log2(e), for powers of two; `softmax`: softmax_scale.
Scales = namedtuple("Scales", "log2 softmax")
# How many key heads come one by one, and the size of the groups of key heads after them.
TileOrder = namedtuple("TileOrder", "heads_in_order heads_per_group")
# Sizes as BackwardShape has them, the lengths those of a tile's sequence, and where that begins. `n_m`: blocks of
# queries of all sequences; `first_m`: the sequence's first block of queries.
PackedBackwardShape = namedtuple(
    "PackedBackwardShape", "num_heads group_size seqlen_q seqlen_k padded_q n_m window first_q first_k first_m"
)
# A tile of keys and the blocks of queries that see it; those in [left, right) need no mask. `n0`: the first key.
KeyTile = namedtuple("KeyTile", "batch h_kv n0 low left right high")


@gluon.constexpr_function
def _whole_sectors(rows, head_dim):
    """Return a layout of eight numbers a load; a warp reads 64 bytes of eight rows, no two of which share a bank."""
    columns = [[0, 1 << bit] for bit in range(head_dim.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        reg_bases=[*columns[:3], *columns[5:], [8, 0]],
        lane_bases=[*columns[3:5], [4, 0], [1, 0], [2, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[rows, head_dim],
    )


@gluon.jit
def load_out(out, first, seqlen_q, out_m, CONFIG: gl.constexpr):
    """Load block_m rows from `first` on, zeros beyond their ends; `out_m`, the stride of rows, is in eights."""
    WIDTH: gl.constexpr = CONFIG.head_dim_v // CONFIG.pieces_v
    layout: gl.constexpr = _whole_sectors(CONFIG.block_m, WIDTH)
    rows = first + gl.arange(0, CONFIG.block_m, gl.SliceLayout(1, layout))
    found = ()
    for piece in gl.static_range(CONFIG.pieces_v):
        columns = gl.arange(0, WIDTH, gl.SliceLayout(0, layout)) + piece * WIDTH
        inside = (rows < seqlen_q)[:, None] & (columns < CONFIG.unpadded_head_dim)[None, :]
        place = out + (rows.to(gl.int64) * out_m * 8)[:, None] + columns[None, :]
        found = found + (gl.load(place, mask=inside, other=0.0),)
    return found


@gluon.jit
def delta_of(out, dout, PIECES: gl.constexpr):
    """Return rowsum(dout x out) (FlashAttention-2, algorithm 2, line 4); pieces of `dout` are in shared memory."""
    first = dout[0].load(out[0].type.layout)
    products = out[0].to(gl.float32) * first.to(gl.float32)
    for piece in gl.static_range(1, PIECES):
        products += out[piece].to(gl.float32) * dout[piece].load(out[piece].type.layout).to(gl.float32)
    return gl.sum(products, 1)


@gluon.jit
def store_rows(padded, base, rows, values, padded_q):
    """Store a number for each of a head's rows, for the kernel behind this one."""
    gl.store(padded + base + rows, values, mask=rows < padded_q)


@gluon.jit
def backward_buffers(q_desc, k_desc, v_desc, do_desc, lse_desc, CONFIG: gl.constexpr):
    """Allocate the BackwardBuffers of a program."""
    dtype: gl.constexpr = q_desc.dtype
    slots: gl.constexpr = CONFIG.slots
    pieces: gl.constexpr = CONFIG.pieces
    columns: gl.constexpr = CONFIG.head_dim // pieces
    q_s = gl.allocate_shared_memory(dtype, [slots * pieces, 1, 1, CONFIG.block_m, columns], q_desc.layout)
    pieces_v: gl.constexpr = CONFIG.pieces_v
    columns_v: gl.constexpr = CONFIG.head_dim_v // pieces_v
    do_s = gl.allocate_shared_memory(dtype, [slots * pieces_v, 1, 1, CONFIG.block_m, columns_v], do_desc.layout)
    k_s = gl.allocate_shared_memory(dtype, [pieces, 1, 1, CONFIG.block_n, columns], k_desc.layout)
    v_s = gl.allocate_shared_memory(dtype, [pieces_v, 1, 1, CONFIG.block_n, columns_v], v_desc.layout)
    lse_s = gl.allocate_shared_memory(gl.float32, [slots, CONFIG.block_m], lse_desc.layout)
    delta_s = gl.allocate_shared_memory(gl.float32, [slots, CONFIG.block_m], lse_desc.layout)
    return BackwardBuffers(q=q_s, k=k_s, v=v_s, do=do_s, lse=lse_s, delta=delta_s)


@gluon.jit
def store_dkv(consumer: gl.constexpr, dk, dv, dk_desc, dv_desc, buffers, tile, softmax_scale, CONFIG: gl.constexpr):
    """Store dK, in pieces (pieces.py), and dV of a consumer's half of the keys by TMA, through the tiles of both.

    dv is a tuple of sums over columns, and so is dk where it is in no pieces.
    """
    dtype: gl.constexpr = buffers.q.dtype
    HALF: gl.constexpr = CONFIG.block_n // 2
    columns: gl.constexpr = CONFIG.head_dim // CONFIG.pieces
    v_s = buffers.v.index(0).reshape([CONFIG.block_n, CONFIG.head_dim_v]).slice(consumer * HALF, HALF, 0)
    for piece in gl.static_range(CONFIG.pieces):
        k_s = piece_of(buffers.k, 0, piece, CONFIG.pieces).slice(consumer * HALF, HALF, 0)
        if CONFIG.sums == 1:
            columns_of(k_s, 0, dk).store((dk[piece] * softmax_scale).to(dtype))
    if CONFIG.sums == 1:
        columns_of(v_s, 0, dv).store(dv[0].to(dtype))
    else:
        for piece in gl.static_range(CONFIG.sums):
            columns_of(k_s, piece, dk).store((dk[piece] * softmax_scale).to(dtype))
            columns_of(v_s, piece, dv).store(dv[piece].to(dtype))
    fence_async_shared()
    pair_sync()
    if consumer == 0:
        for piece in gl.static_range(CONFIG.pieces):
            tma_store(dk_desc, [tile.batch, tile.h_kv, tile.n0, piece * columns], buffers.k.index(piece))
    else:
        tma_store(dv_desc, [tile.batch, tile.h_kv, tile.n0, 0], buffers.v.index(0))
    tma.store_wait(0)


@gluon.jit
def opaque(x):
    """Return float32 numbers unchanged, hiding from the compiler where they come from."""
    return gl.inline_asm_elementwise("", "=r,0", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def unpacked(x):
    """Convert a tile of 16-bit numbers to float32, with one instruction a number."""
    if x.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], dtype=gl.float32, is_pure=True, pack=2
        )
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        return x.to(gl.float32)


_TOGETHER = 8  # scores of a thread that one block of instructions takes


def _instructions(dtype: str) -> str:
    """Return PTX: powers into registers of the block's own, then pairs of them into the results."""
    half = _TOGETHER // 2
    names = ", ".join(f"t{i}" for i in range(_TOGETHER))
    powers = " ".join(f"ex2.approx.ftz.f32 t{i}, ${half + i};" for i in range(_TOGETHER))
    pairs = " ".join(f"cvt.rn.{dtype}x2.f32 ${i}, t{2 * i + 1}, t{2 * i};" for i in range(half))
    return f"{{ .reg .f32 {names}; {powers} {pairs} }}"


_BFLOAT16 = gl.constexpr(_instructions("bf16"))
_FLOAT16 = gl.constexpr(_instructions("f16"))
_OPERANDS = gl.constexpr(",".join(["=r"] * (_TOGETHER // 2) + ["f"] * _TOGETHER))
_PACK = gl.constexpr(_TOGETHER)


@gluon.jit
def packed_powers(x, dtype: gl.constexpr):
    """Compute 2^x of a tile of float32 numbers, packed as bfloat16 or float16 at once, which keeps registers free."""
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(_BFLOAT16, _OPERANDS, [x], dtype=gl.bfloat16, is_pure=False, pack=_PACK)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        return gl.inline_asm_elementwise(_FLOAT16, _OPERANDS, [x], dtype=gl.float16, is_pure=False, pack=_PACK)


@gluon.constexpr_function
def _fragment_layout(width):
    # In the order of the registers that hold a fragment: 16-byte stores, no bank conflicts. finish_kernel undoes it.
    rows = [[0, 1], [8, 0], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [16, 0], [32, 0]]
    return gl.SharedLinearLayout(rows + [[0, column] for column in (8, 16, 32) if column < width])


@gluon.jit
def fragment_buffers():
    """Allocate two buffers of a fragment each."""
    layout: gl.constexpr = _fragment_layout(FRAGMENT)
    first = gl.allocate_shared_memory(gl.float32, [FRAGMENT, FRAGMENT], layout)
    second = gl.allocate_shared_memory(gl.float32, [FRAGMENT, FRAGMENT], layout)
    return first, second


@gluon.constexpr_function
def fragment_width(config, part):
    """Return how many columns of a fragment are computed: those in use, of a row's two those of the second."""
    return config.columns - 64 if config.sums == 2 and part == 1 else min(config.columns, 64)


@gluon.jit
def add_fragment(dq, number, dq_desc, dq_s, CONFIG: gl.constexpr, PENDING: gl.constexpr = 0,
                 WIDTH: gl.constexpr = FRAGMENT):  # fmt: skip
    """Add a fragment to global memory by TMA; PENDING stores before it are from other buffers."""
    tma.store_wait(PENDING)  # the fragment before has left its buffer
    if WIDTH < FRAGMENT:  # columns that are not in use are out of bounds
        dq_s = reinterpret(dq_s, gl.float32, [FRAGMENT, WIDTH], _fragment_layout(WIDTH))
    dq_s.store(dq)
    fence_async_shared()
    ACROSS: gl.constexpr = CONFIG.head_dim // FRAGMENT
    place = [number // ACROSS, number % ACROSS * 16, 0]
    tma_add(dq_desc, place, reinterpret(dq_s, gl.float32, [1, 16, 256], dq_desc.layout))


@triton.jit(do_not_specialize=["first_tile", "tiles", "heads", "seqlen_k"])
def merge_kernel(partial_dkv, firsts, dk, dv, strides, first_tile, tiles, heads, seqlen_k, softmax_scale,
                 ROWS: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
                 PDL: tl.constexpr = False):  # fmt: skip
    """Add up ROWS rows of dK and dV of one tile; the splits of tile i are `firsts[i]` to `firsts[i + 1]`.

    A head has `tiles` tiles; `strides` are those of dk and of dv. PDL: the previous kernel may not have ended, and the
    next may begin.
    """
    dk_b, dk_h, dk_n = strides[0]
    dv_b, dv_h, dv_n = strides[1]
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    number = tl.program_id(0)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_D)
    of_k = tl.zeros([ROWS, BLOCK_D], tl.float32)
    of_v = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for split in range(tl.load(firsts + number).to(tl.int64), tl.load(firsts + number + 1).to(tl.int64)):
        place = partial_dkv + split * (2 * BLOCK_N * BLOCK_D) + rows[:, None] * BLOCK_D + columns[None, :]
        of_k += tl.load(place)
        of_v += tl.load(place + BLOCK_N * BLOCK_D)
    number += first_tile
    head = number // tiles
    batch = (head // heads).to(tl.int64)
    h = head % heads
    n = ((number - head * tiles) * BLOCK_N + rows)[:, None]
    mask = (n < seqlen_k) & (columns < HEAD_DIM)[None, :]
    place = dk + batch * dk_b + h * dk_h + n.to(tl.int64) * dk_n + columns[None, :]
    tl.store(place, (of_k * softmax_scale).to(dk.dtype.element_ty), mask)
    place = dv + batch * dv_b + h * dv_h + n.to(tl.int64) * dv_n + columns[None, :]
    tl.store(place, of_v.to(dv.dtype.element_ty), mask)


_AT_ONCE = tl.constexpr(4)  # parts that a program asks for at once


@triton.jit(do_not_specialize=["seqlen_k", "heads"])
def sum_parts_kernel(parts_k, parts_v, dk, dv, dk_strides, dv_strides, seqlen_k, heads, SPLITS: tl.constexpr,
                     ROWS: tl.constexpr, WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
                     PDL: tl.constexpr = False):  # fmt: skip
    """Add up ROWS rows of dK and dV over the SPLITS parts of a group of query heads, in their order.

    `parts_k` and `parts_v` are (batch, heads x SPLITS, seqlen_k, WIDTH), contiguous. PDL: the kernel before this one
    may not have ended.
    """
    dk_b, dk_h, dk_n = dk_strides
    dv_b, dv_h, dv_n = dv_strides
    if PDL:
        gdc_wait()
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_D)
    head = tl.program_id(1).to(tl.int64)
    mask = (n < seqlen_k)[:, None] & (columns < HEAD_DIM)[None, :]
    place = head * SPLITS * seqlen_k * WIDTH + n.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    of_k = tl.zeros([ROWS, BLOCK_D], tl.float32)
    of_v = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for _ in tl.range(0, SPLITS, loop_unroll_factor=_AT_ONCE):
        of_k += tl.load(parts_k + place, mask, 0.0).to(tl.float32)
        of_v += tl.load(parts_v + place, mask, 0.0).to(tl.float32)
        place += seqlen_k * WIDTH
    batch = head // heads
    h = head - batch * heads
    n = n.to(tl.int64)[:, None]
    tl.store(dk + batch * dk_b + h * dk_h + n * dk_n + columns[None, :], of_k.to(dk.dtype.element_ty), mask)
    tl.store(dv + batch * dv_b + h * dv_h + n * dv_n + columns[None, :], of_v.to(dv.dtype.element_ty), mask)


_COPIED = tl.constexpr(256)  # rows of lse that a program copies at a time


@triton.jit(do_not_specialize=["num_heads", "seqlen_q", "padded_q", "n_rows"])
def prepare_kernel(out, dout, lse, lse_padded, delta_padded, fragments, strides, num_heads, seqlen_q, padded_q, n_rows,
                   zeroed, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, ZEROS: tl.constexpr,
                   PDL: tl.constexpr = False):  # fmt: skip
    """Compute delta and copy lse, both padded to whole tiles by rows for which P is 0 (lse = +inf, delta = 0).

    `strides` are those of out and of dout. delta is computed for as many heads as there are programs, lse is copied for
    all heads, which have `n_rows` padded rows. `zeroed`: how many numbers dQ's fragments have, and how many numbers are
    set to zero in all, ZEROS by each program. Columns of fragments beyond head_dim are left as they are. PDL: the next
    kernel may begin before this one has ended.
    """
    out_b, out_h, out_m = strides[0]
    do_b, do_h, do_m = strides[1]
    n_fragments, n_zeros = zeroed
    if PDL:
        gdc_launch_dependents()
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    n_tiles = padded_q // ROWS
    head = (tile // n_tiles).to(tl.int64)
    batch = head // num_heads
    h = head - batch * num_heads
    rows = tile % n_tiles * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_D)
    inside = rows < seqlen_q
    mask = inside[:, None] & (columns < HEAD_DIM)[None, :]
    place = out + batch * out_b + h * out_h + rows[:, None].to(tl.int64) * out_m + columns[None, :]
    o = tl.load(place, mask, 0.0, eviction_policy="evict_first")
    do = tl.load(dout + batch * do_b + h * do_h + rows[:, None].to(tl.int64) * do_m + columns[None, :], mask, 0.0)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(delta_padded + head * padded_q + rows, delta, rows < padded_q)
    for first in range(tile * _COPIED, n_rows, tl.num_programs(0) * _COPIED):
        line = first + tl.arange(0, _COPIED)
        row = line % padded_q
        own = (line // padded_q).to(tl.int64) * seqlen_q + row
        value = tl.load(lse + own, (row < seqlen_q) & (line < n_rows), float("inf"))
        tl.store(lse_padded + line, value, line < n_rows)
    if ZEROS:
        number = tile.to(tl.int64) * ZEROS + tl.arange(0, ZEROS)
        wanted = number < n_zeros
        if HEAD_DIM < BLOCK_D:  # the fragments of a block of queries are BLOCK_D columns
            PLACE: tl.constexpr = BLOCK_D * FRAGMENT
            OWN: tl.constexpr = (HEAD_DIM + 7) // 8 * 8 * FRAGMENT
            wanted &= (number % PLACE < OWN) | (number >= n_fragments)
        tl.store(fragments + number, tl.zeros([ZEROS], tl.float32), wanted)


@triton.jit(do_not_specialize=["num_heads", "seqlen_q", "n_m", "first_head", "ring_heads"])
def finish_kernel(fragments, dq, strides, num_heads, seqlen_q, n_m, softmax_scale, first_head, ring_heads,
                  BLOCK_M: tl.constexpr, FRAGMENTS: tl.constexpr, HEAD_DIM: tl.constexpr, PDL: tl.constexpr = False,
                  GROUP: tl.constexpr = 0, PART: tl.constexpr = 0):  # fmt: skip
    """Convert a 64 x 64 fragment of dQ from the order of the registers that held it to rows and columns.

    The heads are those from `first_head` on; `ring_heads` heads have room among the fragments. PDL: the kernel before
    this one may not have ended. With GROUP, heads are counted as if all parts of a group of so many had PART heads.
    """
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    head = (first_head + number // (n_m * FRAGMENTS)).to(tl.int64)
    fragment = number % (n_m * FRAGMENTS)
    own_head, end = head, seqlen_q
    if GROUP > 0:
        SPLITS: tl.constexpr = (GROUP + PART - 1) // PART
        group = head // (SPLITS * PART)
        member = head - group * (SPLITS * PART)
        own_head = group * GROUP + member
        end = tl.where(member < GROUP, seqlen_q, 0)
    batch = own_head // num_heads
    h = own_head - batch * num_heads
    if PDL:
        gdc_wait()
    first = (fragment % FRAGMENTS) * 64 if BLOCK_M == 64 else 0  # column
    own = tl.arange(0, 4096) < (HEAD_DIM - first + 7) // 8 * 512
    place = fragments + (head % ring_heads * n_m * FRAGMENTS + fragment) * 4096 + tl.arange(0, 4096)
    values = tl.load(place, own, 0.0)
    # bits of the offset, highest first: c5 c4 c3 | r5 r4 | r2 r1 r0 | c2 c1 | r3 | c0
    values = tl.reshape(values, [8, 4, 8, 4, 2, 2])
    values = tl.reshape(tl.permute(values, [1, 4, 2, 0, 3, 5]), [64, 64])
    m = fragment // FRAGMENTS
    part = (fragment % FRAGMENTS) * 64
    if BLOCK_M == 64:  # the fragments of a tile are side by side
        rows = m * BLOCK_M + tl.arange(0, 64)
        columns = part + tl.arange(0, 64)
    else:  # one below the other
        rows = m * BLOCK_M + part + tl.arange(0, 64)
        columns = tl.arange(0, 64)
    mask = (rows < end)[:, None] & (columns < HEAD_DIM)[None, :]
    dq_b, dq_h, dq_m = strides
    place = dq + batch * dq_b + h * dq_h + rows[:, None].to(tl.int64) * dq_m + columns[None, :]
    tl.store(place, (values * softmax_scale).to(dq.dtype.element_ty), mask)
