"""The forward with features: FlashAttention-2 (arXiv:2307.08691, algorithm 1).

Blocks of keys that every row of a tile sees whole take no mask, and those that none sees are not computed.
"""

import math

import triton
import triton.language as tl

from ..forward import key_ranges, weigh
from ..panels import product_of_panels
from ..tile_ops import scaled_maximum, store_logsumexp, sum_of_rounded
from .scores import (
    add_to_panels,
    capped,
    kept,
    load_bias,
    load_keys,
    load_mask,
    load_tile,
    masked,
    place,
    sequence,
    store_tile,
    to_nearest,
    zero_panels,
)

_LN_2 = tl.constexpr(math.log(2))
AT_ONCE = tl.constexpr(256)  # blocks of ids that a program compares at a time


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
    begin, end = blocks, 0
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
def spans_kernel(mask, spans, mask_b, mask_n, seqlen_k, AT_ONCE: tl.constexpr):
    """Store the first key that a batch's mask shows, the end of the last one, and whether it shows all between."""
    batch = tl.program_id(0)
    mask += tl.cast(batch, tl.int64) * mask_b
    firsts = tl.full([AT_ONCE], seqlen_k, tl.int32)
    ends = tl.zeros([AT_ONCE], tl.int32)
    shown = tl.zeros([AT_ONCE], tl.int32)
    for start in tl.range(0, seqlen_k, AT_ONCE):
        keys = start + tl.arange(0, AT_ONCE)
        seen = tl.load(mask + keys * mask_n, mask=keys < seqlen_k, other=0) != 0
        firsts = tl.where(seen, tl.minimum(firsts, keys), firsts)
        ends = tl.where(seen, keys + 1, ends)
        shown += seen.to(tl.int32)
    end = tl.max(ends, 0)
    first = tl.minimum(tl.min(firsts, 0), end)
    tl.store(spans + batch * 3, first)
    tl.store(spans + batch * 3 + 1, end)
    tl.store(spans + batch * 3 + 2, (tl.sum(shown, 0) == end - first).to(tl.int32))


