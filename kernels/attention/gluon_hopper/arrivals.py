"""How a kernel that begins early knows which rows of the kernel before it are written: programs count themselves.

A counter for each key head of each batch stands behind the rows of delta. To wait for the kernel before as a whole
(griddepcontrol.wait) would leave the multiprocessors idle that have nothing to do in its last round.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents


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
