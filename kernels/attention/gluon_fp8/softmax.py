"""The online softmax, in powers of two, with P of 8 bits in the order in which the tensor cores take it.

The first two functions are for two consumers. The others are for three: the maximum that P is relative to is raised
only when a score exceeds it by more than RESCALE_THRESHOLD powers of two, and each lane looks at its own scores alone.
Only where one of a warp exceeds its row's maximum do lanes exchange theirs (gluon_hopper/forward_overflow.py). Maxima
and sums are then (rows, lanes), with the same maximum in all lanes of a row.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..gluon_hopper.forward_overflow import rise_of_rows
from ..gluon_hopper.forward_softmax import by_lane, of_lanes, row_maxima, row_sums
from .probabilities import pack, packed_powers

# P is at most 2^8: the top of e4m3 (448) is used, and it stays a normal number down to 2^-14 of the largest.
P_BITS = gl.constexpr(8.0)


@gluon.jit
def first_softmax(s, scale, MASKED: gl.constexpr):
    """Compute P, maxima and sums of a tile's first block."""
    m_i = gl.max(s, 1) * scale
    m_used = m_i
    if MASKED:
        m_used = gl.where(m_i == -float("inf"), 0.0, m_i)
    p = gl.exp2(s * scale - (m_used - P_BITS)[:, None])
    return pack(p), m_i, row_sums(by_lane(p))


@gluon.jit
def softmax(s, m_i, l_i, scale):
    """Compute P of a block and update maxima and sums; returns also the factor for what was summed before."""
    m_new = gl.maximum(m_i, gl.max(s, 1) * scale)
    alpha = gl.exp2(m_i - m_new)
    p = gl.exp2(s * scale - (m_new - P_BITS)[:, None])
    factor = gl.convert_layout(alpha, gl.SliceLayout(1, l_i.type.layout), assert_trivial=True)[:, None]
    l_i = l_i * factor + row_sums(by_lane(p))
    return pack(p), m_new, l_i, alpha


# P is 2^5 at a row's maximum, so that equal numbers are rounded to nothing else, and at most 2^8.75 = 431 where a score
# exceeds it; the largest e4m3 number is 448. It stays a normal number down to 2^-11 of the largest.
P_BITS_PER_LANE = gl.constexpr(5.0)
RESCALE_THRESHOLD = gl.constexpr(3.75)


@gluon.jit
def _probabilities(s, m_used, scale):
    """Compute P relative to these maxima, packed, and the sums of each lane."""
    x = by_lane(s)
    return packed_powers((x * scale - of_lanes(m_used - P_BITS_PER_LANE, x)).reshape(s.shape))


@gluon.jit
def first_softmax_per_lane(s, scale, MASKED: gl.constexpr):
    """Compute P, maxima and sums of a tile's first block."""
    m_i = row_maxima(s, row_sums(by_lane(s))) * scale
    m_used = m_i
    if MASKED:
        m_used = gl.where(m_i == -float("inf"), 0.0, m_i)
    p, l_i = _probabilities(s, m_used, scale)
    return p, m_i, gl.convert_layout(l_i, m_i.type.layout, assert_trivial=True)


@gluon.jit
def softmax_per_lane(s, m_i, l_i, scale):
    """Update the online softmax with a block, of which every row sees all keys."""
    top = gl.convert_layout(gl.max(gl.max(by_lane(s), 1), 2), m_i.type.layout, assert_trivial=True)
    rise, alpha = rise_of_rows(top * scale - m_i, RESCALE_THRESHOLD)
    m_new = m_i + rise
    p, sums = _probabilities(s, m_new, scale)
    l_i = l_i * alpha + gl.convert_layout(sums, l_i.type.layout, assert_trivial=True)
    return p, m_new, l_i, alpha
