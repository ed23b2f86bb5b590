"""Where the kernels that own keys have their tiles in shared memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def tiles_of_keys_and_queries(q_desc, k_desc, do_desc, lse_desc, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                              HEAD_DIM: gl.constexpr, SLOTS: gl.constexpr):  # fmt: skip
    """Keys and values of a program; queries, dout, lse and delta of the blocks under way. (q, k, v, do, lse, delta)."""
    dtype: gl.constexpr = q_desc.dtype
    q_s = gl.allocate_shared_memory(dtype, [SLOTS, 1, 1, BLOCK_M, HEAD_DIM], q_desc.layout)
    do_s = gl.allocate_shared_memory(dtype, [SLOTS, 1, 1, BLOCK_M, HEAD_DIM], do_desc.layout)
    k_s = gl.allocate_shared_memory(dtype, [1, 1, 1, BLOCK_N, HEAD_DIM], k_desc.layout)
    v_s = gl.allocate_shared_memory(dtype, [1, 1, 1, BLOCK_N, HEAD_DIM], k_desc.layout)
    lse_s = gl.allocate_shared_memory(gl.float32, [SLOTS, BLOCK_M], lse_desc.layout)
    delta_s = gl.allocate_shared_memory(gl.float32, [SLOTS, BLOCK_M], lse_desc.layout)
    return q_s, k_s, v_s, do_s, lse_s, delta_s
