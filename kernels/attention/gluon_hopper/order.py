"""Which query tiles a program takes, in what order, where it works that out for itself.

tuning.heads_together says how many heads are worked on at a time.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


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
def tile(turn, n_m, n_heads, heads_together, BY_LENGTH: gl.constexpr):
    """The query tile and head of this program's turn-th tile.

    With `BY_LENGTH` (causal) the tiles of a group of heads come by length, falling and rising from group to group
    and falling in the last, so that every round deals nearly equal tiles; a group's keys and values stay in the L2.
    """
    programs = gl.num_programs(0)
    place = gl.program_id(0)
    place += (turn % 2) * (programs - 1 - 2 * place)
    index = turn * programs + place
    if BY_LENGTH:
        group = index // (heads_together * n_m)
        first = group * heads_together
        index -= first * n_m
        width = gl.minimum(heads_together, n_heads - first)
        m = index // width
        head = first + index - m * width
        groups_after = (n_heads - 1) // heads_together - group
        m += (1 - groups_after % 2) * (n_m - 1 - 2 * m)
    else:
        head = index // n_m
        m = index - head * n_m
    return m, head
