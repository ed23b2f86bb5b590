"""The backward with features in two walks, as backward.py's: dq by queries, dk and dv by keys; no atomics.

The gradient of an added mask is a third one, by tiles of the mask, over the batches and heads that share it.

Blocks that every row sees whole take no mask, and those that none sees are not computed.
"""

import triton
import triton.language as tl

from ....plans import LOG2_E
from ..backward import query_ranges
from ..forward import visible
from ..panels import product_of_panels
from ..tile_ops import load_logsumexp, probabilities
from .forward import key_at, shown_span, span_of_documents, walk_of_keys
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

_LOG2_E = tl.constexpr(LOG2_E)


@triton.jit
def _dq_of_keys(sums, lo, hi, walk, queries, k, v, tensors, shape, CONFIG: tl.constexpr, MASKED: tl.constexpr):
    """Add the contribution of the keys of a part of a walk to dq.

    sums: dq of each batch of the program; queries: its q, dout, lse and delta of the rows.
    """
    BLOCK_N: tl.constexpr = CONFIG.block_n
    EXACT: tl.constexpr = tl.float32 == k.base.dtype.element_ty
    first, start_m, own = walk
    rows = start_m + tl.arange(0, CONFIG.block_m)
    head_k = own[1] // shape.group
    if not CONFIG.branch or lo < hi:
        for at in tl.range(lo, hi, BLOCK_N):
            start = key_at(at, first, tensors, CONFIG)
            keys = start + tl.arange(0, BLOCK_N)
            for AT in tl.static_range(CONFIG.together):
                q_tile, dout_tile, lse, delta = queries[AT]
                each = (own[0] + AT, own[1], own[2])
                k_tile = load_keys(k, head_k, start, each, tensors, CONFIG, CONFIG, MASKED)
                scores, bend = capped(product_of_panels(q_tile, k_tile, CONFIG), shape, CONFIG)
                if AT == 0:  # all batches of a program share a mask
                    added = load_bias(start_m, start, own, tensors, CONFIG, False) if CONFIG.mask == "additive" else 0.0
                scores = masked(scores, added, rows[:, None], keys[None, :], each, tensors, shape, CONFIG, MASKED)
                p = probabilities(scores, shape.factor, lse, True, 1, False, EXACT)
                v_tile = load_keys(v, head_k, start, each, tensors, CONFIG, CONFIG.values, MASKED)
                dp = product_of_panels(dout_tile, v_tile, CONFIG.values)
                dp = kept(dp, start_m, start, each, tensors, shape, CONFIG, False)
                ds = p * (dp - delta[:, None])
                if CONFIG.softcap != "":
                    ds = ds * (1.0 - bend * bend)
                sums = sums[1:] + (add_to_panels(sums[0], ds, k_tile, CONFIG),)
    return sums


@triton.jit
def features_dq_kernel(q, k, v, out, dout, dq, lse_ptr, delta_ptr, tensors, shape, CONFIG: tl.constexpr):
    """Compute dq of a tile of query rows and their delta = rowsum(dout * out) - dlse.

    A program has a tile and a head of one batch, or of several that share an added mask.
    """
    BLOCK_M: tl.constexpr = CONFIG.block_m
    start_m, head, batch = place(shape.seqlen_q, shape.first_b, BLOCK_M, True)
    batch *= CONFIG.together
    own = (batch, head, sequence(tensors, shape, batch))
    first_q, _, seqlen_q, _ = own[2]
    if start_m >= seqlen_q:
        return
    rows = start_m + tl.arange(0, BLOCK_M)
    ends, first = walk_of_keys(start_m, own, tensors, shape, CONFIG)

    queries, sums = (), ()
    for AT in tl.static_range(CONFIG.together):
        at = batch + AT
        q_tile = to_nearest(load_tile(q, at, head, first_q, start_m, seqlen_q, BLOCK_M, CONFIG, CONFIG, True), CONFIG)
        dout_tile = load_tile(dout, at, head, first_q, start_m, seqlen_q, BLOCK_M, CONFIG, CONFIG.values, True)
        out_tile = load_tile(out, at, head, first_q, start_m, seqlen_q, BLOCK_M, CONFIG, CONFIG.values, True)
        statistics = at * shape.stats_b + head * shape.stats_h + first_q + rows
        there = (rows < seqlen_q) | CONFIG.whole
        delta = tl.sum(out_tile[0].to(tl.float32) * dout_tile[0].to(tl.float32), 1)
        if CONFIG.values.block_d2 > 0:
            delta += tl.sum(out_tile[1].to(tl.float32) * dout_tile[1].to(tl.float32), 1)
        if tensors.dlse is not None:
            delta -= tl.load(tensors.dlse + statistics, mask=there, other=0.0)
        tl.store(delta_ptr + statistics, delta, mask=there)
        lse = load_logsumexp(lse_ptr + statistics, there)
        queries += ((q_tile, to_nearest(dout_tile, CONFIG), lse, delta),)  # type: ignore[assignment]
        sums += (zero_panels(BLOCK_M, CONFIG),)  # type: ignore[assignment]
    walk = (first, start_m, own)
    for PART in tl.static_range(3):
        if CONFIG.tail if PART == 2 else not CONFIG.one_loop and (PART == 1 or CONFIG.has_left or CONFIG.spans):
            sums = _dq_of_keys(sums, ends[PART], ends[PART + 1], walk, queries, k, v, tensors, shape, CONFIG, PART != 1)
    for AT in tl.static_range(CONFIG.together):
        values = (sums[AT][0] * shape.scale, sums[AT][1] * shape.scale)
        store_tile(dq, batch + AT, head, first_q, start_m, seqlen_q, values, BLOCK_M, CONFIG, CONFIG)


