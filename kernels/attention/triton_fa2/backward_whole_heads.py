"""The backward of short heads: a program passes over all queries of a head once for each two tiles of its keys.

So P is computed once (5 products a block for the 7 of backward.py), in one launch. Between passes dq is summed in
float32 in memory that no other program touches: no atomics, the same bits in every run. For as many heads as fill the
GPU, 16-bit factors, no mask, a key head for every query head, and at least a tile of queries and of keys.

Where a tile does not divide a length, two tiles overlap, so that every load is whole. Of the rows they share, the first
tile of queries counts none. The last tile of keys leaves those they share out of dq, and stores the same dk and dv.
"""

import triton
import triton.language as tl

from .forward import addresses_of, wait_for_previous_kernel
from .tile_ops import load_rows, probabilities, store_rows

STAGES = tl.constexpr(3)  # said of the loop, it also holds for loads that are no factors, such as dq's


@triton.jit
def _load_queries(base, start, stride, CONFIG: tl.constexpr):
    """Load a tile of queries; 32 bits hold their distance from the first, or launches.py takes another form."""
    return load_rows(base + start * stride, 0, stride, 0, CONFIG.block_m, CONFIG.head_dim, CONFIG.block_d, False)


@triton.jit(do_not_specialize_on_alignment=["num_heads"])
def whole_heads_kernel(
    tensors, strides, num_heads, seqlen_q, seqlen_k, scale, softmax_scale, CONFIG: tl.constexpr
):  # fmt: skip
    """Compute dq, dk and dv of a head; whole: block_m divides the queries; masked: block_n does not divide the keys."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    HEAD_DIM: tl.constexpr = CONFIG.head_dim
    BLOCK_D: tl.constexpr = CONFIG.block_d
    wait_for_previous_kernel(CONFIG.pdl)
    head = tl.program_id(0)
    q_base, k_base, v_base, out_base, dout_base, dq_base, dk_base, dv_base = addresses_of(
        head, num_heads, tensors, strides
    )
    before_head = tl.cast(head, tl.int64) * seqlen_q
    sums_base = tensors.sums + before_head * HEAD_DIM
    rows = tl.arange(0, BLOCK_M)
    for first in tl.static_range(0, CONFIG.tiles, 2):
        keys = ()
        dk = ()
        dv = ()
        for tile in tl.static_range(first, min(first + 2, CONFIG.tiles)):
            at = tl.minimum(tile * BLOCK_N, seqlen_k - BLOCK_N)
            k = load_rows(k_base, at, strides.k.row, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, False)
            v = load_rows(v_base, at, strides.v.row, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, False)
            k_of_dq = k
            if CONFIG.masked and tile == CONFIG.tiles - 1:
                k_of_dq = tl.where((at + tl.arange(0, BLOCK_N) >= tile * BLOCK_N)[:, None], k, 0.0).to(k.dtype)
            keys += ((k, k_of_dq, v),)
            dk += (tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32),)
            dv += (tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32),)
        for begin in tl.range(
            0 if CONFIG.whole else seqlen_q % BLOCK_M - BLOCK_M, seqlen_q, BLOCK_M, num_stages=STAGES
        ):
            start = tl.multiple_of(begin, BLOCK_M) if CONFIG.whole else tl.maximum(begin, 0)
            count = BLOCK_M if CONFIG.whole else begin + BLOCK_M - start
            q = _load_queries(q_base, start, strides.q.row, CONFIG)
            dout = _load_queries(dout_base, start, strides.dout.row, CONFIG)
            lse = tl.load(tensors.lse + before_head + start + rows)
            if not CONFIG.whole:
                lse = tl.where(rows < count, lse, float("inf"))
            deltas = tensors.delta + before_head + start + rows
            if first == 0:
                out = _load_queries(out_base, start, strides.out.row, CONFIG)
                delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
                tl.store(deltas, delta)
                dq = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
            else:
                delta = tl.load(deltas)
                dq = _load_queries(sums_base, start, HEAD_DIM, CONFIG)
            dk_before = dk
            dv_before = dv
            dk = ()
            dv = ()
            for i in tl.static_range(len(keys)):
                p = probabilities(tl.dot(keys[i][0], tl.trans(q)), scale, (lse, lse), None, 0, False, False)
                dv += (tl.dot(p.to(dout.dtype), dout, dv_before[i]),)
                ds = (p * (tl.dot(keys[i][2], tl.trans(dout)) - delta[None, :])).to(q.dtype)
                dk += (tl.dot(ds, q, dk_before[i]),)
                dq = tl.dot(tl.trans(ds), keys[i][1], dq)
            if first + 2 >= CONFIG.tiles:
                to = dq_base + start * strides.dq.row
                store_rows(to, 0, strides.dq.row, count, dq * softmax_scale, BLOCK_M, HEAD_DIM, BLOCK_D)
            else:
                store_rows(sums_base + start * HEAD_DIM, 0, HEAD_DIM, count, dq, BLOCK_M, HEAD_DIM, BLOCK_D)
        for i in tl.static_range(len(keys)):
            at = tl.minimum((first + i) * BLOCK_N, seqlen_k - BLOCK_N)
            store_rows(dk_base, at, strides.dk.row, seqlen_k, dk[i] * softmax_scale, BLOCK_N, HEAD_DIM, BLOCK_D)
            store_rows(dv_base, at, strides.dv.row, seqlen_k, dv[i], BLOCK_N, HEAD_DIM, BLOCK_D)
        tl.debug_barrier()  # other threads of this program read what was stored
