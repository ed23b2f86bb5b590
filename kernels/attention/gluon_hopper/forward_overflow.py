"""What the forward does only where the scores of a row outgrow its maximum. In PTX, as Gluon has no branch of a warp.

A thread's numbers stand as in a product's accumulator: pairs of one row, and of the row eight further down.

Marks that a program of the forward leaves where its result cannot be used, and all is computed anew.
"""

import struct

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SLACK = gl.constexpr(8.0)  # powers of two by which a score may exceed its row's maximum, where it is compared with it
LIMIT = 2.0**12  # of a lane's sum of weights, where it is not: float16 holds 2^15


def _unless(n: int, neutral: str, instruction: str) -> str:
    """PTX that combines n numbers in place with an operand each, unless all operands of the warp are neutral."""
    changes = " ".join(f"{instruction} ${i}, ${i}, ${2 * n + i};" for i in range(n))
    return (
        f"{{ .reg .pred p, q; setp.neu.f32 p, ${2 * n}, {neutral}; setp.neu.f32 q, ${2 * n + 2}, {neutral};"
        f" or.pred p, p, q; vote.sync.any.pred p, p, 0xffffffff; @!p bra.uni DONE; {changes} DONE: }}"
    )


def _tied(n: int) -> str:
    return ",".join(["=f"] * n + [str(i) for i in range(n)] + ["f"] * n)


_SUBTRACT = gl.constexpr(_unless(32, "0f00000000", "sub.f32"))
_SUBTRACTED = gl.constexpr(_tied(32))
_MULTIPLY = gl.constexpr({n: _unless(n, "0f3F800000", "mul.f32") for n in (32, 64)})
_MULTIPLIED = gl.constexpr({n: _tied(n) for n in (32, 64)})


@gluon.constexpr_function
def _rise(slack: float) -> str:
    """PTX: by how much pairs of one row rise, and the factor of what was summed, if one in the warp is above slack."""
    return (
        f"{{ .reg .pred p; .reg .f32 a, b; setp.gt.f32 p, $4, {slack}; setp.gt.or.f32 p, $5, {slack}, p;"
        " mov.f32 $0, 0f00000000; mov.f32 $1, 0f00000000; mov.f32 $2, 0f3F800000; mov.f32 $3, 0f3F800000;"
        " vote.sync.any.pred p, p, 0xffffffff; @!p bra.uni DONE;"
        " max.f32 a, $4, 0f00000000; max.f32 b, $5, 0f00000000;"
        " shfl.sync.bfly.b32 $0, a, 1, 0x1f, 0xffffffff; shfl.sync.bfly.b32 $1, b, 1, 0x1f, 0xffffffff;"
        " max.f32 a, a, $0; max.f32 b, b, $1;"
        " shfl.sync.bfly.b32 $0, a, 2, 0x1f, 0xffffffff; shfl.sync.bfly.b32 $1, b, 2, 0x1f, 0xffffffff;"
        " max.f32 $0, a, $0; max.f32 $1, b, $1;"
        " neg.f32 a, $0; neg.f32 b, $1; ex2.approx.ftz.f32 $2, a; ex2.approx.ftz.f32 $3, b; DONE: }"
    )


def _lowered() -> str:
    """PTX for the maxima and sums of two rows, brought to the sums' powers of two where one of the warp is too large.

    Its operands: maxima, sums and factors as outputs; maxima and sums.
    """
    code = ["setp.gt.f32 p, $8, 0f47800000; setp.gt.or.f32 p, $9, 0f47800000, p;"]  # 2^16
    code += [f"mov.f32 ${i}, ${6 + i}; mov.f32 ${2 + i}, ${8 + i}; mov.f32 ${4 + i}, 0f3F800000;" for i in (0, 1)]
    code += ["vote.sync.any.pred p, p, 0xffffffff; @!p bra.uni DONE;"]
    for i in (0, 1):
        code += [f"max.f32 a, ${8 + i}, 0f3F800000;"]
        code += [f"shfl.sync.bfly.b32 x, a, {far}, 0x1f, 0xffffffff; max.f32 a, a, x;" for far in (1, 2)]
        code += [f"lg2.approx.ftz.f32 a, a; cvt.rni.f32.f32 a, a; add.f32 ${i}, ${6 + i}, a; neg.f32 a, a;"]
        code += [f"ex2.approx.ftz.f32 ${4 + i}, a; mul.f32 ${2 + i}, ${8 + i}, ${4 + i};"]
    return f"{{ .reg .pred p; .reg .f32 a, x; {' '.join(code)} DONE: }}"


_LOWERED = gl.constexpr(_lowered())


