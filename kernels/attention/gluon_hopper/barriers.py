"""Slots of keys and values between the forward's consumers and its producer.

A consumer hands a slot back by an arrival at an mbarrier, before which its four warps wait for each other, or, with
`BY_WARP`, by a named barrier that each warp arrives at for itself and the producer, of four warps too, waits at. Those
that triton takes are below 2 + `CONSUMERS`, turns begin at 13: four slots for three consumers.

Slots of queries that the consumers of the backward hand back to the producer by named barriers.

An arrival at an mbarrier would first make all four warps of a consumer wait for each other; here each warp tells for
itself, and the producer, of four warps too, waits for all of both consumers: 384 threads.

Kernels of a backward that begin before the one in front of them has ended (programmatic dependent launch).

CUDA C++ Programming Guide, "Programmatic Dependent Launch". Outside such a launch both instructions do nothing.

How a kernel that begins early knows which rows of the kernel before it are written: programs count themselves.

A counter for each key head of each batch stands behind the rows of delta. To wait for the kernel before as a whole
(griddepcontrol.wait) would leave the multiprocessors idle that have nothing to do in its last round.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents

from kernels.attention.gluon_hopper.compat import execute


@gluon.constexpr_function
def _for_all(instruction, consumers):
    return f"{instruction} $1, {128 * (consumers + 1)}; mov.b32 $0, 0;"


@gluon.jit
def slot_of(count, KV_SLOTS: gl.constexpr, UNSEEN: gl.constexpr):
    """The slot of a program's count-th block; by its bits where that was timed and is faster."""
    if UNSEEN and KV_SLOTS & (KV_SLOTS - 1) == 0:
        return count & (KV_SLOTS - 1)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        return count % KV_SLOTS


@gluon.jit
def phase_of(count, KV_SLOTS: gl.constexpr, UNSEEN: gl.constexpr):
    """The phase of that slot's barriers when the block is in it."""
    if UNSEEN and KV_SLOTS & (KV_SLOTS - 1) == 0:
        return (count & KV_SLOTS) // KV_SLOTS
    else:  # noqa: RET505
        return (count // KV_SLOTS) & 1


@gluon.jit
def _execute(instruction: gl.constexpr, number):
    gl.inline_asm_elementwise(instruction, "=r,r", [gl.to_tensor(number)], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def free_keys(slot, memory, CONSUMERS: gl.constexpr, BY_WARP: gl.constexpr):
    """These keys have been read."""
    if BY_WARP:
        _execute(_for_all("bar.arrive", CONSUMERS), 2 + CONSUMERS + slot)
    else:
        mbarrier.arrive(memory[6].index(slot), count=1)


@gluon.jit
def free_values(slot, memory, CONSUMERS: gl.constexpr, KV_SLOTS: gl.constexpr, BY_WARP: gl.constexpr):
    """These values have been read."""
    if BY_WARP:
        _execute(_for_all("bar.arrive", CONSUMERS), 2 + CONSUMERS + KV_SLOTS + slot)
    else:
        mbarrier.arrive(memory[8].index(slot), count=1)


@gluon.jit
def await_keys_slot(count, memory, CONSUMERS: gl.constexpr, KV_SLOTS: gl.constexpr, BY_WARP: gl.constexpr):
    """Wait until the slot of this block's keys is free."""
    slot = count % KV_SLOTS
    if BY_WARP:
        if count >= KV_SLOTS:
            _execute(_for_all("bar.sync", CONSUMERS), 2 + CONSUMERS + slot)
    else:
        mbarrier.wait(memory[6].index(slot), ((count // KV_SLOTS) & 1) ^ 1)


@gluon.jit
def await_values_slot(count, memory, CONSUMERS: gl.constexpr, KV_SLOTS: gl.constexpr, BY_WARP: gl.constexpr):
    """Wait until the slot of this block's values is free."""
    slot = count % KV_SLOTS
    if BY_WARP:
        if count >= KV_SLOTS:
            _execute(_for_all("bar.sync", CONSUMERS), 2 + CONSUMERS + KV_SLOTS + slot)
    else:
        mbarrier.wait(memory[8].index(slot), ((count // KV_SLOTS) & 1) ^ 1)


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


@gluon.jit
def await_the_kernel_before():
    """Wait until all that the kernel before this one has written can be read."""
    execute("griddepcontrol.wait; mov.b32 $0, 0;")


@gluon.jit
def let_the_next_begin():
    """The kernel behind this one may begin as soon as all programs have said so; it waits for what it reads."""
    execute("griddepcontrol.launch_dependents; mov.b32 $0, 0;")


@triton.jit(do_not_specialize=["first", "count"])
def zero_kernel(numbers, first, count, BLOCK: tl.constexpr, CHAINED: tl.constexpr = False):
    """Zeros in `count` numbers from `first` on. CHAINED: the next kernel may begin before."""
    if CHAINED:
        gdc_launch_dependents()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(numbers + first + at, 0.0, at < count)


@gluon.jit
def count_in(counter):
    """Whoever sees the count sees what this partition has seen stored."""
    gl.inline_asm_elementwise(
        "{ .reg .pred first; .reg .b32 t; mov.u32 t, %tid.x; and.b32 t, t, 127; setp.eq.u32 first, t, 0;"
        " @first red.release.gpu.global.add.u32 [$1], 1; mov.b32 $0, 0; }",
        "=r,l",
        [counter.to(gl.int64)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def await_programs(counter, programs):
    """Wait until so many programs have counted themselves; the copy engine may then load what they have stored."""
    gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; SPIN: ld.acquire.gpu.global.b32 t, [$1]; setp.lt.s32 p, t, $2; @p bra SPIN;"
        " fence.proxy.async; mov.b32 $0, 0; }",
        "=r,l,r",
        [counter.to(gl.int64), gl.to_tensor(programs)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
