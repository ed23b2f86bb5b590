"""Operations on tiles that all kernels share: rows of one head in and out of memory, products, softmax statistics.

Rows: tiles of ROWS x BLOCK_D at a row and a stride, zeros beyond `limit` rows and HEAD_DIM columns.

Products, by PRECISION: 16-bit and TF32 factors go to the tensor cores as they are. IEEE float32 runs on the FMA units
(COPIED), and the right factor of q k^T comes from a transposed copy (head_dim, seqlen) that preprocess.py makes: read
along head_dim it would meet bank conflicts in shared memory.

"bf16x6" is float32 on the tensor cores, as near as on the FMA units. A float32 is exactly the sum of three bfloat16
parts (8 bits each, of the 24 that it has), and a product of two parts is exact in the float32 that the tensor cores add
up in. Of the nine products of parts the six largest are computed (as cuBLAS's BF16x9 computes all nine); what is left
out is 2^-26 of the whole at most, a quarter of a rounding of float32. bfloat16 has float32's exponents, so nothing
overflows (but a factor of 3.39e38 or more) and nothing underflows above 2^-110; an infinite factor gives NaN. The
tensor cores cut sums off rather than round them, so a sum stays as short as a tile and is then added to the others.

Softmax statistics: the forward leaves the base-2 logsumexp of each row, from which the backward rebuilds probabilities.
float32 inputs get it in float64. Rounded to float32, at 13 (10000 equal scores) it is off by 5e-7 for a whole row, more
than all sums together, and at 1500 (large scores) by 6e-5. The scores must be the same bits in both directions, too.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)  # has no inline assembly, and multiplies bfloat16 wrongly
BF16_PARTS = tl.constexpr(3)  # of a float32
LONGEST_CHAIN = tl.constexpr(128)  # head_dims that one sum of q k^T runs over: over 256 it costs dk half a decimal
PAD = tl.constexpr(16)  # rows of a transposed copy are padded to this, so that vector loads stay aligned


@triton.jit
def load_rows(
    base, start, stride, limit,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Load rows start .. start + ROWS of one head, zeros beyond `limit` (if MASKED) and beyond HEAD_DIM."""
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
def load_factor(base, start, stride, limit, ROWS: tl.constexpr, MASKED: tl.constexpr, CONFIG: tl.constexpr):
    """Load rows as a factor of products: as they are, or their three bfloat16 parts, which lie `limit` rows apart."""
    rows = load_rows(base, start, stride, limit, ROWS, CONFIG.head_dim, CONFIG.block_d, MASKED)
    if CONFIG.precision == "bf16x6":
        plane = tl.cast(limit, tl.int64) * CONFIG.head_dim
        middle = load_rows(base + plane, start, stride, limit, ROWS, CONFIG.head_dim, CONFIG.block_d, MASKED)
        low = load_rows(base + 2 * plane, start, stride, limit, ROWS, CONFIG.head_dim, CONFIG.block_d, MASKED)
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
    """Return the row length of a transposed copy."""
    return tl.multiple_of(tl.cdiv(seqlen, PAD) * PAD, PAD)


@triton.jit
def products(
    a, b, a_base, a_start, a_stride, a_limit, bt_base, b_start, b_limit,
    ROWS_A: tl.constexpr, ROWS_B: tl.constexpr, CONFIG: tl.constexpr, SWAPPED: tl.constexpr = False,
):  # fmt: skip
    """Return a b^T of row tiles a and b; if copied, from memory in steps along head_dim, b through its transposed copy.

    The steps keep the factors of a product few: unrolled over the whole of head_dim, an IEEE product's operands are
    hoisted out of the loop over the keys and spilled (10 KB a thread at head_dim 128, 16x64, 4 warps on sm_90).
    """
    if CONFIG.precision == "bf16x6":
        out = dot_bf16x6(a, transposed(b), SWAPPED)
    elif CONFIG.copied:
        CHAIN: tl.constexpr = LONGEST_CHAIN if CONFIG.block_d > LONGEST_CHAIN else CONFIG.block_d
        out = _product_in_steps(
            a_base, a_start, a_stride, a_limit, bt_base, b_start, b_limit, 0, ROWS_A, ROWS_B, CHAIN, CONFIG
        )
        if CONFIG.block_d > CHAIN:
            for begin in tl.range(CHAIN, CONFIG.block_d, CHAIN):
                out += _product_in_steps(
                    a_base, a_start, a_stride, a_limit, bt_base, b_start, b_limit, begin, ROWS_A, ROWS_B, CHAIN, CONFIG
                )
    else:
        out = tl.dot(a, tl.trans(b), input_precision=CONFIG.precision)
    return out


