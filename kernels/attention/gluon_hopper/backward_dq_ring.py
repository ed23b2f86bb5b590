"""dQ's float32 fragments in a ring that stays in the L2, turned into dQ by programs that come later.

Key heads are counted over all sequences. The key tiles of one, or those of a group of heads (backward_schedule.py), are
neighbours in the order in which programs start. The fragments of key head i are in slot i % slots of the ring. While
the keys of a program of key head i are on their way, it turns its share of the fragments of key head i - delay into
dQ's own dtype and leaves zeros behind. No program waits at its end: it increments its key head's counter
and exits. So a full counter says that all of a key head has been added, and that the one `delay` before it has been
converted: with 2 x delay slots, the slot that the key head `delay` after it takes is free.
What the last `delay` key heads leave behind is finish_kernel's.

This cannot hang as long as programs start in the order of their numbers: they wait for smaller numbers only.
"""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from .backward_common import FRAGMENT
from .compat import reinterpret, run_ptx, tma_load, tma_store

_NUMBERS = gl.constexpr(64 * 64)  # elements of a fragment


# The ring of dQ's fragments, and where they go. `fragments`: float32, in the order of the registers that held them,
# then a counter for each key head; `slots`: key heads that have room; `delay`: after how many key heads one is
# converted.
DqRing = namedtuple("DqRing", "fragments fragments_desc dq_desc slots delay softmax_scale")


@gluon.jit
def counter_of(kv_head, fragments, slots, per_head):
    """Return the address of a key head's counter; the counters follow `slots` heads of `per_head` fragments."""
    return fragments + (slots.to(gl.int64) * per_head * _NUMBERS + kv_head)


@gluon.jit
def count_finished(counter):
    """Count this program once all additions of this warpgroup have arrived."""
    code: gl.constexpr = (
        "{ .reg .pred first; .reg .b32 t; cp.async.bulk.wait_group 0; fence.proxy.async; bar.sync 5, 128;"
        " mov.u32 t, %tid.x; and.b32 t, t, 127; setp.eq.u32 first, t, 0;"
        " @first red.release.gpu.global.add.u32 [$1], $2; mov.b32 $0, 0; }"
    )
    run_ptx(code, "=r,l,r", (counter.to(gl.int64), gl.to_tensor(1)))


@gluon.jit
def _fetch(number, fragments_desc, bar, buffer, ACROSS: gl.constexpr):
    """Begin to load a fragment."""
    mbarrier.expect(bar, _NUMBERS * 4)
    place = [number // ACROSS, number % ACROSS * 16, 0]
    tma_load(fragments_desc, place, bar, reinterpret(buffer, gl.float32, [1, 16, 256], fragments_desc.layout))


@gluon.jit
def _convert(j, number, phase, ring, bar, buffer, batch, head, per_q_head, ACROSS: gl.constexpr):
    """Store a fetched fragment as rows of dQ, and overwrite it with zeros."""
    dtype: gl.constexpr = ring.dq_desc.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FRAGMENT, 16])
    flat: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    mbarrier.wait(bar, phase)
    dq = (buffer.load(layout) * ring.softmax_scale).to(dtype)
    rows = reinterpret(buffer, dtype, [2, 1, 1, FRAGMENT, FRAGMENT], ring.dq_desc.layout).index(0)
    rows.reshape([FRAGMENT, FRAGMENT]).store(dq)
    fence_async_shared()
    row = j % per_q_head // ACROSS * FRAGMENT
    tma_store(ring.dq_desc, [batch, head + j // per_q_head, row, j % ACROSS * FRAGMENT], rows)
    place = ring.fragments + number.to(gl.int64) * _NUMBERS + gl.arange(0, _NUMBERS, flat)
    gl.store(place, gl.zeros([_NUMBERS], gl.float32, flat))


@gluon.jit
def convert_share(share, programs, first, ring, bars, buffer_0, buffer_1, batch, head, group_size, per_q_head,
                  ACROSS: gl.constexpr):  # fmt: skip
    """Convert fragments `share`, `share + programs`, ... of a key head; its first one is number `first`.

    `per_q_head` fragments, ACROSS of them side by side, belong to a query head; `head` is the first of the key head's.
    """
    phase = 0
    count = group_size * per_q_head
    for j in range(share, count, 2 * programs):
        tma.store_wait(0)  # earlier stores have read the buffers
        _fetch(first + j, ring.fragments_desc, bars.index(0), buffer_0, ACROSS)
        second = j + programs
        if second < count:
            _fetch(first + second, ring.fragments_desc, bars.index(1), buffer_1, ACROSS)
        _convert(j, first + j, phase, ring, bars.index(0), buffer_0, batch, head, per_q_head, ACROSS)
        if second < count:
            _convert(second, first + second, phase, ring, bars.index(1), buffer_1, batch, head, per_q_head, ACROSS)
        else:
            tma.store_wait(0)  # the next that is stored in the first buffer waits for the one before the last only
        phase ^= 1
