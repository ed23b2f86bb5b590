"""The backward of full masks where head_dim, and the last block of a walk, are not powers of two: dq, then dk and dv.

Columns of head_dim are two panels (80 are 64 and 16, where one panel has 128), and what a walk leaves behind its last
whole block is one smaller block (257 tokens are four times 64 and 16). Otherwise as dq_kernel and dkdv_kernel of
backward.py.

For 16-bit factors, and a key head for every query head.
"""

import triton
import triton.language as tl

from .forward import assign
from .panels import load_panels, product_of_panels, store_panels
from .pdl import wait_for_previous_kernel
from .tile_ops import load_logsumexp, probabilities


@triton.jit
def _zeros(ROWS: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_D2: tl.constexpr):
    """Return sums of ROWS rows of two panels; without a second panel, the first stands for it."""
    low = tl.zeros([ROWS, BLOCK_D], dtype=tl.float32)
    high = low
    if BLOCK_D2 > 0:
        high = tl.zeros([ROWS, BLOCK_D2], dtype=tl.float32)
    return low, high


@triton.jit
def _plus_product(sums, a, rows, BLOCK_D2: tl.constexpr):
    """Return sums + a rows, panel by panel."""
    low = tl.dot(a, rows[0], sums[0])
    high = low
    if BLOCK_D2 > 0:
        high = tl.dot(a, rows[1], sums[1])
    return low, high


@triton.jit
def _delta(out, dout, BLOCK_D2: tl.constexpr):
    """Return rowsum(dout * out)."""
    delta = tl.sum(out[0].to(tl.float32) * dout[0].to(tl.float32), 1)
    if BLOCK_D2 > 0:
        delta += tl.sum(out[1].to(tl.float32) * dout[1].to(tl.float32), 1)
    return delta