@triton.jit
def _product_in_steps(
    a_base, a_start, a_stride, a_limit, bt_base, b_start, b_limit, begin,
    ROWS_A: tl.constexpr, ROWS_B: tl.constexpr, CHAIN: tl.constexpr, CONFIG: tl.constexpr,
):  # fmt: skip
    """Sum over CHAIN of the head_dims, from `begin` on."""
    STEP: tl.constexpr = CONFIG.block_d if CONFIG.block_d <= 64 else 32  # measured on an H200: one of 64, but 4 of 32
    rows_a = tl.arange(0, ROWS_A)
    rows_b = tl.arange(0, ROWS_B)
    seen_a = (a_start + rows_a < a_limit)[:, None]
    seen_b = (b_start + rows_b < b_limit)[None, :]
    a_rows = a_base + tl.cast(a_start, tl.int64) * a_stride + rows_a[:, None] * a_stride
    b_rows = bt_base + b_start + rows_b[None, :]
    out = tl.zeros([ROWS_A, ROWS_B], dtype=tl.float32)
    for first in tl.range(0, CHAIN, STEP):
        dims = begin + first + tl.arange(0, STEP)
        if CONFIG.head_dim == CONFIG.block_d:
            factor_a = tl.load(a_rows + dims[None, :], mask=seen_a, other=0.0)
            factor_b = tl.load(b_rows + dims[:, None] * padded(b_limit), mask=seen_b, other=0.0)
        else:
            seen_dims = dims < CONFIG.head_dim
            factor_a = tl.load(a_rows + dims[None, :], mask=seen_a & seen_dims[None, :], other=0.0)
            factor_b = tl.load(b_rows + dims[:, None] * padded(b_limit), mask=seen_b & seen_dims[:, None], other=0.0)
        out = tl.dot(factor_a, factor_b, out, input_precision=CONFIG.precision)
    return out


@triton.jit
def add_product(acc, a, b, COPIED: tl.constexpr, PRECISION: tl.constexpr):
    """Return acc + a b. On the FMA units as a sum of its own: one chain over 65536 rows loses 2 decimals of float32.

    The empty instruction keeps the compiler from merging the two again, and LLVM from sinking the product below the
    next loop, which would spill its factors.
    """
    if PRECISION == "bf16x6":
        acc += dot_bf16x6(split_bf16(a), b, False)
    elif COPIED:
        acc += pinned(tl.dot(a, b, input_precision=PRECISION), COPIED)
    else:
        acc = tl.dot(a.to(b.dtype), b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def pinned(x, COPIED: tl.constexpr):
    """Return x, computed here: an empty instruction that nothing is moved across (if COPIED; see add_product)."""
    if COPIED and not INTERPRETED:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=False, pack=1)
    return x


@triton.jit
def recomputed(x):
    """Return int32 x, so that values derived from it are recomputed in every iteration and hold no registers."""
    if not INTERPRETED:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=False, pack=1)
    return x


@triton.jit
def _rounded(x):
    """Round to the nearest bfloat16, in the interpreter kept as a float32 (triton issue 11584)."""
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    return x.to(tl.bfloat16)


@triton.jit
def split_bf16(x):
    """Return the three bfloat16 parts of float32 values, the largest first."""
    high = _rounded(x)
    rest = x - high.to(tl.float32)
    middle = _rounded(rest)
    return high, middle, _rounded(rest - middle.to(tl.float32))


