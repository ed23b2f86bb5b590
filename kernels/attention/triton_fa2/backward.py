"""The backward in two walks (FlashAttention-2, arXiv:2307.08691, algorithm 2, split): dq by queries, dk and dv by keys.

For dq, a program owns BLOCK_M query rows of one head and walks over the keys they see. For dk and dv, a program owns
BLOCK_N keys of one key head and walks over the query rows that see them. No atomics: the gradients are the same bits on
every run.

Large problems take two launches: dq_kernel runs first and leaves delta = rowsum(dout * out) for dkdv_kernel, where
preprocess.py did not. Small ones take one: a program of dq_dkdv_kernel does the i-th tile of both.

`scale` is softmax_scale x log2(e). qt, kt, vt and dot are the transposed copies of preprocess.py (if COPIED).
"""

from collections import namedtuple

import triton
import triton.language as tl

from .arguments import SIZES, SPLIT_SIZES
from .forward import assign, key_ranges, visible, wait_for_previous_kernel
from .split import share
from .tile_ops import add_product, load_factor, load_logsumexp, load_rows, padded, probabilities, products, store_rows

# A tile of query rows of one head, and where it is in memory. `q`: as load_factor returns them.
OwnedQueries = namedtuple("OwnedQueries", "q dout lse delta q_base dout_base q_stride dout_stride first seqlen")
# Where a head's keys and values are, and how many before and after its own position a query sees.
StreamedKeys = namedtuple("StreamedKeys", "k v k_transposed v_transposed k_stride v_stride seqlen left right")
# A tile of keys and values of one head, where it is in memory, and how many keys around its own a query sees. Those
# that dkdv_tile loads itself are None before. `k`: as load_factor returns them.
OwnedKeys = namedtuple("OwnedKeys", "k v k_base v_base k_stride v_stride first seqlen left right")
# Where the queries of a group of heads are, from the first head on. `q_head` and so on: strides of heads and rows;
# `stats_head`: of lse and delta.
StreamedQueries = namedtuple(
    "StreamedQueries",
    "q dout lse delta q_transposed dout_transposed q_head q_stride dout_head dout_stride stats_head heads seqlen",
)
# Which split of a walk a program has, see split.py; without splits of no meaning.
OwnSplit = namedtuple("OwnSplit", "number count length")


