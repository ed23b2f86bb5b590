"""dQ of a block of queries as two 64 x 64 fragments, and how they are added.

Blocks of 64 queries (head_dim 128): half of the columns each; of 128 (head_dim 64): half of the rows.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from kernels.attention.gluon_hopper.shim import reinterpret, tma_add

FRAGMENT = gl.constexpr(64)


@gluon.jit
def fragment_buffers():
    """Room for a fragment of each consumer."""
    # In the order of the registers that hold a fragment: 16-byte stores, no bank conflicts. conversion.py undoes it.
    layout: gl.constexpr = gl.SharedLinearLayout(
        [[0, 1], [8, 0], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [16, 0], [32, 0], [0, 8], [0, 16], [0, 32]]
    )
    first = gl.allocate_shared_memory(gl.float32, [FRAGMENT, FRAGMENT], layout)
    second = gl.allocate_shared_memory(gl.float32, [FRAGMENT, FRAGMENT], layout)
    return first, second


@gluon.jit
def add_fragment(dq, number, dq_desc, dq_s):
    """Have the copy engine add a fragment to global memory."""
    tma.store_wait(0)  # the fragment before has left its buffer
    dq_s.store(dq)
    fence_async_shared()
    tma_add(dq_desc, [number * 16, 0], reinterpret(dq_s, gl.float32, [16, 256], dq_desc.layout))
