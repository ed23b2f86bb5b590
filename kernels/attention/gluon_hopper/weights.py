"""Weights of the backward between float32 and 16 bits, with few instructions."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


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
