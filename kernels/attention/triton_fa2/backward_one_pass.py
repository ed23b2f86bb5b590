"""The backward in one walk, for few rows: 5 products a block instead of the 7 of backward.py's two walks.

A program owns BLOCK_N keys of one head and walks over one split of the query rows that see them (split.py). It adds up
dk and dv of that split, and writes what its keys add to dq to a slot of the key tile; combine.py sums both. No atomics.
The slots cost as much memory as seqlen_k / BLOCK_N copies of dq, so this is for rows that are few.
"""

import triton
import triton.language as tl

from .backward import query_ranges
from .forward import visible
from .pdl import wait_for_previous_kernel
from .split import share
from .tile_ops import (
    add_product,
    load_logsumexp,
    load_rows,
    padded,
    pinned,
    probabilities,
    products,
    store_rows,
)


@triton.jit
def _walk_rows(
    dk, dv, k, v, k_base, v_base, q_base, dout_base, lse_base, delta_base, qt_base, dot_base, dq_base,
    k_n, v_n, q_m, do_m, start_n, lo, hi, seqlen_q, seqlen_k, left, right, scale, softmax_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, COPIED: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Add to dk and dv what the query rows lo .. hi contribute, and write their part of dq; as in backward.py."""
    keys = start_n + tl.arange(0, BLOCK_N)
    for start in tl.range(lo, hi, BLOCK_M):
        start = tl.multiple_of(start, BLOCK_M)
        rows = start + tl.arange(0, BLOCK_M)
        q = k
        if not COPIED:
            q = load_rows(q_base, start, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        scores = products(
            k, q, k_base, start_n, k_n, seqlen_k, qt_base, start, seqlen_q,
            BLOCK_N, BLOCK_M, HEAD_DIM, BLOCK_D, COPIED, PRECISION, True,
        )  # fmt: skip
        positions = rows + (seqlen_k - seqlen_q)
        seen = visible(positions[None, :], keys[:, None], seqlen_k, left, right, HAS_LEFT, HAS_RIGHT)
        lse = load_logsumexp(lse_base + rows, rows < seqlen_q)
        delta = tl.load(delta_base + rows, mask=rows < seqlen_q, other=0.0)
        p = probabilities(scores, scale, lse, seen, 0, MASKED, COPIED)
        dout = load_rows(dout_base, start, do_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        dv = add_product(dv, p, dout, COPIED, PRECISION)
        dp = products(
            v, dout, v_base, start_n, v_n, seqlen_k, dot_base, start, seqlen_q,
            BLOCK_N, BLOCK_M, HEAD_DIM, BLOCK_D, COPIED, PRECISION,
        )  # fmt: skip
        ds = p * (dp - delta[None, :])
        if COPIED:
            q = load_rows(q_base, start, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        dk = add_product(dk, ds, q, COPIED, PRECISION)
        if COPIED:
            k = load_rows(k_base, start_n, k_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, True)
        dq = pinned(tl.dot(tl.trans(ds.to(k.dtype)), k, input_precision=PRECISION), COPIED)
        store_rows(dq_base, start, HEAD_DIM, seqlen_q, dq * softmax_scale, BLOCK_M, HEAD_DIM, BLOCK_D)
    return dk, dv


@triton.jit(
    do_not_specialize=[
        "num_heads",
        "total_heads",
        "seqlen_q",
        "seqlen_k",
        "left",
        "right",
        "splits",
        "split_len",
        "slots",
    ]
)
def one_pass_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, dq_parts_ptr, dk_parts_ptr, dv_parts_ptr, lse_ptr, delta_ptr, qt_ptr, dot_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, do_b, do_h, do_m,
    num_heads, total_heads, seqlen_q, seqlen_k, left, right, splits, split_len, slots, scale, softmax_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, COPIED: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Compute one split of dk and dv of BLOCK_N keys, and the part of dq of these keys and its rows; needs group 1."""
    wait_for_previous_kernel(PDL)
    own_split = tl.program_id(0) % splits
    tile = tl.program_id(0) // splits // total_heads
    head = tl.cast(tl.program_id(0) // splits % total_heads, tl.int64)
    start_n = tile * BLOCK_N
    lo, full_lo, full_hi, hi = query_ranges(
        start_n, seqlen_q, seqlen_k, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT
    )
    lo, full_lo, full_hi, hi = share(lo, full_lo, full_hi, hi, own_split, splits, split_len)
    if lo >= hi:
        return
    batch = head // num_heads
    head_in_batch = head % num_heads
    k_base = k_ptr + batch * k_b + head_in_batch * k_h
    v_base = v_ptr + batch * v_b + head_in_batch * v_h
    q_base = q_ptr + batch * q_b + head_in_batch * q_h
    dout_base = dout_ptr + batch * do_b + head_in_batch * do_h
    lse_base = lse_ptr + head * seqlen_q
    delta_base = delta_ptr + head * seqlen_q
    qt_base = qt_ptr + head * HEAD_DIM * padded(seqlen_q)
    dot_base = dot_ptr + head * HEAD_DIM * padded(seqlen_q)
    dq_base = dq_parts_ptr + (tl.cast(tile % slots, tl.int64) * total_heads + head) * seqlen_q * HEAD_DIM
    k = load_rows(k_base, start_n, k_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, True)
    v = load_rows(v_base, start_n, v_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, True)
    dk = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    if HAS_RIGHT:
        dk, dv = _walk_rows(
            dk, dv, k, v, k_base, v_base, q_base, dout_base, lse_base, delta_base, qt_base, dot_base, dq_base,
            k_n, v_n, q_m, do_m, start_n, lo, tl.minimum(full_lo, hi), seqlen_q, seqlen_k, left, right, scale,
            softmax_scale, BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, COPIED, PRECISION, True,
        )  # fmt: skip
    dk, dv = _walk_rows(
        dk, dv, k, v, k_base, v_base, q_base, dout_base, lse_base, delta_base, qt_base, dot_base, dq_base,
        k_n, v_n, q_m, do_m, start_n, full_lo, full_hi, seqlen_q, seqlen_k, left, right, scale,
        softmax_scale, BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, COPIED, PRECISION, False,
    )  # fmt: skip
    if HAS_LEFT:
        dk, dv = _walk_rows(
            dk, dv, k, v, k_base, v_base, q_base, dout_base, lse_base, delta_base, qt_base, dot_base, dq_base,
            k_n, v_n, q_m, do_m, start_n, full_hi, hi, seqlen_q, seqlen_k, left, right, scale,
            softmax_scale, BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, COPIED, PRECISION, True,
        )  # fmt: skip
    parts = (tl.cast(own_split, tl.int64) * total_heads + head) * seqlen_k * HEAD_DIM
    store_rows(dk_parts_ptr + parts, start_n, HEAD_DIM, seqlen_k, dk * softmax_scale, BLOCK_N, HEAD_DIM, BLOCK_D)
    store_rows(dv_parts_ptr + parts, start_n, HEAD_DIM, seqlen_k, dv, BLOCK_N, HEAD_DIM, BLOCK_D)
