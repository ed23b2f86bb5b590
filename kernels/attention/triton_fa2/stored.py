"""A backward that stores P and dS, so that each kernel is a product of large tiles: 5 products where walks take 7.

In a walk over keys or queries (backward.py) the sums of 32 rows of 512 columns fill the registers, too few rows for the
products, and so do the factors of bf16x6 (tile_ops.py). To store P and dS, 2 bytes each or three times as many in
bf16x6, takes less time than larger tiles save.

Launches take a part of the heads, or of the keys of one group of heads, after the other, so that P and dS stay below
MOST_BYTES. A tile of them is stored if one of its rows sees one of its keys or of the STEP keys on both sides, which is
as far as the other kernels read if all tiles have the same block_m, and block_n of stored_scores_kernel is a multiple
of that of stored_dkdv_kernel. There are no atomics.
"""

from collections import namedtuple
from collections.abc import Iterator

import triton
import triton.language as tl

from .backward import query_ranges
from .forward import inputs_of, key_ranges, visible, wait_for_previous_kernel
from .tile_ops import BF16_PARTS, dot_bf16x6, load_logsumexp, probabilities, split_bf16, transposed

STEP = tl.constexpr(64)  # head_dims, keys or queries of a step of a product
WIDTH = tl.constexpr(256)  # columns of a result that a program computes, at most
SCALARS = ["num_heads", "first_head", "left", "right", "start", "stop"]  # kernels are compiled once for all
MOST_BYTES = 1 << 29  # of P and dS of a part; twice as many of bf16x6, as a part of too few keys has too few programs


