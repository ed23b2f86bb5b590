"""The forward with features: FlashAttention-2 (arXiv:2307.08691, algorithm 1).

Blocks of keys that every row of a tile sees whole take no mask, and those that none sees are not computed.
"""

import math

import triton
import triton.language as tl

from ..forward import key_ranges, weigh
from ..panels import load_panels, product_of_panels
from ..tile_ops import load_rows, scaled_maximum, store_logsumexp, store_rows, sum_of_rounded
from .scores import (
    capped,
    kept,
    last_factor,
    load_from_pages,
    load_panels_from_pages,
    load_sink,
    masked,
    place,
    places_in_pages,
    rows_of,
    sequence,
)

_LN_2 = tl.constexpr(math.log(2))
AT_ONCE = tl.constexpr(256)  # blocks of ids, or listed blocks, that a program compares at a time


@triton.jit
def span_of_documents(first, last, seqlen, batch, tensors, TILE: tl.constexpr):
    """Return from where to where, in tiles, keys may be of a document of the keys at `first` .. `last`.

    Ids need no order: a block of 64 keys counts whose least and largest id enclose one of the tile.
    """
    ids = tensors.documents + batch * seqlen
    own = tl.load(ids + tl.minimum(first + tl.arange(0, TILE), last))
    low = tl.min(own, 0)
    high = tl.max(own, 0)
    blocks = tl.cdiv(seqlen, 64)
    begin = blocks
    end = 0
    for start in tl.range(0, blocks, AT_ONCE):
        block = start + tl.arange(0, AT_ONCE)
        at = batch * blocks + block
        lows = tl.load(tensors.least_ids + at, mask=block < blocks, other=0)
        highs = tl.load(tensors.largest_ids + at, mask=block < blocks, other=0)
        met = (block < blocks) & (lows <= high) & (highs >= low)
        begin = tl.minimum(begin, tl.min(tl.where(met, block, blocks), 0))
        end = tl.maximum(end, tl.max(tl.where(met, block + 1, 0), 0))
    return begin * 64, end * 64


@triton.jit
def listed_below(limit, first, count, tensors):
    """Return how many blocks of an ascending list of key blocks are below a limit."""
    found = 0
    for start in tl.range(0, count, AT_ONCE):
        at = start + tl.arange(0, AT_ONCE)
        listed = tl.load(tensors.keys + first + at, mask=at < count, other=limit)
        found += tl.sum((listed < limit).to(tl.int32), 0)
    return found


