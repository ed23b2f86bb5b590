"""From 16-bit tensors to e4m3 with a scale for every 128 rows, and values into the order that the tensor cores want.

A scale is the least power of two by which the largest of its rows fits e4m3, so scaling itself rounds nothing and a
number keeps the 3 bits of its mantissa; only numbers 2^14 times smaller than the largest lose bits.
Products of 8-bit factors read both along the keys, so values are stored transposed, (head_dim, seqlen).
"""

import triton
import triton.language as tl

from .tuning import SCALE_ROWS

ROWS = tl.constexpr(SCALE_ROWS)  # rows that share a scale
_LEAST, _MOST = tl.constexpr(-40), tl.constexpr(119)  # exponents of scales; the least keeps ratios of two finite
_LARGEST = tl.constexpr(0x600000)  # the mantissa of 448 = 1.75 x 2^8, e4m3's largest number


@triton.jit
def _load(x, strides, index, blocks, num_heads, seqlen, rows, HEAD_DIM: tl.constexpr, SIZE: tl.constexpr):
    """Load rows of the index-th block of a tensor in float32, zeros beyond its ends."""
    x_b, x_h, x_m, x_d = strides
    head = (index // blocks).to(tl.int64)
    batch = head // num_heads
    rows = (index % blocks) * ROWS + rows
    columns = tl.arange(0, SIZE)
    start = x + batch * x_b + (head - batch * num_heads) * x_h
    inside = (rows < seqlen)[:, None] & (columns < HEAD_DIM)[None, :]
    return tl.load(start + rows[:, None].to(tl.int64) * x_m + columns[None, :] * x_d, inside, 0.0).to(tl.float32)


@triton.jit
def _exponent(x):
    """Return the exponent of a block's scale: the largest number over 2^exponent is at most 448."""
    largest = tl.max(tl.max(tl.abs(x), 1), 0)
    bits = largest.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) - (127 + 8) + ((bits & 0x7FFFFF) > _LARGEST).to(tl.int32)
    return tl.minimum(tl.maximum(exponent, _LEAST), _MOST), largest < float("inf")


@triton.jit
def _power(exponent):
    """Return 2^exponent."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _scaled(x, exponent, finite):
    """Convert a block to e4m3; all of its numbers are NaN if one is infinite."""
    return (x * tl.where(finite, _power(-exponent), float("nan"))).to(tl.float8e4nv)


@triton.jit
def _quantise_rows(x, strides, x8, scales, index, blocks, num_heads, seqlen, HEAD_DIM: tl.constexpr,
                   SIZE: tl.constexpr):  # fmt: skip
    """Quantise a block of queries or keys in its own order."""
    rows = tl.arange(0, ROWS)
    values = _load(x, strides, index, blocks, num_heads, seqlen, rows, HEAD_DIM, SIZE)
    exponent, finite = _exponent(values)
    tl.store(scales + index, _power(exponent))
    rows += (index % blocks) * ROWS
    place = ((index // blocks).to(tl.int64) * seqlen + rows[:, None]) * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(x8 + place, _scaled(values, exponent, finite), (rows < seqlen)[:, None])


@triton.jit
def _quantise_values(v, strides, v8, scales, index, blocks, num_heads, seqlen, HEAD_DIM: tl.constexpr,
                     SIZE: tl.constexpr):  # fmt: skip
    """Quantise a block of values, transposed, with the keys in another order (probabilities.py says why)."""
    places = tl.arange(0, ROWS)
    keys = (places & ~15) + 8 * ((places >> 1) & 1) + 2 * ((places >> 2) & 3) + (places & 1)  # the key of each place
    values = _load(v, strides, index, blocks, num_heads, seqlen, keys, HEAD_DIM, SIZE)
    exponent, finite = _exponent(values)
    tl.store(scales + index, exponent.to(tl.float32))
    row = (index // blocks).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    place = row[:, None] * (blocks * ROWS) + ((index % blocks) * ROWS + places)[None, :]
    tl.store(v8 + place, tl.trans(_scaled(values, exponent, finite)))


@triton.jit(do_not_specialize=["num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "q_blocks", "k_blocks",
                               "q_programs", "k_programs"])  # fmt: skip
def quantise_kernel(inputs, outputs, scales, strides, num_heads, num_kv_heads, seqlen_q, seqlen_k, q_blocks, k_blocks,
                    q_programs, k_programs, HEAD_DIM: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """Quantise one block of 128 rows of q, k or v, by the number of the program.

    q8, k8: rows of SIZE numbers; v8: SIZE rows of whole blocks of keys. Scales of queries and keys as they are, those
    of values as exponents.
    """
    q, k, v = inputs
    q8, k8, v8 = outputs
    q_scales, k_scales, v_scales = scales
    q_strides, k_strides, v_strides = strides
    program = tl.program_id(0)
    if program < q_programs:
        _quantise_rows(q, q_strides, q8, q_scales, program, q_blocks, num_heads, seqlen_q, HEAD_DIM, SIZE)
    elif program < q_programs + k_programs:
        index = program - q_programs
        _quantise_rows(k, k_strides, k8, k_scales, index, k_blocks, num_kv_heads, seqlen_k, HEAD_DIM, SIZE)
    else:
        index = program - q_programs - k_programs
        _quantise_values(v, v_strides, v8, v_scales, index, k_blocks, num_kv_heads, seqlen_k, HEAD_DIM, SIZE)
