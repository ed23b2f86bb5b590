"""Products of matrices with one token, with what stands before and after them in a Llama's layer in the same launch.

One token makes a layer a walk over its weights: a product is as fast as its matrix is read. Each program takes a few
rows of the matrix whole, and asks for its first weights before the kernel before it has ended (programmatic dependent
launch), so that memory is kept busy from one product to the next. Everything is summed in float32, and rounded where a
kernel stores it alone.

Matrices are (rows, columns) without gaps, as nn.Linear's weights are; vectors have no gaps either.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _weights(matrix_ptr, begin, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """ROWS x BLOCK weights from column `begin` on, 0 beyond COLUMNS. They are read once, so they leave L2 first."""
    columns = begin + tl.arange(0, BLOCK)
    pointers = matrix_ptr + tl.arange(0, ROWS)[:, None] * COLUMNS + columns
    return tl.load(pointers, mask=(columns < COLUMNS)[None, :], other=0.0, eviction_policy="evict_first")


@triton.jit
def _pair_of_products(
    x_ptr, gain_ptr, first_ptr, second_ptr, epsilon,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Products of ROWS rows each of two matrices with x divided by its root mean square, times gain, in float32."""
    first = _weights(first_ptr, 0, ROWS, COLUMNS, BLOCK)
    second = _weights(second_ptr, 0, ROWS, COLUMNS, BLOCK)
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()
    in_first = tl.zeros([ROWS, BLOCK], tl.float32)
    in_second = tl.zeros([ROWS, BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for begin in tl.range(0, COLUMNS, BLOCK, num_stages=1):
        columns = begin + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + columns, mask=columns < COLUMNS, other=0.0).to(tl.float32)
        squares += x * x
        x *= tl.load(gain_ptr + columns, mask=columns < COLUMNS, other=0.0).to(tl.float32)
        in_first += first.to(tl.float32) * x[None, :]
        in_second += second.to(tl.float32) * x[None, :]
        first = _weights(first_ptr, begin + BLOCK, ROWS, COLUMNS, BLOCK)
        second = _weights(second_ptr, begin + BLOCK, ROWS, COLUMNS, BLOCK)
    scale = tl.rsqrt(tl.sum(squares, 0) / COLUMNS + epsilon)
    return tl.sum(in_first, 1) * scale, tl.sum(in_second, 1) * scale


@triton.jit(do_not_specialize=["key_stride_h", "value_stride_h"])
def heads_kernel(
    x_ptr, gain_ptr, wq_ptr, wk_ptr, wv_ptr, cos_ptr, sin_ptr, lengths_ptr, q_ptr, keys_ptr, values_ptr,
    key_stride_h, value_stride_h, epsilon,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HALF: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Norm, projections to queries, keys and values, rotary angles, and the cache's last key and value.

    A program has ROWS numbers of the first half of a head and those that are rotated with them, of the second. cos and
    sin are (rows, HALF) in float32, caches (heads, rows, 2 * HALF). The token has row lengths - 1 of all of them.
    """
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
    matrix_ptr += (of_kind * 2 * HALF + at).to(tl.int64) * COLUMNS
    first, second = _pair_of_products(
        x_ptr, gain_ptr, matrix_ptr, matrix_ptr + HALF * COLUMNS, epsilon, ROWS, COLUMNS, BLOCK, CHAINED
    )
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
def gated_kernel(
    x_ptr, gain_ptr, gate_ptr, up_ptr, out_ptr, epsilon,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Norm and the first half of a gated MLP: out = silu(gate @ x) * (up @ x) of ROWS rows."""
    row = tl.program_id(0) * ROWS
    at = row.to(tl.int64) * COLUMNS
    gate, up = _pair_of_products(
        x_ptr, gain_ptr, gate_ptr + at, up_ptr + at, epsilon, ROWS, COLUMNS, BLOCK, CHAINED
    )  # fmt: skip
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row + tl.arange(0, ROWS), out.to(out_ptr.dtype.element_ty))


@triton.jit
def product_kernel(
    x_ptr, gain_ptr, matrix_ptr, out_ptr, epsilon,
    NORMED: tl.constexpr, ADDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """out = matrix @ x of ROWS rows; NORMED: of x after its norm; ADDED: added to what out holds."""
    row = tl.program_id(0) * ROWS
    matrix_ptr += row.to(tl.int64) * COLUMNS
    out_ptr += row + tl.arange(0, ROWS)
    weights = _weights(matrix_ptr, 0, ROWS, COLUMNS, BLOCK)
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()
    products = tl.zeros([ROWS, BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for begin in tl.range(0, COLUMNS, BLOCK, num_stages=1):
        columns = begin + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + columns, mask=columns < COLUMNS, other=0.0).to(tl.float32)
        if NORMED:
            squares += x * x
            x *= tl.load(gain_ptr + columns, mask=columns < COLUMNS, other=0.0).to(tl.float32)
        products += weights.to(tl.float32) * x[None, :]
        weights = _weights(matrix_ptr, begin + BLOCK, ROWS, COLUMNS, BLOCK)
    out = tl.sum(products, 1)
    if NORMED:
        out *= tl.rsqrt(tl.sum(squares, 0) / COLUMNS + epsilon)
    if ADDED:
        out += tl.load(out_ptr).to(tl.float32)
    tl.store(out_ptr, out.to(out_ptr.dtype.element_ty))
