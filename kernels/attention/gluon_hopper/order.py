"""Which query tiles a program takes, in what order, and which key blocks a consumer computes for its part of one.

A consumer works out its next tile while others have the tensor cores. tuning.heads_together says how
many heads are worked on at a time.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.gluon_hopper.masks import key_blocks


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


@gluon.jit
def part(consumer, turn, CONSUMERS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, TURNS: gl.constexpr):
    """Which of a tile's rows a consumer takes.

    Where those further down see more blocks, it is from the other end in every second turn: consumers then have equally
    much to do, as those that are ahead go on to the next tile.
    """
    if CAUSAL and not WINDOW and not TURNS:
        return consumer + (turn % 2) * (CONSUMERS - 1 - 2 * consumer)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        return consumer


@gluon.jit
def work(consumer: gl.constexpr, turn, sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr,
          CAUSAL: gl.constexpr, WINDOW: gl.constexpr, TURNS: gl.constexpr):  # fmt: skip
    """Where this consumer's part of a tile is, the key blocks it computes, and how many it lets pass before them."""
    n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window = sizes
    m, head = tile(turn, n_m, n_heads, heads_together, CAUSAL and not WINDOW)
    low, left, right, high = key_blocks(m, seqlen_q, seqlen_k, window, ROWS * CONSUMERS, BLOCK_N, CAUSAL, WINDOW)
    skipped = gl.to_tensor(0)
    place = part(consumer, turn, CONSUMERS, CAUSAL, WINDOW, TURNS)
    if CAUSAL and not WINDOW and not TURNS:
        last = high
        low, left, right, high = key_blocks(
            m * CONSUMERS + place, seqlen_q, seqlen_k, window, ROWS, BLOCK_N, CAUSAL, WINDOW)  # fmt: skip
        skipped = last - high
    return head, (m * CONSUMERS + place) * ROWS, low, left, right, high, skipped
