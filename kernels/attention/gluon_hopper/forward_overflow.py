"""Rescaling and overflow flags: the forward needs them only where scores exceed the maximum of their row.

Rescaling is in PTX, as Gluon has no branch of a single warp. A thread's numbers are in the order of a product's
accumulator: pairs of one row, then pairs of the row eight further down.
With `ForwardConfig.flag_overflow` a program flags a row that overflows, and a second launch computes everything again.
"""

import struct

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .compat import run_ptx

RESCALE_THRESHOLD = gl.constexpr(8.0)  # powers of two by which a score may exceed its row's maximum, where compared
SUM_LIMIT = 2.0**12  # limit of a lane's sum of probabilities, where scores are not compared; float16 holds 2^15


def _unless(n: int, neutral: str, instruction: str) -> str:
    """Return PTX that combines n numbers in place with an operand each, unless all operands of the warp are neutral."""
    changes = " ".join(f"{instruction} ${i}, ${i}, ${2 * n + i};" for i in range(n))
    return (
        f"{{ .reg .pred p, q; setp.neu.f32 p, ${2 * n}, {neutral}; setp.neu.f32 q, ${2 * n + 2}, {neutral};"
        f" or.pred p, p, q; vote.sync.any.pred p, p, 0xffffffff; @!p bra.uni DONE; {changes} DONE: }}"
    )


def _tied(n: int) -> str:
    return ",".join(["=f"] * n + [str(i) for i in range(n)] + ["f"] * n)


_SUBTRACT = gl.constexpr(_unless(32, "0f00000000", "sub.f32"))
_SUBTRACTED = gl.constexpr(_tied(32))
_MULTIPLY = gl.constexpr({n: _unless(n, "0f3F800000", "mul.f32") for n in (8, 16, 32, 64)})
_MULTIPLIED = gl.constexpr({n: _tied(n) for n in (8, 16, 32, 64)})


@gluon.constexpr_function
def _rise(threshold: float) -> str:
    """Return PTX: the rise of pairs of one row, and the factor of what was summed, if one in the warp is above it."""
    return (
        f"{{ .reg .pred p; .reg .f32 a, b; setp.gt.f32 p, $4, {threshold}; setp.gt.or.f32 p, $5, {threshold}, p;"
        " mov.f32 $0, 0f00000000; mov.f32 $1, 0f00000000; mov.f32 $2, 0f3F800000; mov.f32 $3, 0f3F800000;"
        " vote.sync.any.pred p, p, 0xffffffff; @!p bra.uni DONE;"
        " max.f32 a, $4, 0f00000000; max.f32 b, $5, 0f00000000;"
        " shfl.sync.bfly.b32 $0, a, 1, 0x1f, 0xffffffff; shfl.sync.bfly.b32 $1, b, 1, 0x1f, 0xffffffff;"
        " max.f32 a, a, $0; max.f32 b, b, $1;"
        " shfl.sync.bfly.b32 $0, a, 2, 0x1f, 0xffffffff; shfl.sync.bfly.b32 $1, b, 2, 0x1f, 0xffffffff;"
        " max.f32 $0, a, $0; max.f32 $1, b, $1;"
        " neg.f32 a, $0; neg.f32 b, $1; ex2.approx.ftz.f32 $2, a; ex2.approx.ftz.f32 $3, b; DONE: }"
    )