@triton.jit
def _load_statistics(lse_ptrs, delta_ptrs, there, CONFIG: tl.constexpr):
    """Return lse, as load_logsumexp does, and delta of rows.

    Of a tensor with fewer elements than threads, each thread loads all that it needs: 32 copies of 4 bytes for 64 rows.
    Of both, twice side by side, a thread loads one or two. Large tiles have no registers for the detour.
    """
    if lse_ptrs.dtype.element_ty == tl.float64 or CONFIG.block_n > 64 or CONFIG.head_dim > 128:
        lse = load_logsumexp(lse_ptrs, there)
        delta = tl.load(delta_ptrs, mask=there, other=0.0)
    else:
        pointers = tl.where(tl.arange(0, 4)[None, :] % 2 == 0, lse_ptrs[:, None], delta_ptrs[:, None])
        both = tl.load(pointers, mask=there[:, None], other=0.0)
        lses, deltas = tl.split(tl.reshape(both, [both.shape[0], 2, 2]))
        high, _ = tl.split(lses)
        delta, _ = tl.split(deltas)
        high = tl.where(there, high, float("inf"))
        lse = high, high
    return lse, delta


@triton.jit
def _dkdv_of_queries(sums, dv_sum, lo, hi, walk, tiles, queries, tensors, shape,
                     CONFIG: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Add the contribution of rows lo .. hi of a group's heads to dk and dv; of listed blocks, their rows are counted.

    walk: where its list begins, the first key, and the batch, the key head and the bounds of the sequence.
    """
    BLOCK_M: tl.constexpr = CONFIG.block_m
    first, start_n, own = walk
    batch, head_k, bounds = own
    k_tile, v_tile = tiles
    q, dout, lse_ptr, delta_ptr = queries
    EXACT: tl.constexpr = tl.float32 == q.base.dtype.element_ty
    keys = start_n + tl.arange(0, CONFIG.block_n)
    first_q, _, seqlen_q, _ = bounds
    steps = tl.cdiv(tl.maximum(hi - lo, 0), BLOCK_M)
    if not CONFIG.branch or lo < hi:
        for step in tl.range(0, steps if CONFIG.blocks > 0 else steps * shape.group):
            if CONFIG.blocks > 0:
                block = step * BLOCK_M // CONFIG.blocks
                entry = tl.load(tensors.queries + first + block)
                head = tl.cast(entry // tl.cdiv(seqlen_q, CONFIG.blocks), tl.int64)
                start = step * BLOCK_M + (entry % tl.cdiv(seqlen_q, CONFIG.blocks) - block) * CONFIG.blocks
            else:
                head = head_k * shape.group + step // steps if CONFIG.grouped else head_k
                start = lo + (step % steps if CONFIG.grouped else step) * BLOCK_M
            rows = start + tl.arange(0, BLOCK_M)
            of_head = (batch, head, bounds)
            q_tile = load_tile(q, batch, head, first_q, start, seqlen_q, BLOCK_M, CONFIG, CONFIG, True)
            scores, bend = capped(product_of_panels(k_tile, q_tile, CONFIG), shape, CONFIG)
            added = load_bias(start, start_n, of_head, tensors, CONFIG, True) if CONFIG.mask == "additive" else 0.0
            scores = masked(scores, added, rows[None, :], keys[:, None], of_head, tensors, shape, CONFIG, MASKED)
            statistics = batch * shape.stats_b + head * shape.stats_h + first_q + rows
            there = (rows < seqlen_q) | CONFIG.whole
            lse, delta = _load_statistics(lse_ptr + statistics, delta_ptr + statistics, there, CONFIG)
            p = probabilities(scores, shape.factor, lse, True, 0, False, EXACT)
            dout_tile = load_tile(dout, batch, head, first_q, start, seqlen_q, BLOCK_M, CONFIG, CONFIG.values, True)
            p_kept = kept(p, start, start_n, of_head, tensors, shape, CONFIG, True)
            dv_sum = add_to_panels(dv_sum, p_kept, dout_tile, CONFIG.values)
            dp = product_of_panels(v_tile, dout_tile, CONFIG.values)
            dp = kept(dp, start, start_n, of_head, tensors, shape, CONFIG, True)
            ds = p * (dp - delta[None, :])
            if CONFIG.softcap != "":
                ds = ds * (1.0 - bend * bend)
            sums = add_to_panels(sums, ds, q_tile, CONFIG)
    return sums, dv_sum


@triton.jit
def features_dkdv_kernel(q, k, v, dout, dk, dv, lse_ptr, delta_ptr, tensors, shape, CONFIG: tl.constexpr):
    """Compute dk and dv of a tile of keys, summed over its query heads; a program a tile, key head and batch."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    start_n, head_k, batch = place(shape.seqlen_k, shape.first_b, BLOCK_N, not CONFIG.has_right)
    own = (batch, head_k, sequence(tensors, shape, batch))
    _, first_k, seqlen_q, seqlen_k = own[2]
    if start_n >= seqlen_k:
        return
    lo, full_lo, full_hi, hi = query_ranges(
        start_n, seqlen_q, seqlen_k, shape.left, shape.right, BLOCK_M, BLOCK_N, CONFIG.has_left, CONFIG.has_right
    )
    if tensors.prefixes is not None:  # all rows see the keys of the prefix
        prefix = tl.load(tensors.prefixes + batch)
        lo = tl.where(start_n < prefix, 0, lo)
        full_lo = tl.where(start_n + BLOCK_N <= prefix, 0, full_lo)
    if tensors.documents is not None:
        begin, end = span_of_documents(start_n, seqlen_k - 1, seqlen_k, batch, tensors, BLOCK_N)
        shift = seqlen_k - seqlen_q
        lo = tl.maximum(lo, tl.maximum(begin - shift, 0) // BLOCK_M * BLOCK_M)
        hi = tl.minimum(hi, end - shift)
    if CONFIG.spans:
        begin, end, whole = shown_span(batch, tensors)
        hi = tl.where((begin < start_n + BLOCK_N) & (end > start_n), hi, lo)
        whole = whole & (begin <= start_n) & (end >= tl.minimum(start_n + BLOCK_N, seqlen_k))
        full_lo = tl.where(whole, full_lo, lo)
        full_hi = tl.where(whole, full_hi, lo)
    first = 0
    if CONFIG.blocks > 0:  # the lists of a group's heads follow each other
        line = batch * tensors.blocks_b * tl.cdiv(seqlen_k, CONFIG.blocks) + start_n // CONFIG.blocks
        starts = tensors.query_starts + line * shape.num_heads + head_k * shape.group
        first = tl.load(starts)
        lo, full_lo = 0, 0
        hi = (tl.load(starts + shape.group) - first) * CONFIG.blocks
        full_hi = hi
    if CONFIG.from_16:
        lo = tl.maximum(lo, (start_n - shape.right - (seqlen_k - seqlen_q)) // 16 * 16)
    if CONFIG.one_loop:
        full_hi = lo

    k_tile = to_nearest(load_tile(k, batch, head_k, first_k, start_n, seqlen_k, BLOCK_N, CONFIG, CONFIG, True), CONFIG)
    v_tile = to_nearest(
        load_tile(v, batch, head_k, first_k, start_n, seqlen_k, BLOCK_N, CONFIG, CONFIG.values, True), CONFIG
    )
    sums = zero_panels(BLOCK_N, CONFIG)
    dv_sum = zero_panels(BLOCK_N, CONFIG.values)
    walk, tiles, queries = (first, start_n, own), (k_tile, v_tile), (q, dout, lse_ptr, delta_ptr)
    ends = (lo, full_lo, full_hi, hi)
    HAS_LAST: tl.constexpr = CONFIG.has_left or CONFIG.spans or CONFIG.one_loop
    for PART in tl.static_range(3):
        if HAS_LAST if PART == 2 else not CONFIG.one_loop and (PART == 1 or CONFIG.has_right):
            sums, dv_sum = _dkdv_of_queries(
                sums, dv_sum, ends[PART], ends[PART + 1], walk, tiles, queries, tensors, shape, CONFIG, PART != 1
            )
    values = (sums[0] * shape.scale, sums[1] * shape.scale)
    store_tile(dk, batch, head_k, first_k, start_n, seqlen_k, values, BLOCK_N, CONFIG, CONFIG)
    store_tile(dv, batch, head_k, first_k, start_n, seqlen_k, dv_sum, BLOCK_N, CONFIG, CONFIG.values)


@triton.jit
def features_dmask_kernel(q, k, v, dout, sums, lse_ptr, delta_ptr, tensors, shape, CONFIG: tl.constexpr):
    """Compute the gradient of a tile of an added mask over a part of what shares it; a program a tile and part."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    EXACT: tl.constexpr = tl.float32 == q.base.dtype.element_ty
    seqlen_q, seqlen_k = shape.seqlen_q, shape.seqlen_k
    start_m, start_n, line = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N, shape.first_b + tl.program_id(2)
    place = tl.cast(line, tl.int64)  # of this part of the line
    part, line = line // sums.lines, line % sums.lines
    count = sums.of_batches * sums.of_heads
    begin, end = part * count // sums.parts, (part + 1) * count // sums.parts
    rows, keys = start_m + tl.arange(0, BLOCK_M), start_n + tl.arange(0, BLOCK_N)
    shift = seqlen_k - seqlen_q
    if CONFIG.has_right and tensors.prefixes is None:
        end = tl.where(start_n > start_m + BLOCK_M - 1 + shift + shape.right, begin, end)
    if CONFIG.has_left:
        end = tl.where(start_n + BLOCK_N - 1 < start_m + shift - shape.left, begin, end)
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    shared = (line // sums.heads, line % sums.heads, (0, 0, seqlen_q, seqlen_k))
    added = load_mask(rows[:, None], keys[None, :], shared, tensors, CONFIG).to(tl.float32) * _LOG2_E
    OWN: tl.constexpr = tensors.prefixes is not None or tensors.documents is not None  # masks of a batch
    if not OWN:
        positions = rows[:, None] + shift
        seen = visible(positions, keys[None, :], seqlen_k, shape.left, shape.right, CONFIG.has_left, CONFIG.has_right)
        added = tl.where(seen, added, float("-inf"))
    for i in tl.range(begin, end):
        batch = tl.cast(line // sums.heads + i // sums.of_heads, tl.int64)
        head = tl.cast(line % sums.heads + i % sums.of_heads, tl.int64)
        own = (batch, head, (0, 0, seqlen_q, seqlen_k))
        q_tile = load_tile(q, batch, head, 0, start_m, seqlen_q, BLOCK_M, CONFIG, CONFIG, True)
        k_tile = load_tile(k, batch, head // shape.group, 0, start_n, seqlen_k, BLOCK_N, CONFIG, CONFIG, True)
        scores, _ = capped(product_of_panels(q_tile, k_tile, CONFIG), shape, CONFIG)
        scores = masked(scores, None, rows[:, None], keys[None, :], own, tensors, shape, CONFIG, OWN) + added
        statistics = batch * shape.stats_b + head * shape.stats_h + rows
        lse = load_logsumexp(lse_ptr + statistics, (rows < seqlen_q) | CONFIG.whole)
        p = probabilities(scores, shape.factor, lse, True, 1, False, EXACT)
        dout_tile = load_tile(dout, batch, head, 0, start_m, seqlen_q, BLOCK_M, CONFIG, CONFIG.values, True)
        v_tile = load_tile(v, batch, head // shape.group, 0, start_n, seqlen_k, BLOCK_N, CONFIG, CONFIG.values, True)
        dp = product_of_panels(dout_tile, v_tile, CONFIG.values)
        dp = kept(dp, start_m, start_n, own, tensors, shape, CONFIG, False)
        delta = tl.load(delta_ptr + statistics, mask=(rows < seqlen_q) | CONFIG.whole, other=0.0)
        total += p * (dp - delta[:, None])
    pointers = sums.base + (place * seqlen_q + rows)[:, None] * seqlen_k + keys[None, :]
    tl.store(pointers, total, mask=(rows < seqlen_q)[:, None] & (keys < seqlen_k)[None, :])
