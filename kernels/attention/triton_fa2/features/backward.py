"""The backward with features in two walks, as backward.py's: dq by queries, dk and dv by keys; no atomics.

Blocks that every row sees whole take no mask, and those that none sees are not computed.
"""

import triton
import triton.language as tl

from ..backward import query_ranges
from ..panels import load_panels, product_of_panels, store_panels
from ..tile_ops import load_logsumexp, load_rows, store_rows
from .forward import key_at, span_of_documents, walk_of_keys
from .scores import add_to_panels, capped, exponent, kept, masked, place, rows_of, sequence, zero_panels


@triton.jit
def _dq_of_keys(sums, lo, hi, walk, queries, k, v, tensors, shape, CONFIG: tl.constexpr, MASKED: tl.constexpr):
    """Add the contribution of the keys of a part of a walk to dq; queries: q, dout, lse and delta of the rows."""
    BLOCK_N: tl.constexpr = CONFIG.block_n
    q_tile, dout_tile, lse, delta = queries
    first, start_m, own = walk
    rows = start_m + tl.arange(0, CONFIG.block_m)
    batch, head, bounds = own
    first_k, seqlen_k = bounds[1], bounds[3]
    k_base = rows_of(k, batch, head // shape.group, first_k)
    v_base = rows_of(v, batch, head // shape.group, first_k)
    IN_BFLOAT16: tl.constexpr = tl.bfloat16 == k.base.dtype.element_ty
    coming = key_at(lo, hi, first, tensors, CONFIG)
    for at in tl.range(lo, hi, BLOCK_N):
        start = tl.multiple_of(at, BLOCK_N)
        if CONFIG.blocks > 0:  # the next block's number comes during this one
            start = tl.multiple_of(coming, BLOCK_N)
            coming = key_at(at + BLOCK_N, hi, first, tensors, CONFIG)
        keys = start + tl.arange(0, BLOCK_N)
        k_tile = load_panels(k_base, start, k.m, seqlen_k, BLOCK_N, CONFIG, MASKED)
        scores, bend = capped(product_of_panels(q_tile, k_tile, CONFIG), shape, IN_BFLOAT16, CONFIG)
        scores = masked(scores, rows[:, None], keys[None, :], own, tensors, shape, CONFIG, MASKED)
        p = exponent(scores, lse, 1)
        v_tile = load_rows(v_base, start, v.m, seqlen_k, BLOCK_N, CONFIG.head_dim_v, CONFIG.block_dv, MASKED)
        dp = tl.dot(dout_tile, tl.trans(v_tile), input_precision=CONFIG.precision)
        dp = kept(dp, start_m, start, own, tensors, shape, CONFIG, False)
        ds = p * (dp - delta[:, None])
        if CONFIG.softcap:
            ds = ds * (1.0 - bend * bend)
        sums = add_to_panels(sums, ds, k_tile, CONFIG)
    return sums


@triton.jit
def features_dq_kernel(q, k, v, out, dout, dq, lse_ptr, delta_ptr, tensors, shape, CONFIG: tl.constexpr):
    """Compute dq of a tile of query rows, and their delta = rowsum(dout * out) - dlse; a program a tile and head."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    start_m, head, batch = place(shape.seqlen_q, shape.num_heads, BLOCK_M, True)
    own = (batch, head, sequence(tensors, shape, batch, CONFIG))
    first_q, _, seqlen_q, _ = own[2]
    if start_m >= seqlen_q:
        return
    rows = start_m + tl.arange(0, BLOCK_M)
    lo, full_lo, full_hi, hi, first = walk_of_keys(start_m, own, tensors, shape, CONFIG)

    q_tile = load_panels(rows_of(q, batch, head, first_q), start_m, q.m, seqlen_q, BLOCK_M, CONFIG, True)
    dout_base = rows_of(dout, batch, head, first_q)
    dout_tile = load_rows(dout_base, start_m, dout.m, seqlen_q, BLOCK_M, CONFIG.head_dim_v, CONFIG.block_dv, True)
    out_base = rows_of(out, batch, head, first_q)
    out_tile = load_rows(out_base, start_m, out.m, seqlen_q, BLOCK_M, CONFIG.head_dim_v, CONFIG.block_dv, True)
    statistics = batch * shape.stats_b + head * shape.stats_h + first_q + rows
    delta = tl.sum(out_tile.to(tl.float32) * dout_tile.to(tl.float32), 1)
    if tensors.dlse is not None:
        delta -= tl.load(tensors.dlse + statistics, mask=rows < seqlen_q, other=0.0)
    tl.store(delta_ptr + statistics, delta, mask=rows < seqlen_q)
    lse = load_logsumexp(lse_ptr + statistics, rows < seqlen_q)
    queries = (q_tile, dout_tile, lse, delta)
    sums = zero_panels(BLOCK_M, CONFIG)
    walk = (first, start_m, own)
    if not CONFIG.one_loop:
        if CONFIG.has_left:
            sums = _dq_of_keys(sums, lo, tl.minimum(full_lo, hi), walk, queries, k, v, tensors, shape, CONFIG, True)
        sums = _dq_of_keys(sums, full_lo, full_hi, walk, queries, k, v, tensors, shape, CONFIG, False)
    sums = _dq_of_keys(sums, full_hi, hi, walk, queries, k, v, tensors, shape, CONFIG, True)
    values = (sums[0] * shape.scale, sums[1] * shape.scale)
    store_panels(rows_of(dq, batch, head, first_q), start_m, dq.m, seqlen_q, values, BLOCK_M, CONFIG)


@triton.jit
def _dkdv_of_queries(sums, dv_sum, lo, hi, walk, tiles, queries, tensors, shape,
                     CONFIG: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Add the contribution of rows lo .. hi of a group's heads to dk and dv; of listed blocks, their rows are counted.

    walk: where its list begins, the first key, and the batch, the key head and the bounds of the sequence.
    """
    BLOCK_M: tl.constexpr = CONFIG.block_m
    first, start_n, (batch, head_k, bounds) = walk
    (k_tile, v_tile), (q, dout, lse_ptr, delta_ptr) = tiles, queries
    keys = start_n + tl.arange(0, CONFIG.block_n)
    first_q, _, seqlen_q, _ = bounds
    IN_BFLOAT16: tl.constexpr = tl.bfloat16 == q.base.dtype.element_ty
    steps = tl.cdiv(tl.maximum(hi - lo, 0), BLOCK_M)
    every = steps
    entry = 0
    if CONFIG.blocks > 0:
        entry = tl.load(tensors.queries + first, mask=hi > 0, other=0)
    else:
        every = steps * shape.group
    for step in tl.range(0, every):
        if CONFIG.blocks > 0:  # the next block's number comes during this one
            block = step * BLOCK_M // CONFIG.blocks
            head = tl.cast(entry // tl.cdiv(seqlen_q, CONFIG.blocks), tl.int64)
            start = step * BLOCK_M + (entry % tl.cdiv(seqlen_q, CONFIG.blocks) - block) * CONFIG.blocks
            coming = (step + 1) * BLOCK_M
            entry = tl.load(tensors.queries + first + coming // CONFIG.blocks, mask=coming < hi, other=0)
        else:
            head = head_k * shape.group + step // steps
            start = lo + (step % steps) * BLOCK_M
        rows = start + tl.arange(0, BLOCK_M)
        of_head = (batch, head, bounds)
        q_tile = load_panels(rows_of(q, batch, head, first_q), start, q.m, seqlen_q, BLOCK_M, CONFIG, True)
        scores, bend = capped(product_of_panels(k_tile, q_tile, CONFIG), shape, IN_BFLOAT16, CONFIG)
        scores = masked(scores, rows[None, :], keys[:, None], of_head, tensors, shape, CONFIG, MASKED)
        statistics = batch * shape.stats_b + head * shape.stats_h + first_q + rows
        p = exponent(scores, load_logsumexp(lse_ptr + statistics, rows < seqlen_q), 0)
        dout_base = rows_of(dout, batch, head, first_q)
        dout_tile = load_rows(dout_base, start, dout.m, seqlen_q, BLOCK_M, CONFIG.head_dim_v, CONFIG.block_dv, True)
        p_kept = kept(p, start, start_n, of_head, tensors, shape, CONFIG, True)
        dv_sum = tl.dot(p_kept.to(dout_tile.dtype), dout_tile, dv_sum, input_precision=CONFIG.precision)
        dp = tl.dot(v_tile, tl.trans(dout_tile), input_precision=CONFIG.precision)
        dp = kept(dp, start, start_n, of_head, tensors, shape, CONFIG, True)
        delta = tl.load(delta_ptr + statistics, mask=rows < seqlen_q, other=0.0)
        ds = p * (dp - delta[None, :])
        if CONFIG.softcap:
            ds = ds * (1.0 - bend * bend)
        sums = add_to_panels(sums, ds, q_tile, CONFIG)
    return sums, dv_sum


@triton.jit
def features_dkdv_kernel(q, k, v, dout, dk, dv, lse_ptr, delta_ptr, tensors, shape, CONFIG: tl.constexpr):
    """Compute dk and dv of a tile of keys, summed over its query heads; a program a tile, key head and batch."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    start_n, head_k, batch = place(shape.seqlen_k, shape.num_heads // shape.group, BLOCK_N, not CONFIG.has_right)
    own = (batch, head_k, sequence(tensors, shape, batch, CONFIG))
    _, first_k, seqlen_q, seqlen_k = own[2]
    if start_n >= seqlen_k:
        return
    lo, full_lo, full_hi, hi = query_ranges(
        start_n, seqlen_q, seqlen_k, shape.left, shape.right, BLOCK_M, BLOCK_N, CONFIG.has_left, CONFIG.has_right
    )
    if CONFIG.prefixes:  # all rows see the keys of the prefix
        prefix = tl.load(tensors.prefixes + batch)
        lo = tl.where(start_n < prefix, 0, lo)
        full_lo = tl.where(start_n + BLOCK_N <= prefix, 0, full_lo)
    if CONFIG.documents:
        begin, end = span_of_documents(start_n, seqlen_k - 1, seqlen_k, batch, tensors, BLOCK_N)
        shift = seqlen_k - seqlen_q
        lo = tl.maximum(lo, tl.maximum(begin - shift, 0) // BLOCK_M * BLOCK_M)
        hi = tl.minimum(hi, end - shift)
    first = 0
    if CONFIG.blocks > 0:  # the lists of a group's heads follow each other
        line = batch * tensors.blocks_b * tl.cdiv(seqlen_k, CONFIG.blocks) + start_n // CONFIG.blocks
        starts = tensors.query_starts + line * shape.num_heads + head_k * shape.group
        first = tl.load(starts)
        lo = 0
        hi = (tl.load(starts + shape.group) - first) * CONFIG.blocks
        full_lo = hi if CONFIG.has_right else 0
        full_hi = hi
    if CONFIG.one_loop:
        full_hi = lo

    k_tile = load_panels(rows_of(k, batch, head_k, first_k), start_n, k.m, seqlen_k, BLOCK_N, CONFIG, True)
    v_base = rows_of(v, batch, head_k, first_k)
    v_tile = load_rows(v_base, start_n, v.m, seqlen_k, BLOCK_N, CONFIG.head_dim_v, CONFIG.block_dv, True)
    sums = zero_panels(BLOCK_N, CONFIG)
    dv_sum = tl.zeros([BLOCK_N, CONFIG.block_dv], dtype=tl.float32)
    walk, tiles, queries = (first, start_n, own), (k_tile, v_tile), (q, dout, lse_ptr, delta_ptr)
    if not CONFIG.one_loop:
        if CONFIG.has_right:
            sums, dv_sum = _dkdv_of_queries(
                sums, dv_sum, lo, tl.minimum(full_lo, hi), walk, tiles, queries, tensors, shape, CONFIG, True
            )
        sums, dv_sum = _dkdv_of_queries(
            sums, dv_sum, full_lo, full_hi, walk, tiles, queries, tensors, shape, CONFIG, False
        )
    if CONFIG.has_left or CONFIG.one_loop:
        sums, dv_sum = _dkdv_of_queries(sums, dv_sum, full_hi, hi, walk, tiles, queries, tensors, shape, CONFIG, True)
    values = (sums[0] * shape.scale, sums[1] * shape.scale)
    store_panels(rows_of(dk, batch, head_k, first_k), start_n, dk.m, seqlen_k, values, BLOCK_N, CONFIG)
    dv_base = rows_of(dv, batch, head_k, first_k)
    store_rows(dv_base, start_n, dv.m, seqlen_k, dv_sum, BLOCK_N, CONFIG.head_dim_v, CONFIG.block_dv)
