"""Barriers between warpgroups and between kernels: slots of shared memory, named barriers, PDL, counters.

Slots of keys and values of the forward: a consumer releases a slot by an arrival at an mbarrier, before which its four
warps wait for each other, or, with `release_per_warp`, by a named barrier at which each warp arrives for itself and
the producer, of four warps too, waits. Triton takes the named barriers below 2 + `consumers`, and ping-pong begins at
13: four slots for three consumers.

Slots of queries of the backward are released by named barriers of 384 threads in the same way: each warp of both
consumers arrives for itself, and the producer waits for all.

Kernels of a backward begin before the one in front of them has ended (programmatic dependent launch, CUDA C++
Programming Guide). Outside such a launch its instructions do nothing. To wait for the whole kernel before
(griddepcontrol.wait) leaves the multiprocessors idle that have nothing to do in its last round, so programs of the dQ
kernel count themselves: a counter for each key head of each batch follows the rows of delta.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents

from .compat import execute, run_ptx


@gluon.jit
def mbarriers(SLOTS: gl.constexpr, ARRIVALS: gl.constexpr = 1):
    """Allocate and initialise an mbarrier for each slot; with 0 slots, one without an index."""
    shape: gl.constexpr = [SLOTS, 1] if SLOTS > 0 else [1]
    bars = gl.allocate_shared_memory(gl.int64, shape, mbarrier.MBarrierLayout())
    if SLOTS == 0:
        mbarrier.init(bars, count=ARRIVALS)
    for i in gl.static_range(SLOTS):
        mbarrier.init(bars.index(i), count=ARRIVALS)
    return bars


@gluon.constexpr_function
def _for_all(instruction, consumers):
    return f"{instruction} $1, {128 * (consumers + 1)}; mov.b32 $0, 0;"


@gluon.jit
def slot_of(count, CONFIG: gl.constexpr):
    """Return the slot of a program's count-th block; by its bits where that was timed and is faster."""
    if CONFIG.flag_overflow and CONFIG.kv_slots & (CONFIG.kv_slots - 1) == 0:
        return count & (CONFIG.kv_slots - 1)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        return count % CONFIG.kv_slots


