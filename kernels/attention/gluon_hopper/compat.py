"""Differences between Triton 3.6 and 3.9, and Hopper instructions that Gluon does not expose.

Gluon is experimental: every name that moved is bound here once, at import, so that the kernels read the same on
every version. Named barriers 8 to 15 are free: triton takes 0 to 4 for the partitions of a specialised kernel.
"""

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import tma

tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
tma_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
partition_sync = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # barrier of a partition's warps

if hasattr(tma, "async_atomic_add"):
    tma_add = tma.async_atomic_add
else:

    @builtin
    def tma_add(tensor_desc, coord, src, _semantic=None):
        """Add a tile of shared memory to global memory by TMA (bound in 3.6, named from 3.8 on)."""
        coord = _semantic._convert_to_ir_values(coord, require_i64=False)
        _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


@builtin
def reinterpret(memory, dtype, shape, layout, _semantic=None):
    """View shared memory with another dtype, shape and layout."""
    method = getattr(memory, "reinterpret", None) or memory._reinterpret
    return method(dtype, shape, layout, _semantic=_semantic)


@builtin
def run_ptx(code, operands, arguments, dtype=gl.int32, pack=1, _semantic=None):
    """Run PTX that no compiler may drop, repeat or move."""
    given = {"dtype": dtype, "is_pure": False, "pack": pack, "_semantic": _semantic}
    return gl.inline_asm_elementwise(code, operands, arguments, **given)


@gluon.jit
def execute(instruction: gl.constexpr, number=0):
    """Execute an instruction that takes a number, or nothing, as $1; it must set $0."""
    return run_ptx(instruction, "=r,r", (gl.to_tensor(number),))


@gluon.constexpr_function
def _pingpong(instruction, consumer):
    return f"{instruction} {13 + consumer}, 256; mov.b32 $0, 0;"


@gluon.jit
def pingpong_wait(consumer: gl.constexpr):
    """Wait until the consumer before this one has handed over the tensor cores."""
    execute(_pingpong("bar.sync", consumer))


@gluon.jit
def pingpong_signal(consumer: gl.constexpr):
    """Let this consumer issue its products."""
    execute(_pingpong("bar.arrive", consumer))


@gluon.jit
def pair_sync():
    """Synchronise both consumer warpgroups."""
    execute("bar.sync 8, 256; mov.b32 $0, 0;")


@gluon.jit
def opaque_zero():
    """Return a zero that is not hoisted: it keeps shared memory descriptors out of registers across a loop."""
    return execute("mov.u32 $0, 0;")


# The next three keep exponentials in front of the next wait for a product. ptxas otherwise sinks them below the wait,
# and softmax no longer overlaps with the product.


@gluon.jit
def keep_before_wait(row_sum):
    """Keep the exponentials that lead to this non-negative row sum in front of the next wait."""
    code: gl.constexpr = "{ .reg .pred p; setp.lt.f32 p, $1, 0f00000000; @p nanosleep.u32 0; mov.b32 $0, $1; }"
    return run_ptx(code, "=f,f", (row_sum,), gl.float32)


@gluon.jit
def keep_pairs_before_wait(row_sums):
    """Keep the exponentials that lead to non-negative sums, of two rows a thread, in front of the next wait."""
    code: gl.constexpr = (
        "{ .reg .pred p; setp.lt.f32 p, $2, 0f00000000; setp.lt.or.f32 p, $3, 0f00000000, p; @p nanosleep.u32 0;"
        " mov.b32 $0, $2; mov.b32 $1, $3; }"
    )
    return run_ptx(code, "=f,=f,f,f", (row_sums,), gl.float32, 2)


@gluon.jit
def keep_p_before_wait(p):
    """Keep the exponentials that lead to a tile of P, 16 bits and non-negative, in front of the next wait."""
    code: gl.constexpr = (
        "{ .reg .pred p; .reg .b32 t; or.b32 t, $4, $5; or.b32 t, t, $6; or.b32 t, t, $7;"
        " setp.lt.s32 p, t, 0; @p nanosleep.u32 0;"
        " mov.b32 $0, $4; mov.b32 $1, $5; mov.b32 $2, $6; mov.b32 $3, $7; }"
    )
    return run_ptx(code, "=r,=r,=r,=r,r,r,r,r", (p,), p.dtype, 8)
