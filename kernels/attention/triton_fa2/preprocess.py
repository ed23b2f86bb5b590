"""What is computed before the main kernels run: delta = rowsum(dout * out), and copies of float32 tensors.

The copies are transposed for IEEE float32, and three bfloat16 parts for bf16x6 (tile_ops.py says why).

On the FMA units (COPIED) delta is summed in the order of dp = dout v^T: the diagonal of dout out^T. In a row with one
winner, whose out is that key's v, dp - delta is then 0, as the gradient of its score is. Summed in another order it is
a rounding of dp, which large queries make into an error of dk (kernels/DESIGN.md, "Accuracy").
"""

import triton
import triton.language as tl

from .pdl import wait_for_previous_kernel
from .tile_ops import (
    BF16_PARTS,
    LONGEST_CHAIN,
    load_rows,
    padded,
    pinned,
    split_bf16,
    store_rows,
)


@triton.jit
def _store_copy(
    copy, start, limit, tile,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store a tile as its three bfloat16 parts, `limit` rows apart, or transposed."""
    if PRECISION == "bf16x6":
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
def _rowsum_of_products(
    x_base, y_base, x_stride, y_stride, start, limit,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Return rowsum(x * y), bit for bit as tile_ops.products sums over head_dim on the FMA units."""
    CHAIN: tl.constexpr = LONGEST_CHAIN if BLOCK_D > LONGEST_CHAIN else BLOCK_D
    products = tl.zeros([ROWS, ROWS], dtype=tl.float32)
    for begin in tl.static_range(0, BLOCK_D, CHAIN):
        x = load_rows(x_base + begin, start, x_stride, limit, ROWS, HEAD_DIM - begin, CHAIN, True)
        y = load_rows(y_base + begin, start, y_stride, limit, ROWS, HEAD_DIM - begin, CHAIN, True)
        products += pinned(tl.dot(x, tl.trans(y), input_precision="ieee"), True)  # a sum of its own, as there
    rows = tl.arange(0, ROWS)
    return tl.sum(tl.where(rows[:, None] == rows[None, :], products, 0.0), 1)


@triton.jit
def _copy_rows(
    x_ptr, y_ptr, out_ptr, xt_ptr, yt_ptr, delta_ptr, x_b, x_h, x_m, y_b, y_h, y_m, out_b, out_h, out_m,
    program, num_heads, seqlen,
    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    COPY_X: tl.constexpr, COPY_Y: tl.constexpr, DELTA: tl.constexpr, COPIED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store copies of BLOCK_M rows of x and y, and delta = rowsum(y * out), each if asked for."""
    tiles = tl.cdiv(seqlen, BLOCK_M)
    head = tl.cast(program // tiles, tl.int64)
    start = (program % tiles) * BLOCK_M
    batch = head // num_heads
    head_in_batch = head % num_heads
    copy = head * HEAD_DIM * (BF16_PARTS * seqlen if PRECISION == "bf16x6" else padded(seqlen))
    if COPY_X:
        x_base = x_ptr + batch * x_b + head_in_batch * x_h
        x = load_rows(x_base, start, x_m, seqlen, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        _store_copy(xt_ptr + copy, start, seqlen, x, BLOCK_M, HEAD_DIM, BLOCK_D, PRECISION)
    if COPY_Y or DELTA:
        y_base = y_ptr + batch * y_b + head_in_batch * y_h
        y = load_rows(y_base, start, y_m, seqlen, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        if COPY_Y:
            _store_copy(yt_ptr + copy, start, seqlen, y, BLOCK_M, HEAD_DIM, BLOCK_D, PRECISION)
        if DELTA:
            out_base = out_ptr + batch * out_b + head_in_batch * out_h
            if COPIED:
                delta = _rowsum_of_products(y_base, out_base, y_m, out_m, start, seqlen, BLOCK_M, HEAD_DIM, BLOCK_D)
            else:
                out = load_rows(out_base, start, out_m, seqlen, BLOCK_M, HEAD_DIM, BLOCK_D, True)
                delta = tl.sum(out.to(tl.float32) * y.to(tl.float32), 1)
            rows = start + tl.arange(0, BLOCK_M)
            tl.store(delta_ptr + head * seqlen + rows, delta, mask=rows < seqlen)


@triton.jit(do_not_specialize=["num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "programs_q"])
def preprocess_kernel(
    q_ptr, dout_ptr, out_ptr, k_ptr, v_ptr, qt_ptr, dot_ptr, kt_ptr, vt_ptr, delta_ptr,
    q_b, q_h, q_m, do_b, do_h, do_m, out_b, out_h, out_m, k_b, k_h, k_n, v_b, v_h, v_n,
    num_heads, num_kv_heads, seqlen_q, seqlen_k, programs_q,
    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    COPY_Q: tl.constexpr, COPY_D: tl.constexpr, COPY_K: tl.constexpr, COPY_V: tl.constexpr, DELTA: tl.constexpr,
    COPIED: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store copies of BLOCK_M rows of q, dout, k and v, and delta, each if asked for.

    The first programs_q programs do q and dout, the others k and v.
    """
    wait_for_previous_kernel(PDL)
    program = tl.program_id(0)
    if program < programs_q:
        _copy_rows(
            q_ptr, dout_ptr, out_ptr, qt_ptr, dot_ptr, delta_ptr, q_b, q_h, q_m, do_b, do_h, do_m, out_b, out_h, out_m,
            program, num_heads, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, COPY_Q, COPY_D, DELTA, COPIED,
            PRECISION,
        )  # fmt: skip
    else:
        _copy_rows(
            k_ptr, v_ptr, v_ptr, kt_ptr, vt_ptr, delta_ptr, k_b, k_h, k_n, v_b, v_h, v_n, v_b, v_h, v_n,
            program - programs_q, num_kv_heads, seqlen_k,
            BLOCK_M, HEAD_DIM, BLOCK_D, COPY_K, COPY_V, False, COPIED, PRECISION,
        )  # fmt: skip
