"""The backward in two parts (FlashAttention-2, arXiv:2307.08691, algorithm 2, split): dq by queries, dk and dv by keys.

Two launches for large problems: the dq kernel runs first and leaves delta = rowsum(dout * out) for the other. One
launch for small ones: a program then does the i-th tile of both, which under a causal mask gives every program the
same amount of work. No atomics: the gradients are the same bits on every run.

`scale` is softmax_scale x log2(e). qt, kt, vt and dot are the transposed copies of prepare.py (if COPIED).
"""

import triton
import triton.language as tl

from kernels.attention.triton_fa2.chain import wait_for_turn
from kernels.attention.triton_fa2.dkdv import dkdv_tile
from kernels.attention.triton_fa2.dq import dq_tile
from kernels.attention.triton_fa2.factors import load_factor, padded
from kernels.attention.triton_fa2.forward import assign
from kernels.attention.triton_fa2.softmax import load_logsumexp


@triton.jit(
    do_not_specialize=[
        "num_heads",
        "group",
        "total_heads",
        "heads_at_once",
        "seqlen_q",
        "seqlen_k",
        "left",
        "right",
        "pieces",
        "piece",
    ]
)
def both_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, dq_ptr, dk_ptr, dv_ptr, lse_ptr, delta_ptr, qt_ptr, kt_ptr, vt_ptr, dot_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, do_b, do_h, do_m, dq_b, dq_h, dq_m, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    num_heads, group, total_heads, heads_at_once, seqlen_q, seqlen_k, left, right, pieces, piece, scale, softmax_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, COPIED: tl.constexpr, PRECISION: tl.constexpr, SPLIT: tl.constexpr,
    ONE_LOOP: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_M keys, then dq of as many query rows, streaming by BLOCK_N; needs group 1.

    If SPLIT, what one piece of the query rows adds to dk and dv, and one piece of the keys to dq (split.py): under a
    causal mask, those are two for few programs.
    """
    wait_for_turn(CHAINED)
    tiles = tl.cdiv(tl.maximum(seqlen_q, seqlen_k), BLOCK_M)
    program = tl.program_id(0)
    mine = 0
    if SPLIT:
        mine = program % pieces
        program = program // pieces
    tile, head = assign(program, tiles, total_heads, heads_at_once)
    if SPLIT:
        slot = tl.cast(mine, tl.int64) * total_heads * HEAD_DIM
        dq_ptr += slot * seqlen_q
        dk_ptr += slot * seqlen_k
        dv_ptr += slot * seqlen_k
    start = tile * BLOCK_M
    batch = tl.cast(head // num_heads, tl.int64)
    head_q = tl.cast(head % num_heads, tl.int64)
    row_offset = tl.cast(head, tl.int64) * seqlen_q
    qt_base = tl.cast(head, tl.int64) * HEAD_DIM * padded(seqlen_q)
    kt_base = tl.cast(head, tl.int64) * HEAD_DIM * padded(seqlen_k)
    q_base = q_ptr + batch * q_b + head_q * q_h
    k_base = k_ptr + batch * k_b + head_q * k_h
    v_base = v_ptr + batch * v_b + head_q * v_h
    dout_base = dout_ptr + batch * do_b + head_q * do_h
    if start < seqlen_k:
        dkdv_tile(
            k_base, v_base, q_base, dout_base, lse_ptr + row_offset, delta_ptr + row_offset,
            qt_ptr + qt_base, dot_ptr + qt_base, dk_ptr + batch * dk_b + head_q * dk_h,
            dv_ptr + batch * dv_b + head_q * dv_h, k_n, v_n, q_h, q_m, do_h, do_m, dk_n, dv_n, start, group,
            seqlen_q, seqlen_k, left, right, scale, softmax_scale, mine, pieces, piece,
            BLOCK_N, BLOCK_M, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, False, COPIED, PRECISION, SPLIT, ONE_LOOP,
        )  # fmt: skip
    if start < seqlen_q:
        rows = start + tl.arange(0, BLOCK_M)
        lse = load_logsumexp(lse_ptr + row_offset + rows, rows < seqlen_q)
        delta = tl.load(delta_ptr + row_offset + rows, mask=rows < seqlen_q, other=0.0)
        q = load_factor(q_base, start, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True, PRECISION)
        dout = load_factor(dout_base, start, do_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True, PRECISION)
        dq_tile(
            q, dout, lse, delta, q_base, dout_base, k_base, v_base, kt_ptr + kt_base, vt_ptr + kt_base,
            dq_ptr + batch * dq_b + head_q * dq_h, q_m, do_m, k_n, v_n, dq_m, start, seqlen_q, seqlen_k, left, right,
            scale, softmax_scale, mine, pieces, piece,
            BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, COPIED, PRECISION, SPLIT, ONE_LOOP,
        )  # fmt: skip