@triton.jit
def shown_span(batch, tensors):
    """Return what `spans_kernel` stored for the mask of a batch."""
    span = tensors.spans + batch * tensors.spans_b
    return tl.load(span), tl.load(span + 1), tl.load(span + 2) != 0


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
    if tensors.prefixes is not None:
        prefix = tl.minimum(tl.load(tensors.prefixes + batch), seqlen_k).to(tl.int32)
        hi = tl.maximum(hi, prefix)
        full_hi = tl.maximum(full_hi, prefix // BLOCK_N * BLOCK_N)
    if tensors.documents is not None:
        begin, end = span_of_documents(position, last, seqlen_k, batch, tensors, CONFIG.block_m)
        lo = tl.maximum(lo, begin // BLOCK_N * BLOCK_N)
        hi = tl.minimum(hi, end)
    if CONFIG.spans:
        begin, end, whole = shown_span(batch, tensors)
        lo = tl.maximum(lo, begin // BLOCK_N * BLOCK_N)
        hi = tl.minimum(hi, end)
        full_lo = tl.minimum(tl.maximum(full_lo, tl.cdiv(begin, BLOCK_N) * BLOCK_N), tl.maximum(hi, lo))
        full_hi = tl.maximum(tl.minimum(full_hi, end // BLOCK_N * BLOCK_N), full_lo)
        full_lo = tl.where(whole, full_lo, lo)
        full_hi = tl.where(whole, full_hi, lo)
    first = 0
    if CONFIG.blocks > 0:
        line = (batch * tensors.blocks_b * shape.num_heads + head) * tl.cdiv(seqlen_q, CONFIG.blocks)
        starts = tensors.key_starts + line + start_m // CONFIG.blocks
        first = tl.load(starts)
        lo, full_lo = 0, 0
        hi = (tl.load(starts + 1) - first) * CONFIG.blocks
        full_hi = hi
    if CONFIG.from_16:
        lo = tl.maximum(lo, (position - shape.left) // 16 * 16)
    if CONFIG.one_loop:
        full_hi = lo
    return (lo, full_lo, full_hi, hi), first


@triton.jit
def key_at(at, first, tensors, CONFIG: tl.constexpr):
    """Return the first key of a tile at a place of a walk over keys."""
    if CONFIG.blocks > 0:
        block = at // CONFIG.blocks
        at += (tl.load(tensors.keys + first + block) - block) * CONFIG.blocks
    return tl.multiple_of(at, 16 if CONFIG.from_16 else CONFIG.block_n)


@triton.jit
def _fold(state, lo, hi, walk, q_tile, k, v, tensors, shape, CONFIG: tl.constexpr, MASKED: tl.constexpr):
    """Fold the keys of a part of a walk into the output, sum and maximum of each row, as forward.fold_keys.

    walk: where its list begins, the first row, and the batch, the query head and the bounds of the sequence.
    """
    BLOCK_N: tl.constexpr = CONFIG.block_n
    acc, row_sum, row_max = state
    first, start_m, own = walk
    rows = start_m + tl.arange(0, CONFIG.block_m)
    head_k = own[1] // shape.group
    if not CONFIG.branch or lo < hi:
        for at in tl.range(lo, hi, BLOCK_N):
            start = key_at(at, first, tensors, CONFIG)
            keys = start + tl.arange(0, BLOCK_N)
            k_tile = load_keys(k, head_k, start, own, tensors, CONFIG, CONFIG, MASKED)
            added = 0.0
            if CONFIG.mask == "additive" and not CONFIG.scale_last:  # nothing copies rows ahead that are not aligned
                added = load_mask(rows[:, None], keys[None, :], own, tensors, CONFIG)
            scores, _ = capped(product_of_panels(q_tile, k_tile, CONFIG), shape, CONFIG)
            if CONFIG.mask == "additive" and CONFIG.scale_last:
                added = load_bias(start_m, start, own, tensors, CONFIG, False)
            scores = masked(scores, added, rows[:, None], keys[None, :], own, tensors, shape, CONFIG, MASKED)
            p, alpha, row_sum, row_max = weigh(scores, row_sum, row_max, shape.factor, True)
            v_tile = load_keys(v, head_k, start, own, tensors, CONFIG, CONFIG.values, MASKED)
            p = kept(p, start_m, start, own, tensors, shape, CONFIG, False)
            scaled = (acc[0] * alpha[:, None], acc[1] * alpha[:, None])
            acc = add_to_panels(scaled, p, v_tile, CONFIG.values)
    return acc, row_sum, row_max


@triton.jit
def features_forward_kernel(q, k, v, out, lse_ptr, tensors, shape, CONFIG: tl.constexpr):
    """Compute output and base-2 logsumexp of a tile of query rows; a program a tile, head and batch."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    start_m, head, batch = place(shape.seqlen_q, shape.first_b, BLOCK_M, True)
    own = (batch, head, sequence(tensors, shape, batch))
    first_q, _, seqlen_q, _ = own[2]
    if start_m >= seqlen_q:
        return
    rows = start_m + tl.arange(0, BLOCK_M)
    ends, first = walk_of_keys(start_m, own, tensors, shape, CONFIG)

    q_tile = to_nearest(load_tile(q, batch, head, first_q, start_m, seqlen_q, BLOCK_M, CONFIG, CONFIG, True), CONFIG)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    if tensors.sinks is not None:  # a key without a value, seen first
        sink = tl.load(tensors.sinks + head).to(tl.float32) / (_LN_2 * shape.factor)
        row_max = tl.zeros([BLOCK_M], dtype=tl.float32) + sink
        row_sum = tl.where(row_max == float("-inf"), 0.0, 1.0)
    state = (zero_panels(BLOCK_M, CONFIG.values), row_sum, row_max)
    walk = (first, start_m, own)
    for PART in tl.static_range(3):
        if CONFIG.tail if PART == 2 else not CONFIG.one_loop and (PART == 1 or CONFIG.has_left or CONFIG.spans):
            state = _fold(state, ends[PART], ends[PART + 1], walk, q_tile, k, v, tensors, shape, CONFIG, PART != 1)
    acc, row_sum, row_max = state

    if tensors.max_logits is not None:
        largest = tl.max(tl.where(rows < seqlen_q, row_max, float("-inf")), 0)
        tl.atomic_max(tensors.max_logits + head, largest * shape.factor * _LN_2)
    some = row_sum != 0.0
    row_sum = tl.where(some, row_sum, 1.0)
    row_max = tl.where(some, row_max, 0.0)
    total = sum_of_rounded(row_sum, row_max, shape.factor, v.base.dtype.element_ty) if CONFIG.scale_last else row_sum
    inverse = 1.0 / total
    values = (acc[0] * inverse[:, None], acc[1] * inverse[:, None])
    store_tile(out, batch, head, first_q, start_m, seqlen_q, values, BLOCK_M, CONFIG, CONFIG.values)
    statistics = lse_ptr + batch * shape.stats_b + head * shape.stats_h + first_q + rows
    store_logsumexp(statistics, scaled_maximum(row_max, shape.factor), row_sum, some, (rows < seqlen_q) | CONFIG.whole)
