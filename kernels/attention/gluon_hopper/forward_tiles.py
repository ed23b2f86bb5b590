"""A program's tiles, and which key blocks a consumer computes for its part of one.

With `DEALT` a program reads its tiles from the agenda that forward_schedule.py makes on the host, else it works them
out (forward_tiles.py). A consumer does so while others have the tensor cores.

Which query tiles a program takes, in what order, where it works that out for itself.

tuning.heads_together says how many heads are worked on at a time.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.gluon_hopper.masks import key_blocks
from kernels.attention.gluon_hopper.tuning import ENTRY


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


_ENTRY = gl.constexpr(ENTRY)


@gluon.jit
def fetch_agenda(agenda, entries):
    """Bring a program's entries, or the first 256, into the L2: they are read one by one."""
    lines = gl.minimum(8 * gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0])), entries * _ENTRY - 1)
    fetch: gl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
    gl.inline_asm_elementwise(fetch, "=r,l", [(agenda + lines).to(gl.int64)], gl.int32, is_pure=False, pack=1)


@gluon.jit
def own_rounds(sizes, DEALT: gl.constexpr):
    """How many tiles this program takes."""
    agenda, n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window = sizes
    if DEALT:
        return gl.load(agenda)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        return rounds(n_tiles)


@gluon.jit
def own_tile(turn, sizes, DEALT: gl.constexpr, BY_LENGTH: gl.constexpr):
    """The query tile and head, counted over all sequences, of this program's turn-th tile."""
    agenda, n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window = sizes
    if DEALT:
        entry = agenda + _ENTRY * (turn + 1)
        return gl.load(entry), gl.load(entry + 1)
    else:  # noqa: RET505
        return tile(turn, n_m, n_heads, heads_together, BY_LENGTH)


@gluon.jit
def shared_blocks(turn, sizes, BLOCK_N: gl.constexpr):
    """The key blocks of a tile that are this program's, as `key_blocks` has them, and its part's number or -1."""
    agenda, n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window = sizes
    entry = agenda + _ENTRY * (turn + 1)
    part = gl.load(entry + 2)
    blocks = gl.load(entry + 3)
    low = blocks & 0xFFFF
    high = (blocks >> 16) & 0xFFFF
    if part < 0:
        high = gl.cdiv(seqlen_k, BLOCK_N)
    return part, low, low, gl.maximum(gl.minimum(seqlen_k // BLOCK_N, high - 1), low), high


@gluon.jit
def rows_of(consumer, turn, CONSUMERS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, TURNS: gl.constexpr):
    """Which of a tile's rows a consumer takes.

    Where those further down see more blocks, it is from the other end in every second turn: consumers then have equally
    much to do, as those that are ahead go on to the next tile.
    """
    if CAUSAL and not WINDOW and not TURNS:
        return consumer + (turn % 2) * (CONSUMERS - 1 - 2 * consumer)
    else:  # noqa: RET505
        return consumer


@gluon.jit
def work(consumer: gl.constexpr, turn, sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr,
          CAUSAL: gl.constexpr, WINDOW: gl.constexpr, TURNS: gl.constexpr, DEALT: gl.constexpr,
          SHARED: gl.constexpr):  # fmt: skip
    """Where this consumer's part of a tile is: (head, first row, part of the keys or -1).

    And the key blocks it computes, as `key_blocks` has them, and how many it lets pass before them.
    """
    agenda, n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window = sizes
    m, head = own_tile(turn, sizes, DEALT, CAUSAL and not WINDOW)
    low, left, right, high = key_blocks(m, seqlen_q, seqlen_k, window, ROWS * CONSUMERS, BLOCK_N, CAUSAL, WINDOW)
    shared = gl.to_tensor(-1)
    if SHARED:
        shared, low, left, right, high = shared_blocks(turn, sizes, BLOCK_N)
    skipped = gl.to_tensor(0)
    place = rows_of(consumer, turn, CONSUMERS, CAUSAL, WINDOW, TURNS)
    if CAUSAL and not WINDOW and not TURNS:
        last = high
        low, left, right, high = key_blocks(
            m * CONSUMERS + place, seqlen_q, seqlen_k, window, ROWS, BLOCK_N, CAUSAL, WINDOW)  # fmt: skip
        skipped = last - high
    return (head, (m * CONSUMERS + place) * ROWS, shared), low, left, right, high, skipped
