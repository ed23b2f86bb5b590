"""What the forward does only where the maximum of a row rises. In PTX, as Gluon has no branch of a single warp.

A thread's numbers stand as in a product's accumulator: pairs of one row, and of the row eight further down.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SLACK = gl.constexpr(8.0)  # powers of two by which a score may exceed its row's maximum
_TOGETHER = gl.constexpr(32)  # numbers of a thread that are looked at together


def _unless(neutral: str, instruction: str) -> str:
    """PTX that combines numbers in place with an operand each, unless all operands of the warp are neutral."""
    first = 2 * _TOGETHER.value  # of the operands, behind the numbers as outputs and as inputs
    changes = " ".join(f"{instruction} ${i}, ${i}, ${first + i};" for i in range(_TOGETHER.value))
    return (
        f"{{ .reg .pred p, q; setp.neu.f32 p, ${first}, {neutral}; setp.neu.f32 q, ${first + 2}, {neutral};"
        f" or.pred p, p, q; vote.sync.any.pred p, p, 0xffffffff; @!p bra.uni DONE; {changes} DONE: }}"
    )


_TIED = ["=f"] * _TOGETHER.value + [str(i) for i in range(_TOGETHER.value)] + ["f"] * _TOGETHER.value
_OPERANDS = gl.constexpr(",".join(_TIED))
_MULTIPLY = gl.constexpr(_unless("0f3F800000", "mul.f32"))
_SUBTRACT = gl.constexpr(_unless("0f00000000", "sub.f32"))
_RISE = gl.constexpr(
    "{ .reg .pred p; .reg .f32 a, b; setp.gt.f32 p, $4, 0f41000000; setp.gt.or.f32 p, $5, 0f41000000, p;"
    " mov.f32 $0, 0f00000000; mov.f32 $1, 0f00000000; mov.f32 $2, 0f3F800000; mov.f32 $3, 0f3F800000;"
    " vote.sync.any.pred p, p, 0xffffffff; @!p bra.uni DONE;"
    " max.f32 a, $4, 0f00000000; max.f32 b, $5, 0f00000000;"
    " shfl.sync.bfly.b32 $0, a, 1, 0x1f, 0xffffffff; shfl.sync.bfly.b32 $1, b, 1, 0x1f, 0xffffffff;"
    " max.f32 a, a, $0; max.f32 b, b, $1;"
    " shfl.sync.bfly.b32 $0, a, 2, 0x1f, 0xffffffff; shfl.sync.bfly.b32 $1, b, 2, 0x1f, 0xffffffff;"
    " max.f32 $0, a, $0; max.f32 $1, b, $1;"
    " neg.f32 a, $0; neg.f32 b, $1; ex2.approx.ftz.f32 $2, a; ex2.approx.ftz.f32 $3, b; DONE: }"
)


@gluon.jit
def rescale(out, factor):
    """out x factor: no multiplications where no row of a warp has a factor other than one."""
    factor = gl.broadcast(out, factor)[1]
    return gl.inline_asm_elementwise(
        _MULTIPLY, _OPERANDS, [out, factor], dtype=gl.float32, is_pure=False, pack=_TOGETHER
    )


@gluon.jit
def lower(x, rise):
    """x - rise: no subtractions where no row of a warp rises."""
    rise = gl.broadcast(x, rise)[1]
    return gl.inline_asm_elementwise(_SUBTRACT, _OPERANDS, [x, rise], dtype=gl.float32, is_pure=False, pack=_TOGETHER)


@gluon.jit
def rise_of_rows(top):
    """By how much maxima rise, and the factor for what was summed before; `top` is (rows, lanes), above the maxima.

    Where a lane of a warp has more than SLACK (8, as PTX has it), the warp's rows rise to their largest number.
    """
    return gl.inline_asm_elementwise(
        _RISE, "=&f,=&f,=&f,=&f,f,f", [top], dtype=(gl.float32, gl.float32), is_pure=False, pack=2
    )
