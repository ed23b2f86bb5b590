"""The backward of few queries: a program holds all queries of a head and walks over its keys, once.

So every tensor is read once, dq needs no second walk and no sum over programs, and delta is computed where it is used:
5 products a block instead of the 7 of backward.py, in one launch. For as many heads as fill the GPU.

For 16-bit factors, and a key head for every query head.
"""

import triton
import triton.language as tl

from .forward import visible
from .panels import load_panels, product_of_panels, store_panels
from .pdl import wait_for_previous_kernel
from .tile_ops import load_logsumexp, probabilities


@triton.jit(do_not_specialize=["left", "right"], do_not_specialize_on_alignment=["num_heads"])
def few_queries_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, dout_ptr, dq_ptr, dk_ptr, dv_ptr, lse_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, out_b, out_h, out_m, do_b, do_h, do_m,
    dq_b, dq_h, dq_m, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    num_heads, seqlen_q, seqlen_k, left, right, scale, softmax_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_D2: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, MASKED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute dq, dk and dv of a head. seqlen_q <= BLOCK_M; MASKED: some block needs a mask."""
    wait_for_previous_kernel(PDL)
    head = tl.program_id(0)
    batch = tl.cast(head // num_heads, tl.int64)
    own = tl.cast(head % num_heads, tl.int64)
    k_base = k_ptr + batch * k_b + own * k_h
    v_base = v_ptr + batch * v_b + own * v_h
    dk_base = dk_ptr + batch * dk_b + own * dk_h
    dv_base = dv_ptr + batch * dv_b + own * dv_h
    rows = tl.arange(0, BLOCK_M)
    q = load_panels(q_ptr + batch * q_b + own * q_h, 0, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    dout_base = dout_ptr + batch * do_b + own * do_h
    dout = load_panels(dout_base, 0, do_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    out_base = out_ptr + batch * out_b + own * out_h
    out = load_panels(out_base, 0, out_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    lse = load_logsumexp(lse_ptr + tl.cast(head, tl.int64) * seqlen_q + rows, rows < seqlen_q)
    delta = tl.sum(out[0].to(tl.float32) * dout[0].to(tl.float32), 1)
    dq = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    dq2 = dq
    if BLOCK_D2 > 0:
        delta += tl.sum(out[1].to(tl.float32) * dout[1].to(tl.float32), 1)
        dq2 = tl.zeros([BLOCK_M, BLOCK_D2], dtype=tl.float32)
    for start in tl.range(0, seqlen_k, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = load_panels(k_base, start, k_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
        v = load_panels(v_base, start, v_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
        keys = start + tl.arange(0, BLOCK_N)
        positions = rows + (seqlen_k - seqlen_q)
        seen = visible(positions[None, :], keys[:, None], seqlen_k, left, right, HAS_LEFT, HAS_RIGHT)
        p = probabilities(product_of_panels(k, q, BLOCK_D2), scale, lse, seen, 0, MASKED, False)
        ds = p * (product_of_panels(v, dout, BLOCK_D2) - delta[None, :])
        p = p.to(k[0].dtype)
        ds = ds.to(k[0].dtype)
        dv = tl.dot(p, dout[0])
        dk = tl.dot(ds, q[0])
        dv2 = dv
        dk2 = dk
        dq = tl.dot(tl.trans(ds), k[0], dq)
        if BLOCK_D2 > 0:
            dv2 = tl.dot(p, dout[1])
            dk2 = tl.dot(ds, q[1])
            dq2 = tl.dot(tl.trans(ds), k[1], dq2)
        store_panels(dv_base, start, dv_n, seqlen_k, dv, dv2, BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2)
        store_panels(
            dk_base, start, dk_n, seqlen_k, dk * softmax_scale, dk2 * softmax_scale,
            BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2,
        )  # fmt: skip
    store_panels(
        dq_ptr + batch * dq_b + own * dq_h, 0, dq_m, seqlen_q, dq * softmax_scale, dq2 * softmax_scale,
        BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2,
    )  # fmt: skip
