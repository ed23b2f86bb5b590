"""The asynchronous product of 8-bit factors, added up by the tensor cores alone.

Gluon's own `warpgroup_mma` takes no more than K uncorrected additions, and then adds each product to the sum in float32
right behind issuing it, which makes ptxas wait for every one of them (C7514).
"""

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
