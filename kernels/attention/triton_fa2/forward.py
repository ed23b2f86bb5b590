"""The forward kernel: FlashAttention-2 (Dao 2023, arXiv:2307.08691, algorithm 1) with a softmax in base 2.

A program owns BLOCK_M query rows of one head and walks over the keys they may see. Masks are two distances: a query
at position p (its row, shifted so that the last query meets the last key) sees the keys j with
p - left <= j <= p + right. Causal is right = 0; without a mask on a side, that side is compiled away.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .pdl import wait_for_previous_kernel
from .split import longest_first, share
from .tile_ops import (
    add_product,
    load_factor,
    padded,
    products,
    scaled_maximum,
    store_logsumexp,
    store_rows,
    sum_of_rounded,
)


@triton.jit
def assign(program, tiles, total_heads, heads_at_once):
    """Return a program's tile and head: all tiles of `heads_at_once` heads (as many as the L2 holds), by rank."""
    batch_of_heads = program // (heads_at_once * tiles)
    rank = program % (heads_at_once * tiles)
    first = batch_of_heads * heads_at_once
    width = tl.minimum(heads_at_once, total_heads - first)
    return rank // width, first + rank % width


@triton.jit
def inputs_of(head, num_heads, group, q_ptr, k_ptr, v_ptr, q_b, q_h, k_b, k_h, v_b, v_h):
    """Return batch, query head and key head of a head that is counted over all batches, and where q, k and v begin."""
    batch = tl.cast(head // num_heads, tl.int64)
    head_q = tl.cast(head % num_heads, tl.int64)
    head_k = head_q // group
    q_base = q_ptr + batch * q_b + head_q * q_h
    k_base = k_ptr + batch * k_b + head_k * k_h
    v_base = v_ptr + batch * v_b + head_k * v_h
    return batch, head_q, head_k, q_base, k_base, v_base


@triton.jit
def visible(positions, keys, seqlen_k, left, right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """Return which keys each position sees; the arguments broadcast against one another."""
    seen = keys < seqlen_k
    if HAS_RIGHT:
        seen = seen & (keys <= positions + right)
    if HAS_LEFT:
        seen = seen & (keys >= positions - left)
    return seen


@triton.jit
def key_ranges(
    first_position, last_position, seqlen_k, left, right,
    BLOCK_N: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
):  # fmt: skip
    """Return bounds lo <= full_lo <= full_hi and hi of the keys that a range of positions sees.

    Blocks in [full_lo, full_hi) are seen whole by every position; those before and after need a mask.
    """
    lo = 0
    full_lo = 0
    hi = seqlen_k
    full_hi = (seqlen_k // BLOCK_N) * BLOCK_N
    if HAS_RIGHT:
        hi = tl.minimum(hi, tl.maximum(last_position + right + 1, 0))
        full_hi = tl.minimum(full_hi, (tl.maximum(first_position + right + 1, 0) // BLOCK_N) * BLOCK_N)
    if HAS_LEFT:
        lo = (tl.maximum(first_position - left, 0) // BLOCK_N) * BLOCK_N
        full_lo = tl.cdiv(tl.maximum(last_position - left, 0), BLOCK_N) * BLOCK_N
        full_lo = tl.minimum(full_lo, tl.maximum(tl.cdiv(hi, BLOCK_N) * BLOCK_N, lo))
    full_hi = tl.maximum(full_hi, full_lo)
    return lo, full_lo, full_hi, hi


@triton.jit
def weigh(scores, row_sum, row_max, factor, AXIS: tl.constexpr, HIDES: tl.constexpr):
    """Return probabilities, the factor of what was summed before, and the new sums and maxima; keys are along AXIS.

    HIDES: a row may have seen no key yet.
    """
    new_max = tl.maximum(row_max, tl.max(scores, AXIS))
    top = tl.where(new_max == float("-inf"), 0.0, new_max) if HIDES else new_max
    p = tl.exp2(tl.fma(scores, factor, -tl.expand_dims(top * factor, AXIS)))
    alpha = tl.exp2((row_max - top) * factor)
    return p, alpha, row_sum * alpha + tl.sum(p, AXIS), new_max


class Queries(NamedTuple):
    """A tile of query rows, and where it is in memory."""

    rows: Any  # as load_factor returns them
    base: Any
    stride: Any
    first: Any
    seqlen: Any
    positions: Any


class Keys(NamedTuple):
    """Where a head's keys and values are, and how many before and after its own position a query sees."""

    k: Any
    k_transposed: Any
    v: Any
    k_stride: Any
    v_stride: Any
    seqlen: Any
    left: Any
    right: Any


@triton.jit
def fold_keys(
    acc, row_sum, row_max, queries, keys, lo, hi, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr, SCALE_FIRST: tl.constexpr, COPIED: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Fold the keys lo .. hi into the running sum, maximum and output of each query row."""
    for start in tl.range(lo, hi, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = queries.rows
        if not COPIED:
            k = load_factor(keys.k, start, keys.k_stride, keys.seqlen, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED, PRECISION)
        scores = products(
            queries.rows, k, queries.base, queries.first, queries.stride, queries.seqlen, keys.k_transposed, start,
            keys.seqlen, BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, COPIED, PRECISION,
        )  # fmt: skip
        if SCALE_FIRST:
            scores = scores * scale
        if MASKED:
            columns = start + tl.arange(0, BLOCK_N)
            seen = visible(
                queries.positions[:, None], columns[None, :], keys.seqlen, keys.left, keys.right, HAS_LEFT, HAS_RIGHT
            )
            scores = tl.where(seen, scores, float("-inf"))
        factor = 1.0 if SCALE_FIRST else scale
        p, alpha, row_sum, row_max = weigh(scores, row_sum, row_max, factor, 1, MASKED)
        v = load_factor(keys.v, start, keys.v_stride, keys.seqlen, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED, PRECISION)
        acc = add_product(acc * alpha[:, None], p, v, False, PRECISION)
    return acc, row_sum, row_max


@triton.jit
def store_outputs(
    out_ptr, lse_ptr, out_b, out_h, out_m, batch, head_q, head, start_m, rows, seqlen_q, acc, row_sum, row_max, factor,
    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, STORE_LSE: tl.constexpr,
    P_DTYPE: tl.constexpr, ROUNDED: tl.constexpr = False,
):  # fmt: skip
    """Write output and logsumexp of BLOCK_M query rows; of a row that sees no key, 0 and +inf.

    row_max is that of the scores, of which probabilities are exp2(score x factor - row_max x factor). If ROUNDED, the
    quotients are rounded to nearest, for delta's sake (preprocess.py): a plain quotient is up to two units off.
    """
    some = row_sum != 0.0
    row_sum = tl.where(some, row_sum, 1.0)
    row_max = tl.where(some, row_max, 0.0)
    total = sum_of_rounded(row_sum, row_max, factor, P_DTYPE)
    out_base = out_ptr + batch * out_b + head_q * out_h
    out = tl.div_rn(acc, total[:, None]) if ROUNDED else acc / total[:, None]
    store_rows(out_base, start_m, out_m, seqlen_q, out, BLOCK_M, HEAD_DIM, BLOCK_D)
    if STORE_LSE:
        lse_ptrs = lse_ptr + tl.cast(head, tl.int64) * seqlen_q + rows
        store_logsumexp(lse_ptrs, scaled_maximum(row_max, factor), row_sum, some, rows < seqlen_q)


@triton.jit(
    do_not_specialize=["left", "right", "splits", "split_len"],
    do_not_specialize_on_alignment=["num_heads", "group", "total_heads", "heads_at_once"],
)
def forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, kt_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, out_b, out_h, out_m,
    num_heads, group, total_heads, heads_at_once, seqlen_q, seqlen_k, left, right, splits, split_len, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, SCALE_FIRST: tl.constexpr, COPIED: tl.constexpr,
    PRECISION: tl.constexpr, STORE_LSE: tl.constexpr, SPLIT: tl.constexpr, ONE_LOOP: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Compute output and base-2 logsumexp of BLOCK_M query rows. `scale` is softmax_scale x log2(e), kt k's copy.

    If ONE_LOOP, blocks of keys are all masked: half of the code, which a short call reads from memory. If SPLIT,
    over one split of the keys, and out and lse are its slot's (split.py).
    """
    wait_for_previous_kernel(PDL)
    tiles = tl.cdiv(seqlen_q, BLOCK_M)
    program = tl.program_id(0)
    after = 0
    if SPLIT:  # first the splits that others follow, which are whole
        after = splits - 1 - program // (total_heads * tiles)
        program = program % (total_heads * tiles)
    tile, head = assign(program, tiles, total_heads, heads_at_once)
    if HAS_RIGHT:  # the longest first, so that no late start decides the time
        tile = longest_first(tile, tiles, split_len // BLOCK_M) if SPLIT else tiles - 1 - tile
    start_m = tile * BLOCK_M
    batch, head_q, head_k, q_base, k_base, v_base = inputs_of(
        head, num_heads, group, q_ptr, k_ptr, v_ptr, q_b, q_h, k_b, k_h, v_b, v_h
    )
    kt_base = kt_ptr + (batch * (num_heads // group) + head_k) * HEAD_DIM * padded(seqlen_k)
    rows = start_m + tl.arange(0, BLOCK_M)
    shift = seqlen_k - seqlen_q
    positions = rows + shift
    last_position = tl.minimum(start_m + BLOCK_M, seqlen_q) - 1 + shift
    lo, full_lo, full_hi, hi = key_ranges(
        start_m + shift, last_position, seqlen_k, left, right, BLOCK_N, HAS_LEFT, HAS_RIGHT
    )
    if SPLIT:
        own_split = (tl.maximum(hi - 1, 0) // split_len + splits - after) % splits
        lo, full_lo, full_hi, hi = share(lo, full_lo, full_hi, hi, own_split, splits, split_len)
        if lo >= hi:
            return
        out_ptr += tl.cast(own_split, tl.int64) * total_heads * seqlen_q * HEAD_DIM
        lse_ptr += tl.cast(own_split, tl.int64) * total_heads * seqlen_q

    q = load_factor(q_base, start_m, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True, PRECISION)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    queries = Queries(rows=q, base=q_base, stride=q_m, first=start_m, seqlen=seqlen_q, positions=positions)
    keys = Keys(k=k_base, k_transposed=kt_base, v=v_base, k_stride=k_n, v_stride=v_n, seqlen=seqlen_k, left=left,
                right=right)  # fmt: skip
    if ONE_LOOP:
        acc, row_sum, row_max = fold_keys(
            acc, row_sum, row_max, queries, keys, lo, hi, scale,
            BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, SCALE_FIRST, COPIED, PRECISION, True,
        )  # fmt: skip
    else:
        if HAS_LEFT:
            acc, row_sum, row_max = fold_keys(
                acc, row_sum, row_max, queries, keys, lo, tl.minimum(full_lo, hi), scale,
                BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, SCALE_FIRST, COPIED, PRECISION, True,
            )  # fmt: skip
        acc, row_sum, row_max = fold_keys(
            acc, row_sum, row_max, queries, keys, full_lo, full_hi, scale,
            BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, SCALE_FIRST, COPIED, PRECISION, False,
        )  # fmt: skip
        acc, row_sum, row_max = fold_keys(
            acc, row_sum, row_max, queries, keys, full_hi, hi, scale,
            BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, SCALE_FIRST, COPIED, PRECISION, True,
        )  # fmt: skip

    factor = 1.0 if SCALE_FIRST else scale
    P_DTYPE: tl.constexpr = tl.float32 if PRECISION == "bf16x6" else v_ptr.dtype.element_ty
    store_outputs(
        out_ptr, lse_ptr, out_b, out_h, out_m, batch, head_q, head, start_m, rows, seqlen_q, acc, row_sum, row_max,
        factor, BLOCK_M, HEAD_DIM, BLOCK_D, STORE_LSE, P_DTYPE, COPIED,
    )  # fmt: skip
