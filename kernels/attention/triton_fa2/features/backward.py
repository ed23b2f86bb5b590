"""The backward with features in two walks, as backward.py's: dq by queries, dk and dv by keys; no atomics."""

import triton
import triton.language as tl

from ..backward import query_ranges
from ..panels import load_panels, product_of_panels, store_panels
from ..tile_ops import load_logsumexp, load_rows, store_rows
from .forward import key_at, walk_of_keys
from .scores import add_to_panels, capped, exponent, kept, masked, place, rows_of, sequence, zero_panels


@triton.jit
def features_dq_kernel(q, k, v, out, dout, dq, lse_ptr, delta_ptr, tensors, shape, CONFIG: tl.constexpr):
    """Compute dq of a tile of query rows, and their delta = rowsum(dout * out) - dlse; a program a tile and head."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    start_m, head, batch = place(shape.seqlen_q, shape.num_heads, BLOCK_M)
    bounds = sequence(tensors, shape, batch, CONFIG)
    first_q, first_k, seqlen_q, seqlen_k = bounds
    if start_m >= seqlen_q:
        return
    k_base = rows_of(k, batch, head // shape.group, first_k)
    v_base = rows_of(v, batch, head // shape.group, first_k)
    rows = start_m + tl.arange(0, BLOCK_M)
    lo, hi, first = walk_of_keys(start_m, batch, head, seqlen_q, seqlen_k, tensors, shape, CONFIG)

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
    sums = zero_panels(BLOCK_M, CONFIG)
    for at in tl.range(lo, hi, BLOCK_N):
        start = key_at(at, first, tensors, CONFIG)
        keys = start + tl.arange(0, BLOCK_N)
        k_tile = load_panels(k_base, start, k.m, seqlen_k, BLOCK_N, CONFIG, True)
        scores, bend = capped(product_of_panels(q_tile, k_tile, CONFIG), shape, CONFIG)
        scores = masked(scores, rows[:, None], keys[None, :], batch, head, bounds, tensors, shape, CONFIG)
        p = exponent(scores, lse, 1)
        v_tile = load_rows(v_base, start, v.m, seqlen_k, BLOCK_N, CONFIG.head_dim_v, CONFIG.block_dv, True)
        dp = tl.dot(dout_tile, tl.trans(v_tile), input_precision=CONFIG.precision)
        dp = kept(dp, rows[:, None], keys[None, :], batch, head, tensors, shape, CONFIG)
        ds = p * (dp - delta[:, None])
        if CONFIG.softcap:
            ds = ds * (1.0 - bend * bend)
        sums = add_to_panels(sums, ds, k_tile, CONFIG)
    values = (sums[0] * shape.scale, sums[1] * shape.scale)
    store_panels(rows_of(dq, batch, head, first_q), start_m, dq.m, seqlen_q, values, BLOCK_M, CONFIG)


@triton.jit
def features_dkdv_kernel(q, k, v, dout, dk, dv, lse_ptr, delta_ptr, tensors, shape, CONFIG: tl.constexpr):
    """Compute dk and dv of a tile of keys, summed over its query heads; a program a tile, key head and batch."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    start_n, head_k, batch = place(shape.seqlen_k, shape.num_heads // shape.group, BLOCK_N)
    bounds = sequence(tensors, shape, batch, CONFIG)
    first_q, first_k, seqlen_q, seqlen_k = bounds
    if start_n >= seqlen_k:
        return
    keys = start_n + tl.arange(0, BLOCK_N)
    lo, _, _, hi = query_ranges(
        start_n, seqlen_q, seqlen_k, shape.left, shape.right, BLOCK_M, BLOCK_N, CONFIG.has_left, CONFIG.has_right
    )
    if CONFIG.prefixes:  # all rows see the keys of the prefix
        lo = tl.where(start_n < tl.load(tensors.prefixes + batch), 0, lo)
    steps = tl.cdiv(tl.maximum(hi - lo, 0), BLOCK_M)
    every = steps * shape.group
    if CONFIG.blocks > 0:  # the lists of a group's heads follow each other
        line = batch * tensors.blocks_b * tl.cdiv(seqlen_k, CONFIG.blocks) + start_n // CONFIG.blocks
        starts = tensors.query_starts + line * shape.num_heads + head_k * shape.group
        first = tl.load(starts)
        every = (tl.load(starts + shape.group) - first) * (CONFIG.blocks // BLOCK_M)

    k_tile = load_panels(rows_of(k, batch, head_k, first_k), start_n, k.m, seqlen_k, BLOCK_N, CONFIG, True)
    v_base = rows_of(v, batch, head_k, first_k)
    v_tile = load_rows(v_base, start_n, v.m, seqlen_k, BLOCK_N, CONFIG.head_dim_v, CONFIG.block_dv, True)
    sums = zero_panels(BLOCK_N, CONFIG)
    dv_sum = tl.zeros([BLOCK_N, CONFIG.block_dv], dtype=tl.float32)
    for step in tl.range(0, every):
        if CONFIG.blocks > 0:
            block = step * BLOCK_M // CONFIG.blocks
            entry = tl.load(tensors.queries + first + block)
            head = tl.cast(entry // tl.cdiv(seqlen_q, CONFIG.blocks), tl.int64)
            listed = entry % tl.cdiv(seqlen_q, CONFIG.blocks)
            start = step * BLOCK_M + (listed - block) * CONFIG.blocks
        else:
            head = head_k * shape.group + step // steps
            start = lo + (step % steps) * BLOCK_M
        rows = start + tl.arange(0, BLOCK_M)
        q_tile = load_panels(rows_of(q, batch, head, first_q), start, q.m, seqlen_q, BLOCK_M, CONFIG, True)
        scores, bend = capped(product_of_panels(k_tile, q_tile, CONFIG), shape, CONFIG)
        scores = masked(scores, rows[None, :], keys[:, None], batch, head, bounds, tensors, shape, CONFIG)
        statistics = batch * shape.stats_b + head * shape.stats_h + first_q + rows
        p = exponent(scores, load_logsumexp(lse_ptr + statistics, rows < seqlen_q), 0)
        dout_base = rows_of(dout, batch, head, first_q)
        dout_tile = load_rows(dout_base, start, dout.m, seqlen_q, BLOCK_M, CONFIG.head_dim_v, CONFIG.block_dv, True)
        p_kept = kept(p, rows[None, :], keys[:, None], batch, head, tensors, shape, CONFIG)
        dv_sum = tl.dot(p_kept.to(dout_tile.dtype), dout_tile, dv_sum, input_precision=CONFIG.precision)
        dp = tl.dot(v_tile, tl.trans(dout_tile), input_precision=CONFIG.precision)
        dp = kept(dp, rows[None, :], keys[:, None], batch, head, tensors, shape, CONFIG)
        delta = tl.load(delta_ptr + statistics, mask=rows < seqlen_q, other=0.0)
        ds = p * (dp - delta[None, :])
        if CONFIG.softcap:
            ds = ds * (1.0 - bend * bend)
        sums = add_to_panels(sums, ds, q_tile, CONFIG)
    values = (sums[0] * shape.scale, sums[1] * shape.scale)
    store_panels(rows_of(dk, batch, head_k, first_k), start_n, dk.m, seqlen_k, values, BLOCK_N, CONFIG)
    dv_base = rows_of(dv, batch, head_k, first_k)
    store_rows(dv_base, start_n, dv.m, seqlen_k, dv_sum, BLOCK_N, CONFIG.head_dim_v, CONFIG.block_dv)
