"""Weights of the backward at head_dim 64: every fourth 2^x by products, for the exponential unit does 16 a cycle only.

As 2^n 2^f, |f| <= 1/2: 2^f from a polynomial of degree 3 (largest relative error 1.0e-4, a twentieth of the rounding of
bfloat16; fitted by reweighted least squares), n added to the bits of its exponent.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_TOGETHER = gl.constexpr(32)  # numbers of a thread that one block of instructions takes
_EVERY = 4
_POLYNOMIAL = ("0f3D6150D4", "0f3E780643", "0f3F317AFF", "0f3F800000")  # 0.0550, 0.2422, 0.6933, 1


def _by_polynomial(i: int) -> str:
    """PTX; 1.5 x 2^23 rounds to the nearest integer, which then stands in the lowest bits."""
    first, *rest = _POLYNOMIAL
    horner = " ".join(f"fma.rn.f32 r, r, x, {c};" for c in rest)
    return (
        f"max.f32 x, ${i}, 0fC2FE0000; add.rn.f32 t, x, 0f4B400000; sub.rn.f32 r, t, 0f4B400000; sub.rn.f32 x, x, r;"
        f" mov.f32 r, {first}; {horner} mov.b32 n, t; mov.b32 b, r; shl.b32 n, n, 23; add.s32 n, n, b; mov.b32 ${i}, n;"
    )


def _instructions(count: int) -> str:
    """All numbers; then a branch that is never taken, for no result is negative: the next wait stays behind them."""
    powers = " ".join(
        _by_polynomial(i) if i % _EVERY == _EVERY - 1 else f"ex2.approx.ftz.f32 ${i}, ${i};" for i in range(count)
    )
    signs = "mov.b32 n, $0; " + " ".join(f"mov.b32 b, ${i}; or.b32 n, n, b;" for i in range(1, count))
    return (
        f"{{ .reg .f32 x, t, r; .reg .b32 n, b; .reg .pred p; {powers} {signs}"
        " setp.lt.s32 p, n, 0; @p nanosleep.u32 0; }"
    )


_POWERS = gl.constexpr(_instructions(_TOGETHER.value))
_OPERANDS = gl.constexpr(",".join(["=f"] * _TOGETHER.value + [str(i) for i in range(_TOGETHER.value)]))


@gluon.jit
def exp2(x):
    """2^x for x of at most about 0, held in front of the next wait for a product."""
    return gl.inline_asm_elementwise(_POWERS, _OPERANDS, [x], dtype=gl.float32, is_pure=False, pack=_TOGETHER)


@gluon.jit
def opaque(x):
    """The same float32 numbers, of which the compiler does not know where they come from."""
    return gl.inline_asm_elementwise("", "=r,0", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def unpacked(x):
    """A tile of 16-bit numbers as float32, with one instruction a number."""
    if x.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], dtype=gl.float32, is_pure=True, pack=2
        )
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        return x.to(gl.float32)