def parts(heads: int, together: int, length: int, bytes_each: int, most: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield parts of the heads with a range of keys each: the first head, how many, the first key, and the end.

    `together` heads share `length` keys, of which each takes `bytes_each` of `most`.
    """
    groups = most // max(1, length * bytes_each)
    at_once = max(1, groups) * together
    keys = length if groups else max(1, most // bytes_each // WIDTH.value) * WIDTH.value
    for first in range(0, heads, at_once):
        for start in range(0, length, keys):
            yield first, min(at_once, heads - first), start, min(start + keys, length)


# Rows of a tensor of one head.
HeadRows = namedtuple("HeadRows", "base stride limit")


@triton.jit
def _places(rows, start, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CONFIG: tl.constexpr):
    """Return the addresses of COLUMNS columns of ROWS rows, and which are before the last row and head_dim."""
    at = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    base = rows.base + (tl.cast(start, tl.int64) * rows.stride + column)
    inside = (at < rows.limit - start)[:, None]
    if CONFIG.head_dim % COLUMNS > 0:
        inside = inside & (columns < CONFIG.head_dim - column)[None, :]
    return base + (at[:, None] * rows.stride + columns[None, :]), inside


@triton.jit
def _load(rows, start, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CONFIG: tl.constexpr):
    """Load COLUMNS columns of ROWS rows, or their three parts, zeros beyond the last row and beyond head_dim."""
    place, inside = _places(rows, start, column, ROWS, COLUMNS, CONFIG)
    return _loaded(place, inside, tl.cast(rows.limit, tl.int64) * CONFIG.head_dim, CONFIG)


@triton.jit
def _loaded(place, inside, plane, CONFIG: tl.constexpr):
    """Load a tile of which three parts lie `plane` numbers apart, in bf16x6."""
    tile = tl.load(place, mask=inside, other=0.0)
    if CONFIG.precision == "bf16x6":
        middle = tl.load(place + plane, mask=inside, other=0.0)
        tile = (tile, middle, tl.load(place + 2 * plane, mask=inside, other=0.0))
    return tile


@triton.jit
def _store(rows, start, column, values, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CONFIG: tl.constexpr):
    """Store COLUMNS columns of ROWS rows, up to the last row and head_dim."""
    place, inside = _places(rows, start, column, ROWS, COLUMNS, CONFIG)
    tl.store(place, values.to(rows.base.dtype.element_ty), mask=inside)


@triton.jit
def _product_of_rows(a, start_m, b, start_n, CONFIG: tl.constexpr):
    """Return a b^T of block_m and block_n rows; in bf16x6 in one step, the same bits as the forward's."""
    if CONFIG.precision == "bf16x6":
        x = _load(a, start_m, 0, CONFIG.block_m, CONFIG.block_d, CONFIG)
        out = dot_bf16x6(x, transposed(_load(b, start_n, 0, CONFIG.block_n, CONFIG.block_d, CONFIG)), False)
    else:
        out = tl.zeros([CONFIG.block_m, CONFIG.block_n], dtype=tl.float32)
        for column in tl.range(0, CONFIG.head_dim, STEP):
            x = _load(a, start_m, column, CONFIG.block_m, STEP, CONFIG)
            out = tl.dot(x, tl.trans(_load(b, start_n, column, CONFIG.block_n, STEP, CONFIG)), out)
    return out


@triton.jit
def _add_product(acc, a, b, A_TRANSPOSED: tl.constexpr, CONFIG: tl.constexpr):
    """Return acc + a b; in bf16x6 as a sum of its own, as the tensor cores cut long sums off."""
    if CONFIG.precision == "bf16x6":
        acc += dot_bf16x6(transposed(a) if A_TRANSPOSED else a, b, False)
    else:
        acc = tl.dot(tl.trans(a) if A_TRANSPOSED else a, b, acc)
    return acc


@triton.jit
def _is_stored(start_m, start_n, shift, left, right, CONFIG: tl.constexpr):
    """Return whether a tile of scores is stored."""
    stored = start_n >= 0  # always
    if CONFIG.has_right:
        stored = stored & (start_n < start_m + CONFIG.block_m + shift + right + STEP)
    if CONFIG.has_left:
        stored = stored & (start_n + CONFIG.block_n + STEP > start_m + shift - left)
    return stored


@triton.jit
def _scores(base, local, row, column, limit, pitch, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CONFIG: tl.constexpr):
    """Return the addresses of a tile of a part's scores, and which of them there is room for."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    planes = tl.cast(local, tl.int64) * (BF16_PARTS if CONFIG.precision == "bf16x6" else 1)
    base += (planes * limit + row) * pitch + column
    inside = (rows < limit - row)[:, None] & (columns < pitch - column)[None, :]
    return base + (rows[:, None] * pitch + columns[None, :]), inside


@triton.jit
def _load_scores(
    base, local, row, column, limit, pitch, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CONFIG: tl.constexpr
):
    """Load a tile of a part's scores, or its three parts."""
    place, inside = _scores(base, local, row, column, limit, pitch, ROWS, COLUMNS, CONFIG)
    return _loaded(place, inside, tl.cast(limit, tl.int64) * pitch, CONFIG)


@triton.jit
def _store_scores(base, values, local, row, column, limit, pitch, CONFIG: tl.constexpr):
    """Store a tile of a part's scores, or its three parts."""
    place, inside = _scores(base, local, row, column, limit, pitch, CONFIG.block_m, CONFIG.block_n, CONFIG)
    if CONFIG.precision == "bf16x6":
        high, middle, low = split_bf16(values)
        plane = tl.cast(limit, tl.int64) * pitch
        tl.store(place, high, mask=inside)
        tl.store(place + plane, middle, mask=inside)
        tl.store(place + 2 * plane, low, mask=inside)
    else:
        tl.store(place, values.to(base.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=SCALARS)
def stored_scores_kernel(
    tensors, strides, num_heads, group, first_head, seqlen_q, seqlen_k, left, right, start, stop, pitch, scale,
    softmax_scale, CONFIG: tl.constexpr,
):  # fmt: skip
    """Store P and dS of block_m queries and block_n of the keys start .. stop, by the logsumexp and delta."""
    wait_for_previous_kernel(CONFIG.pdl)
    across = tl.cdiv(stop - start, CONFIG.block_n)
    tiles = tl.cdiv(seqlen_q, CONFIG.block_m) * across
    local = tl.program_id(0) // tiles
    start_m = tl.program_id(0) % tiles // across * CONFIG.block_m
    column = tl.program_id(0) % across * CONFIG.block_n
    start_n = start + column
    shift = seqlen_k - seqlen_q
    if _is_stored(start_m, start_n, shift, left, right, CONFIG):
        head = first_head + local
        batch, head_q, head_k, q_base, k_base, v_base = inputs_of(head, num_heads, group, tensors, strides)
        dout_base = tensors.dout + batch * strides.dout.batch + head_q * strides.dout.head
        q = HeadRows(q_base, strides.q.row, seqlen_q)
        k = HeadRows(k_base, strides.k.row, seqlen_k)
        rows = start_m + tl.arange(0, CONFIG.block_m)
        keys = start_n + tl.arange(0, CONFIG.block_n)
        scores = _product_of_rows(q, start_m, k, start_n, CONFIG)
        seen = visible((rows + shift)[:, None], keys[None, :], seqlen_k, left, right, CONFIG.has_left, CONFIG.has_right)
        row = tl.cast(head, tl.int64) * seqlen_q + rows
        lse = load_logsumexp(tensors.lse + row, rows < seqlen_q)
        p = probabilities(scores, scale, lse, seen, 1, True, CONFIG.precision == "bf16x6")
        _store_scores(tensors.p, p, local, start_m, column, seqlen_q, pitch, CONFIG)
        dout = HeadRows(dout_base, strides.dout.row, seqlen_q)
        v = HeadRows(v_base, strides.v.row, seqlen_k)
        dp = _product_of_rows(dout, start_m, v, start_n, CONFIG)
        delta = tl.load(tensors.delta + row, mask=rows < seqlen_q, other=0.0)
        if CONFIG.precision != "bf16x6":
            p = p.to(tensors.p.dtype.element_ty).to(tl.float32)
        _store_scores(tensors.ds, p * (dp - delta[:, None]), local, start_m, column, seqlen_q, pitch, CONFIG)


@triton.jit
def _sum_over_queries(scores, x, x_head, group, local, lo, hi, first, column, pitch, CONFIG: tl.constexpr):
    """Return scores^T x of block_n keys from `first` on, summed over the queries lo .. hi of a group's heads."""
    COLUMNS: tl.constexpr = WIDTH if CONFIG.block_d > WIDTH else CONFIG.block_d
    acc = tl.zeros([CONFIG.block_n, COLUMNS], dtype=tl.float32)
    steps = tl.cdiv(tl.maximum(hi - lo, 0), STEP)
    for step in tl.range(0, steps * group):
        member = tl.cast(step // steps, tl.int64)
        start = lo + step % steps * STEP
        left = _load_scores(scores, local * group + member, start, first, x.limit, pitch, STEP, CONFIG.block_n, CONFIG)
        own = HeadRows(x.base + member * x_head, x.stride, x.limit)
        acc = _add_product(acc, left, _load(own, start, column, STEP, COLUMNS, CONFIG), True, CONFIG)
    return acc


@triton.jit(do_not_specialize=SCALARS)
def stored_dkdv_kernel(
    tensors, strides, num_heads, group, first_head, seqlen_q, seqlen_k, left, right, start, stop, pitch, scale,
    softmax_scale, CONFIG: tl.constexpr,
):  # fmt: skip
    """Compute some columns of dk or of dv of block_n of the keys start .. stop."""
    BLOCK_N: tl.constexpr = CONFIG.block_n
    wait_for_previous_kernel(CONFIG.pdl)
    COLUMNS: tl.constexpr = WIDTH if CONFIG.block_d > WIDTH else CONFIG.block_d
    parts = 2 * tl.cdiv(CONFIG.head_dim, COLUMNS)
    tiles = tl.cdiv(stop - start, BLOCK_N) * parts
    local = tl.program_id(0) // tiles
    part = tl.program_id(0) % parts
    column = part // 2 * COLUMNS
    first = tl.program_id(0) % tiles // parts * BLOCK_N  # of the part's keys
    key_heads = num_heads // group
    batch = tl.cast((first_head // group + local) // key_heads, tl.int64)
    head = tl.cast((first_head // group + local) % key_heads, tl.int64)
    lo, _, _, hi = query_ranges(
        start + first, seqlen_q, seqlen_k, left, right, STEP, BLOCK_N, CONFIG.has_left, CONFIG.has_right
    )
    if part % 2 == 0:
        base = tensors.q + batch * strides.q.batch + head * group * strides.q.head
        q = HeadRows(base, strides.q.row, seqlen_q)
        dk = _sum_over_queries(tensors.ds, q, strides.q.head, group, local, lo, hi, first, column, pitch, CONFIG)
        base = tensors.dk + batch * strides.dk.batch + head * strides.dk.head
        dk *= softmax_scale
        _store(HeadRows(base, strides.dk.row, seqlen_k), start + first, column, dk, BLOCK_N, COLUMNS, CONFIG)
    else:
        base = tensors.dout + batch * strides.dout.batch + head * group * strides.dout.head
        dout = HeadRows(base, strides.dout.row, seqlen_q)
        dv = _sum_over_queries(tensors.p, dout, strides.dout.head, group, local, lo, hi, first, column, pitch, CONFIG)
        base = tensors.dv + batch * strides.dv.batch + head * strides.dv.head
        _store(HeadRows(base, strides.dv.row, seqlen_k), start + first, column, dv, BLOCK_N, COLUMNS, CONFIG)


@triton.jit(do_not_specialize=SCALARS)
def stored_dq_kernel(
    tensors, strides, num_heads, group, first_head, seqlen_q, seqlen_k, left, right, start, stop, pitch, scale,
    softmax_scale, CONFIG: tl.constexpr,
):  # fmt: skip
    """Add the keys start .. stop to some columns of dq of block_m queries.

    Between parts of the keys, which come in order, the sums are in `dq_sums`, float32.
    """
    BLOCK_M: tl.constexpr = CONFIG.block_m
    wait_for_previous_kernel(CONFIG.pdl)
    COLUMNS: tl.constexpr = WIDTH if CONFIG.block_d > WIDTH else CONFIG.block_d
    parts = tl.cdiv(CONFIG.head_dim, COLUMNS)
    tiles = tl.cdiv(seqlen_q, BLOCK_M)
    local = tl.program_id(0) // (tiles * parts)
    column = tl.program_id(0) % parts * COLUMNS
    row = (tiles - 1 - tl.program_id(0) % (tiles * parts) // parts) * BLOCK_M
    shift = seqlen_k - seqlen_q
    last = tl.minimum(row + BLOCK_M, seqlen_q) - 1 + shift
    lo, _, _, hi = key_ranges(row + shift, last, seqlen_k, left, right, STEP, CONFIG.has_left, CONFIG.has_right)
    batch, head_q, head_k, q_base, k_base, v_base = inputs_of(first_head + local, num_heads, group, tensors, strides)
    sums = tensors.dq_sums + tl.cast(local, tl.int64) * seqlen_q * CONFIG.head_dim
    sums = HeadRows(sums, CONFIG.head_dim, seqlen_q)
    is_empty = (lo >= hi) & (start == 0)
    if is_empty | (tl.maximum(lo, start) < tl.minimum(hi, stop)):
        acc = tl.zeros([BLOCK_M, COLUMNS], dtype=tl.float32)
        if lo < start:
            place, inside = _places(sums, row, column, BLOCK_M, COLUMNS, CONFIG)
            acc = tl.load(place, mask=inside, other=0.0)
        k = HeadRows(k_base, strides.k.row, seqlen_k)
        first = tl.maximum(lo - start, 0) // STEP  # steps are counted, so that Triton knows STEP divides a key
        for step in tl.range(first, tl.cdiv(tl.minimum(hi, stop) - start, STEP)):
            key = step * STEP
            ds = _load_scores(tensors.ds, local, row, key, seqlen_q, pitch, BLOCK_M, STEP, CONFIG)
            acc = _add_product(acc, ds, _load(k, start + key, column, STEP, COLUMNS, CONFIG), False, CONFIG)
        if hi > stop:
            _store(sums, row, column, acc, BLOCK_M, COLUMNS, CONFIG)
        else:
            base = tensors.dq + batch * strides.dq.batch + head_q * strides.dq.head
            acc *= softmax_scale
            _store(HeadRows(base, strides.dq.row, seqlen_q), row, column, acc, BLOCK_M, COLUMNS, CONFIG)
