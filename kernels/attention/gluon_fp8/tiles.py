"""The query tiles of a program and their order, head by head; every query sees all keys."""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..gluon_hopper.forward_tiles import static_index

TILE = gl.constexpr(128)  # query rows of two consumers
LONG_TILE = gl.constexpr(192)  # query rows of three consumers


# Sizes that the forward's partitions need. `n_tiles`: tiles of all heads; `n_m`: tiles of a head; `n_heads`: batch x
# num_heads; `group_size`: query heads of a key head.
Fp8Shape = namedtuple("Fp8Shape", "n_tiles n_m num_heads n_heads group_size seqlen_q seqlen_k")


@gluon.jit
def program_tile(i_tile, shape):
    """Return head and first row of this program's tile."""
    index = static_index(i_tile)
    head = index // shape.n_m
    return head, (index - head * shape.n_m) * TILE


@gluon.jit
def tile_of_three(i_tile, shape, n_long):
    """Return head, first row and end of this program's tile; `n_long` tiles of a head have 192 rows, the others 128.

    The short ones come last, where they fill a round that no whole number of long ones would.
    """
    index = static_index(i_tile)
    if index < shape.n_heads * n_long:
        head = index // n_long
        row = (index - head * n_long) * LONG_TILE
        rows = gl.to_tensor(LONG_TILE)
    else:
        index -= shape.n_heads * n_long
        head = index // (shape.n_m - n_long)
        row = n_long * LONG_TILE + (index - head * (shape.n_m - n_long)) * TILE
        rows = gl.to_tensor(TILE)
    return head, row, gl.minimum(row + rows, shape.seqlen_q)


@gluon.jit
def hide_keys(s, key, seqlen_k):
    """Put -inf where a key is beyond the last one: keys from `key` on."""
    keys = key + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))[None, :]
    return gl.where(keys < seqlen_k, s, -float("inf"))
