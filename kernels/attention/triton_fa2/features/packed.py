"""Packed and padded sequences without a feature, in 16 bits: the walks of forward.py and backward.py.

The kernels with features mask every block of keys. These mask those at the diagonal and at a sequence's end alone. They
take what the kernels with features take, and leave the same logsumexp and delta.
"""

import triton
import triton.language as tl

from ....plans import LOG2_E
from ..arguments import Strides
from ..backward import OwnedKeys, OwnedQueries, OwnSplit, StreamedKeys, StreamedQueries, dkdv_tile, dq_tile
from ..forward import HeadOutput, Keys, Queries, fold_all_keys, key_ranges, store_outputs
from ..tile_ops import load_logsumexp, load_rows
from .scores import place, rows_of, sequence

_LOG2_E = tl.constexpr(LOG2_E)


@triton.jit
def packed_forward_kernel(q, k, v, out, lse_ptr, tensors, shape, CONFIG: tl.constexpr):
    """Compute output and base-2 logsumexp of a tile of query rows; a program a tile, head and sequence."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    HEAD_DIM: tl.constexpr = CONFIG.head_dim
    BLOCK_D: tl.constexpr = CONFIG.block_d
    start_m, head, batch = place(shape.seqlen_q, shape.num_heads, BLOCK_M)
    first_q, first_k, seqlen_q, seqlen_k = sequence(tensors, shape, batch, CONFIG)
    if start_m >= seqlen_q:
        return
    rows = start_m + tl.arange(0, BLOCK_M)
    shift = seqlen_k - seqlen_q
    last = tl.minimum(start_m + BLOCK_M, seqlen_q) - 1 + shift
    lo, full_lo, full_hi, hi = key_ranges(
        start_m + shift, last, seqlen_k, shape.left, shape.right, CONFIG.block_n, CONFIG.has_left, CONFIG.has_right
    )
    q_base = rows_of(q, batch, head, first_q)
    k_base = rows_of(k, batch, head // shape.group, first_k)
    v_base = rows_of(v, batch, head // shape.group, first_k)
    q_tile = load_rows(q_base, start_m, q.m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
    queries = Queries(rows=q_tile, base=q_base, stride=q.m, first=start_m, seqlen=seqlen_q, positions=rows + shift)
    keys = Keys(k=k_base, k_transposed=k_base, v=v_base, k_stride=k.m, v_stride=v.m, seqlen=seqlen_k, left=shape.left,
                right=shape.right)  # fmt: skip
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    scale = shape.scale * _LOG2_E
    acc, row_sum, row_max = fold_all_keys(
        acc, row_sum, row_max, queries, keys, (lo, full_lo, full_hi, hi), scale, CONFIG
    )
    statistics = lse_ptr + batch * shape.stats_b + head * shape.stats_h + first_q
    out_base = rows_of(out, batch, head, first_q)
    output = HeadOutput(out=out_base, lse=statistics, strides=Strides(0, 0, out.m), batch=0, head_q=0, head=0)
    store_outputs(output, start_m, rows, seqlen_q, acc, row_sum, row_max, scale, CONFIG, q_tile.dtype)


@triton.jit
def packed_dq_kernel(q, k, v, out, dout, dq, lse_ptr, delta_ptr, tensors, shape, CONFIG: tl.constexpr):
    """Compute dq of a tile of query rows, and their delta = rowsum(dout * out) - dlse; a program a tile and head."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    HEAD_DIM: tl.constexpr = CONFIG.head_dim
    BLOCK_D: tl.constexpr = CONFIG.block_d
    start_m, head, batch = place(shape.seqlen_q, shape.num_heads, BLOCK_M)
    first_q, first_k, seqlen_q, seqlen_k = sequence(tensors, shape, batch, CONFIG)
    if start_m >= seqlen_q:
        return
    rows = start_m + tl.arange(0, BLOCK_M)
    q_base = rows_of(q, batch, head, first_q)
    dout_base = rows_of(dout, batch, head, first_q)
    out_base = rows_of(out, batch, head, first_q)
    k_base = rows_of(k, batch, head // shape.group, first_k)
    v_base = rows_of(v, batch, head // shape.group, first_k)
    dout_tile = load_rows(dout_base, start_m, dout.m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
    out_tile = load_rows(out_base, start_m, out.m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
    statistics = batch * shape.stats_b + head * shape.stats_h + first_q + rows
    delta = tl.sum(out_tile.to(tl.float32) * dout_tile.to(tl.float32), 1)
    if tensors.dlse is not None:
        delta -= tl.load(tensors.dlse + statistics, mask=rows < seqlen_q, other=0.0)
    tl.store(delta_ptr + statistics, delta, mask=rows < seqlen_q)
    lse = load_logsumexp(lse_ptr + statistics, rows < seqlen_q)
    q_tile = load_rows(q_base, start_m, q.m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
    queries = OwnedQueries(q=q_tile, dout=dout_tile, lse=lse, delta=delta, q_base=q_base, dout_base=dout_base,
                           q_stride=q.m, dout_stride=dout.m, first=start_m, seqlen=seqlen_q)  # fmt: skip
    keys = StreamedKeys(k=k_base, v=v_base, k_transposed=k_base, v_transposed=v_base, k_stride=k.m, v_stride=v.m,
                        seqlen=seqlen_k, left=shape.left, right=shape.right)  # fmt: skip
    dq_tile(
        rows_of(dq, batch, head, first_q), dq.m, queries, keys, OwnSplit(0, 1, 0), shape.scale * _LOG2_E, shape.scale,
        CONFIG,
    )  # fmt: skip


@triton.jit
def packed_dkdv_kernel(q, k, v, dout, dk, dv, lse_ptr, delta_ptr, tensors, shape, CONFIG: tl.constexpr):
    """Compute dk and dv of a tile of keys, summed over its query heads; a program a tile, key head and sequence."""
    BLOCK_N: tl.constexpr = CONFIG.block_n
    start_n, head_k, batch = place(shape.seqlen_k, shape.num_heads // shape.group, BLOCK_N)
    first_q, first_k, seqlen_q, seqlen_k = sequence(tensors, shape, batch, CONFIG)
    if start_n >= seqlen_k:
        return
    head = head_k * shape.group
    q_base = rows_of(q, batch, head, first_q)
    dout_base = rows_of(dout, batch, head, first_q)
    statistics = batch * shape.stats_b + head * shape.stats_h + first_q
    k_base = rows_of(k, batch, head_k, first_k)
    v_base = rows_of(v, batch, head_k, first_k)
    keys = OwnedKeys(k=None, v=None, k_base=k_base, v_base=v_base, k_stride=k.m, v_stride=v.m, first=start_n,
                     seqlen=seqlen_k, left=shape.left, right=shape.right)  # fmt: skip
    queries = StreamedQueries(
        q=q_base, dout=dout_base, lse=lse_ptr + statistics, delta=delta_ptr + statistics, out=None, out_stride=None,
        q_transposed=q_base, dout_transposed=dout_base, q_head=q.h, q_stride=q.m, dout_head=dout.h, dout_stride=dout.m,
        stats_head=shape.stats_h, heads=shape.group, seqlen=seqlen_q,
    )  # fmt: skip
    dkdv_tile(
        rows_of(dk, batch, head_k, first_k), rows_of(dv, batch, head_k, first_k), dk.m, dv.m, keys, queries,
        OwnSplit(0, 1, 0), shape.scale * _LOG2_E, shape.scale,
        CONFIG.block_m, BLOCK_N, CONFIG,
    )  # fmt: skip
