"""Which tile a program of the backward has.

Programs start in the order of their numbers. Where some tiles take longer than others (UNEVEN), the heads of a group
take turns, all with their longest tile first: so what is left for the last round is short.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def place_of(heads, UNEVEN: gl.constexpr):
    """(tile, head, batch) of a program; a grid is (tiles, heads, batches), or (heads of a group, tiles, groups)."""
    tile = gl.program_id(0)
    head = gl.program_id(1)
    batch = gl.program_id(2)
    if UNEVEN:
        of_all = batch * gl.num_programs(0) + tile
        tile = head
        batch = of_all // heads
        head = of_all - batch * heads
    return tile, head, batch


@gluon.jit
def is_last():
    """Whether no program starts after this one."""
    first_axes = (gl.program_id(0) == gl.num_programs(0) - 1) & (gl.program_id(1) == gl.num_programs(1) - 1)
    return first_axes & (gl.program_id(2) == gl.num_programs(2) - 1)
