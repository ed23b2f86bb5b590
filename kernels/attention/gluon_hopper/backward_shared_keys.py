"""The consumers of dK and dV at head_dims of 192 columns: both have all keys of the program, one has dV, the other dK.

A program of `dkv_kernel` (backward_two_kernels.py) owns 64 keys, and walks over the queries in blocks of 64. Each
consumer computes S^T and dP^T of 32 of the queries, with the keys as register operands, and leaves P^T and dS^T in
shared memory. Then one adds P^T dO to dV, the other dS^T Q to dK, of 96 registers each, while the next block's scores
are computed. Of the blocks of P^T and dS^T two are under way, so the consumers meet once a block.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .backward_common import unpacked
from .compat import keep_p_before_wait, opaque_zero, pair_sync
from .masks import hide_queries
from .pieces import add_products, piece_of, store_pieces, wait_for_pieces, zeros_of_pieces


@gluon.jit
def shared_keys_partition(consumer: gl.constexpr, desc, buffers, scores_s, bars, tile, shape, scales,
                          CONFIG: gl.constexpr):  # fmt: skip
    """Compute dV (consumer 0) or dK (1) of the program's keys over all blocks of queries, and store it."""
    PIECES: gl.constexpr = CONFIG.pieces
    columns: gl.constexpr = CONFIG.head_dim // PIECES
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])
    ROWS: gl.constexpr = CONFIG.block_m // 2
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, score_layout, 2)
    sums = zeros_of_pieces(CONFIG.block_n, columns, layout, PIECES)
    total = shape.group_size * (tile.high - tile.low)
    mbarrier.wait(bars.k_full, 0)
    keys = ()
    for piece in gl.static_range(PIECES):
        keys = keys + (piece_of(buffers.k, 0, piece, PIECES).load(operand),)  # type: ignore[assignment]
    mbarrier.wait(bars.v_full, 0)
    count = 0
    dtype: gl.constexpr = buffers.q.dtype
    s_token, dp_token, lse, delta = _scores(consumer, count, total, keys, buffers, bars, CONFIG)
    block = _probabilities(s_token, dp_token, lse, delta, scales.log2, dtype, CONFIG)
    edges = (tile.low, tile.left, tile.right, tile.high)
    for _member in range(shape.group_size):
        for PART in gl.static_range(3):
            if PART == 1 or (CONFIG.masked if PART == 0 else CONFIG.has_window):
                for m in range(edges[PART], edges[PART + 1]):
                    count, block, sums = _step(
                        consumer, count, m, total, block, sums, keys, buffers, scores_s, bars, tile.n0, shape,
                        scales.log2, CONFIG, PART != 1)  # fmt: skip
    pair_sync()  # keys and values have been read: their tiles take the gradients to TMA
    if consumer == 0:
        store_pieces(desc, tile.batch, tile.h_kv, tile.n0, buffers.v, 0, sums, 1.0, PIECES)
    else:
        store_pieces(desc, tile.batch, tile.h_kv, tile.n0, buffers.k, 0, sums, scales.softmax, PIECES)


@gluon.jit
def _step(consumer: gl.constexpr, count, m, total, block, sums, keys, buffers, scores_s, bars, n0, shape, scale,
          CONFIG: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """Add one block of queries (P, dP and delta) to dV or dK; meanwhile compute the next block's scores."""
    p, dp, delta = block
    dtype: gl.constexpr = buffers.q.dtype
    ROWS: gl.constexpr = CONFIG.block_m // 2
    PIECES: gl.constexpr = CONFIG.pieces
    slot = count % CONFIG.slots
    if MASKED:
        diagonal = m * CONFIG.block_m + consumer * ROWS + shape.seqlen_k - shape.seqlen_q
        p = hide_queries(p, 0.0, diagonal, n0, shape, CONFIG)
    stage = (count & 1) * 2
    scores_s.index(stage).slice(consumer * ROWS, ROWS, 1).store(p)
    ds = (unpacked(p) * (dp - delta[None, :])).to(dtype)
    scores_s.index(stage + 1).slice(consumer * ROWS, ROWS, 1).store(ds)
    fence_async_shared()
    pair_sync()  # both have stored, and read the block before
    if consumer == 0:
        sums = add_products(scores_s.index(stage), buffers.do, slot, sums, PIECES)
    else:
        sums = add_products(scores_s.index(stage + 1), buffers.q, slot, sums, PIECES)
    count += 1
    s_token, dp_token, lse, delta = _scores(consumer, count, total, keys, buffers, bars, CONFIG)
    sums, s_token = wait_for_pieces(2 * PIECES, sums, s_token, PIECES)
    mbarrier.arrive(bars.empty.index(slot), count=1)
    return count, _probabilities(s_token, dp_token, lse, delta, scale, dtype, CONFIG), sums


@gluon.jit
def _scores(consumer: gl.constexpr, count, total, keys, buffers, bars, CONFIG: gl.constexpr):
    """Begin S^T and dP^T of this consumer's queries of a block; if there is none, of what the slot holds, unused."""
    ROWS: gl.constexpr = CONFIG.block_m // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    slot = count % CONFIG.slots
    phase = (count // CONFIG.slots) & 1
    z = opaque_zero()
    zero = gl.zeros([CONFIG.block_n, ROWS], gl.float32, layout)
    if count < total:
        mbarrier.wait(bars.q_full.index(slot), phase)
    s_token = zero
    for piece in gl.static_range(CONFIG.pieces):
        q_t = piece_of(buffers.q, slot, piece, CONFIG.pieces).slice(consumer * ROWS, ROWS, 0).permute((1, 0))
        s_token = warpgroup_mma(keys[piece], q_t, s_token, use_acc=piece > 0, is_async=True)
    if count < total:
        mbarrier.wait(bars.do_full.index(slot), phase)
    lse = buffers.lse.index(slot).slice(consumer * ROWS, ROWS, 0).load(gl.SliceLayout(0, layout))
    delta = buffers.delta.index(slot).slice(consumer * ROWS, ROWS, 0).load(gl.SliceLayout(0, layout))
    dp_token = zero
    for piece in gl.static_range(CONFIG.pieces):
        do_t = piece_of(buffers.do, slot, piece, CONFIG.pieces).slice(consumer * ROWS, ROWS, 0).permute((1, 0))
        v = piece_of(buffers.v, z, piece, CONFIG.pieces)
        dp_token = warpgroup_mma(v, do_t, dp_token, use_acc=piece > 0, is_async=True)
    return s_token, dp_token, lse, delta


@gluon.jit
def _probabilities(s_token, dp_token, lse, delta, scale, DTYPE: gl.constexpr, CONFIG: gl.constexpr):
    """Compute P^T in 16 bits, unmasked, while dP^T runs, and wait for dP^T."""
    s_t = warpgroup_mma_wait(CONFIG.pieces, deps=(s_token,))
    p = keep_p_before_wait(gl.exp2(s_t * scale - lse[None, :]).to(DTYPE))  # rows beyond the end hold lse = +inf
    dp = warpgroup_mma_wait(0, deps=(dp_token,))
    return p, dp, delta
