"""The backward in one walk, for few rows: 5 products a block instead of the 7 of backward.py's two walks.

A program owns BLOCK_N keys of one head and walks over one split of the query rows that see them (split.py). It adds up
dk and dv of that split, and writes what its keys add to dq to a slot of the key tile; combine.py sums both. No atomics.
The slots cost as much memory as seqlen_k / BLOCK_N copies of dq, so this is for rows that are few.
"""

import triton
import triton.language as tl

from .arguments import SPLIT_SIZES
from .backward import OwnedKeys, StreamedQueries, query_ranges
from .forward import visible, wait_for_previous_kernel
from .split import share
from .tile_ops import add_product, load_logsumexp, load_rows, padded, pinned, probabilities, products, store_rows


@triton.jit
def _walk_rows(
    dk, dv, keys, queries, dq_base, lo, hi, scale, softmax_scale, CONFIG: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """Add the contribution of the query rows lo .. hi to dk and dv, and write the part of these keys in their dq."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    HEAD_DIM: tl.constexpr = CONFIG.head_dim
    BLOCK_D: tl.constexpr = CONFIG.block_d
    COPIED: tl.constexpr = CONFIG.copied
    PRECISION: tl.constexpr = CONFIG.precision
    seqlen_q = queries.seqlen
    k = keys.k
    own = keys.first + tl.arange(0, BLOCK_N)
    for start in tl.range(lo, hi, BLOCK_M):
        start = tl.multiple_of(start, BLOCK_M)
        rows = start + tl.arange(0, BLOCK_M)
        q = k
        if not COPIED:
            q = load_rows(queries.q, start, queries.q_stride, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        scores = products(
            k, q, keys.k_base, keys.first, keys.k_stride, keys.seqlen, queries.q_transposed, start, seqlen_q,
            BLOCK_N, BLOCK_M, CONFIG, True,
        )  # fmt: skip
        positions = rows + (keys.seqlen - seqlen_q)
        seen = visible(
            positions[None, :], own[:, None], keys.seqlen, keys.left, keys.right, CONFIG.has_left, CONFIG.has_right
        )
        lse = load_logsumexp(queries.lse + rows, rows < seqlen_q)
        delta = tl.load(queries.delta + rows, mask=rows < seqlen_q, other=0.0)
        p = probabilities(scores, scale, lse, seen, 0, MASKED, COPIED)
        dout = load_rows(queries.dout, start, queries.dout_stride, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        dv = add_product(dv, p, dout, COPIED, PRECISION)
        dp = products(
            keys.v, dout, keys.v_base, keys.first, keys.v_stride, keys.seqlen, queries.dout_transposed, start, seqlen_q,
            BLOCK_N, BLOCK_M, CONFIG,
        )  # fmt: skip
        ds = p * (dp - delta[None, :])
        if COPIED:
            q = load_rows(queries.q, start, queries.q_stride, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        dk = add_product(dk, ds, q, COPIED, PRECISION)
        if COPIED:
            k = load_rows(keys.k_base, keys.first, keys.k_stride, keys.seqlen, BLOCK_N, HEAD_DIM, BLOCK_D, True)
        dq = pinned(tl.dot(tl.trans(ds.to(k.dtype)), k, input_precision=PRECISION), COPIED)
        store_rows(dq_base, start, HEAD_DIM, seqlen_q, dq * softmax_scale, BLOCK_M, HEAD_DIM, BLOCK_D)
    return dk, dv


@triton.jit(do_not_specialize=SPLIT_SIZES)
def one_pass_kernel(
    tensors, strides, num_heads, total_heads, seqlen_q, seqlen_k, left, right, splits, split_len, slots, scale,
    softmax_scale, CONFIG: tl.constexpr,
):  # fmt: skip
    """Compute one split of dk and dv of block_n keys, and the part of dq of these keys and its rows; needs group 1."""
    BLOCK_N: tl.constexpr = CONFIG.block_n
    HEAD_DIM: tl.constexpr = CONFIG.head_dim
    BLOCK_D: tl.constexpr = CONFIG.block_d
    wait_for_previous_kernel(CONFIG.pdl)
    own_split = tl.program_id(0) % splits
    tile = tl.program_id(0) // splits // total_heads
    head = tl.cast(tl.program_id(0) // splits % total_heads, tl.int64)
    start_n = tile * BLOCK_N
    lo, full_lo, full_hi, hi = query_ranges(
        start_n, seqlen_q, seqlen_k, left, right, CONFIG.block_m, BLOCK_N, CONFIG.has_left, CONFIG.has_right
    )
    lo, full_lo, full_hi, hi = share(lo, full_lo, full_hi, hi, own_split, splits, split_len)
    if lo >= hi:
        return
    batch = head // num_heads
    head_in_batch = head % num_heads
    k_base = tensors.k + batch * strides.k.batch + head_in_batch * strides.k.head
    v_base = tensors.v + batch * strides.v.batch + head_in_batch * strides.v.head
    queries = StreamedQueries(
        q=tensors.q + batch * strides.q.batch + head_in_batch * strides.q.head,
        dout=tensors.dout + batch * strides.dout.batch + head_in_batch * strides.dout.head,
        lse=tensors.lse + head * seqlen_q, delta=tensors.delta + head * seqlen_q, out=None, out_stride=None,
        q_transposed=tensors.q_transposed + head * HEAD_DIM * padded(seqlen_q),
        dout_transposed=tensors.dout_transposed + head * HEAD_DIM * padded(seqlen_q),
        q_head=None, q_stride=strides.q.row, dout_head=None, dout_stride=strides.dout.row, stats_head=None, heads=None,
        seqlen=seqlen_q,
    )  # fmt: skip
    dq_base = tensors.dq + (tl.cast(tile % slots, tl.int64) * total_heads + head) * seqlen_q * HEAD_DIM
    k = load_rows(k_base, start_n, strides.k.row, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, True)
    v = load_rows(v_base, start_n, strides.v.row, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, True)
    keys = OwnedKeys(k=k, v=v, k_base=k_base, v_base=v_base, k_stride=strides.k.row, v_stride=strides.v.row,
                     first=start_n, seqlen=seqlen_k, left=left, right=right)  # fmt: skip
    dk = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    if CONFIG.has_right:
        dk, dv = _walk_rows(
            dk, dv, keys, queries, dq_base, lo, tl.minimum(full_lo, hi), scale, softmax_scale, CONFIG, True
        )
    dk, dv = _walk_rows(dk, dv, keys, queries, dq_base, full_lo, full_hi, scale, softmax_scale, CONFIG, False)
    if CONFIG.has_left:
        dk, dv = _walk_rows(dk, dv, keys, queries, dq_base, full_hi, hi, scale, softmax_scale, CONFIG, True)
    parts = (tl.cast(own_split, tl.int64) * total_heads + head) * seqlen_k * HEAD_DIM
    store_rows(tensors.dk + parts, start_n, HEAD_DIM, seqlen_k, dk * softmax_scale, BLOCK_N, HEAD_DIM, BLOCK_D)
    store_rows(tensors.dv + parts, start_n, HEAD_DIM, seqlen_k, dv, BLOCK_N, HEAD_DIM, BLOCK_D)