@triton.jit
def _dq_of_keys(
    dq, own, streamed, start, seqlen_k, scale,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_D2: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add to dq what ROWS keys from `start` on contribute.

    own: q, dout, lse and delta of the program's rows; streamed: addresses of k and v, and their strides.
    """
    q, dout, lse, delta = own
    k_base, v_base, k_n, v_n = streamed
    k = load_panels(k_base, start, k_n, seqlen_k, ROWS, HEAD_DIM, BLOCK_D, BLOCK_D2, MASKED)
    v = load_panels(v_base, start, v_n, seqlen_k, ROWS, HEAD_DIM, BLOCK_D, BLOCK_D2, MASKED)
    seen = (start + tl.arange(0, ROWS) < seqlen_k)[None, :]
    p = probabilities(product_of_panels(q, k, BLOCK_D2), scale, lse, seen, 1, MASKED, False)
    ds = (p * (product_of_panels(dout, v, BLOCK_D2) - delta[:, None])).to(k[0].dtype)
    return _plus_product(dq, ds, k, BLOCK_D2)


@triton.jit(do_not_specialize_on_alignment=["num_heads", "total_heads", "heads_at_once"])
def dq_panels_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, dout_ptr, dq_ptr, lse_ptr, delta_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, out_b, out_h, out_m, do_b, do_h, do_m, dq_b, dq_h, dq_m,
    num_heads, total_heads, heads_at_once, seqlen_q, seqlen_k, scale, softmax_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_N2: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_D2: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute dq of BLOCK_M query rows, and their delta. The last seqlen_k % BLOCK_N keys are BLOCK_N2."""
    wait_for_previous_kernel(PDL)
    tile, head = assign(tl.program_id(0), tl.cdiv(seqlen_q, BLOCK_M), total_heads, heads_at_once)
    start_m = tile * BLOCK_M
    batch = tl.cast(head // num_heads, tl.int64)
    own = tl.cast(head % num_heads, tl.int64)
    k_base = k_ptr + batch * k_b + own * k_h
    v_base = v_ptr + batch * v_b + own * v_h
    q_base = q_ptr + batch * q_b + own * q_h
    q = load_panels(q_base, start_m, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    dout_base = dout_ptr + batch * do_b + own * do_h
    dout = load_panels(dout_base, start_m, do_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    out_base = out_ptr + batch * out_b + own * out_h
    out = load_panels(out_base, start_m, out_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    delta = _delta(out, dout, BLOCK_D2)
    rows = start_m + tl.arange(0, BLOCK_M)
    row_offset = tl.cast(head, tl.int64) * seqlen_q
    tl.store(delta_ptr + row_offset + rows, delta, mask=rows < seqlen_q)
    lse = load_logsumexp(lse_ptr + row_offset + rows, rows < seqlen_q)
    dq = _zeros(BLOCK_M, BLOCK_D, BLOCK_D2)
    of_rows = (q, dout, lse, delta)
    streamed = (k_base, v_base, k_n, v_n)
    whole = seqlen_k // BLOCK_N * BLOCK_N
    for start in tl.range(0, whole, BLOCK_N):
        dq = _dq_of_keys(dq, of_rows, streamed, start, seqlen_k, scale, BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2, False)
    if BLOCK_N2 > 0:
        dq = _dq_of_keys(dq, of_rows, streamed, whole, seqlen_k, scale, BLOCK_N2, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    store_panels(
        dq_ptr + batch * dq_b + own * dq_h, start_m, dq_m, seqlen_q, dq[0] * softmax_scale, dq[1] * softmax_scale,
        BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2,
    )  # fmt: skip


@triton.jit
def _dkdv_of_queries(
    dk, dv, own, streamed, start, seqlen_q, scale,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_D2: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add to dk and dv what ROWS query rows from `start` on contribute. Scores: keys down, queries across.

    own: the program's k and v; streamed: addresses of q, dout, lse and delta, and the strides of q and dout.
    """
    k, v = own
    q_base, dout_base, lse_base, delta_base, q_m, do_m = streamed
    q = load_panels(q_base, start, q_m, seqlen_q, ROWS, HEAD_DIM, BLOCK_D, BLOCK_D2, MASKED)
    dout = load_panels(dout_base, start, do_m, seqlen_q, ROWS, HEAD_DIM, BLOCK_D, BLOCK_D2, MASKED)
    rows = start + tl.arange(0, ROWS)
    lse = load_logsumexp(lse_base + rows, rows < seqlen_q)  # +inf beyond the rows, so p is 0 there
    delta = tl.load(delta_base + rows, mask=rows < seqlen_q, other=0.0)
    p = probabilities(product_of_panels(k, q, BLOCK_D2), scale, lse, rows, 0, False, False)
    ds = (p * (product_of_panels(v, dout, BLOCK_D2) - delta[None, :])).to(q[0].dtype)
    dv = _plus_product(dv, p.to(q[0].dtype), dout, BLOCK_D2)
    return _plus_product(dk, ds, q, BLOCK_D2), dv


@triton.jit(do_not_specialize_on_alignment=["num_heads", "total_heads", "heads_at_once"])
def dkdv_panels_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, dk_ptr, dv_ptr, lse_ptr, delta_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, do_b, do_h, do_m, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    num_heads, total_heads, heads_at_once, seqlen_q, seqlen_k, scale, softmax_scale,
    BLOCK_M: tl.constexpr, BLOCK_M2: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_D2: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of BLOCK_N keys. The last seqlen_q % BLOCK_M rows are BLOCK_M2."""
    wait_for_previous_kernel(PDL)
    tile, head = assign(tl.program_id(0), tl.cdiv(seqlen_k, BLOCK_N), total_heads, heads_at_once)
    start_n = tile * BLOCK_N
    batch = tl.cast(head // num_heads, tl.int64)
    own = tl.cast(head % num_heads, tl.int64)
    k_base = k_ptr + batch * k_b + own * k_h
    v_base = v_ptr + batch * v_b + own * v_h
    q_base = q_ptr + batch * q_b + own * q_h
    dout_base = dout_ptr + batch * do_b + own * do_h
    row_offset = tl.cast(head, tl.int64) * seqlen_q
    k = load_panels(k_base, start_n, k_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    v = load_panels(v_base, start_n, v_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    dk = _zeros(BLOCK_N, BLOCK_D, BLOCK_D2)
    dv = _zeros(BLOCK_N, BLOCK_D, BLOCK_D2)
    of_keys = (k, v)
    streamed = (q_base, dout_base, lse_ptr + row_offset, delta_ptr + row_offset, q_m, do_m)
    whole = seqlen_q // BLOCK_M * BLOCK_M
    for start in tl.range(0, whole, BLOCK_M):
        dk, dv = _dkdv_of_queries(
            dk, dv, of_keys, streamed, start, seqlen_q, scale, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, False
        )
    if BLOCK_M2 > 0:
        dk, dv = _dkdv_of_queries(
            dk, dv, of_keys, streamed, whole, seqlen_q, scale, BLOCK_M2, HEAD_DIM, BLOCK_D, BLOCK_D2, True
        )
    store_panels(
        dk_ptr + batch * dk_b + own * dk_h, start_n, dk_n, seqlen_k, dk[0] * softmax_scale, dk[1] * softmax_scale,
        BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2,
    )  # fmt: skip
    dv_base = dv_ptr + batch * dv_b + own * dv_h
    store_panels(dv_base, start_n, dv_n, seqlen_k, dv[0], dv[1], BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2)
