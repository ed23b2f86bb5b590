"""The asynchronous product of 8-bit factors, added up by the tensor cores alone.

Gluon's own `warpgroup_mma` takes no more than K uncorrected additions, and then adds each product to the sum in float32
right behind issuing it, which makes ptxas wait for every one of them (C7514).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_accumulator

_UNCORRECTED = 2**30  # more additions than any product has


@builtin
def begin_product(a, b, acc, use_acc=True, _semantic=None):
    """acc + a b (or a b) by the tensor cores: a in registers or shared memory, b in shared memory, both e4m3."""
    use_acc = _semantic.to_tensor(use_acc)
    precision = _semantic._str_to_dot_input_precision(_semantic.builder.options.default_dot_input_precision)
    handle = _semantic.builder.create_warpgroup_mma(
        a.handle, b.handle, acc.handle, use_acc.handle, precision, _UNCORRECTED, True
    )
    return warpgroup_mma_accumulator(handle, acc.type)


@gluon.jit
def begin_scores(q, k_s, slot, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Begin a product of queries and the keys of a slot."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    k_t = k_s.index(slot).reshape([BLOCK_N, HEAD_DIM]).permute((1, 0))
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
    return begin_product(q, k_t, zero, use_acc=False)


@gluon.jit
def begin_values(p, v_s, slot, out, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Begin to add the weighted values of a slot to `out`."""
    values = v_s.index(slot).reshape([HEAD_DIM, BLOCK_N]).permute((1, 0))
    return begin_product(p, values, out)