def _anew(n: int) -> str:
    """PTX for n weights of a thread, computed anew with raised maxima where a sum of the warp exceeds the limit.

    Its operands are n each of: weights and numbers of rows, as outputs; weights, scores, maxima, sums, the scale.
    """
    weight, row, _, score, old, total, (scale, *_) = ([f"${k * n + i}" for i in range(n)] for k in range(7))
    limit = f"0f{int.from_bytes(struct.pack('<f', LIMIT), 'little'):08X}"
    rows = list(zip("ab", (0, 2), (row[0], row[2]), (row[1], row[3]), (row[4], row[6]), strict=True))
    code = [f"setp.gt.f32 p, {total[0]}, {limit}; setp.gt.or.f32 p, {total[2]}, {limit}, p;"]
    for _, i, new, sum_, factor in rows:
        code += [f"mov.f32 {new}, {old[i]}; mov.f32 {sum_}, {total[i]}; mov.f32 {factor}, 0f3F800000;"]
    code += ["vote.sync.any.pred p, p, 0xffffffff; @!p bra.uni DONE;"]
    for top, i, *_ in rows:
        code += [f"max.f32 {top}, {score[i]}, {score[i + 1]};"]
        code += [f"max.f32 {top}, {top}, {score[k]};" for k in range(4, n) if k & 2 == i]
    for far in (1, 2):
        code += [f"shfl.sync.bfly.b32 x, {top}, {far}, 0x1f, 0xffffffff; max.f32 {top}, {top}, x;" for top, *_ in rows]
    for top, _, new, sum_, factor in rows:
        code += [f"mul.f32 {top}, {top}, {scale}; max.f32 {top}, {top}, {new}; sub.f32 x, {new}, {top};"]
        code += [f"ex2.approx.ftz.f32 {factor}, x; mov.f32 {new}, {top}; mov.f32 {sum_}, 0f00000000;"]
        code += [f"neg.f32 {top}, {top};"]
    for k in range(n):
        top, _, _, sum_, _ = rows[k >> 1 & 1]
        code += [f"fma.rn.f32 {weight[k]}, {score[k]}, {scale}, {top}; ex2.approx.ftz.f32 {weight[k]}, {weight[k]};"]
        code += [f"add.f32 {sum_}, {sum_}, {weight[k]};"]
    return f"{{ .reg .pred p; .reg .f32 a, b, x; {' '.join(code)} DONE: }}"


def _anew_operands(n: int) -> str:
    return ",".join(["=f"] * n + ["=&f"] * n + [str(i) for i in range(n)] + ["f"] * (4 * n))


_ANEW = gl.constexpr({n: _anew(n) for n in (32, 64)})
_ANEW_OPERANDS = gl.constexpr({n: _anew_operands(n) for n in (32, 64)})


@gluon.constexpr_function
def _for(n, table):
    return table[n]


@gluon.jit
def rescale(out, factor, TOGETHER: gl.constexpr = 32):
    """out x factor; of `TOGETHER` numbers of a thread no products where no row of the warp has a factor but one."""
    factor = gl.broadcast(out, factor)[1]
    return gl.inline_asm_elementwise(
        _for(TOGETHER, _MULTIPLY), _for(TOGETHER, _MULTIPLIED), [out, factor], dtype=gl.float32, is_pure=False,
        pack=TOGETHER)  # fmt: skip


@gluon.jit
def lower(x, rise):
    """x - rise: no subtractions where no row of a warp rises."""
    rise = gl.broadcast(x, rise)[1]
    return gl.inline_asm_elementwise(_SUBTRACT, _SUBTRACTED, [x, rise], dtype=gl.float32, is_pure=False, pack=32)


@gluon.jit
def rise_of_rows(top, slack: gl.constexpr = SLACK):
    """By how much maxima rise, and the factor for what was summed before; `top` is (rows, lanes), above the maxima.

    Where a lane of a warp has more than `slack`, the warp's rows rise to their largest number.
    """
    return gl.inline_asm_elementwise(
        _rise(slack), "=&f,=&f,=&f,=&f,f,f", [top], dtype=(gl.float32, gl.float32), is_pure=False, pack=2
    )


@gluon.jit
def lowered_sums(m_i, sums):
    """Maxima and sums, (rows, lanes), and the factor for what was summed before: 1 but where a sum exceeds 2^16.

    There a warp's rows take their largest sum's power of two for a maximum; an infinite sum becomes nan.
    """
    m_i, sums, factor = gl.inline_asm_elementwise(
        _LOWERED, "=&f,=&f,=&f,=&f,=&f,=&f,f,f,f,f", [m_i, sums], dtype=(gl.float32, gl.float32, gl.float32),
        is_pure=False, pack=2)  # fmt: skip
    return m_i, sums, factor


@gluon.jit
def weights_anew(p, s, m_i, sums, scale):
    """Weights p of scores s by lane; where a lane's sum exceeds LIMIT, the warp's rows rise to their largest scores.

    Also a tile whose first group of columns has the rows' maxima and sums as pairs, and whose second their factors.
    """
    N: gl.constexpr = p.shape[1] * 4
    m_i, sums, scale = gl.broadcast(s, m_i)[1], gl.broadcast(s, sums)[1], gl.broadcast(s, gl.to_tensor(scale))[1]
    return gl.inline_asm_elementwise(
        _for(N, _ANEW), _for(N, _ANEW_OPERANDS), [p, s, m_i, sums, scale], dtype=(gl.float32, gl.float32),
        is_pure=False, pack=N)  # fmt: skip


MARKS = 256  # room for those of all programs: one a multiprocessor

_MARKS = gl.constexpr(MARKS)


@gluon.jit
def clear_mark(marks):
    """Before this program's consumers begin."""
    gl.store(marks + gl.program_id(0), 0)


@gluon.jit
def leave_mark(marks, out, inverse):
    """If a row's output is not finite, or the inverse of its sum is zero as the sum is not."""
    finite = gl.sum(out * 0.0, 1) == 0.0  # nan where a number is not
    unusable = ~finite | (inverse == 0.0)
    own = marks + gl.program_id(0) + gl.zeros_like(inverse).to(gl.int32)
    gl.store(own, 1, mask=unusable)


@gluon.jit
def any_mark(marks):
    """Whether any program of an earlier kernel left one."""
    number = gl.arange(0, _MARKS, gl.BlockedLayout([2], [32], [4], [0]))
    return gl.max(gl.load(marks + number, mask=number < gl.num_programs(0), other=0), 0) > 0
