"""float32 products on the tensor cores, as near as on the FMA units: each factor as three bfloat16 pieces.

A float32 is the sum of three bfloat16 (8 bits each, of the 24 that it has), exactly, and a product of two pieces is
exact in the float32 that the tensor cores add up in. Of the nine products of pieces the six largest are computed; what
is left out is 2^-26 of the whole at most, a quarter of a rounding of float32. bfloat16 has float32's exponents, so
nothing overflows (but a factor of 3.39e38 or more) and nothing underflows above 2^-110; an infinite factor gives NaN.

The tensor cores cut sums off rather than round them, so a sum stays as short as a tile and is then added to the others.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
PIECES = tl.constexpr(3)


@triton.jit
def _rounded(x):
    """The nearest bfloat16, in the interpreter as a float32, for that multiplies bfloat16 wrongly (triton 11584)."""
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    return x.to(tl.bfloat16)


@triton.jit
def pieces_of(x):
    """The three pieces of float32 values, the largest first."""
    high = _rounded(x)
    rest = x - high.to(tl.float32)
    middle = _rounded(rest)
    return high, middle, _rounded(rest - middle.to(tl.float32))


@triton.jit
def transposed(a):
    """Each piece transposed."""
    return tl.trans(a[0]), tl.trans(a[1]), tl.trans(a[2])


@triton.jit
def product_of_pieces(a, b, SWAPPED: tl.constexpr):
    """a b, the small terms first; SWAPPED makes b^T a^T the same bits as a b."""
    out = tl.zeros([a[0].shape[0], b[0].shape[1]], dtype=tl.float32)
    out = _add_term(out, a, b, 2, 0, SWAPPED)
    out = _add_term(out, a, b, 0, 2, SWAPPED)
    out = _add_term(out, a, b, 1, 1, SWAPPED)
    out = _add_term(out, a, b, 1, 0, SWAPPED)
    out = _add_term(out, a, b, 0, 1, SWAPPED)
    return _add_term(out, a, b, 0, 0, SWAPPED)


@triton.jit
def _add_term(out, a, b, FIRST: tl.constexpr, SECOND: tl.constexpr, SWAPPED: tl.constexpr):
    """Add the product of one piece of a and one of b."""
    LEFT: tl.constexpr = SECOND if SWAPPED else FIRST
    RIGHT: tl.constexpr = FIRST if SWAPPED else SECOND
    return tl.dot(a[LEFT], b[RIGHT], out, input_precision="ieee")