def _renormalised() -> str:
    """Return PTX that renormalises maxima and sums of two rows by the sums' powers of two, if one is too large.

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


_RENORMALISED = gl.constexpr(_renormalised())


def _again(n: int) -> str:
    """Return PTX that computes n of a thread's probabilities again, with raised maxima, if a sum exceeds the limit.

    Its operands are n each of: probabilities and numbers of rows, as outputs; probabilities, scores, maxima, sums,
    the scale.
    """
    p, row, _, score, old, total, (scale, *_) = ([f"${k * n + i}" for i in range(n)] for k in range(7))
    limit = f"0f{int.from_bytes(struct.pack('<f', SUM_LIMIT), 'little'):08X}"
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
        code += [f"fma.rn.f32 {p[k]}, {score[k]}, {scale}, {top}; ex2.approx.ftz.f32 {p[k]}, {p[k]};"]
        code += [f"add.f32 {sum_}, {sum_}, {p[k]};"]
    return f"{{ .reg .pred p; .reg .f32 a, b, x; {' '.join(code)} DONE: }}"


def _again_operands(n: int) -> str:
    return ",".join(["=f"] * n + ["=&f"] * n + [str(i) for i in range(n)] + ["f"] * (4 * n))


_AGAIN = gl.constexpr({n: _again(n) for n in (32, 64)})
_AGAIN_OPERANDS = gl.constexpr({n: _again_operands(n) for n in (32, 64)})


def _largest(n: int) -> str:
    """Return PTX that finds the largest of n of a thread's probabilities, and of a number before, of either row.

    Their bits compare as integers, as none is negative, and one instruction of Hopper compares three of those. Its
    operands are n each of: largest numbers, as outputs; probabilities, numbers before.
    """
    new, p, old = ([f"${k * n + i}" for i in range(n)] for k in range(3))
    code = []
    for i in (0, 2):
        first, *rest = (p[k] for k in range(n) if k & 2 == i)
        code += [f"mov.b32 {new[i]}, {old[i]}; mov.b32 {new[i + 1]}, {first};"]  # two chains, of half the latency
        code += [f"max.s32 {new[i + k // 2 % 2]}, {new[i + k // 2 % 2]}, {x};" for k, x in enumerate(rest)]
        code += [f"max.s32 {new[i]}, {new[i]}, {new[i + 1]};"]
    return f"{{ {' '.join(code)} }}"


_LARGEST = gl.constexpr({n: _largest(n) for n in (16, 32, 64)})
_LARGEST_OPERANDS = gl.constexpr({n: ",".join(["=&r"] * n + ["r"] * 2 * n) for n in (16, 32, 64)})


@gluon.constexpr_function
def _for(n, table):
    return table[n]


@gluon.jit
def rescale(out, factor, TOGETHER: gl.constexpr = 32):
    """Multiply out by factor, skipping `TOGETHER` numbers of a thread where all factors of the warp are one."""
    factor = gl.broadcast(out, factor)[1]
    return run_ptx(_for(TOGETHER, _MULTIPLY), _for(TOGETHER, _MULTIPLIED), (out, factor), gl.float32, TOGETHER)


@gluon.jit
def subtract_rise(x, rise):
    """Subtract rise from x, skipping warps in which no row rises."""
    rise = gl.broadcast(x, rise)[1]
    return run_ptx(_SUBTRACT, _SUBTRACTED, (x, rise), gl.float32, 32)


@gluon.jit
def rise_of_rows(top, threshold: gl.constexpr = RESCALE_THRESHOLD):
    """Return by how much maxima rise, and the factor for what was summed before; `top` is (rows, lanes), above maxima.

    Where a lane of a warp has more than `threshold`, the warp's rows rise to their largest number.
    """
    return run_ptx(_rise(threshold), "=&f,=&f,=&f,=&f,f,f", (top,), (gl.float32, gl.float32), 2)


@gluon.jit
def renormalise_sums(m_i, sums):
    """Return maxima and sums, (rows, lanes), and the factor for what was summed before: 1 unless a sum exceeds 2^16.

    Where one does, a warp's rows take their largest sum's power of two for a maximum; an infinite sum becomes nan.
    """
    operands: gl.constexpr = "=&f,=&f,=&f,=&f,=&f,=&f,f,f,f,f"
    m_i, sums, factor = run_ptx(_RENORMALISED, operands, (m_i, sums), (gl.float32, gl.float32, gl.float32), 2)
    return m_i, sums, factor


@gluon.jit
def probabilities_again(p, s, m_i, sums, scale):
    """Return P of scores s by lane; where a lane's sum exceeds SUM_LIMIT, the warp's rows rise to their maxima.

    Returns also a tile whose first group of columns has the rows' maxima and sums as pairs, whose second their factors.
    """
    N: gl.constexpr = p.shape[1] * 4
    m_i, sums, scale = gl.broadcast(s, m_i)[1], gl.broadcast(s, sums)[1], gl.broadcast(s, gl.to_tensor(scale))[1]
    arguments = (p, s, m_i, sums, scale)
    return run_ptx(_for(N, _AGAIN), _for(N, _AGAIN_OPERANDS), arguments, (gl.float32, gl.float32), N)


@gluon.jit
def largest_of_lanes(p, before):
    """Return a tile whose first group of columns has each lane's largest P of the block, or the number before it."""
    N: gl.constexpr = p.shape[1] * 4
    bits = p.to(gl.int32, bitcast=True), gl.broadcast(p, before)[1].to(gl.int32, bitcast=True)
    found = run_ptx(_for(N, _LARGEST), _for(N, _LARGEST_OPERANDS), bits, gl.int32, N)
    return found.to(gl.float32, bitcast=True)


MAX_FLAGS = 256  # room for the flags of all programs: one a multiprocessor

_MAX_FLAGS = gl.constexpr(MAX_FLAGS)


@gluon.jit
def clear_overflow(flags):
    """Clear this program's flag, before its consumers begin."""
    gl.store(flags + gl.program_id(0), 0)


@gluon.jit
def flag_overflow(flags, out, inverse):
    """Set this program's flag if a row's output is not finite, or the inverse of its sum is zero."""
    finite = gl.sum(out * 0.0, 1) == 0.0  # nan where a number is not
    unusable = ~finite | (inverse == 0.0)
    own = flags + gl.program_id(0) + gl.zeros_like(inverse).to(gl.int32)
    gl.store(own, 1, mask=unusable)


@gluon.jit
def any_overflow(flags):
    """Return whether any program of an earlier kernel set its flag."""
    number = gl.arange(0, _MAX_FLAGS, gl.BlockedLayout([2], [32], [4], [0]))
    return gl.max(gl.load(flags + number, mask=number < gl.num_programs(0), other=0), 0) > 0