@triton.jit
def transposed(a):
    """Transpose each of the three parts."""
    return tl.trans(a[0]), tl.trans(a[1]), tl.trans(a[2])


@triton.jit
def dot_bf16x6(a, b, SWAPPED: tl.constexpr):
    """Return a b of three parts each, the small terms first; SWAPPED makes b^T a^T the same bits as a b."""
    out = tl.zeros([a[0].shape[0], b[0].shape[1]], dtype=tl.float32)
    out = _add_term(out, a, b, 2, 0, SWAPPED)
    out = _add_term(out, a, b, 0, 2, SWAPPED)
    out = _add_term(out, a, b, 1, 1, SWAPPED)
    out = _add_term(out, a, b, 1, 0, SWAPPED)
    out = _add_term(out, a, b, 0, 1, SWAPPED)
    return _add_term(out, a, b, 0, 0, SWAPPED)


@triton.jit
def _add_term(out, a, b, FIRST: tl.constexpr, SECOND: tl.constexpr, SWAPPED: tl.constexpr):
    """Add the product of one part of a and one of b."""
    LEFT: tl.constexpr = SECOND if SWAPPED else FIRST
    RIGHT: tl.constexpr = FIRST if SWAPPED else SECOND
    return tl.dot(a[LEFT], b[RIGHT], out, input_precision="ieee")


@triton.jit
def scaled_maximum(row_max, factor):
    """Return row_max x factor rounded, as the probabilities were relative to it: not merged with a sum that follows."""
    return tl.fma(row_max, factor, 0.0)


@triton.jit
def sum_of_rounded(row_sum, row_max, factor, P_DTYPE: tl.constexpr):
    """Return row_sum with its largest probability as the product with v has it: rounded to P_DTYPE.

    That probability is 1 but for the rounding of row_max x factor: at scores of 100000, 2^0.004. Divided by a sum of
    unrounded ones, a row with one winner would differ from the winner's v by a rounding, and delta, which is dp there,
    by as much: the gradients of scores, which are the difference, would be nothing but that.
    """
    if tl.float32 == P_DTYPE:
        total = row_sum
    else:
        largest = tl.exp2(tl.fma(row_max, factor, -scaled_maximum(row_max, factor)))
        total = row_sum + (largest.to(P_DTYPE).to(tl.float32) - largest)
    return total


@triton.jit
def store_logsumexp(pointers, top, total, some, mask):
    """Store top + log2(total); +inf where no key is seen, so that the backward's exp2(score - lse) is 0 there."""
    if pointers.dtype.element_ty == tl.float64:
        lse = top.to(tl.float64) + tl.log2(total.to(tl.float64))
    else:
        lse = top + tl.log2(total)
    tl.store(pointers, tl.where(some, lse, float("inf")), mask=mask)


@triton.jit
def load_logsumexp(pointers, mask):
    """Load the logsumexp as a float32 and what that lacks; +inf beyond the rows, whose tail then needs no mask."""
    lse = tl.load(pointers, mask=mask, other=float("inf"))
    high = lse.to(tl.float32)
    low = tl.zeros_like(high)
    if pointers.dtype.element_ty == tl.float64:
        finite = tl.where(high == float("inf"), 0.0, lse)
        low = (finite - finite.to(tl.float32).to(tl.float64)).to(tl.float32)
    return high, low


@triton.jit
def probabilities(scores, scale, lse, seen, AXIS: tl.constexpr, MASKED: tl.constexpr, EXACT: tl.constexpr):
    """Return exp2(scores x scale - lse), 0 where not seen (if MASKED); AXIS: the keys'; EXACT: lse has a low part."""
    high = tl.expand_dims(lse[0], AXIS)
    if EXACT:
        exponents = tl.fma(scores, scale, -high) - tl.expand_dims(lse[1], AXIS)
        if MASKED:
            exponents = tl.where(seen, exponents, float("-inf"))
    else:
        exponents = scores * scale
        if MASKED:
            exponents = tl.where(seen, exponents, float("-inf"))
        exponents = exponents - high
    return tl.exp2(exponents)
