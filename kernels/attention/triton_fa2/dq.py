"""dq: a program owns BLOCK_M query rows of one head and walks over the keys they see (see backward.py)."""

import triton
import triton.language as tl

from kernels.attention.triton_fa2.chain import wait_for_turn
from kernels.attention.triton_fa2.factors import add_product, load_factor, load_rows, padded, products, store_rows
from kernels.attention.triton_fa2.forward import assign, key_ranges, visible
from kernels.attention.triton_fa2.softmax import load_logsumexp, weights
from kernels.attention.triton_fa2.split import share


@triton.jit
def _dq_of_keys(
    dq, q, dout, lse, delta, q_base, dout_base, k_base, v_base, kt_base, vt_base, q_m, do_m, k_n, v_n, start_m,
    positions, lo, hi, seqlen_q, seqlen_k, left, right, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr, COPIED: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add to dq what the keys lo .. hi contribute."""
    for start in tl.range(lo, hi, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = load_factor(k_base, start, k_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED, PRECISION)
        scores = products(
            q, k, q_base, start_m, q_m, seqlen_q, kt_base, start, seqlen_k,
            BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, COPIED, PRECISION,
        )  # fmt: skip
        keys = start + tl.arange(0, BLOCK_N)
        seen = visible(positions[:, None], keys[None, :], seqlen_k, left, right, HAS_LEFT, HAS_RIGHT)
        p = weights(scores, scale, lse, seen, 1, MASKED, COPIED or PRECISION == "pieces")
        v = k
        if not COPIED:
            v = load_factor(v_base, start, v_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED, PRECISION)
        dp = products(
            dout, v, dout_base, start_m, do_m, seqlen_q, vt_base, start, seqlen_k,
            BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, COPIED, PRECISION,
        )  # fmt: skip
        ds = p * (dp - delta[:, None])
        if COPIED:
            k = load_factor(k_base, start, k_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED, PRECISION)
        dq = add_product(dq, ds, k, COPIED, PRECISION)
    return dq


@triton.jit
def dq_tile(
    q, dout, lse, delta, q_base, dout_base, k_base, v_base, kt_base, vt_base, dq_base, q_m, do_m, k_n, v_n, dq_m,
    start_m, seqlen_q, seqlen_k, left, right, scale, softmax_scale, mine, pieces, piece,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, COPIED: tl.constexpr, PRECISION: tl.constexpr, SPLIT: tl.constexpr,
    ONE_LOOP: tl.constexpr,
):  # fmt: skip
    """Compute and write dq of the BLOCK_M query rows from start_m; if SPLIT, what one piece of the keys adds."""
    shift = seqlen_k - seqlen_q
    positions = start_m + tl.arange(0, BLOCK_M) + shift
    last = tl.minimum(start_m + BLOCK_M, seqlen_q) - 1 + shift
    lo, full_lo, full_hi, hi = key_ranges(start_m + shift, last, seqlen_k, left, right, BLOCK_N, HAS_LEFT, HAS_RIGHT)
    if SPLIT:
        lo, full_lo, full_hi, hi = share(lo, full_lo, full_hi, hi, mine, pieces, piece)
    dq = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    if ONE_LOOP:
        dq = _dq_of_keys(
            dq, q, dout, lse, delta, q_base, dout_base, k_base, v_base, kt_base, vt_base, q_m, do_m, k_n, v_n, start_m,
            positions, lo, hi, seqlen_q, seqlen_k, left, right, scale,
            BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, COPIED, PRECISION, True,
        )  # fmt: skip
    else:
        if HAS_LEFT:
            dq = _dq_of_keys(
                dq, q, dout, lse, delta, q_base, dout_base, k_base, v_base, kt_base, vt_base, q_m, do_m, k_n, v_n,
                start_m, positions, lo, tl.minimum(full_lo, hi), seqlen_q, seqlen_k, left, right, scale,
                BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, COPIED, PRECISION, True,
            )  # fmt: skip
        dq = _dq_of_keys(
            dq, q, dout, lse, delta, q_base, dout_base, k_base, v_base, kt_base, vt_base, q_m, do_m, k_n, v_n, start_m,
            positions, full_lo, full_hi, seqlen_q, seqlen_k, left, right, scale,
            BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, COPIED, PRECISION, False,
        )  # fmt: skip
        dq = _dq_of_keys(
            dq, q, dout, lse, delta, q_base, dout_base, k_base, v_base, kt_base, vt_base, q_m, do_m, k_n, v_n, start_m,
            positions, full_hi, hi, seqlen_q, seqlen_k, left, right, scale,
            BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, COPIED, PRECISION, True,
        )  # fmt: skip
    if (not SPLIT) or lo < hi:
        store_rows(dq_base, start_m, dq_m, seqlen_q, dq * softmax_scale, BLOCK_M, HEAD_DIM, BLOCK_D)


@triton.jit(
    do_not_specialize=["num_heads", "group", "total_heads", "heads_at_once", "seqlen_q", "seqlen_k", "left", "right"]
)
def dq_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, dout_ptr, dq_ptr, lse_ptr, delta_ptr, kt_ptr, vt_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, out_b, out_h, out_m, do_b, do_h, do_m, dq_b, dq_h, dq_m,
    num_heads, group, total_heads, heads_at_once, seqlen_q, seqlen_k, left, right, scale, softmax_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, COPIED: tl.constexpr, PRECISION: tl.constexpr,
    ONE_LOOP: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M query rows, and their delta (in pieces: prepare.py's)."""
    wait_for_turn(CHAINED)
    tiles = tl.cdiv(seqlen_q, BLOCK_M)
    tile, head = assign(tl.program_id(0), tiles, total_heads, heads_at_once)
    if HAS_RIGHT:
        tile = tiles - 1 - tile
    start_m = tile * BLOCK_M
    batch = tl.cast(head // num_heads, tl.int64)
    head_q = tl.cast(head % num_heads, tl.int64)
    head_k = head_q // group

    dout_base = dout_ptr + batch * do_b + head_q * do_h
    out_base = out_ptr + batch * out_b + head_q * out_h
    dout = load_factor(dout_base, start_m, do_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True, PRECISION)
    rows = start_m + tl.arange(0, BLOCK_M)
    row_offset = tl.cast(head, tl.int64) * seqlen_q
    if PRECISION == "pieces":
        delta = tl.load(delta_ptr + row_offset + rows, mask=rows < seqlen_q, other=0.0)
    else:
        out = load_rows(out_base, start_m, out_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
        tl.store(delta_ptr + row_offset + rows, delta, mask=rows < seqlen_q)
    lse = load_logsumexp(lse_ptr + row_offset + rows, rows < seqlen_q)
    q_base = q_ptr + batch * q_b + head_q * q_h
    q = load_factor(q_base, start_m, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True, PRECISION)
    copy = (batch * (num_heads // group) + head_k) * HEAD_DIM * padded(seqlen_k)
    dq_tile(
        q, dout, lse, delta, q_base, dout_base, k_ptr + batch * k_b + head_k * k_h,
        v_ptr + batch * v_b + head_k * v_h, kt_ptr + copy, vt_ptr + copy, dq_ptr + batch * dq_b + head_q * dq_h,
        q_m, do_m, k_n, v_n, dq_m, start_m,
        seqlen_q, seqlen_k, left, right, scale, softmax_scale, 0, 1, 0,
        BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, COPIED, PRECISION, False, ONE_LOOP,
    )  # fmt: skip
