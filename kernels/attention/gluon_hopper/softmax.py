"""The running softmax of the forward, in powers of two.

Each of the four lanes that share a row keeps a sum of its own, and these are added once a tile: two exchanges between
lanes less for every block. The maximum that weights are relative to is raised only when it is outgrown by `SLACK`
powers of two (as in FlashAttention-4): weights stay below 2^SLACK, and a block that does not raise it
leaves the output as it is. Where no key is hidden, maxima are not even looked for: a sum that has become too large
tells that one was outgrown, and only then are the weights made anew. Or (`softmax_unseen`) scores are not even kept
for that: in bfloat16 weights have the exponents of float32, so a maximum may rise a step late, and only a rise by more
than these hold spoils a row, which marks.py tells. Maxima and sums are (rows, lanes), the same maximum in all lanes of
a row.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.gluon_hopper.rare import SLACK, lower, rise_of_rows, weights_anew


@gluon.jit
def by_lanes(x):
    """A tile of a product as (rows, groups of eight columns, lanes, pairs): nothing moves."""
    return x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def of_lanes(rows, x):
    """(rows, lanes) beside a tile that is by lanes."""
    layout: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, x.type.layout))
    return gl.expand_dims(gl.expand_dims(gl.convert_layout(rows, layout, assert_trivial=True), 1), 3)


@gluon.jit
def _row_sums(p):
    return gl.sum(gl.sum(p, 3), 1)


@gluon.jit
def row_maxima(s, like):
    """The maxima of whole rows, as (rows, lanes)."""
    rows = gl.convert_layout(gl.max(s, 1), gl.SliceLayout(1, like.type.layout), assert_trivial=True)
    return gl.broadcast(rows[:, None], like)[0]


@gluon.jit
def _operand(p, shape: gl.constexpr, layout: gl.constexpr, dtype: gl.constexpr):
    """Weights as the operand of a product. Left to LLVM, each costs an instruction more in some consumers."""
    if dtype == gl.bfloat16:
        p = gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [p], gl.bfloat16, True, 2)
    else:
        p = gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [p], gl.float16, True, 2)
    return gl.convert_layout(p.reshape(shape), layout, assert_trivial=True)


@gluon.jit
def first_softmax(s, scale, layout: gl.constexpr, dtype: gl.constexpr, MASKED: gl.constexpr):
    """The running softmax of a tile's first block."""
    x = by_lanes(s)
    m_i = row_maxima(s, _row_sums(x)) * scale
    m_used = m_i
    if MASKED:
        m_used = gl.where(m_i == -float("inf"), 0.0, m_i)
    p = gl.exp2(x * scale - of_lanes(m_used, x))
    return _operand(p, s.shape, layout, dtype), m_i, _row_sums(p)


@gluon.jit
def softmax(s, m_i, l_i, scale, layout: gl.constexpr, dtype: gl.constexpr, MASKED: gl.constexpr):
    """One step of the running softmax, in powers of two."""
    x = by_lanes(s)
    m_new = gl.maximum(m_i, row_maxima(s, m_i) * scale)
    m_new = gl.where(m_new - m_i > SLACK, m_new, m_i)
    m_used = m_new
    if MASKED:
        m_used = gl.where(m_new == -float("inf"), 0.0, m_new)  # rows that have seen no key yet
    alpha = gl.exp2(m_i - m_used)
    p = gl.exp2(x * scale - of_lanes(m_used, x))
    l_i = l_i * alpha + _row_sums(p)
    return _operand(p, s.shape, layout, dtype), m_new, l_i, alpha


@gluon.jit
def softmax_by_lane(s, m_i, l_i, scale, layout: gl.constexpr, dtype: gl.constexpr):
    """The same where every row has seen a key and sees all of these: lanes talk only where a maximum is outgrown."""
    x = by_lanes(s)
    top = gl.convert_layout(gl.max(gl.max(x, 1), 2), m_i.type.layout, assert_trivial=True)
    rise, alpha = rise_of_rows(top * scale - m_i)
    x = lower(x * scale - of_lanes(m_i, x), of_lanes(rise, x))
    p = gl.exp2(x)
    l_i = l_i * alpha + _row_sums(p)
    return _operand(p, s.shape, layout, dtype), m_i + rise, l_i, alpha


@gluon.jit
def weights_by_lane(s, m_i, scale):
    """Weights where every row has seen a key and sees all of these, and their sums; the maxima may be outgrown."""
    x = by_lanes(s)
    p = gl.exp2(x * scale - of_lanes(m_i, x))
    return p, _row_sums(p)


@gluon.jit
def softmax_unseen(s, m_i, l_i, scale, layout: gl.constexpr, dtype: gl.constexpr):
    """The same with nobody looking at the scores: `lowered_sums` is for the step before."""
    p, sums = weights_by_lane(s, m_i, scale)
    return _operand(p, s.shape, layout, dtype), l_i + sums


@gluon.jit
def mended(p, s, m_i, l_i, sums, scale, layout: gl.constexpr, dtype: gl.constexpr):
    """One step of the running softmax with these weights, made anew where they have grown too large."""
    x = by_lanes(s)
    p, of_rows = weights_anew(p, x, of_lanes(m_i, x), of_lanes(sums, x), scale)
    first, second = of_rows.split()
    m_i, alpha = _first_groups(first, m_i)
    sums, _ = _first_groups(second, m_i)
    return _operand(p, s.shape, layout, dtype), m_i, l_i * alpha + sums, alpha


@gluon.jit
def _first_groups(x, like):
    """The first two of (rows, groups, lanes), each as (rows, lanes)."""
    rows: gl.constexpr = x.shape[0]
    half: gl.constexpr = x.shape[1] // 2
    if half > 1:
        x, _ = x.reshape([rows, 2, half, 4]).permute((0, 2, 3, 1)).split()
        return _first_groups(x, like)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        first, second = x.permute((0, 2, 1)).split()
        layout: gl.constexpr = like.type.layout
        return (
            gl.convert_layout(first, layout, assert_trivial=True),
            gl.convert_layout(second, layout, assert_trivial=True),
        )
