"""Which keys and queries a program of the backward has.

Programs start in the order of their numbers. Causal tiles of keys come by length, the longest first, within a group of
key heads, so that all programs end at nearly the same time. For full masks the tiles of the last round, which would
leave many programs without any, may be cut by queries (backward_launch.py): a program has a piece of one.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.gluon_hopper.masks import query_blocks


@gluon.jit
def tile_by_length(tile, head, tiles, heads, alone, together):
    """(tile, head) that comes where `tile` of `head` would; `alone` heads come before the groups, one by one."""
    place = (head - alone) * tiles + tile
    first = place // (tiles * together) * together
    place -= first * tiles
    width = gl.minimum(together, heads - alone - first)
    tile = place // width
    return tile, alone + first + place - tile * width


@gluon.jit
def place_of_program(pieces, sizes, alone, together, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                     CAUSAL: gl.constexpr, WINDOW: gl.constexpr, BY_LENGTH: gl.constexpr, NUMBERED: gl.constexpr,
                     CUT: gl.constexpr):  # fmt: skip
    """(batch, key head, first key, query blocks as of query_blocks), and where a piece's sums go.

    Programs are a grid of tiles, key heads and batches, or with NUMBERED as many as there are whole tiles. With CUT,
    `pieces` has an entry for each: tile, first block of queries, block behind the last, room for the sums. BY_LENGTH:
    causal tiles are taken by length.
    """
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    tile, h_kv, batch = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    room = tile
    entry = pieces + tile * 4
    if NUMBERED:
        if CUT:
            tile = gl.load(entry)
            room = gl.load(entry + 3)
        tiles, heads = gl.cdiv(seqlen_k, BLOCK_N), num_heads // group_size
        h_kv = tile // tiles
        tile -= h_kv * tiles
        batch = h_kv // heads
        h_kv -= batch * heads
    elif BY_LENGTH and (CAUSAL and not WINDOW):
        heads = gl.num_programs(1)
        head = batch * heads + h_kv
        if head >= alone:
            tile, head = tile_by_length(tile, head, gl.num_programs(0), heads * gl.num_programs(2), alone, together)
            batch = head // heads
            h_kv = head - batch * heads
    n0 = tile * BLOCK_N
    low, left, right, high = query_blocks(n0, n_m, seqlen_q, seqlen_k, window, BLOCK_M, BLOCK_N, CAUSAL, WINDOW)
    if CUT:
        low = gl.load(entry + 1)
        high = gl.load(entry + 2)
        left = gl.minimum(gl.maximum(left, low), high)
        right = gl.minimum(gl.maximum(right, left), high)
    return (batch, h_kv, n0, low, left, right, high), room


@gluon.jit
def store_sums(consumer: gl.constexpr, dk, dv, sums, room, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr):
    """dK and dV of a consumer's half of the keys of a piece, as float32 rows."""
    HALF: gl.constexpr = BLOCK_N // 2
    rows = consumer * HALF + gl.arange(0, HALF, gl.SliceLayout(1, dk.type.layout))
    columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, dk.type.layout))
    place = sums + room.to(gl.int64) * (2 * BLOCK_N * HEAD_DIM) + (rows[:, None] * HEAD_DIM + columns[None, :])
    gl.store(place, dk)
    gl.store(place + BLOCK_N * HEAD_DIM, dv)
