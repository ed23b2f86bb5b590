"""What is computed before the main kernels run: delta = rowsum(dout * out), and copies of float32 tensors.

The copies are transposed for IEEE float32, and three bfloat16 parts for bf16x6 (tile_ops.py says why).

On the FMA units (COPIED) delta is summed in the order of dp = dout v^T: the diagonal of dout out^T. In a row with one
winner dp - delta is then 0, as the gradient of its score is (kernels/DESIGN.md, "Accuracy").
"""

from collections import namedtuple

import triton
import triton.language as tl

from .forward import wait_for_previous_kernel
from .tile_ops import BF16_PARTS, LONGEST_CHAIN, load_rows, padded, pinned, split_bf16, store_rows

# Two inputs x and y with the same sizes, their copies, and the output and delta of y.
_RowTensors = namedtuple("_RowTensors", "x y out x_copy y_copy delta")


@triton.jit
def _store_copy(copy, start, limit, tile, CONFIG: tl.constexpr):
    """Store a tile as its three bfloat16 parts, `limit` rows apart, or transposed."""
    ROWS: tl.constexpr = CONFIG.block_m
    HEAD_DIM: tl.constexpr = CONFIG.head_dim
    BLOCK_D: tl.constexpr = CONFIG.block_d
    if CONFIG.precision == "bf16x6":
        high, middle, low = split_bf16(tile)
        plane = tl.cast(limit, tl.int64) * HEAD_DIM
        store_rows(copy, start, HEAD_DIM, limit, high, ROWS, HEAD_DIM, BLOCK_D)
        store_rows(copy + plane, start, HEAD_DIM, limit, middle, ROWS, HEAD_DIM, BLOCK_D)
        store_rows(copy + 2 * plane, start, HEAD_DIM, limit, low, ROWS, HEAD_DIM, BLOCK_D)
    else:
        rows = tl.arange(0, ROWS)
        dims = tl.arange(0, BLOCK_D)
        pointers = copy + start + (dims[:, None] * padded(limit) + rows[None, :])
        tl.store(pointers, tl.trans(tile), mask=(start + rows < limit)[None, :] & (dims < HEAD_DIM)[:, None])


@triton.jit
def _rowsum_of_products(x_base, y_base, x_stride, y_stride, start, limit, CONFIG: tl.constexpr):
    """Return rowsum(x * y), bit for bit as tile_ops.products sums over head_dim on the FMA units."""
    ROWS: tl.constexpr = CONFIG.block_m
    CHAIN: tl.constexpr = LONGEST_CHAIN if CONFIG.block_d > LONGEST_CHAIN else CONFIG.block_d
    products = tl.zeros([ROWS, ROWS], dtype=tl.float32)
    for begin in tl.static_range(0, CONFIG.block_d, CHAIN):
        x = load_rows(x_base + begin, start, x_stride, limit, ROWS, CONFIG.head_dim - begin, CHAIN, True)
        y = load_rows(y_base + begin, start, y_stride, limit, ROWS, CONFIG.head_dim - begin, CHAIN, True)
        products += pinned(tl.dot(x, tl.trans(y), input_precision="ieee"), True)  # a separate sum, as in products
    rows = tl.arange(0, ROWS)
    return tl.sum(tl.where(rows[:, None] == rows[None, :], products, 0.0), 1)


@triton.jit
def _copy_rows(
    tensors, strides, program, num_heads, seqlen,
    COPY_X: tl.constexpr, COPY_Y: tl.constexpr, DELTA: tl.constexpr, CONFIG: tl.constexpr,
):  # fmt: skip
    """Store copies of block_m rows of x (if COPY_X) and y (if COPY_Y), and delta = rowsum(y * out) (if DELTA)."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    HEAD_DIM: tl.constexpr = CONFIG.head_dim
    BLOCK_D: tl.constexpr = CONFIG.block_d
    tiles = tl.cdiv(seqlen, BLOCK_M)
    head = tl.cast(program // tiles, tl.int64)
    start = (program % tiles) * BLOCK_M
    batch = head // num_heads
    head_in_batch = head % num_heads
    copy = head * HEAD_DIM * (BF16_PARTS * seqlen if CONFIG.precision == "bf16x6" else padded(seqlen))
    if COPY_X:
        x_base = tensors.x + batch * strides.x.batch + head_in_batch * strides.x.head
        x = load_rows(x_base, start, strides.x.row, seqlen, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        _store_copy(tensors.x_copy + copy, start, seqlen, x, CONFIG)
    if COPY_Y or DELTA:
        y_base = tensors.y + batch * strides.y.batch + head_in_batch * strides.y.head
        y = load_rows(y_base, start, strides.y.row, seqlen, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        if COPY_Y:
            _store_copy(tensors.y_copy + copy, start, seqlen, y, CONFIG)
        if DELTA:
            out_base = tensors.out + batch * strides.out.batch + head_in_batch * strides.out.head
            if CONFIG.copied:
                delta = _rowsum_of_products(y_base, out_base, strides.y.row, strides.out.row, start, seqlen, CONFIG)
            else:
                out = load_rows(out_base, start, strides.out.row, seqlen, BLOCK_M, HEAD_DIM, BLOCK_D, True)
                delta = tl.sum(out.to(tl.float32) * y.to(tl.float32), 1)
            rows = start + tl.arange(0, BLOCK_M)
            tl.store(tensors.delta + head * seqlen + rows, delta, mask=rows < seqlen)


@triton.jit(do_not_specialize=["num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "programs_q"])
def preprocess_kernel(
    tensors, strides, num_heads, num_kv_heads, seqlen_q, seqlen_k, programs_q, CONFIG: tl.constexpr
):  # fmt: skip
    """Store the copies of block_m rows that CONFIG names, and delta if it does.

    The first programs_q programs do q and dout, the others k and v.
    """
    wait_for_previous_kernel(CONFIG.pdl)
    program = tl.program_id(0)
    if program < programs_q:
        queries = _RowTensors(x=tensors.q, y=tensors.dout, out=tensors.out, x_copy=tensors.q_copy,
                              y_copy=tensors.dout_copy, delta=tensors.delta)  # fmt: skip
        q_strides = _RowTensors(x=strides.q, y=strides.dout, out=strides.out, x_copy=None, y_copy=None, delta=None)
        _copy_rows(
            queries, q_strides, program, num_heads, seqlen_q, CONFIG.copy_q, CONFIG.copy_dout, CONFIG.delta, CONFIG
        )
    else:
        keys = _RowTensors(x=tensors.k, y=tensors.v, out=None, x_copy=tensors.k_copy, y_copy=tensors.v_copy, delta=None)
        k_strides = _RowTensors(x=strides.k, y=strides.v, out=None, x_copy=None, y_copy=None, delta=None)
        _copy_rows(
            keys, k_strides, program - programs_q, num_kv_heads, seqlen_k, CONFIG.copy_k, CONFIG.copy_v, False, CONFIG
        )
