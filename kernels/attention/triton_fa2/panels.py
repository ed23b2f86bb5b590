"""Rows as two panels of columns, both powers of two: head_dim 72 takes 64 and 16 columns rather than 128.

Where head_dim is padded to one power of two, BLOCK_D2 is 0 and the second panel is nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .forward import visible
from .tile_ops import load_rows, scaled_maximum, store_logsumexp, store_rows, sum_of_rounded

SMALLEST = 16  # rows or columns of a matrix product
LARGEST = 128  # keys of a panel


def padded_size(size: int) -> int:
    """Return the power of two that holds so many rows or columns."""
    return max(SMALLEST, 1 << (size - 1).bit_length())


def panels(size: int) -> tuple[int, int]:
    """Return the powers of two that hold so many rows or columns: two where they are fewer than the one, else it and 0.

    The first of two is the largest power of two below `size`.
    """
    whole = padded_size(size)
    first, rest = whole // 2, size - whole // 2
    second = padded_size(rest) if rest > 0 else 0
    return (first, second) if first >= SMALLEST and 0 < second < first else (whole, 0)


def key_panels(seqlen_k: int) -> tuple[int, int]:
    """Return the powers of two that hold all keys of a head: above 128 keys two of 128, for one would be a power more.

    A program's registers hold the scores of both.
    """
    first, second = panels(seqlen_k)
    return (first, second) if second or first <= LARGEST else (first // 2, first // 2)


@triton.jit
def load_panels(base, start, stride, limit, ROWS: tl.constexpr, CONFIG: tl.constexpr, MASKED: tl.constexpr):
    """Load rows start .. start + ROWS of one head as their panels, zeros beyond `limit` (if MASKED) and head_dim."""
    FIRST: tl.constexpr = CONFIG.block_d if CONFIG.block_d2 > 0 else CONFIG.head_dim
    low = load_rows(base, start, stride, limit, ROWS, FIRST, CONFIG.block_d, MASKED)
    high = low
    if CONFIG.block_d2 > 0:
        SECOND: tl.constexpr = CONFIG.head_dim - CONFIG.block_d
        high = load_rows(base + CONFIG.block_d, start, stride, limit, ROWS, SECOND, CONFIG.block_d2, MASKED)
    return low, high


@triton.jit
def store_panels(base, start, stride, limit, values, ROWS: tl.constexpr, CONFIG: tl.constexpr):
    """Write rows from their panels, up to `limit` and head_dim."""
    FIRST: tl.constexpr = CONFIG.block_d if CONFIG.block_d2 > 0 else CONFIG.head_dim
    store_rows(base, start, stride, limit, values[0], ROWS, FIRST, CONFIG.block_d)
    if CONFIG.block_d2 > 0:
        SECOND: tl.constexpr = CONFIG.head_dim - CONFIG.block_d
        store_rows(base + CONFIG.block_d, start, stride, limit, values[1], ROWS, SECOND, CONFIG.block_d2)


@triton.jit
def product_of_panels(a, b, CONFIG: tl.constexpr):
    """Return a b^T."""
    out = tl.dot(a[0], tl.trans(b[0]), input_precision=CONFIG.precision)
    if CONFIG.block_d2 > 0:
        out = tl.dot(a[1], tl.trans(b[1]), out, input_precision=CONFIG.precision)
    return out


@triton.jit
def scores_of_panels(
    q, k, positions, first_key, seqlen_k, left, right, scale,
    ROWS: tl.constexpr, CONFIG: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return the scores of ROWS keys from first_key on, -inf where a key is not seen (if MASKED)."""
    scores = product_of_panels(q, k, CONFIG)
    if CONFIG.scale_first:
        scores = scores * scale
    if MASKED:
        keys = first_key + tl.arange(0, ROWS)
        seen = visible(positions[:, None], keys[None, :], seqlen_k, left, right, CONFIG.has_left, CONFIG.has_right)
        scores = tl.where(seen, scores, float("-inf"))
    return scores


@triton.jit
def outputs_of_held_keys(scores, scores2, v, v2, factor, CONFIG: tl.constexpr, MASKED: tl.constexpr):
    """Return P V of a tile that sees no other keys, as panels of columns, and the sums of P and maxima of its rows.

    `scores` belong to the first block of keys and `scores2` to the second, if there is one (block_n2).
    """
    row_max = tl.max(scores, 1)
    if CONFIG.block_n2 > 0:
        row_max = tl.maximum(row_max, tl.max(scores2, 1))
    top = tl.where(row_max == float("-inf"), 0.0, row_max) if MASKED else row_max
    p = tl.exp2(tl.fma(scores, factor, -(top * factor)[:, None]))
    row_sum = tl.sum(p, 1)
    acc = tl.dot(p.to(v[0].dtype), v[0])
    acc2 = acc
    if CONFIG.block_d2 > 0:
        acc2 = tl.dot(p.to(v[0].dtype), v[1])
    if CONFIG.block_n2 > 0:
        p2 = tl.exp2(tl.fma(scores2, factor, -(top * factor)[:, None]))
        row_sum += tl.sum(p2, 1)
        acc = tl.dot(p2.to(v[0].dtype), v2[0], acc)
        if CONFIG.block_d2 > 0:
            acc2 = tl.dot(p2.to(v[0].dtype), v2[1], acc2)
    return acc, acc2, row_sum, row_max


@triton.jit
def store_outputs_of_panels(
    output, start_m, rows, seqlen_q, acc, acc2, row_sum, row_max, factor,
    CONFIG: tl.constexpr, P_DTYPE: tl.constexpr,
):  # fmt: skip
    """Write output and logsumexp of block_m query rows as forward.store_outputs does, with one division a row."""
    some = row_sum != 0.0
    row_sum = tl.where(some, row_sum, 1.0)
    row_max = tl.where(some, row_max, 0.0)
    inverse = 1.0 / sum_of_rounded(row_sum, row_max, factor, P_DTYPE)
    out_base = output.out + output.batch * output.strides.batch + output.head_q * output.strides.head
    values = (acc * inverse[:, None], acc2 * inverse[:, None])
    store_panels(out_base, start_m, output.strides.row, seqlen_q, values, CONFIG.block_m, CONFIG)
    if CONFIG.store_lse:
        lse_ptrs = output.lse + tl.cast(output.head, tl.int64) * seqlen_q + rows
        store_logsumexp(lse_ptrs, scaled_maximum(row_max, factor), row_sum, some, rows < seqlen_q)
