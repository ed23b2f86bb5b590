"""What the forward leaves of the softmax and the backward rebuilds it from: the base-2 logsumexp of each row.

float32 inputs get it in float64. Rounded to float32, at 13 (10000 equal scores) it is off by 5e-7 for a whole row, more
than all sums together, and at 1500 (large scores) by 6e-5. The scores must be the same bits in both directions, too.
"""

import triton
import triton.language as tl


@triton.jit
def store_logsumexp(pointers, top, total, some, mask):
    """top + log2(total); +inf where no key is seen, so that the backward's exp2(score - lse) is 0 there."""
    if pointers.dtype.element_ty == tl.float64:
        lse = top.to(tl.float64) + tl.log2(total.to(tl.float64))
    else:
        lse = top + tl.log2(total)
    tl.store(pointers, tl.where(some, lse, float("inf")), mask=mask)


@triton.jit
def load_logsumexp(pointers, mask):
    """The logsumexp as a float32 and what that lacks; +inf beyond the rows, which makes their tail need no mask."""
    lse = tl.load(pointers, mask=mask, other=float("inf"))
    high = lse.to(tl.float32)
    low = tl.zeros_like(high)
    if pointers.dtype.element_ty == tl.float64:
        finite = tl.where(high == float("inf"), 0.0, lse)
        low = (finite - finite.to(tl.float32).to(tl.float64)).to(tl.float32)
    return high, low


@triton.jit
def weights(scores, scale, lse, seen, AXIS: tl.constexpr, MASKED: tl.constexpr, EXACT: tl.constexpr):
    """exp2(scores x scale - logsumexp), 0 where not seen (if MASKED); AXIS is the keys', EXACT: lse has a low part."""
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
