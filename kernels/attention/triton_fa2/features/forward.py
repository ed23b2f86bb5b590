"""The forward with features: FlashAttention-2 (arXiv:2307.08691, algorithm 1), every block of keys masked."""

import math

import triton
import triton.language as tl

from ..forward import key_ranges
from ..panels import load_panels, product_of_panels
from ..tile_ops import load_rows, store_logsumexp, store_rows
from .scores import (
    capped,
    kept,
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


@triton.jit
def walk_of_keys(start_m, batch, head, seqlen_q, seqlen_k, tensors, shape, CONFIG: tl.constexpr):
    """Return from where to where a tile of query rows walks over keys, the first a multiple of block_n, and its list.

    With listed blocks the walk counts their keys. `key_at` returns the key.
    """
    shift = seqlen_k - seqlen_q
    last = tl.minimum(start_m + CONFIG.block_m, seqlen_q) - 1 + shift
    lo, _, _, hi = key_ranges(
        start_m + shift, last, seqlen_k, shape.left, shape.right, CONFIG.block_n, CONFIG.has_left, CONFIG.has_right
    )
    if CONFIG.prefixes:
        hi = tl.maximum(hi, tl.minimum(tl.load(tensors.prefixes + batch), seqlen_k).to(tl.int32))
    first = 0
    if CONFIG.blocks > 0:
        line = (batch * tensors.blocks_b * shape.num_heads + head) * tl.cdiv(seqlen_q, CONFIG.blocks)
        starts = tensors.key_starts + line + start_m // CONFIG.blocks
        first = tl.load(starts)
        lo = 0
        hi = (tl.load(starts + 1) - first) * CONFIG.blocks
    return lo, hi, first


@triton.jit
def key_at(at, first, tensors, CONFIG: tl.constexpr):
    """Return the first key of a tile at a place of a walk over keys."""
    if CONFIG.blocks > 0:
        block = at // CONFIG.blocks
        at += (tl.load(tensors.keys + first + block) - block) * CONFIG.blocks
    return tl.multiple_of(at, CONFIG.block_n)


@triton.jit
def features_forward_kernel(q, k, v, out, lse_ptr, tensors, shape, CONFIG: tl.constexpr):
    """Compute output and base-2 logsumexp of a tile of query rows; a program a tile, head and batch."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    BLOCK_DV: tl.constexpr = CONFIG.block_dv
    start_m, head, batch = place(shape.seqlen_q, shape.num_heads, BLOCK_M)
    bounds = sequence(tensors, shape, batch, CONFIG)
    first_q, first_k, seqlen_q, seqlen_k = bounds
    if start_m >= seqlen_q:
        return
    q_base = rows_of(q, batch, head, first_q)
    k_base = rows_of(k, batch, head // shape.group, first_k)
    v_base = rows_of(v, batch, head // shape.group, first_k)
    rows = start_m + tl.arange(0, BLOCK_M)
    lo, hi, first = walk_of_keys(start_m, batch, head, seqlen_q, seqlen_k, tensors, shape, CONFIG)

    q_tile = load_panels(q_base, start_m, q.m, seqlen_q, BLOCK_M, CONFIG, True)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    if CONFIG.sinks:  # a key without a value, seen first
        row_max = tl.zeros([BLOCK_M], dtype=tl.float32) + load_sink(tensors, head)
        row_sum = tl.where(row_max == float("-inf"), 0.0, 1.0)
    for at in tl.range(lo, hi, BLOCK_N):
        start = key_at(at, first, tensors, CONFIG)
        keys = start + tl.arange(0, BLOCK_N)
        if CONFIG.page_size > 0:
            places = places_in_pages(keys, seqlen_k, batch, tensors, CONFIG)
            k_tile = load_panels_from_pages(k, head // shape.group, places, keys < seqlen_k, CONFIG)
        else:
            k_tile = load_panels(k_base, start, k.m, seqlen_k, BLOCK_N, CONFIG, True)
        scores, _ = capped(product_of_panels(q_tile, k_tile, CONFIG), shape, CONFIG)
        scores = masked(scores, rows[:, None], keys[None, :], batch, head, bounds, tensors, shape, CONFIG)
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(scores - base[:, None])
        alpha = tl.exp2(row_max - base)
        row_sum = row_sum * alpha + tl.sum(p, 1)
        row_max = new_max
        if CONFIG.page_size > 0:
            head_v = head // shape.group
            v_tile = load_from_pages(v, head_v, places, keys < seqlen_k, 0, CONFIG.head_dim_v, BLOCK_DV)
        else:
            v_tile = load_rows(v_base, start, v.m, seqlen_k, BLOCK_N, CONFIG.head_dim_v, BLOCK_DV, True)
        p = kept(p, rows[:, None], keys[None, :], batch, head, tensors, shape, CONFIG)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision=CONFIG.precision)

    if tensors.max_logits is not None:
        tl.atomic_max(tensors.max_logits + head, tl.max(row_max, 0) * _LN_2)
    some = row_sum != 0.0
    row_sum = tl.where(some, row_sum, 1.0)
    out_base = rows_of(out, batch, head, first_q)
    store_rows(out_base, start_m, out.m, seqlen_q, acc / row_sum[:, None], BLOCK_M, CONFIG.head_dim_v, BLOCK_DV)
    statistics = lse_ptr + batch * shape.stats_b + head * shape.stats_h + first_q + rows
    store_logsumexp(statistics, row_max, row_sum, some, rows < seqlen_q)
