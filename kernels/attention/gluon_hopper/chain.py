"""Kernels of a backward that begin before the one in front of them has ended (programmatic dependent launch).

CUDA C++ Programming Guide, "Programmatic Dependent Launch". Outside such a launch both instructions do nothing.
"""

from triton.experimental import gluon

from kernels.attention.gluon_hopper.shim import execute


@gluon.jit
def await_the_kernel_before():
    """Wait until all that the kernel before this one has written can be read."""
    execute("griddepcontrol.wait; mov.b32 $0, 0;")


@gluon.jit
def let_the_next_begin():
    """The kernel behind this one may begin as soon as all programs have said so; it waits for what it reads."""
    execute("griddepcontrol.launch_dependents; mov.b32 $0, 0;")
