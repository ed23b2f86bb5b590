"""The tile scheduler of the forward on the device: a program's query tiles, and which key blocks a consumer computes.

With `host_schedule` a program reads its tiles from the schedule that forward_schedule.py makes on the host; else it
works them out. A consumer does so while others have the tensor cores.

With `packed`, sequences lie one after the other, and their lengths are known on the device alone: a program works out
which tiles of the list that packed_tiles.py writes are its own. Their keys may lie in pages.
"""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from .compat import reinterpret, run_ptx, tma_load
from .configs import BOX_COLUMNS, PACKED_FIELDS, SCHEDULE_FIELDS
from .masks import key_blocks, whole_windows

_FIELDS = gl.constexpr(SCHEDULE_FIELDS)
_PACKED_FIELDS = gl.constexpr(PACKED_FIELDS)
_COLUMNS = gl.constexpr(BOX_COLUMNS)


# Sizes that the forward's partitions need. `schedule`: int32, this program's number of tiles, then the entries of each
# (forward_schedule.py, packed_tiles.py), on the host its length; `n_tiles`: tiles of all heads; `n_m`: tiles of a head;
# `n_heads`: batch x num_heads; `group_size`: query heads of a key head; `heads_in_l2`: heads processed at a time.
ForwardShape = namedtuple(
    "ForwardShape", "schedule n_tiles n_m num_heads n_heads group_size heads_in_l2 seqlen_q seqlen_k window"
)
# Which rows of queries and keys a tile's sequence has, and its window.
Sequence = namedtuple("Sequence", "first_q first_k seqlen_q seqlen_k window")
# A consumer's part of a tile. `head`: counted over all sequences, but of packed ones; `row`: the first of 64, in its
# sequence; `split`: number of the split of its keys, or -1.
ConsumerTile = namedtuple("ConsumerTile", "head row split sequence")


@gluon.jit
def num_program_tiles(shape, CONFIG: gl.constexpr):
    """Return how many tiles this program takes."""
    if CONFIG.host_schedule:
        return gl.load(shape.schedule)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        return num_static_tiles(shape.n_tiles)


@gluon.jit
def program_tile(i_tile, shape, CONFIG: gl.constexpr):
    """Return the query tile, head, counted over all sequences, and Sequence of this program's tile number `i_tile`."""
    whole = Sequence(first_q=gl.to_tensor(0), first_k=gl.to_tensor(0), seqlen_q=shape.seqlen_q, seqlen_k=shape.seqlen_k,
                     window=shape.window)  # fmt: skip
    if CONFIG.packed:
        place, head = static_tile(i_tile, shape.n_m, shape.n_heads, shape.heads_in_l2, True)
        place = gl.minimum(gl.maximum(place, 0), shape.n_m - 1)  # behind the last tile: looked up and not taken
        entry = shape.schedule + _PACKED_FIELDS * (place + 1)
        sequence = Sequence(first_q=gl.load(entry + 1), first_k=gl.load(entry + 2), seqlen_q=gl.load(entry + 3),
                            seqlen_k=gl.load(entry + 4), window=shape.window)  # fmt: skip
        return gl.load(entry), head, sequence
    elif CONFIG.host_schedule:  # noqa: RET505
        entry = shape.schedule + _FIELDS * (i_tile + 1)
        return gl.load(entry), gl.load(entry + 1), whole
    else:
        by_length: gl.constexpr = CONFIG.causal and not CONFIG.has_window
        m, head = static_tile(i_tile, shape.n_m, shape.n_heads, shape.heads_in_l2, by_length)
        return m, head, whole


@gluon.jit
def packed_heads(schedule, n_heads, heads_in_l2):
    """Return how many heads are worked on at a time: as many as fit in the L2, or as the list says if these are more.

    Dealt head by head, a few tiles that take most of the time would go to the same programs again and again.
    """
    most = gl.minimum(gl.maximum(heads_in_l2, gl.load(schedule + 1)), n_heads)
    return gl.cdiv(n_heads, gl.cdiv(n_heads, most))


@gluon.jit
def prefetch_schedule(schedule, length):
    """Prefetch a program's entries, or the first 256, into the L2: they are read one by one."""
    lines = gl.minimum(8 * gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0])), length * _FIELDS - 1)
    fetch: gl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
    run_ptx(fetch, "=r,l", ((schedule + lines).to(gl.int64),))


