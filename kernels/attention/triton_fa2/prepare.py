"""What is laid out before the main kernels run: delta = rowsum(dout * out), and transposed copies for IEEE float32.

Why copies: an IEEE float32 product runs on the FMA units, whose operands Triton keeps in shared memory in the order of
the tile's load. The right factor of q k^T, read along head_dim, then meets up to 32-way bank conflicts (measured on an
H200: 16 % of the FMA peak at best). Loaded from a (head_dim, seqlen) copy, it meets none.
"""

import triton
import triton.language as tl

from kernels.attention.triton_fa2.chain import wait_for_turn
from kernels.attention.triton_fa2.pieces import PIECES, pieces_of, product_of_pieces, transposed

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)  # has no inline assembly
LONGEST_CHAIN = tl.constexpr(128)  # head_dims that one sum of q k^T runs over: over 256 it costs dk half a decimal
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
def load_factor(
    base, start, stride, limit,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Rows as a factor of products: as they are, or the three pieces of them that lie `limit` rows apart."""
    rows = load_rows(base, start, stride, limit, ROWS, HEAD_DIM, BLOCK_D, MASKED)
    if PRECISION == "pieces":
        plane = tl.cast(limit, tl.int64) * HEAD_DIM
        middle = load_rows(base + plane, start, stride, limit, ROWS, HEAD_DIM, BLOCK_D, MASKED)
        low = load_rows(base + 2 * plane, start, stride, limit, ROWS, HEAD_DIM, BLOCK_D, MASKED)
        rows = (rows, middle, low)
    return rows


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
def products(
    a, b, a_base, a_start, a_stride, a_limit, bt_base, b_start, b_limit,
    ROWS_A: tl.constexpr, ROWS_B: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    COPIED: tl.constexpr, PRECISION: tl.constexpr, SWAPPED: tl.constexpr = False,
):  # fmt: skip
    """a b^T for row tiles a and b; if COPIED, from memory in steps along head_dim, b through its transposed copy.

    The steps keep the factors of a product few: unrolled over the whole of head_dim, an IEEE product's operands are
    hoisted out of the loop over the keys and spilled (10 KB a thread at head_dim 128, 16x64, 4 warps on sm_90).
    """
    if PRECISION == "pieces":
        out = product_of_pieces(a, transposed(b), SWAPPED)
    elif COPIED:
        CHAIN: tl.constexpr = LONGEST_CHAIN if BLOCK_D > LONGEST_CHAIN else BLOCK_D
        out = _product_in_steps(
            a_base, a_start, a_stride, a_limit, bt_base, b_start, b_limit, 0,
            ROWS_A, ROWS_B, HEAD_DIM, BLOCK_D, CHAIN, PRECISION,
        )  # fmt: skip
        if BLOCK_D > CHAIN:
            for begin in tl.range(CHAIN, BLOCK_D, CHAIN):
                out += _product_in_steps(
                    a_base, a_start, a_stride, a_limit, bt_base, b_start, b_limit, begin,
                    ROWS_A, ROWS_B, HEAD_DIM, BLOCK_D, CHAIN, PRECISION,
                )  # fmt: skip
    else:
        out = tl.dot(a, tl.trans(b), input_precision=PRECISION)
    return out


@triton.jit
def _product_in_steps(
    a_base, a_start, a_stride, a_limit, bt_base, b_start, b_limit, begin,
    ROWS_A: tl.constexpr, ROWS_B: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, CHAIN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The sum over CHAIN of the head_dims, from `begin` on."""
    STEP: tl.constexpr = BLOCK_D if BLOCK_D <= 64 else 32  # measured on an H200: one step of 64, but 4 of 32
    rows_a = tl.arange(0, ROWS_A)
    rows_b = tl.arange(0, ROWS_B)
    seen_a = (a_start + rows_a < a_limit)[:, None]
    seen_b = (b_start + rows_b < b_limit)[None, :]
    a_rows = a_base + tl.cast(a_start, tl.int64) * a_stride + rows_a[:, None] * a_stride
    b_rows = bt_base + b_start + rows_b[None, :]
    out = tl.zeros([ROWS_A, ROWS_B], dtype=tl.float32)
    for first in tl.range(0, CHAIN, STEP):
        dims = begin + first + tl.arange(0, STEP)
        if HEAD_DIM == BLOCK_D:
            factor_a = tl.load(a_rows + dims[None, :], mask=seen_a, other=0.0)
            factor_b = tl.load(b_rows + dims[:, None] * padded(b_limit), mask=seen_b, other=0.0)
        else:
            factor_a = tl.load(a_rows + dims[None, :], mask=seen_a & (dims < HEAD_DIM)[None, :], other=0.0)
            factor_b = tl.load(
                b_rows + dims[:, None] * padded(b_limit), mask=seen_b & (dims < HEAD_DIM)[:, None], other=0.0
            )
        out = tl.dot(factor_a, factor_b, out, input_precision=PRECISION)
    return out


@triton.jit
def add_product(acc, a, b, COPIED: tl.constexpr, PRECISION: tl.constexpr):
    """acc + a b. On the FMA units as a sum of its own: one chain over 65536 rows loses 2 decimals of float32.

    The empty instruction keeps the compiler from merging the two again, and LLVM from sinking the product below the
    next loop, which would spill its factors.
    """
    if PRECISION == "pieces":
        acc += product_of_pieces(pieces_of(a), b, False)
    elif COPIED:
        acc += pinned(tl.dot(a, b, input_precision=PRECISION), COPIED)
    else:
        acc = tl.dot(a.to(b.dtype), b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def pinned(x, COPIED: tl.constexpr):
    """x, computed here: an empty instruction that the compiler moves nothing across (if COPIED; see add_product)."""
    if COPIED and not INTERPRETED:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=False, pack=1)
    return x


@triton.jit
def _store_copy(
    copy, start, limit, tile,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile as its three pieces, `limit` rows apart, or transposed."""
    if PRECISION == "pieces":
        high, middle, low = pieces_of(tile)
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
def _lay_out(
    x_ptr, y_ptr, out_ptr, xt_ptr, yt_ptr, delta_ptr, x_b, x_h, x_m, y_b, y_h, y_m, out_b, out_h, out_m,
    program, num_heads, seqlen,
    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    COPY_X: tl.constexpr, COPY_Y: tl.constexpr, DELTA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Copies of BLOCK_M rows of x and y, and delta = rowsum(y * out), each if asked for."""
    tiles = tl.cdiv(seqlen, BLOCK_M)
    head = tl.cast(program // tiles, tl.int64)
    start = (program % tiles) * BLOCK_M
    batch = head // num_heads
    head_in_batch = head % num_heads
    copy = head * HEAD_DIM * (PIECES * seqlen if PRECISION == "pieces" else padded(seqlen))
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
            out = load_rows(out_base, start, out_m, seqlen, BLOCK_M, HEAD_DIM, BLOCK_D, True)
            delta = tl.sum(out.to(tl.float32) * y.to(tl.float32), 1)
            rows = start + tl.arange(0, BLOCK_M)
            tl.store(delta_ptr + head * seqlen + rows, delta, mask=rows < seqlen)


@triton.jit(do_not_specialize=["num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "programs_q"])
def prepare_kernel(
    q_ptr, dout_ptr, out_ptr, k_ptr, v_ptr, qt_ptr, dot_ptr, kt_ptr, vt_ptr, delta_ptr,
    q_b, q_h, q_m, do_b, do_h, do_m, out_b, out_h, out_m, k_b, k_h, k_n, v_b, v_h, v_n,
    num_heads, num_kv_heads, seqlen_q, seqlen_k, programs_q,
    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    COPY_Q: tl.constexpr, COPY_D: tl.constexpr, COPY_K: tl.constexpr, COPY_V: tl.constexpr, DELTA: tl.constexpr,
    PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Copies of BLOCK_M rows of q, dout, k and v, and delta, each if asked for.

    The first programs_q programs do q and dout, the others k and v.
    """
    wait_for_turn(CHAINED)
    program = tl.program_id(0)
    if program < programs_q:
        _lay_out(
            q_ptr, dout_ptr, out_ptr, qt_ptr, dot_ptr, delta_ptr, q_b, q_h, q_m, do_b, do_h, do_m, out_b, out_h, out_m,
            program, num_heads, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, COPY_Q, COPY_D, DELTA, PRECISION,
        )  # fmt: skip
    else:
        _lay_out(
            k_ptr, v_ptr, v_ptr, kt_ptr, vt_ptr, delta_ptr, k_b, k_h, k_n, v_b, v_h, v_n, v_b, v_h, v_n,
            program - programs_q, num_kv_heads, seqlen_k,
            BLOCK_M, HEAD_DIM, BLOCK_D, COPY_K, COPY_V, False, PRECISION,
        )  # fmt: skip
