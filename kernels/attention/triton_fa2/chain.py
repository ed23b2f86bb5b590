"""Launches that follow one another at once: a kernel's blocks may start while those of the one before are ending.

Programmatic dependent launch (CUDA C++ Programming Guide), from compute capability 9.0: the second kernel is launched
with an attribute and waits, before it touches memory, until the first one has ended and all it wrote is visible.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def take_turn(CHAINED: tl.constexpr):
    """The first thing a chained kernel does: let the next one start, wait for the one before to end."""
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()
