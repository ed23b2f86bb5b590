"""The consumers of dK and dV where keys are wider than values: head_dim 192 and 128, training of latent attention.

A program of `dkv_kernel` (backward_two_kernels.py) owns 128 keys, 64 for each of two consumers, which walk over the
queries in blocks of 64: S^T, dP^T, dV and dK, the last two with register operands. P^T is packed before dP^T is there,
as a consumer's sums take 160 of the 240 registers of a thread. Nothing passes between the consumers, and one computes
exponentials while the tensor cores work for the other.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from .backward_common import opaque, store_dkv, unpacked
from .compat import opaque_zero
from .masks import hide_queries
from .pieces import add_products, piece_of, wait_for_pieces, zeros_of_pieces


@gluon.jit
def wide_keys_partition(consumer: gl.constexpr, dk_desc, dv_desc, buffers, bars, tile, shape, scales,
                        CONFIG: gl.constexpr):  # fmt: skip
    """Compute dK and dV of this consumer's half of the keys over all blocks of queries, and store them."""
    HALF: gl.constexpr = CONFIG.block_n // 2
    columns: gl.constexpr = CONFIG.head_dim // CONFIG.pieces
    k_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])
    v_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.head_dim_v, 16])
    dk = zeros_of_pieces(HALF, columns, k_layout, CONFIG.pieces)
    dv = gl.zeros([HALF, CONFIG.head_dim_v], gl.float32, v_layout)
    mbarrier.wait(bars.k_full, 0)
    mbarrier.wait(bars.v_full, 0)
    count = 0
    scale, edges = scales.log2, (tile.low, tile.left, tile.right, tile.high)
    for _member in range(shape.group_size):
        for PART in gl.static_range(3):
            if PART == 1 or (CONFIG.masked if PART == 0 else CONFIG.has_window):
                for m in range(edges[PART], edges[PART + 1]):
                    count, dk, dv = _step(
                        consumer, count, m, dk, dv, buffers, bars, tile.n0, shape, scale, CONFIG, PART != 1
                    )
    store_dkv(consumer, dk, (dv,), dk_desc, dv_desc, buffers, tile, scales.softmax, CONFIG)


@gluon.jit
def _step(consumer: gl.constexpr, count, m, dk, dv, buffers, bars, n0, shape, scale, CONFIG: gl.constexpr,
          MASKED: gl.constexpr):  # fmt: skip
    """Add one block of queries to dK and dV of this consumer's keys."""
    dtype: gl.constexpr = buffers.q.dtype
    HALF: gl.constexpr = CONFIG.block_n // 2
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.block_m, 16])
    rows: gl.constexpr = gl.SliceLayout(0, score_layout)
    k_operand: gl.constexpr = gl.DotOperandLayout(0, dk[0].type.layout, 2)
    v_operand: gl.constexpr = gl.DotOperandLayout(0, dv.type.layout, 2)
    zero = gl.zeros([HALF, CONFIG.block_m], gl.float32, score_layout)
    slot = count % CONFIG.slots
    phase = (count // CONFIG.slots) & 1
    z = opaque_zero()
    mbarrier.wait(bars.q_full.index(slot), phase)
    s_token = zero
    for piece in gl.static_range(CONFIG.pieces):
        k = piece_of(buffers.k, z, piece, CONFIG.pieces).slice(consumer * HALF, HALF, 0)
        q_t = piece_of(buffers.q, slot, piece, CONFIG.pieces).permute((1, 0))
        s_token = warpgroup_mma(k, q_t, s_token, use_acc=piece > 0, is_async=True)
    mbarrier.wait(bars.do_full.index(slot), phase)
    lse = buffers.lse.index(slot).load(rows)
    s_t = warpgroup_mma_wait(0, deps=(s_token,))
    p = gl.exp2(s_t * scale - lse[None, :])  # rows beyond the end hold lse = +inf
    if MASKED:
        diagonal = m * CONFIG.block_m + shape.seqlen_k - shape.seqlen_q
        # opaque: else the choice is made of 16-bit halves, one instruction a half
        p = opaque(hide_queries(p, 0.0, diagonal, n0 + consumer * HALF, shape, CONFIG))
    p16 = p.to(dtype)  # 5 to 8 % slower if kept in front of the wait
    do = buffers.do.index(slot).reshape([CONFIG.block_m, CONFIG.head_dim_v])
    v = buffers.v.index(z).reshape([CONFIG.block_n, CONFIG.head_dim_v]).slice(consumer * HALF, HALF, 0)
    dp_token = warpgroup_mma(v, do.permute((1, 0)), zero, use_acc=False, is_async=True)
    p_operand = gl.convert_layout(p16, v_operand, assert_trivial=True)
    dv_token = warpgroup_mma(p_operand, do, dv, is_async=True)
    delta = buffers.delta.index(slot).load(rows)
    dp = warpgroup_mma_wait(1, deps=(dp_token,))
    ds16 = (unpacked(p16) * (dp - delta[None, :])).to(dtype)  # p itself would be 32 registers more
    ds_operand = gl.convert_layout(ds16, k_operand, assert_trivial=True)
    dk = add_products(ds_operand, buffers.q, slot, dk, CONFIG.pieces)
    dv, p_operand = warpgroup_mma_wait(CONFIG.pieces, deps=(dv_token, p_operand))
    dk, ds_operand = wait_for_pieces(0, dk, ds_operand, CONFIG.pieces)
    mbarrier.arrive(bars.empty.index(slot), count=1)
    return count + 1, dk, dv
