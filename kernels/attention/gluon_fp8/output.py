"""A finished tile of the output, from a consumer's registers to global memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from kernels.attention.gluon_hopper.shim import tma_store


@gluon.jit
def by_row(factor, out):
    """A factor of each row, where `out` is."""
    return gl.convert_layout(factor, gl.SliceLayout(1, out.type.layout))[:, None]


@gluon.jit
def store_tile(out, l_i, v_scale, out_desc, out_s, consumer: gl.constexpr, head, row, num_heads, rows: gl.constexpr):
    """The tile over the sums of its weights, out of the units of its last values.

    Rows that saw no key have no sum and are zeros; the store before has left the buffer when this one is written.
    """
    l_i = gl.convert_layout(gl.sum(l_i, 1), rows)
    inverse = gl.exp2(v_scale) / gl.where(l_i == 0.0, 1.0, l_i)
    out = out * by_row(inverse, out)
    buffer = out_s.index(consumer)
    tma.store_wait(0)
    buffer.reshape(out.shape).store(out.to(out_s.dtype))
    fence_async_shared()
    batch = head // num_heads
    tma_store(out_desc, [batch, head - batch * num_heads, row, 0], buffer)
