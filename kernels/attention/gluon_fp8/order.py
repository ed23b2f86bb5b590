"""Which query tiles a program takes, in what order, which key blocks such a tile sees, and which keys of a block.

As in gluon_hopper's order.py and masks.py, for two consumers and no window.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

TILE = gl.constexpr(128)  # query rows of a program's two consumers


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
def tile(turn, sizes, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """Head and first row of this program's turn-th tile, and its key blocks: those below `right` need no causal mask.

    Causal tiles come by length, the longest of the last heads first, so that every round deals nearly equal ones; as
    many heads stand side by side as their keys and values fit in the L2.
    """
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k = sizes
    programs = gl.num_programs(0)
    place = gl.program_id(0)
    place += (turn % 2) * (programs - 1 - 2 * place)
    index = turn * programs + place
    right = gl.cdiv(seqlen_k, BLOCK_N)
    high = right
    if CAUSAL:
        group = index // (heads_together * n_m)
        first = group * heads_together
        index -= first * n_m
        width = gl.minimum(heads_together, n_heads - first)
        m = index // width
        head = first + index - m * width
        groups_after = (n_heads - 1) // heads_together - group
        m += (1 - groups_after % 2) * (n_m - 1 - 2 * m)
        diagonal = m * TILE + seqlen_k - seqlen_q  # the key at the diagonal of the first row
        high = gl.minimum(high, gl.cdiv(gl.maximum(diagonal + TILE, 0), BLOCK_N))
        high = gl.maximum(high, 1)
        right = gl.minimum(gl.maximum(diagonal + 1, 0), seqlen_k) // BLOCK_N
    else:
        head = index // n_m
        m = index - head * n_m
    return head, m * TILE, gl.minimum(right, high - 1), high


@gluon.jit
def hide_keys(s, key, diagonal, seqlen_k, CAUSAL: gl.constexpr):
    """Scores of keys from `key` on, those that a row may not see at -inf; `diagonal` is the first row's own key."""
    layout: gl.constexpr = s.type.layout
    keys = key + gl.arange(0, s.shape[1], gl.SliceLayout(0, layout))[None, :]
    seen = keys < seqlen_k
    if CAUSAL:
        seen = seen & (keys <= diagonal + gl.arange(0, s.shape[0], gl.SliceLayout(1, layout))[:, None])
    return gl.where(seen, s, -float("inf"))