@gluon.jit
def phase_of(count, CONFIG: gl.constexpr):
    """Return the phase of that slot's barriers when the count-th block is in it."""
    if CONFIG.flag_overflow and CONFIG.kv_slots & (CONFIG.kv_slots - 1) == 0:
        return (count & CONFIG.kv_slots) // CONFIG.kv_slots
    else:  # noqa: RET505
        return (count // CONFIG.kv_slots) & 1


@gluon.jit
def release_keys(slot, buffers, CONFIG: gl.constexpr):
    """Tell the producer that the keys of a slot have been read."""
    if CONFIG.release_per_warp:
        execute(_for_all("bar.arrive", CONFIG.consumers), 2 + CONFIG.consumers + slot)
    elif CONFIG.kv_slots == 1:  # the pieces before the last have been released (pieces.py)
        mbarrier.arrive(buffers.k_empty.index(CONFIG.pieces - 1), count=1)
    else:
        mbarrier.arrive(buffers.k_empty.index(slot), count=1)


@gluon.jit
def skip_keys(slot, count, buffers, CONFIG: gl.constexpr):
    """Release the count-th block's keys, which are in a slot, without having used them."""
    if CONFIG.kv_slots == 1:
        for piece in gl.static_range(CONFIG.pieces):
            mbarrier.wait(buffers.k_full.index(piece), count & 1)
            mbarrier.arrive(buffers.k_empty.index(piece), count=1)
    else:
        mbarrier.wait(buffers.k_full.index(slot), (count // CONFIG.kv_slots) & 1)
        release_keys(slot, buffers, CONFIG)


@gluon.jit
def release_values(slot, buffers, CONFIG: gl.constexpr):
    """Tell the producer that the values of a slot have been read."""
    if CONFIG.release_per_warp:
        execute(_for_all("bar.arrive", CONFIG.consumers), 2 + CONFIG.consumers + CONFIG.kv_slots + slot)
    else:
        mbarrier.arrive(buffers.v_empty.index(slot), count=1)


@gluon.jit
def acquire_keys_slot(count, buffers, CONFIG: gl.constexpr):
    """Wait until the slot of the count-th block's keys is free."""
    slot = count % CONFIG.kv_slots
    if CONFIG.release_per_warp:
        if count >= CONFIG.kv_slots:
            execute(_for_all("bar.sync", CONFIG.consumers), 2 + CONFIG.consumers + slot)
    else:
        mbarrier.wait(buffers.k_empty.index(slot), ((count // CONFIG.kv_slots) & 1) ^ 1)


@gluon.jit
def acquire_values_slot(count, buffers, CONFIG: gl.constexpr):
    """Wait until the slot of the count-th block's values is free."""
    slot = count % CONFIG.kv_slots
    if CONFIG.release_per_warp:
        if count >= CONFIG.kv_slots:
            execute(_for_all("bar.sync", CONFIG.consumers), 2 + CONFIG.consumers + CONFIG.kv_slots + slot)
    else:
        mbarrier.wait(buffers.v_empty.index(slot), ((count // CONFIG.kv_slots) & 1) ^ 1)


Q_EMPTY, DO_EMPTY = gl.constexpr(9), gl.constexpr(11)  # named barriers of the first slots; those of the second follow
_HALF_FULL = gl.constexpr((6, 13))  # barriers of each consumer's half of the first tile of dS; the second tile's follow


@gluon.jit
def arrive_at(number):
    """Arrive, each warp for itself, at a named barrier of both consumers and the producer."""
    execute("bar.arrive $1, 384; mov.b32 $0, 0;", number)


@gluon.jit
def wait_at(number):
    """Wait at a named barrier of both consumers and the producer until all their other warps have arrived."""
    execute("bar.sync $1, 384; mov.b32 $0, 0;", number)


@gluon.jit
def release_ds_half(consumer: gl.constexpr, tile):
    """Tell the other consumer: this one has written its half of a tile of dS, and read all of the other tile."""
    execute("bar.arrive $1, 256; mov.b32 $0, 0;", _HALF_FULL[consumer] + tile)


@gluon.jit
def acquire_ds_half(consumer: gl.constexpr, tile):
    """Wait until the other consumer has written its half of a tile of dS."""
    execute("bar.sync $1, 256; mov.b32 $0, 0;", _HALF_FULL[1 - consumer] + tile)


@gluon.jit
def pdl_wait():
    """Wait until all that the kernel before this one has written can be read."""
    execute("griddepcontrol.wait; mov.b32 $0, 0;")


@gluon.jit
def pdl_launch_dependents():
    """Let the kernel behind this one begin as soon as all programs have said so; it waits for what it reads."""
    execute("griddepcontrol.launch_dependents; mov.b32 $0, 0;")


@triton.jit(do_not_specialize=["first", "count"])
def zero_kernel(numbers, first, count, BLOCK: tl.constexpr, PDL: tl.constexpr = False):
    """Store zeros in `count` numbers from `first` on. PDL: the next kernel may begin before."""
    if PDL:
        gdc_launch_dependents()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(numbers + first + at, 0.0, at < count)


@gluon.jit
def count_program(counter):
    """Increment the counter: a thread that sees the count also sees the stores that this partition has seen."""
    code: gl.constexpr = (
        "{ .reg .pred first; .reg .b32 t; mov.u32 t, %tid.x; and.b32 t, t, 127; setp.eq.u32 first, t, 0;"
        " @first red.release.gpu.global.add.u32 [$1], 1; mov.b32 $0, 0; }"
    )
    run_ptx(code, "=r,l", (counter.to(gl.int64),))


@gluon.jit
def await_programs(counter, programs):
    """Wait until so many programs have counted themselves; TMA may then load what they have stored."""
    code: gl.constexpr = (
        "{ .reg .pred p; .reg .b32 t; SPIN: ld.acquire.gpu.global.b32 t, [$1]; setp.lt.s32 p, t, $2; @p bra SPIN;"
        " fence.proxy.async; mov.b32 $0, 0; }"
    )
    run_ptx(code, "=r,l,r", (counter.to(gl.int64), gl.to_tensor(programs)))