@gluon.jit
def num_static_tiles(n_tiles):
    """Return how many tiles this program takes without a schedule.

    The direction turns every round, so the last round may start from its end.
    """
    programs = gl.num_programs(0)
    full = n_tiles // programs
    place = gl.program_id(0)
    if full % 2 == 1:
        place = programs - 1 - place
    return full + (place < n_tiles - full * programs).to(gl.int32)


@gluon.jit
def static_index(i_tile):
    """Return which of all tiles this program's tile number `i_tile` is without a schedule."""
    programs = gl.num_programs(0)
    place = gl.program_id(0)
    place += (i_tile % 2) * (programs - 1 - 2 * place)
    return i_tile * programs + place


@gluon.jit
def static_tile(i_tile, n_m, n_heads, heads_in_l2, BY_LENGTH: gl.constexpr):
    """Return the query tile and head of this program's tile number `i_tile` without a schedule.

    With `BY_LENGTH` (causal) the tiles of a group of heads come by length, falling and rising from group to group
    and falling in the last, so that every round deals nearly equal tiles; a group's keys and values stay in the L2.
    """
    index = static_index(i_tile)
    if BY_LENGTH:
        group = index // (heads_in_l2 * n_m)
        first = group * heads_in_l2
        index -= first * n_m
        width = gl.minimum(heads_in_l2, n_heads - first)
        m = index // width
        head = first + index - m * width
        groups_after = (n_heads - 1) // heads_in_l2 - group
        m += (1 - groups_after % 2) * (n_m - 1 - 2 * m)
    else:
        head = index // n_m
        m = index - head * n_m
    return m, head


@gluon.jit
def split_of_keys(i_tile, n_blocks, shape):
    """Return the number of this program's split of a tile's keys, or -1, and its blocks [first, end)."""
    entry = shape.schedule + _FIELDS * (i_tile + 1)
    split = gl.load(entry + 2)
    blocks = gl.load(entry + 3)
    first = blocks & 0xFFFF
    end = (blocks >> 16) & 0xFFFF
    if split < 0:
        end = n_blocks
    return split, first, end


@gluon.jit
def blocks_of_split(first, end, right, high):
    """Return which of the blocks below `high`, masked from `right` on, are a split's, at least one, as `key_blocks`."""
    high = gl.maximum(gl.minimum(high, end), first + 1)
    return first, first, gl.maximum(gl.minimum(right, high - 1), first), high


@gluon.constexpr_function
def has_own_blocks(config):
    """Return whether a consumer leaves out blocks of a tile's keys that only the rows of others see.

    Consumers that alternate must stay in step. They do in windows if a block has as many keys as a consumer has rows.
    With one slot of queries the first product of a tile waits for no turn, nor need the blocks that are left out.
    """
    if config.has_window:
        return config.pingpong and config.q_slots == 1 and config.block_n == config.rows
    return config.causal and not config.pingpong


@gluon.jit
def consumer_slice(consumer, i_tile, CONFIG: gl.constexpr):
    """Return which 64 of a tile's rows a consumer takes.

    Where rows further down see more blocks, it is from the other end in every second tile: consumers then have equally
    much to do, as those that are ahead go on to the next tile. In windows the consumer whose turn comes first takes the
    last rows, which see the first block: both then use a block one after the other.
    """
    if has_own_blocks(CONFIG):
        flips = 1 if CONFIG.has_window else i_tile % 2
        return consumer + flips * (CONFIG.consumers - 1 - 2 * consumer)
    else:  # noqa: RET505
        return consumer


