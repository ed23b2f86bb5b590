"""What is laid out before the main kernels run: delta = rowsum(dout * out), and transposed copies for IEEE float32.

Why copies: an IEEE float32 product runs on the FMA units, whose operands Triton keeps in shared memory in the order of
the tile's load. The right factor of q k^T, read along head_dim, then meets up to 32-way bank conflicts (measured on an
H200: 16 % of the FMA peak at best). Loaded from a (head_dim, seqlen) copy, it meets none.
"""

import triton
import triton.language as tl

PAD = 16  # rows of a transposed copy are padded to this, so that vector loads stay aligned


@triton.jit
def load_rows(
    base, start, stride, limit,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Rows start .. start + ROWS of one head, zeros beyond `limit` (if MASKED) and beyond HEAD_DIM."""
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_D)
    pointers = base + tl.cast(start, tl.int64) * stride + (rows[:, None] * stride + dims[None, :])
    if MASKED:
        if HEAD_DIM == BLOCK_D:
            return tl.load(pointers, mask=(start + rows < limit)[:, None], other=0.0)
        return tl.load(pointers, mask=(start + rows < limit)[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    if HEAD_DIM == BLOCK_D:
        return tl.load(pointers)
    return tl.load(pointers, mask=(dims < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def store_rows(base, start, stride, limit, values, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write rows start .. start + ROWS of one head, as far as `limit` and HEAD_DIM go."""
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_D)
    pointers = base + tl.cast(start, tl.int64) * stride + (rows[:, None] * stride + dims[None, :])
    mask = (start + rows < limit)[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(pointers, values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def padded(seqlen):
    """The row length of a transposed copy."""
    return tl.multiple_of(tl.cdiv(seqlen, 16) * 16, 16)


@triton.jit
def columns(
    tile, transposed, start, limit,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr, COPIED: tl.constexpr,
):  # fmt: skip
    """The tile (ROWS, BLOCK_D) as (BLOCK_D, ROWS): from the transposed copy of its head if there is one."""
    if not COPIED:
        return tl.trans(tile)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_D)
    pointers = transposed + start + (dims[:, None] * padded(limit) + rows[None, :])
    if MASKED:
        return tl.load(pointers, mask=(start + rows < limit)[None, :] & (dims < HEAD_DIM)[:, None], other=0.0)
    if HEAD_DIM == BLOCK_D:
        return tl.load(pointers)
    return tl.load(pointers, mask=(dims < HEAD_DIM)[:, None], other=0.0)


@triton.jit
def _store_columns(transposed, start, limit, tile, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_D)
    pointers = transposed + start + (dims[:, None] * padded(limit) + rows[None, :])
    tl.store(pointers, tl.trans(tile), mask=(start + rows < limit)[None, :] & (dims < HEAD_DIM)[:, None])


@triton.jit(do_not_specialize=["num_heads", "seqlen"])
def prepare_kernel(
    x_ptr, y_ptr, out_ptr, xt_ptr, yt_ptr, delta_ptr,
    x_b, x_h, x_m, y_b, y_h, y_m, out_b, out_h, out_m, num_heads, seqlen,
    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    COPY_X: tl.constexpr, COPY_Y: tl.constexpr, DELTA: tl.constexpr,
):  # fmt: skip
    """Transposed copies of BLOCK_M rows of x and y, and delta = rowsum(y * out), each if asked for."""
    tiles = tl.cdiv(seqlen, BLOCK_M)
    head = tl.cast(tl.program_id(0) // tiles, tl.int64)
    start = (tl.program_id(0) % tiles) * BLOCK_M
    batch = head // num_heads
    head_in_batch = head % num_heads
    copy = head * HEAD_DIM * padded(seqlen)
    if COPY_X:
        x_base = x_ptr + batch * x_b + head_in_batch * x_h
        x = load_rows(x_base, start, x_m, seqlen, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        _store_columns(xt_ptr + copy, start, seqlen, x, BLOCK_M, HEAD_DIM, BLOCK_D)
    if COPY_Y or DELTA:
        y_base = y_ptr + batch * y_b + head_in_batch * y_h
        y = load_rows(y_base, start, y_m, seqlen, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        if COPY_Y:
            _store_columns(yt_ptr + copy, start, seqlen, y, BLOCK_M, HEAD_DIM, BLOCK_D)
        if DELTA:
            out_base = out_ptr + batch * out_b + head_in_batch * out_h
            out = load_rows(out_base, start, out_m, seqlen, BLOCK_M, HEAD_DIM, BLOCK_D, True)
            delta = tl.sum(out.to(tl.float32) * y.to(tl.float32), 1)
            rows = start + tl.arange(0, BLOCK_M)
            tl.store(delta_ptr + head * seqlen + rows, delta, mask=rows < seqlen)
