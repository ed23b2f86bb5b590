"""Which query tiles a program takes, in what order, which key blocks such a tile sees, and which keys of a block.

As in gluon_hopper's order.py and masks.py, without windows.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

TILE = gl.constexpr(128)  # query rows of two consumers
LONG_TILE = gl.constexpr(192)  # of three


@gluon.jit
def rounds(n_tiles):
    """How many tiles this program takes: the direction turns every round, so the last one may start from its end."""
    programs = gl.num_programs(0)
    full = n_tiles // programs
    place = gl.program_id(0)
    if full % 2 == 1:
        place = programs - 1 - place
    return full + (place < n_tiles - full * programs).to(gl.int32)


@gluon.jit
def _index(turn):
    """The number of this program's turn-th tile."""
    programs = gl.num_programs(0)
    place = gl.program_id(0)
    place += (turn % 2) * (programs - 1 - 2 * place)
    return turn * programs + place


@gluon.jit
def _by_length(index, sizes, TILE: gl.constexpr):
    """Head and first row of a causal tile.

    Tiles come by length, the longest of the last heads first, so that every round deals nearly equal ones; as many
    heads stand side by side as their keys and values fit in the L2.
    """
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k = sizes
    group = index // (heads_together * n_m)
    first = group * heads_together
    index -= first * n_m
    width = gl.minimum(heads_together, n_heads - first)
    m = index // width
    head = first + index - m * width
    groups_after = (n_heads - 1) // heads_together - group
    m += (1 - groups_after % 2) * (n_m - 1 - 2 * m)
    return head, m * TILE


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
    index = _index(turn)
    if CAUSAL:
        head, row = _by_length(index, sizes, TILE)
    else:
        head = index // n_m
        row = (index - head * n_m) * TILE
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
        head, row = _by_length(index, sizes, LONG_TILE)
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