@triton.jit
def _dq_of_keys(dq, queries, keys, positions, lo, hi, scale, CONFIG: tl.constexpr, MASKED: tl.constexpr):
    """Add the contribution of the keys lo .. hi to dq."""
    BLOCK_N: tl.constexpr = CONFIG.block_n
    for start in tl.range(lo, hi, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = load_factor(keys.k, start, keys.k_stride, keys.seqlen, BLOCK_N, MASKED, CONFIG)
        scores = products(
            queries.q, k, queries.q_base, queries.first, queries.q_stride, queries.seqlen, keys.k_transposed, start,
            keys.seqlen, CONFIG.block_m, BLOCK_N, CONFIG,
        )  # fmt: skip
        columns = start + tl.arange(0, BLOCK_N)
        seen = visible(
            positions[:, None], columns[None, :], keys.seqlen, keys.left, keys.right, CONFIG.has_left, CONFIG.has_right
        )
        p = probabilities(scores, scale, queries.lse, seen, 1, MASKED, CONFIG.copied or CONFIG.precision == "bf16x6")
        v = k
        if not CONFIG.copied:
            v = load_factor(keys.v, start, keys.v_stride, keys.seqlen, BLOCK_N, MASKED, CONFIG)
        dp = products(
            queries.dout, v, queries.dout_base, queries.first, queries.dout_stride, queries.seqlen, keys.v_transposed,
            start, keys.seqlen, CONFIG.block_m, BLOCK_N, CONFIG,
        )  # fmt: skip
        ds = p * (dp - queries.delta[:, None])
        if CONFIG.copied:
            k = load_factor(keys.k, start, keys.k_stride, keys.seqlen, BLOCK_N, MASKED, CONFIG)
        dq = add_product(dq, ds, k, CONFIG.copied, CONFIG.precision)
    return dq


@triton.jit
def dq_tile(dq_base, dq_stride, queries, keys, split, scale, softmax_scale, CONFIG: tl.constexpr):
    """Compute and write dq of a tile of block_m query rows, or the part of one split of the keys."""
    start_m = queries.first
    seqlen_q = queries.seqlen
    shift = keys.seqlen - seqlen_q
    positions = start_m + tl.arange(0, CONFIG.block_m) + shift
    last = tl.minimum(start_m + CONFIG.block_m, seqlen_q) - 1 + shift
    lo, full_lo, full_hi, hi = key_ranges(
        start_m + shift, last, keys.seqlen, keys.left, keys.right, CONFIG.block_n, CONFIG.has_left, CONFIG.has_right
    )
    if CONFIG.split:
        lo, full_lo, full_hi, hi = share(lo, full_lo, full_hi, hi, split.number, split.count, split.length)
    dq = tl.zeros([CONFIG.block_m, CONFIG.block_d], dtype=tl.float32)
    if CONFIG.one_loop:
        dq = _dq_of_keys(dq, queries, keys, positions, lo, hi, scale, CONFIG, True)
    else:
        if CONFIG.has_left:
            dq = _dq_of_keys(dq, queries, keys, positions, lo, tl.minimum(full_lo, hi), scale, CONFIG, True)
        dq = _dq_of_keys(dq, queries, keys, positions, full_lo, full_hi, scale, CONFIG, False)
        dq = _dq_of_keys(dq, queries, keys, positions, full_hi, hi, scale, CONFIG, True)
    if (not CONFIG.split) or lo < hi:
        store_rows(
            dq_base, start_m, dq_stride, seqlen_q, dq * softmax_scale, CONFIG.block_m, CONFIG.head_dim, CONFIG.block_d
        )


@triton.jit(do_not_specialize=SIZES)
def dq_kernel(
    tensors, strides, num_heads, group, total_heads, heads_at_once, seqlen_q, seqlen_k, left, right, scale,
    softmax_scale, CONFIG: tl.constexpr,
):  # fmt: skip
    """Compute dq of block_m query rows, and their delta (which preprocess.py computes for copied tensors)."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    wait_for_previous_kernel(CONFIG.pdl)
    tiles = tl.cdiv(seqlen_q, BLOCK_M)
    tile, head = assign(tl.program_id(0), tiles, total_heads, heads_at_once)
    if CONFIG.has_right:
        tile = tiles - 1 - tile
    start_m = tile * BLOCK_M
    batch = tl.cast(head // num_heads, tl.int64)
    head_q = tl.cast(head % num_heads, tl.int64)
    head_k = head_q // group

    dout_base = tensors.dout + batch * strides.dout.batch + head_q * strides.dout.head
    out_base = tensors.out + batch * strides.out.batch + head_q * strides.out.head
    dout = load_factor(dout_base, start_m, strides.dout.row, seqlen_q, BLOCK_M, True, CONFIG)
    rows = start_m + tl.arange(0, BLOCK_M)
    row_offset = tl.cast(head, tl.int64) * seqlen_q
    if CONFIG.copied or CONFIG.precision == "bf16x6":
        delta = tl.load(tensors.delta + row_offset + rows, mask=rows < seqlen_q, other=0.0)
    else:
        out = load_rows(out_base, start_m, strides.out.row, seqlen_q, BLOCK_M, CONFIG.head_dim, CONFIG.block_d, True)
        delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
        tl.store(tensors.delta + row_offset + rows, delta, mask=rows < seqlen_q)
    lse = load_logsumexp(tensors.lse + row_offset + rows, rows < seqlen_q)
    q_base = tensors.q + batch * strides.q.batch + head_q * strides.q.head
    q = load_factor(q_base, start_m, strides.q.row, seqlen_q, BLOCK_M, True, CONFIG)
    copy = (batch * (num_heads // group) + head_k) * CONFIG.head_dim * padded(seqlen_k)
    queries = OwnedQueries(q=q, dout=dout, lse=lse, delta=delta, q_base=q_base, dout_base=dout_base,
                           q_stride=strides.q.row, dout_stride=strides.dout.row, first=start_m,
                           seqlen=seqlen_q)  # fmt: skip
    keys = StreamedKeys(k=tensors.k + batch * strides.k.batch + head_k * strides.k.head,
                        v=tensors.v + batch * strides.v.batch + head_k * strides.v.head,
                        k_transposed=tensors.k_transposed + copy, v_transposed=tensors.v_transposed + copy,
                        k_stride=strides.k.row, v_stride=strides.v.row, seqlen=seqlen_k, left=left,
                        right=right)  # fmt: skip
    dq_base = tensors.dq + batch * strides.dq.batch + head_q * strides.dq.head
    dq_tile(dq_base, strides.dq.row, queries, keys, OwnSplit(0, 1, 0), scale, softmax_scale, CONFIG)


@triton.jit
def query_ranges(
    first_key, seqlen_q, seqlen_k, left, right,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
):  # fmt: skip
    """Return bounds lo <= full_lo <= full_hi and hi of the query rows that see a tile of keys; see forward.key_ranges.

    The last rows need no mask, so full_hi may lie beyond them.
    """
    shift = seqlen_k - seqlen_q
    last_key = tl.minimum(first_key + BLOCK_N, seqlen_k) - 1
    lo, full_lo, full_hi, hi = 0, 0, seqlen_q, seqlen_q
    if HAS_LEFT:
        hi = tl.minimum(hi, tl.maximum(last_key + left - shift + 1, 0))
        full_hi = tl.minimum(full_hi, (tl.maximum(first_key + left - shift + 1, 0) // BLOCK_M) * BLOCK_M)
    if HAS_RIGHT:
        lo = (tl.maximum(first_key - right - shift, 0) // BLOCK_M) * BLOCK_M
        full_lo = tl.cdiv(tl.maximum(last_key - right - shift, 0), BLOCK_M) * BLOCK_M
        full_lo = tl.minimum(full_lo, tl.maximum(tl.cdiv(hi, BLOCK_M) * BLOCK_M, lo))
    full_hi = tl.maximum(full_hi, full_lo)
    return lo, full_lo, full_hi, hi


@triton.jit
def _dkdv_of_queries(
    dk, dv, keys, queries, lo, hi, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CONFIG: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the contribution of the query rows lo .. hi of all heads of the group to dk and dv.

    Scores are transposed: keys down, queries across. One loop runs over heads and rows; nested, the compiler keeps the
    addresses of both loops in registers and spills (296 bytes at head_dim 128, 64x64, 8 warps on sm_90).
    """
    seqlen_q = queries.seqlen
    steps = tl.cdiv(tl.maximum(hi - lo, 0), BLOCK_M)
    for step in tl.range(0, steps * queries.heads if CONFIG.grouped else steps):
        member = tl.cast(step // steps if CONFIG.grouped else 0, tl.int64)
        start = tl.multiple_of(lo + (step % steps if CONFIG.grouped else step) * BLOCK_M, BLOCK_M)
        rows = start + tl.arange(0, BLOCK_M)
        lse_base = queries.lse + member * queries.stats_head
        copy = member * CONFIG.head_dim * padded(seqlen_q) if CONFIG.copied else 0
        q_base = queries.q + member * queries.q_head
        q = load_factor(q_base, start, queries.q_stride, seqlen_q, BLOCK_M, True, CONFIG)
        scores = products(
            keys.k, q, keys.k_base, keys.first, keys.k_stride, keys.seqlen, queries.q_transposed + copy, start,
            seqlen_q, BLOCK_N, BLOCK_M, CONFIG, True,
        )  # fmt: skip
        positions = rows + (keys.seqlen - seqlen_q)
        own = keys.first + tl.arange(0, BLOCK_N)
        seen = visible(
            positions[None, :], own[:, None], keys.seqlen, keys.left, keys.right, CONFIG.has_left, CONFIG.has_right
        )
        lse = load_logsumexp(lse_base + rows, rows < seqlen_q)
        p = probabilities(scores, scale, lse, seen, 0, MASKED, CONFIG.copied or CONFIG.precision == "bf16x6")
        dout_base = queries.dout + member * queries.dout_head
        dout = load_factor(dout_base, start, queries.dout_stride, seqlen_q, BLOCK_M, True, CONFIG)
        dv = add_product(dv, p, dout, CONFIG.copied, CONFIG.precision)
        dp = products(
            keys.v, dout, keys.v_base, keys.first, keys.v_stride, keys.seqlen, queries.dout_transposed + copy, start,
            seqlen_q, BLOCK_N, BLOCK_M, CONFIG,
        )  # fmt: skip
        delta_base = queries.delta + member * queries.stats_head
        delta = tl.load(delta_base + rows, mask=rows < seqlen_q, other=0.0)
        ds = p * (dp - delta[None, :])
        if CONFIG.copied:  # loaded a second time: if it were held since above, its parts would be spilled
            q_base = queries.q + member * queries.q_head
            q = load_factor(q_base, start, queries.q_stride, seqlen_q, BLOCK_M, True, CONFIG)
        dk = add_product(dk, ds, q, CONFIG.copied, CONFIG.precision)
    return dk, dv


@triton.jit
def dkdv_tile(
    dk_base, dv_base, dk_stride, dv_stride, where, queries, split, scale, softmax_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CONFIG: tl.constexpr,
):  # fmt: skip
    """Compute and write dk and dv of BLOCK_N keys, or the part of one split of the rows.

    where: the keys, not yet loaded.
    """
    start_n = where.first
    seqlen_k = where.seqlen
    k = load_factor(where.k_base, start_n, where.k_stride, seqlen_k, BLOCK_N, True, CONFIG)
    v = load_factor(where.v_base, start_n, where.v_stride, seqlen_k, BLOCK_N, True, CONFIG)
    keys = OwnedKeys(k=k, v=v, k_base=where.k_base, v_base=where.v_base, k_stride=where.k_stride,
                     v_stride=where.v_stride, first=start_n,
                     seqlen=seqlen_k, left=where.left, right=where.right)  # fmt: skip
    lo, full_lo, full_hi, hi = query_ranges(
        start_n, queries.seqlen, seqlen_k, keys.left, keys.right, BLOCK_M, BLOCK_N, CONFIG.has_left, CONFIG.has_right
    )
    if CONFIG.split:
        lo, full_lo, full_hi, hi = share(lo, full_lo, full_hi, hi, split.number, split.count, split.length)
    dk = tl.zeros([BLOCK_N, CONFIG.block_d], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, CONFIG.block_d], dtype=tl.float32)
    if CONFIG.one_loop:
        dk, dv = _dkdv_of_queries(dk, dv, keys, queries, lo, hi, scale, BLOCK_M, BLOCK_N, CONFIG, True)
    else:
        if CONFIG.has_right:
            dk, dv = _dkdv_of_queries(
                dk, dv, keys, queries, lo, tl.minimum(full_lo, hi), scale, BLOCK_M, BLOCK_N, CONFIG, True
            )
        dk, dv = _dkdv_of_queries(dk, dv, keys, queries, full_lo, full_hi, scale, BLOCK_M, BLOCK_N, CONFIG, False)
        if CONFIG.has_left:
            dk, dv = _dkdv_of_queries(dk, dv, keys, queries, full_hi, hi, scale, BLOCK_M, BLOCK_N, CONFIG, True)
    if (not CONFIG.split) or lo < hi:
        store_rows(dk_base, start_n, dk_stride, seqlen_k, dk * softmax_scale, BLOCK_N, CONFIG.head_dim, CONFIG.block_d)
        store_rows(dv_base, start_n, dv_stride, seqlen_k, dv, BLOCK_N, CONFIG.head_dim, CONFIG.block_d)


@triton.jit(do_not_specialize=SIZES)
def dkdv_kernel(
    tensors, strides, num_heads, group, total_heads, heads_at_once, seqlen_q, seqlen_k, left, right, scale,
    softmax_scale, CONFIG: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of block_n keys of one key head, summed over its query heads; heads are key heads."""
    wait_for_previous_kernel(CONFIG.pdl)
    tiles = tl.cdiv(seqlen_k, CONFIG.block_n)
    tile, head = assign(tl.program_id(0), tiles, total_heads, heads_at_once)
    num_kv_heads = num_heads // group
    batch = tl.cast(head // num_kv_heads, tl.int64)
    head_k = tl.cast(head % num_kv_heads, tl.int64)
    head_q = head_k * group
    rows = (batch * num_heads + head_q) * seqlen_q
    copy = (batch * num_heads + head_q) * CONFIG.head_dim * padded(seqlen_q)
    k_base = tensors.k + batch * strides.k.batch + head_k * strides.k.head
    v_base = tensors.v + batch * strides.v.batch + head_k * strides.v.head
    queries = StreamedQueries(
        q=tensors.q + batch * strides.q.batch + head_q * strides.q.head,
        dout=tensors.dout + batch * strides.dout.batch + head_q * strides.dout.head, lse=tensors.lse + rows,
        delta=tensors.delta + rows, q_transposed=tensors.q_transposed + copy,
        dout_transposed=tensors.dout_transposed + copy, q_head=strides.q.head, q_stride=strides.q.row,
        dout_head=strides.dout.head, dout_stride=strides.dout.row, stats_head=seqlen_q, heads=group, seqlen=seqlen_q,
    )  # fmt: skip
    dk_base = tensors.dk + batch * strides.dk.batch + head_k * strides.dk.head
    dv_base = tensors.dv + batch * strides.dv.batch + head_k * strides.dv.head
    keys = OwnedKeys(k=None, v=None, k_base=k_base, v_base=v_base, k_stride=strides.k.row, v_stride=strides.v.row,
                     first=tile * CONFIG.block_n, seqlen=seqlen_k, left=left, right=right)  # fmt: skip
    dkdv_tile(
        dk_base, dv_base, strides.dk.row, strides.dv.row, keys, queries, OwnSplit(0, 1, 0), scale, softmax_scale,
        CONFIG.block_m, CONFIG.block_n, CONFIG,
    )  # fmt: skip


@triton.jit(do_not_specialize=SPLIT_SIZES)
def dq_dkdv_kernel(
    tensors, strides, num_heads, group, total_heads, heads_at_once, seqlen_q, seqlen_k, left, right, splits, split_len,
    scale, softmax_scale, CONFIG: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of block_m keys, then dq of as many query rows, streaming by block_n; needs group 1.

    If split, a program computes the part of one split of the query rows in dk and dv, and of one split of the keys in
    dq (split.py): under a causal mask, few programs have work in both.
    """
    BLOCK_M: tl.constexpr = CONFIG.block_m
    dq_ptr = tensors.dq
    dk_ptr = tensors.dk
    dv_ptr = tensors.dv
    wait_for_previous_kernel(CONFIG.pdl)
    tiles = tl.cdiv(tl.maximum(seqlen_q, seqlen_k), BLOCK_M)
    program = tl.program_id(0)
    own_split = 0
    if CONFIG.split:
        own_split = program % splits
        program = program // splits
    tile, head = assign(program, tiles, total_heads, heads_at_once)
    if CONFIG.split:
        slot = tl.cast(own_split, tl.int64) * total_heads * CONFIG.head_dim
        dq_ptr += slot * seqlen_q
        dk_ptr += slot * seqlen_k
        dv_ptr += slot * seqlen_k
    start = tile * BLOCK_M
    batch = tl.cast(head // num_heads, tl.int64)
    head_q = tl.cast(head % num_heads, tl.int64)
    row_offset = tl.cast(head, tl.int64) * seqlen_q
    qt_base = tl.cast(head, tl.int64) * CONFIG.head_dim * padded(seqlen_q)
    kt_base = tl.cast(head, tl.int64) * CONFIG.head_dim * padded(seqlen_k)
    q_base = tensors.q + batch * strides.q.batch + head_q * strides.q.head
    k_base = tensors.k + batch * strides.k.batch + head_q * strides.k.head
    v_base = tensors.v + batch * strides.v.batch + head_q * strides.v.head
    dout_base = tensors.dout + batch * strides.dout.batch + head_q * strides.dout.head
    split = OwnSplit(own_split, splits, split_len)
    if start < seqlen_k:
        keys = OwnedKeys(k=None, v=None, k_base=k_base, v_base=v_base, k_stride=strides.k.row, v_stride=strides.v.row,
                         first=start, seqlen=seqlen_k, left=left, right=right)  # fmt: skip
        queries = StreamedQueries(
            q=q_base, dout=dout_base, lse=tensors.lse + row_offset, delta=tensors.delta + row_offset,
            q_transposed=tensors.q_transposed + qt_base, dout_transposed=tensors.dout_transposed + qt_base,
            q_head=strides.q.head, q_stride=strides.q.row, dout_head=strides.dout.head, dout_stride=strides.dout.row,
            stats_head=seqlen_q, heads=group, seqlen=seqlen_q,
        )  # fmt: skip
        dkdv_tile(
            dk_ptr + batch * strides.dk.batch + head_q * strides.dk.head,
            dv_ptr + batch * strides.dv.batch + head_q * strides.dv.head, strides.dk.row, strides.dv.row, keys, queries,
            split, scale, softmax_scale, CONFIG.block_n, BLOCK_M, CONFIG,
        )  # fmt: skip
    if start < seqlen_q:
        rows = start + tl.arange(0, BLOCK_M)
        lse = load_logsumexp(tensors.lse + row_offset + rows, rows < seqlen_q)
        q = load_factor(q_base, start, strides.q.row, seqlen_q, BLOCK_M, True, CONFIG)
        dout = load_factor(dout_base, start, strides.dout.row, seqlen_q, BLOCK_M, True, CONFIG)
        delta = tl.load(tensors.delta + row_offset + rows, mask=rows < seqlen_q, other=0.0)
        own = OwnedQueries(q=q, dout=dout, lse=lse, delta=delta, q_base=q_base, dout_base=dout_base,
                           q_stride=strides.q.row, dout_stride=strides.dout.row, first=start,
                           seqlen=seqlen_q)  # fmt: skip
        streamed = StreamedKeys(k=k_base, v=v_base, k_transposed=tensors.k_transposed + kt_base,
                                v_transposed=tensors.v_transposed + kt_base, k_stride=strides.k.row,
                                v_stride=strides.v.row, seqlen=seqlen_k, left=left, right=right)  # fmt: skip
        dq_base = dq_ptr + batch * strides.dq.batch + head_q * strides.dq.head
        dq_tile(dq_base, strides.dq.row, own, streamed, split, scale, softmax_scale, CONFIG)
