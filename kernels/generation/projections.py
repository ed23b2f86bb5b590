"""Matrix-vector products for one token, fused with the operations before and after them in a layer of a Llama.

A product takes as long as its matrix takes to read. Each program computes a few rows of the matrix. Sums are in float32
and rounded once, at the store. Matrices (rows, columns), as the weights of nn.Linear, and vectors are contiguous.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@dataclass(frozen=True)
class ProductForm:
    """Constants of a product."""

    rows: int  # rows of each matrix in a program; they divide the number of rows
    columns: int
    block: int  # columns loaded at once
    chained: bool  # whether programmatic dependent launch is used


@triton.jit
def _weights(matrix_ptr, begin, FORM: tl.constexpr):
    """Load rows x block weights from column `begin` on, 0 beyond the last. They are read once and leave L2 first."""
    columns = begin + tl.arange(0, FORM.block)
    pointers = matrix_ptr + tl.arange(0, FORM.rows)[:, None] * FORM.columns + columns
    return tl.load(pointers, mask=(columns < FORM.columns)[None, :], other=0.0, eviction_policy="evict_first")


@triton.jit
def _products(x_ptr, gain_ptr, first_ptr, second_ptr, epsilon, NORMED: tl.constexpr, FORM: tl.constexpr):
    """Return the products of x with rows of two matrices in float32, or with those of one, twice.

    NORMED: x is RMS-normalized and multiplied by gain.
    """
    first = _weights(first_ptr, 0, FORM)
    if second_ptr is not None:
        second = _weights(second_ptr, 0, FORM)
    if FORM.chained:
        gdc_launch_dependents()
        gdc_wait()
    in_first = tl.zeros([FORM.rows, FORM.block], tl.float32)
    if second_ptr is not None:
        in_second = tl.zeros([FORM.rows, FORM.block], tl.float32)
    squares = tl.zeros([FORM.block], tl.float32)
    for begin in tl.range(0, FORM.columns, FORM.block, num_stages=1):
        columns = begin + tl.arange(0, FORM.block)
        x = tl.load(x_ptr + columns, mask=columns < FORM.columns, other=0.0).to(tl.float32)
        if NORMED:
            squares += x * x
            x *= tl.load(gain_ptr + columns, mask=columns < FORM.columns, other=0.0).to(tl.float32)
        in_first += first.to(tl.float32) * x[None, :]
        if second_ptr is not None:
            in_second += second.to(tl.float32) * x[None, :]
        first = _weights(first_ptr, begin + FORM.block, FORM)
        if second_ptr is not None:
            second = _weights(second_ptr, begin + FORM.block, FORM)
    scale = tl.rsqrt(tl.sum(squares, 0) / FORM.columns + epsilon) if NORMED else 1.0
    of_first = tl.sum(in_first, 1) * scale
    of_second = of_first
    if second_ptr is not None:
        of_second = tl.sum(in_second, 1) * scale
    return of_first, of_second


@triton.jit(do_not_specialize=["key_stride_h", "value_stride_h"])
def heads_kernel(
    x_ptr, gain_ptr, weights, angles, lengths_ptr, q_ptr, keys_ptr, values_ptr,
    key_stride_h, value_stride_h, epsilon,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HALF: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Compute norm, query, key and value projections and rotary embedding; append the key and value to the cache.

    weights: matrices of q, k and v. angles: cos and sin, (positions, HALF) in float32. Caches are (heads, positions,
    2 * HALF). A program computes FORM.rows numbers of the first half of a head, and the numbers of the second half
    that are rotated with them. The token is at position lengths - 1.
    """
    ROWS: tl.constexpr = FORM.rows
    wq_ptr, wk_ptr, wv_ptr = weights
    cos_ptr, sin_ptr = angles
    head = tl.program_id(0) // (HALF // ROWS)
    at = tl.program_id(0) % (HALF // ROWS) * ROWS
    of_kind = head
    matrix_ptr = wq_ptr
    if head >= HEADS + KEY_HEADS:
        of_kind = head - HEADS - KEY_HEADS
        matrix_ptr = wv_ptr
    elif head >= HEADS:
        of_kind = head - HEADS
        matrix_ptr = wk_ptr
    matrix_ptr += (of_kind * 2 * HALF + at).to(tl.int64) * FORM.columns
    first, second = _products(x_ptr, gain_ptr, matrix_ptr, matrix_ptr + HALF * FORM.columns, epsilon, True, FORM)
    position = tl.load(lengths_ptr) - 1
    dims = at + tl.arange(0, ROWS)
    if head < HEADS + KEY_HEADS:
        cos = tl.load(cos_ptr + position * HALF + dims)
        sin = tl.load(sin_ptr + position * HALF + dims)
        rotated = first * cos - second * sin
        second = second * cos + first * sin
        first = rotated
    out_ptr = q_ptr + head * 2 * HALF
    if head >= HEADS + KEY_HEADS:
        out_ptr = values_ptr + of_kind.to(tl.int64) * value_stride_h + position.to(tl.int64) * (2 * HALF)
    elif head >= HEADS:
        out_ptr = keys_ptr + of_kind.to(tl.int64) * key_stride_h + position.to(tl.int64) * (2 * HALF)
    tl.store(out_ptr + dims, first.to(q_ptr.dtype.element_ty))
    tl.store(out_ptr + HALF + dims, second.to(q_ptr.dtype.element_ty))


@triton.jit
def gated_kernel(x_ptr, gain_ptr, gate_ptr, up_ptr, out_ptr, epsilon, FORM: tl.constexpr):
    """Compute norm and the first half of a gated MLP: out = silu(gate @ x) * (up @ x)."""
    row = tl.program_id(0) * FORM.rows
    at = row.to(tl.int64) * FORM.columns
    gate, up = _products(x_ptr, gain_ptr, gate_ptr + at, up_ptr + at, epsilon, True, FORM)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row + tl.arange(0, FORM.rows), out.to(out_ptr.dtype.element_ty))


@triton.jit
def product_kernel(
    x_ptr, gain_ptr, matrix_ptr, out_ptr, epsilon, NORMED: tl.constexpr, ADDED: tl.constexpr, FORM: tl.constexpr
):
    """Compute out = matrix @ x; NORMED: x is normalized first; ADDED: the product is added to out."""
    row = tl.program_id(0) * FORM.rows
    matrix_ptr += row.to(tl.int64) * FORM.columns
    out_ptr += row + tl.arange(0, FORM.rows)
    out, _ = _products(x_ptr, gain_ptr, matrix_ptr, None, epsilon, NORMED, FORM)
    if ADDED:
        out += tl.load(out_ptr).to(tl.float32)
    tl.store(out_ptr, out.to(out_ptr.dtype.element_ty))
