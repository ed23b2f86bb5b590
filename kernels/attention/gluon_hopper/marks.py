"""Marks that a program of the forward leaves where its result cannot be used, and all is computed anew."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

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