@gluon.jit
def part_of_tile(number, head, sequence, shape, CONFIG: gl.constexpr):
    """Return the head of the 64 rows of that number, and their number in it: behind the last head, beyond its end.

    With `across_heads` a tile's rows go on to the next query head that has the keys of `head`, the first one.
    """
    if CONFIG.across_heads:
        parts = gl.cdiv(sequence.seqlen_q, CONFIG.rows)
        before = gl.minimum(number // parts, shape.group_size - 1)
        head += before
        number -= before * parts
    return head, number


@gluon.jit
def blocks_of_tile(m, sequence, CONFIG: gl.constexpr):
    """Return the key blocks that any row of a tile sees, as `key_blocks`; with `across_heads`, any row of a head."""
    if CONFIG.across_heads:
        m = gl.to_tensor(0)
    low, left, right, high = key_blocks(m, sequence, CONFIG.rows * CONFIG.consumers, CONFIG)
    if CONFIG.across_heads:
        high = gl.cdiv(sequence.seqlen_k, CONFIG.block_n)
    return low, left, right, high


@gluon.jit
def consumer_work(consumer: gl.constexpr, i_tile, shape, CONFIG: gl.constexpr):
    """Return where this consumer's part of a tile is, the key blocks it computes, and how many it skips before them."""
    m, head, sequence = program_tile(i_tile, shape, CONFIG)
    low, left, right, high = blocks_of_tile(m, sequence, CONFIG)
    split = gl.to_tensor(-1)
    if CONFIG.split_kv:
        split, first, end = split_of_keys(i_tile, high, shape)
        low, left, right, high = blocks_of_split(first, end, right, high)
    skipped = gl.to_tensor(0)
    place = consumer_slice(consumer, i_tile, CONFIG)
    if has_own_blocks(CONFIG):  # noqa: SIM102 - decided at compile time
        if not CONFIG.has_window or whole_windows(m, sequence, CONFIG):
            last = high
            _head, number = part_of_tile(m * CONFIG.consumers + place, head, sequence, shape, CONFIG)
            low, left, right, high = key_blocks(number, sequence, CONFIG.rows, CONFIG)
            if CONFIG.split_kv:
                low, left, right, high = blocks_of_split(first, end, right, high)
            skipped = last - high
    head, number = part_of_tile(m * CONFIG.consumers + place, head, sequence, shape, CONFIG)
    tile = ConsumerTile(head=head, row=number * CONFIG.rows, split=split, sequence=sequence)
    return tile, low, left, right, high, skipped


@gluon.jit
def blocks_behind(tile, low, CONFIG: gl.constexpr):
    """Return how many blocks of a consumer's tile come after its own, of which the last is `low`."""
    behind = gl.to_tensor(0)
    if CONFIG.has_window and has_own_blocks(CONFIG):
        m = tile.row // (CONFIG.rows * CONFIG.consumers)
        first, _left, _right, _high = blocks_of_tile(m, tile.sequence, CONFIG)
        behind = low - first
    return behind


@gluon.constexpr_function
def _rows_of_part(config):
    return min(config.page_size, config.block_n)


@gluon.jit
def pages_of_block(table, sequence, j, CONFIG: gl.constexpr):
    """Return the numbers of the pages of each part of a sequence's key block j; behind its end, that of its last.

    A table has a row for each sequence, one behind the other; `first_k` is where its keys would be if rows were full.
    """
    rows: gl.constexpr = _rows_of_part(CONFIG)
    own = table + sequence.first_k // CONFIG.page_size
    last = gl.maximum(gl.cdiv(sequence.seqlen_k, CONFIG.page_size) - 1, 0)
    found = (gl.load(own + gl.minimum(j * CONFIG.block_n // CONFIG.page_size, last)),)
    for part in gl.static_range(1, CONFIG.block_n // rows):
        found = found + (gl.load(own + gl.minimum((j * CONFIG.block_n + part * rows) // CONFIG.page_size, last)),)
    return found


@gluon.jit
def load_pages(desc, pages, head, j, full, tiles, slot, CONFIG: gl.constexpr):
    """Load key block j, all parts of it, and have its barrier expect as much.

    Pages that hold no whole block are loaded in boxes of a page's rows and 64 columns: in shared memory the columns of
    a tile from the 64th on lie behind those before. TMA fills what is outside of all pages with zeros.
    """
    rows: gl.constexpr = _rows_of_part(CONFIG)
    parts: gl.constexpr = CONFIG.block_n // rows
    if parts == 1:
        mbarrier.expect(full, desc.block_type.nbytes)
        tma_load(desc, [pages[0], head, j * rows % CONFIG.page_size, 0], full, tiles.index(slot))
    else:
        pieces: gl.constexpr = CONFIG.head_dim // _COLUMNS
        boxes = reinterpret(tiles, tiles.dtype, [CONFIG.kv_slots * pieces * parts, 1, 1, rows, _COLUMNS], desc.layout)
        mbarrier.expect(full, pieces * parts * desc.block_type.nbytes)
        for piece in gl.static_range(pieces):
            for part in gl.static_range(parts):
                box = boxes.index((slot * pieces + piece) * parts + part)
                tma_load(desc, [pages[part], head, 0, piece * _COLUMNS], full, box)
