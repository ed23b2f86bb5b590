"""Kernels of a backward that begin before the one in front of them has ended (programmatic dependent launch).

CUDA C++ Programming Guide, "Programmatic Dependent Launch". Outside such a launch both instructions do nothing.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def _execute(instruction: gl.constexpr):
    gl.inline_asm_elementwise(instruction, "=r,r", [gl.to_tensor(0)], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def await_the_kernel_before():
    """Wait until all that the kernel before this one has written can be read."""
    _execute("griddepcontrol.wait; mov.b32 $0, 0;")


@gluon.jit
def let_the_next_begin():
    """The kernel behind this one may begin as soon as all programs have said so; it waits for what it reads."""
    _execute("griddepcontrol.launch_dependents; mov.b32 $0, 0;")