@triton.jit
def walk_of_keys(start_m, own, tensors, shape, CONFIG: tl.constexpr):
    """Return the bounds of a tile of query rows as forward.key_ranges does, and where its list begins.

    With listed blocks the walk counts their keys; `key_at` returns the key.
    """
    batch, head, bounds = own
    seqlen_q, seqlen_k = bounds[2], bounds[3]
    BLOCK_N: tl.constexpr = CONFIG.block_n
    position = start_m + seqlen_k - seqlen_q
    last = tl.minimum(start_m + CONFIG.block_m, seqlen_q) - 1 + seqlen_k - seqlen_q
    lo, full_lo, full_hi, hi = key_ranges(
        position, last, seqlen_k, shape.left, shape.right, BLOCK_N, CONFIG.has_left, CONFIG.has_right
    )
    if CONFIG.prefixes:
        prefix = tl.minimum(tl.load(tensors.prefixes + batch), seqlen_k).to(tl.int32)
        hi = tl.maximum(hi, prefix)
        full_hi = tl.maximum(full_hi, prefix // BLOCK_N * BLOCK_N)
    if CONFIG.documents:
        begin, end = span_of_documents(position, last, seqlen_k, batch, tensors, CONFIG.block_m)
        lo = tl.maximum(lo, begin // BLOCK_N * BLOCK_N)
        hi = tl.minimum(hi, end)
    first = 0
    if CONFIG.blocks > 0:
        line = (batch * tensors.blocks_b * shape.num_heads + head) * tl.cdiv(seqlen_q, CONFIG.blocks)
        starts = tensors.key_starts + line + start_m // CONFIG.blocks
        first = tl.load(starts)
        count = tl.load(starts + 1) - first
        full_hi = listed_below(full_hi // CONFIG.blocks, first, count, tensors) * CONFIG.blocks
        if CONFIG.has_right:
            count = listed_below(tl.cdiv(hi, CONFIG.blocks), first, count, tensors)
        lo = 0
        full_lo = 0
        hi = count * CONFIG.blocks
    if CONFIG.one_loop:
        full_hi = lo
    return lo, full_lo, full_hi, hi, first


@triton.jit
def key_at(at, hi, first, tensors, CONFIG: tl.constexpr):
    """Return the first key of a tile at a place of a walk over keys up to hi."""
    if CONFIG.blocks > 0:
        block = at // CONFIG.blocks
        at += (tl.load(tensors.keys + first + block, mask=at < hi, other=0) - block) * CONFIG.blocks
    return at


@triton.jit
def _fold(state, lo, hi, walk, q_tile, k, v, tensors, shape, CONFIG: tl.constexpr, MASKED: tl.constexpr):
    """Fold the keys of a part of a walk into the output, sum and maximum of each row, as forward.fold_keys.

    walk: where its list begins, the first row, and the batch, the query head and the bounds of the sequence.
    """
    BLOCK_N: tl.constexpr = CONFIG.block_n
    acc, row_sum, row_max = state
    first, start_m, own = walk
    rows = start_m + tl.arange(0, CONFIG.block_m)
    batch, head, bounds = own
    first_k, seqlen_k = bounds[1], bounds[3]
    head_k = head // shape.group
    k_base = rows_of(k, batch, head_k, first_k)
    v_base = rows_of(v, batch, head_k, first_k)
    IN_BFLOAT16: tl.constexpr = tl.bfloat16 == k.base.dtype.element_ty
    factor = last_factor(shape, CONFIG)
    coming = key_at(lo, hi, first, tensors, CONFIG)
    for at in tl.range(lo, hi, BLOCK_N):
        start = tl.multiple_of(at, BLOCK_N)
        if CONFIG.blocks > 0:  # the next block's number comes during this one
            start = tl.multiple_of(coming, BLOCK_N)
            coming = key_at(at + BLOCK_N, hi, first, tensors, CONFIG)
        keys = start + tl.arange(0, BLOCK_N)
        if CONFIG.page_size > 0:
            places = places_in_pages(keys, seqlen_k, batch, tensors, CONFIG)
            k_tile = load_panels_from_pages(k, head_k, places, keys < seqlen_k, CONFIG)
        else:
            k_tile = load_panels(k_base, start, k.m, seqlen_k, BLOCK_N, CONFIG, MASKED)
        scores, _ = capped(product_of_panels(q_tile, k_tile, CONFIG), shape, IN_BFLOAT16, CONFIG)
        scores = masked(scores, rows[:, None], keys[None, :], own, tensors, shape, CONFIG, MASKED)
        p, alpha, row_sum, row_max = weigh(scores, row_sum, row_max, factor, True)
        if CONFIG.page_size > 0:
            v_tile = load_from_pages(v, head_k, places, keys < seqlen_k, 0, CONFIG.head_dim_v, CONFIG.block_dv)
        else:
            v_tile = load_rows(v_base, start, v.m, seqlen_k, BLOCK_N, CONFIG.head_dim_v, CONFIG.block_dv, MASKED)
        p = kept(p, start_m, start, own, tensors, shape, CONFIG, False)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision=CONFIG.precision)
    return acc, row_sum, row_max


@triton.jit
def features_forward_kernel(q, k, v, out, lse_ptr, tensors, shape, CONFIG: tl.constexpr):
    """Compute output and base-2 logsumexp of a tile of query rows; a program a tile, head and batch."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    start_m, head, batch = place(shape.seqlen_q, shape.num_heads, BLOCK_M, True)
    own = (batch, head, sequence(tensors, shape, batch, CONFIG))
    first_q, _, seqlen_q, _ = own[2]
    if start_m >= seqlen_q:
        return
    rows = start_m + tl.arange(0, BLOCK_M)
    lo, full_lo, full_hi, hi, first = walk_of_keys(start_m, own, tensors, shape, CONFIG)

    q_tile = load_panels(rows_of(q, batch, head, first_q), start_m, q.m, seqlen_q, BLOCK_M, CONFIG, True)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    if CONFIG.sinks:  # a key without a value, seen first
        row_max = tl.zeros([BLOCK_M], dtype=tl.float32) + load_sink(tensors, head)
        row_sum = tl.where(row_max == float("-inf"), 0.0, 1.0)
    state = (tl.zeros([BLOCK_M, CONFIG.block_dv], dtype=tl.float32), row_sum, row_max)
    walk = (first, start_m, own)
    if not CONFIG.one_loop:
        if CONFIG.has_left:
            state = _fold(state, lo, tl.minimum(full_lo, hi), walk, q_tile, k, v, tensors, shape, CONFIG, True)
        state = _fold(state, full_lo, full_hi, walk, q_tile, k, v, tensors, shape, CONFIG, False)
    acc, row_sum, row_max = _fold(state, full_hi, hi, walk, q_tile, k, v, tensors, shape, CONFIG, True)

    factor = last_factor(shape, CONFIG)
    if tensors.max_logits is not None:
        largest = tl.max(tl.where(rows < seqlen_q, row_max, float("-inf")), 0)
        tl.atomic_max(tensors.max_logits + head, largest * factor * _LN_2)
    some = row_sum != 0.0
    row_sum = tl.where(some, row_sum, 1.0)
    row_max = tl.where(some, row_max, 0.0)
    total = sum_of_rounded(row_sum, row_max, factor, v.base.dtype.element_ty) if CONFIG.scale_last else row_sum
    out_base = rows_of(out, batch, head, first_q)
    store_rows(out_base, start_m, out.m, seqlen_q, acc / total[:, None], BLOCK_M, CONFIG.head_dim_v, CONFIG.block_dv)
    statistics = lse_ptr + batch * shape.stats_b + head * shape.stats_h + first_q + rows
    store_logsumexp(statistics, scaled_maximum(row_max, factor), row_sum, some, rows < seqlen_q)
