"""The running softmax of the forward, in powers of two.

Each of the four lanes that share a row keeps a sum of its own, and these are added once a tile: two exchanges between
lanes less for every block. The maximum that weights are relative to is raised only when it is outgrown by `SLACK`
powers of two (as in FlashAttention-4): weights stay below 2^SLACK, and a block that does not raise it
leaves the output as it is.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SLACK = gl.constexpr(8.0)


@gluon.jit
def _row_sums(p):
    """The sums of each lane of a row, added up once at the end of a tile."""
    return gl.sum(gl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 4, 2]), 3), 1)


@gluon.jit
def first_softmax(s, scale, layout: gl.constexpr, dtype: gl.constexpr, MASKED: gl.constexpr):
    """The running softmax of a tile's first block."""
    m_i = gl.max(s, 1) * scale
    m_used = m_i
    if MASKED:
        m_used = gl.where(m_i == -float("inf"), 0.0, m_i)
    p = gl.exp2(s * scale - m_used[:, None])
    return gl.convert_layout(p.to(dtype), layout, assert_trivial=True), m_i, _row_sums(p)


@gluon.jit
def softmax(s, m_i, l_i, scale, layout: gl.constexpr, dtype: gl.constexpr, MASKED: gl.constexpr):
    """One step of the running softmax, in powers of two."""
    m_new = gl.maximum(m_i, gl.max(s, 1) * scale)
    m_new = gl.where(m_new - m_i > SLACK, m_new, m_i)
    m_used = m_new
    if MASKED:
        m_used = gl.where(m_new == -float("inf"), 0.0, m_new)  # rows that have seen no key yet
    alpha = gl.exp2(m_i - m_used)
    p = gl.exp2(s * scale - m_used[:, None])
    factor = gl.convert_layout(alpha, gl.SliceLayout(1, l_i.type.layout), assert_trivial=True)[:, None]
    l_i = l_i * factor + _row_sums(p)
    return gl.convert_layout(p.to(dtype), layout, assert_trivial=True), m_new, l_i, alpha
