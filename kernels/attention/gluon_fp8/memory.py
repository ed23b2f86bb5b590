"""Memory operations of both forwards: slots, barriers, loads of queries, and stores of finished tiles."""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from ..gluon_hopper.compat import tma_load, tma_store

# Addresses of the scales of 128 rows each, of all heads. `v`: exponents.
Fp8Scales = namedtuple("Fp8Scales", "q k v")
# Addresses of the scales of one key head's blocks.
Fp8Tables = namedtuple("Fp8Tables", "k v")
# Scales of a tile. `tables`: Fp8Tables; `q`: the factor of its scores, without the scale of the keys.
TileScales = namedtuple("TileScales", "tables q")


@gluon.jit
def by_row(factor, out):
    """Return a factor of each row in the layout of `out`, to be broadcast."""
    return gl.convert_layout(factor, gl.SliceLayout(1, out.type.layout))[:, None]


@gluon.jit
def store_tile(out, l_i, v_scale, out_desc, out_s, consumer: gl.constexpr, head, row, num_heads, rows: gl.constexpr):
    """Store the tile, divided by the sums of P, out of the units of its last values.

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


@gluon.jit
def load_queries(i_tile, batch, head, row, q_desc, q_s, q_full, q_empty, CONFIG: gl.constexpr, CONSUMERS: gl.constexpr):
    """Load a tile of queries, of which each consumer has `rows` rows, when the one before has been read."""
    for c in gl.static_range(CONSUMERS):
        q_bar = q_full.index(c)
        mbarrier.wait(q_empty.index(c), (i_tile & 1) ^ 1)
        mbarrier.expect(q_bar, q_desc.block_type.nbytes)
        tma_load(q_desc, [batch, head, row + c * CONFIG.rows, 0], q_bar, q_s.index(c))
