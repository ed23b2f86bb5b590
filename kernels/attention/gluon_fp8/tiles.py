"""The query tiles of a program, head by head, their loads and stores, and the addresses of scales."""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from ..gluon_hopper.compat import tma_load, tma_store
from ..gluon_hopper.forward_tiles import static_index

TILE = gl.constexpr(128)  # query rows of two consumers
LONG_TILE = gl.constexpr(192)  # query rows of three consumers

# Sizes that the forward's partitions need. `n_tiles`: tiles of all heads; `n_m`: tiles of a head; `n_heads`: batch x
# num_heads; `group_size`: query heads of a key head.
Fp8Shape = namedtuple("Fp8Shape", "n_tiles n_m num_heads n_heads group_size seqlen_q seqlen_k")
# Addresses of the scales of 128 rows each, of all heads. `v`: exponents.
Fp8Scales = namedtuple("Fp8Scales", "q k v")
# Addresses of the scales of one key head's blocks.
Fp8Tables = namedtuple("Fp8Tables", "k v")
# Scales of a tile. `tables`: Fp8Tables; `q`: the factor of its scores, without the scale of the keys.
TileScales = namedtuple("TileScales", "tables q")


@gluon.jit
def tile_of(i_tile, shape, n_long, CONFIG: gl.constexpr):
    """Return head, first row and end of this program's tile, where every query sees all keys.

    Of three consumers `n_long` tiles of a head have 192 rows, the others 128. The short ones come last, where they fill
    a round that no whole number of long ones would.
    """
    index = static_index(i_tile)
    if CONFIG.consumers == 2:
        head = index // shape.n_m
        row = (index - head * shape.n_m) * TILE
        end = shape.seqlen_q
    else:
        if index < shape.n_heads * n_long:
            head = index // n_long
            row = (index - head * n_long) * LONG_TILE
            rows = gl.to_tensor(LONG_TILE)
        else:
            index -= shape.n_heads * n_long
            head = index // (shape.n_m - n_long)
            row = n_long * LONG_TILE + (index - head * (shape.n_m - n_long)) * TILE
            rows = gl.to_tensor(TILE)
        end = gl.minimum(row + rows, shape.seqlen_q)
    return head, row, end


@gluon.jit
def hide_keys(s, key, seqlen_k):
    """Put -inf where a key is beyond the last one: keys from `key` on."""
    keys = key + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))[None, :]
    return gl.where(keys < seqlen_k, s, -float("inf"))


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
def load_queries(i_tile, batch, head, row, q_desc, q_s, q_full, q_empty, CONFIG: gl.constexpr):
    """Load a tile of queries, of which each consumer has `rows` rows, when the one before has been read."""
    for c in gl.static_range(CONFIG.consumers):
        q_bar = q_full.index(c)
        mbarrier.wait(q_empty.index(c), (i_tile & 1) ^ 1)
        mbarrier.expect(q_bar, q_desc.block_type.nbytes)
        tma_load(q_desc, [batch, head, row + c * CONFIG.rows, 0], q_bar, q_s.index(c))
