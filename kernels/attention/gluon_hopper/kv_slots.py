"""Slots of keys and values between the forward's consumers and its producer.

A consumer hands a slot back by an arrival at an mbarrier, before which its four warps wait for each other, or, with
`BY_WARP`, by a named barrier that each warp arrives at for itself and the producer, of four warps too, waits at. Those
that triton takes are below 2 + `CONSUMERS`, turns begin at 13: four slots for three consumers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


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
