"""The query tiles of a program, their order, and the key blocks and keys that they see.

Tiles come in the order of gluon_hopper's tile scheduler. There are no windows.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..gluon_hopper.forward_tiles import static_tile
from ..gluon_hopper.masks import is_visible

TILE = gl.constexpr(128)  # query rows of two consumers
LONG_TILE = gl.constexpr(192)  # query rows of three consumers


class Fp8Shape(NamedTuple):
    """Sizes that the forward's partitions need."""

    n_tiles: Any  # tiles of all heads
    n_m: Any  # tiles of a head
    num_heads: Any
    n_heads: Any  # batch x num_heads
    group_size: Any  # query heads of a key head
    heads_in_l2: Any  # heads processed at a time
    seqlen_q: Any
    seqlen_k: Any


class Fp8MaskEdges(NamedTuple):
    """What decides which keys a row sees."""

    diagonal: Any  # the key on the first row's diagonal
    seqlen_k: Any


@gluon.jit
def _index(i_tile):
    """Return the number, among all, of this program's tile number `i_tile`."""
    programs = gl.num_programs(0)
    place = gl.program_id(0)
    place += (i_tile % 2) * (programs - 1 - 2 * place)
    return i_tile * programs + place


@gluon.jit
def key_blocks(row, shape, ROWS: gl.constexpr, CONFIG: gl.constexpr):
    """Return how many of the key blocks that `ROWS` rows from `row` on see need no mask, and how many they see.

    Every row that sees a key at all sees one in the blocks before those.
    """
    right = gl.cdiv(shape.seqlen_k, CONFIG.block_n)
    high = right
    if CONFIG.causal:
        diagonal = row + shape.seqlen_k - shape.seqlen_q  # the key at the diagonal of the first row
        high = gl.minimum(high, gl.cdiv(gl.maximum(diagonal + ROWS, 0), CONFIG.block_n))
        high = gl.maximum(high, 1)
        right = gl.minimum(gl.maximum(diagonal, 0), shape.seqlen_k) // CONFIG.block_n
    return gl.minimum(right, high - 1), high


@gluon.jit
def program_tile(i_tile, shape, CONFIG: gl.constexpr):
    """Return head and first row of this program's tile, and its key blocks; those below `right` need no mask."""
    m, head = static_tile(i_tile, shape.n_m, shape.n_heads, shape.heads_in_l2, CONFIG.causal)
    row = m * TILE
    right, high = key_blocks(row, shape, TILE, CONFIG)
    return head, row, right, high


@gluon.jit
def tile_of_three(i_tile, shape, n_long, CONFIG: gl.constexpr):
    """Return head, first row and end of this program's tile.

    Without a mask, `n_long` tiles of a head have 192 rows, the others 128.

    The short ones come last, where they fill a round that no whole number of long ones would.
    """
    index = _index(i_tile)
    if CONFIG.causal:
        m, head = static_tile(i_tile, shape.n_m, shape.n_heads, shape.heads_in_l2, True)
        row = m * LONG_TILE
        rows = gl.to_tensor(LONG_TILE)
    elif index < shape.n_heads * n_long:
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
def hide_keys(s, key, diagonal, seqlen_k, CAUSAL: gl.constexpr):
    """Put -inf where a key is hidden: keys from `key` on; `diagonal` is the key on the first row's diagonal."""
    layout: gl.constexpr = s.type.layout
    keys = key + gl.arange(0, s.shape[1], gl.SliceLayout(0, layout))[None, :]
    rows = diagonal + gl.arange(0, s.shape[0], gl.SliceLayout(1, layout))[:, None]
    return gl.where(is_visible(rows, keys, seqlen_k, 0, CAUSAL, False), s, -float("inf"))
