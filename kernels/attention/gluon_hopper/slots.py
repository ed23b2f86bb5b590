"""Slots of queries that the consumers of the backward hand back to the producer by named barriers.

An arrival at an mbarrier would first make all four warps of a consumer wait for each other; here each warp tells for
itself, and the producer, of four warps too, waits for all of both consumers: 384 threads.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

Q_EMPTY, DO_EMPTY = gl.constexpr(9), gl.constexpr(11)  # the barriers of the first slots; those of the second follow
_HALF_FULL = gl.constexpr((6, 13))  # of each consumer's half of the first tile of dS; those of the second tile follow


@gluon.jit
def _execute(instruction: gl.constexpr, number):
    gl.inline_asm_elementwise(instruction, "=r,r", [gl.to_tensor(number)], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def give_slot(number):
    """This warp has read the slot for the last time."""
    _execute("bar.arrive $1, 384; mov.b32 $0, 0;", number)


@gluon.jit
def wait_for_slot(number):
    """Wait until all warps of the consumers have."""
    _execute("bar.sync $1, 384; mov.b32 $0, 0;", number)


@gluon.jit
def give_half(consumer: gl.constexpr, tile):
    """This consumer has written its half of a tile of dS, and read all of the other tile."""
    _execute("bar.arrive $1, 256; mov.b32 $0, 0;", _HALF_FULL[consumer] + tile)


@gluon.jit
def wait_for_half(consumer: gl.constexpr, tile):
    """Wait until the other consumer has."""
    _execute("bar.sync $1, 256; mov.b32 $0, 0;", _HALF_FULL[1 - consumer] + tile)
