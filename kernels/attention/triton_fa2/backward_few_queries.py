"""The backward of few queries: a program holds all queries of a head and walks over its keys, once.

So every tensor is read once, dq needs no second walk and no sum over programs, and delta is computed where it is used:
5 products a block instead of the 7 of backward.py, in one launch. For as many heads as fill the GPU, 16-bit
factors, and a key head for every query head.
"""

import triton
import triton.language as tl

from .forward import addresses_of, visible, wait_for_previous_kernel
from .panels import load_panels, product_of_panels, store_panels
from .tile_ops import load_logsumexp, probabilities


@triton.jit(do_not_specialize=["left", "right"], do_not_specialize_on_alignment=["num_heads"])
def few_queries_kernel(
    tensors, strides, num_heads, seqlen_q, seqlen_k, left, right, scale, softmax_scale, CONFIG: tl.constexpr
):  # fmt: skip
    """Compute dq, dk and dv of a head. seqlen_q <= block_m; masked: some block needs a mask."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    wait_for_previous_kernel(CONFIG.pdl)
    head = tl.program_id(0)
    q_base, k_base, v_base, out_base, dout_base, dq_base, dk_base, dv_base = addresses_of(
        head, num_heads, tensors, strides
    )
    rows = tl.arange(0, BLOCK_M)
    q = load_panels(q_base, 0, strides.q.row, seqlen_q, BLOCK_M, CONFIG, True)
    dout = load_panels(dout_base, 0, strides.dout.row, seqlen_q, BLOCK_M, CONFIG, True)
    out = load_panels(out_base, 0, strides.out.row, seqlen_q, BLOCK_M, CONFIG, True)
    lse = load_logsumexp(tensors.lse + tl.cast(head, tl.int64) * seqlen_q + rows, rows < seqlen_q)
    delta = tl.sum(out[0].to(tl.float32) * dout[0].to(tl.float32), 1)
    dq = tl.zeros([BLOCK_M, CONFIG.block_d], dtype=tl.float32)
    dq2 = dq
    if CONFIG.block_d2 > 0:
        delta += tl.sum(out[1].to(tl.float32) * dout[1].to(tl.float32), 1)
        dq2 = tl.zeros([BLOCK_M, CONFIG.block_d2], dtype=tl.float32)
    for start in tl.range(0, seqlen_k, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = load_panels(k_base, start, strides.k.row, seqlen_k, BLOCK_N, CONFIG, True)
        v = load_panels(v_base, start, strides.v.row, seqlen_k, BLOCK_N, CONFIG, True)
        keys = start + tl.arange(0, BLOCK_N)
        positions = rows + (seqlen_k - seqlen_q)
        seen = visible(positions[None, :], keys[:, None], seqlen_k, left, right, CONFIG.has_left, CONFIG.has_right)
        p = probabilities(product_of_panels(k, q, CONFIG), scale, lse, seen, 0, CONFIG.masked, False)
        ds = p * (product_of_panels(v, dout, CONFIG) - delta[None, :])
        p = p.to(k[0].dtype)
        ds = ds.to(k[0].dtype)
        dv = tl.dot(p, dout[0])
        dk = tl.dot(ds, q[0])
        dv2 = dv
        dk2 = dk
        dq = tl.dot(tl.trans(ds), k[0], dq)
        if CONFIG.block_d2 > 0:
            dv2 = tl.dot(p, dout[1])
            dk2 = tl.dot(ds, q[1])
            dq2 = tl.dot(tl.trans(ds), k[1], dq2)
        store_panels(dv_base, start, strides.dv.row, seqlen_k, (dv, dv2), BLOCK_N, CONFIG)
        dk_values = (dk * softmax_scale, dk2 * softmax_scale)
        store_panels(dk_base, start, strides.dk.row, seqlen_k, dk_values, BLOCK_N, CONFIG)
    dq_values = (dq * softmax_scale, dq2 * softmax_scale)
    store_panels(dq_base, 0, strides.dq.row, seqlen_q, dq_values, BLOCK_M, CONFIG)
