"""Loads of blocks of a cache: contiguous or paged, 16-bit, float32 or e4m3."""

from collections import namedtuple

import triton
import triton.language as tl

# Page table of a sequence, the first key that any of its queries sees, and its length.
SeenKeys = namedtuple("SeenKeys", "table first length")
SKIPPED = tl.constexpr(-(2**31))  # as a length: nothing is computed or written for the sequence


@triton.jit
def load_block(base, strides, start, seen, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, CONFIG: tl.constexpr):
    """Load keys or values (block_n, BLOCK_D) from `start` on; zeros where none is seen, and beyond HEAD_DIM.

    base: address of a head, in a sequence or in page 0. strides: page or sequence, head, key, dim. seen: a SeenKeys.
    Keys that no query sees are not read, nor are their pages.
    """
    PAGE: tl.constexpr = CONFIG.page
    page_stride, _, key_stride, dim_stride = strides
    offsets = tl.arange(0, CONFIG.block_n)
    dims = tl.arange(0, BLOCK_D)
    keys = start + offsets
    real = keys < seen.length
    if CONFIG.has_left:
        real = real & (keys >= seen.first)
    if PAGE == 0:
        pointers = base + tl.cast(start, tl.int64) * key_stride + (offsets[:, None] * key_stride + dims * dim_stride)
    elif PAGE % CONFIG.block_n == 0:
        page = tl.load(seen.table + start // PAGE, mask=start < seen.length, other=0)
        row = tl.cast(page, tl.int64) * page_stride + tl.cast(start % PAGE, tl.int64) * key_stride
        pointers = base + row + (offsets[:, None] * key_stride + dims * dim_stride)
    else:
        pages = tl.load(seen.table + keys // PAGE, mask=real, other=0)
        rows = pages.to(tl.int64) * page_stride + (keys % PAGE) * key_stride
        pointers = base + rows[:, None] + dims * dim_stride
    mask = real[:, None]
    if HEAD_DIM != BLOCK_D:
        mask = mask & (dims < HEAD_DIM)
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def widened(x, CACHE: tl.constexpr):
    """Return a block of the cache as an operand of tl.dot: e4m3 becomes float16, which represents it exactly.

    CACHE "e4m3" and "pairs": the chip converts. "bytes", for chips that cannot: the shifted bits of e4m3 are a float16
    of a 256th of the value, also for subnormals (the exponent bias is 15 instead of 7). NaN becomes 480.
    """
    if CACHE == "e4m3" or CACHE == "pairs":
        x = x.to(tl.float16)
    elif CACHE == "bytes":
        bits = x.to(tl.uint16)
        x = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return x


@triton.jit
def widened_values(pairs):
    """Return the even and odd columns, as float16, of a block of e4m3 values loaded as 16-bit pairs of columns.

    Tensor cores need the values of two keys in one register. ldmatrix.trans transposes elements of 16 bits, not of 8,
    so PRMT turns two pairs of columns of two keys into two pairs of keys.
    """
    even = tl.inline_asm_elementwise(
        "{ .reg .b32 t; .reg .b16 l, h; prmt.b32 t, $1, 0, 0x4420; mov.b32 {l, h}, t; cvt.rn.f16x2.e4m3x2 $0, l; }",
        "=r,r", [pairs], dtype=tl.float16, is_pure=True, pack=2,
    )  # fmt: skip
    odd = tl.inline_asm_elementwise(
        "{ .reg .b32 t; .reg .b16 l, h; prmt.b32 t, $1, 0, 0x4431; mov.b32 {l, h}, t; cvt.rn.f16x2.e4m3x2 $0, l; }",
        "=r,r", [pairs], dtype=tl.float16, is_pure=True, pack=2,
    )  # fmt: skip
    return even, odd
