"""The running softmax, in powers of two, with weights of 8 bits in the order in which the tensor cores take them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.gluon_fp8.weights import pack

# Weights are at most 2^8: the top of e4m3 (448) is used, and a weight stays a normal number down to 2^-14 of the
# largest.
WEIGHT_BITS = gl.constexpr(8.0)


@gluon.jit
def _row_sums(p):
    """The sums of each of the four lanes that share a row, added up once at the end of a tile."""
    return gl.sum(gl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 4, 2]), 3), 1)


@gluon.jit
def first_softmax(s, scale, MASKED: gl.constexpr):
    """Weights, maxima and sums of a tile's first block."""
    m_i = gl.max(s, 1) * scale
    m_used = m_i
    if MASKED:
        m_used = gl.where(m_i == -float("inf"), 0.0, m_i)
    p = gl.exp2(s * scale - (m_used - WEIGHT_BITS)[:, None])
    return pack(p), m_i, _row_sums(p)


@gluon.jit
def softmax(s, m_i, l_i, scale, MASKED: gl.constexpr):
    """One step of the running softmax."""
    m_new = gl.maximum(m_i, gl.max(s, 1) * scale)
    m_used = m_new
    if MASKED:
        m_used = gl.where(m_new == -float("inf"), 0.0, m_new)  # rows that have seen no key yet
    alpha = gl.exp2(m_i - m_used)
    p = gl.exp2(s * scale - (m_used - WEIGHT_BITS)[:, None])
    by_lane = gl.convert_layout(alpha, gl.SliceLayout(1, l_i.type.layout), assert_trivial=True)[:, None]
    l_i = l_i * by_lane + _row_sums(p)
    return pack(p), m_new, l_i, alpha
