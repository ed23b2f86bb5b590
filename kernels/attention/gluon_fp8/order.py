"""Which query tiles a program takes, in what order, which key blocks such a tile sees, and which keys of a block.

Tiles come in the order of gluon_hopper; the rest is as in its masks.py, without windows.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.gluon_hopper.forward_tiles import static_tile

TILE = gl.constexpr(128)  # query rows of two consumers
LONG_TILE = gl.constexpr(192)  # of three


@gluon.jit
def _index(turn):
    """The number of this program's turn-th tile."""
    programs = gl.num_programs(0)
    place = gl.program_id(0)
    place += (turn % 2) * (programs - 1 - 2 * place)
    return turn * programs + place


@gluon.jit
def key_blocks(row, sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """How many key blocks `ROWS` rows from `row` on see, and of these those that need no mask.

    Every row that sees a key at all sees one in the blocks before those.
    """
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k = sizes
    right = gl.cdiv(seqlen_k, BLOCK_N)
    high = right
    if CAUSAL:
        diagonal = row + seqlen_k - seqlen_q  # the key at the diagonal of the first row
        high = gl.minimum(high, gl.cdiv(gl.maximum(diagonal + ROWS, 0), BLOCK_N))
        high = gl.maximum(high, 1)
        right = gl.minimum(gl.maximum(diagonal, 0), seqlen_k) // BLOCK_N
    return gl.minimum(right, high - 1), high


@gluon.jit
def tile(turn, sizes, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """Head and first row of this program's turn-th tile, and its key blocks; those below `right` need no mask."""
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k = sizes
    m, head = static_tile(turn, n_m, n_heads, heads_together, CAUSAL)
    row = m * TILE
    right, high = key_blocks(row, sizes, TILE, BLOCK_N, CAUSAL)
    return head, row, right, high


@gluon.jit
def tile_of_three(turn, sizes, threes, CAUSAL: gl.constexpr):
    """Head and rows of this program's turn-th tile: without a mask, `threes` of a head have 192 rows, the others 128.

    The short ones come last, where they fill a round that no whole number of long ones would.
    """
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k = sizes
    index = _index(turn)
    if CAUSAL:
        m, head = static_tile(turn, n_m, n_heads, heads_together, True)
        row = m * LONG_TILE
        rows = gl.to_tensor(LONG_TILE)
    elif index < n_heads * threes:
        head = index // threes
        row = (index - head * threes) * LONG_TILE
        rows = gl.to_tensor(LONG_TILE)
    else:
        index -= n_heads * threes
        head = index // (n_m - threes)
        row = threes * LONG_TILE + (index - head * (n_m - threes)) * TILE
        rows = gl.to_tensor(TILE)
    return head, row, gl.minimum(row + rows, seqlen_q)


@gluon.jit
def hide_keys(s, key, diagonal, seqlen_k, CAUSAL: gl.constexpr):
    """Scores of keys from `key` on, those that a row may not see at -inf; `diagonal` is the first row's own key."""
    layout: gl.constexpr = s.type.layout
    keys = key + gl.arange(0, s.shape[1], gl.SliceLayout(0, layout))[None, :]
    seen = keys < seqlen_k
    if CAUSAL:
        seen = seen & (keys <= diagonal + gl.arange(0, s.shape[0], gl.SliceLayout(1, layout))[:, None])
    return gl.where(seen, s, -float("inf"))
