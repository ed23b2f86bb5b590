"""The tile scheduler of the backward kernels that own keys: which keys and queries a program has.

Programs start in the order of their numbers. Causal tiles of keys come by length, the longest first, within a group of
key heads, so that all programs end at nearly the same time. For full masks the tiles of the last round, which would
leave many programs without any, may be split by queries (backward_launch.py): a program has one of the splits.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .backward_common import KeyTile, PackedBackwardShape
from .configs import PACKED_FIELDS
from .masks import query_blocks
from .rows import store_tile

_PACKED_FIELDS = gl.constexpr(PACKED_FIELDS)


@gluon.jit
def program_key_tile(split_table, shape, order, CONFIG: gl.constexpr, BY_LENGTH: gl.constexpr):
    """Return the program's KeyTile, and the number of its split.

    Programs are a grid of tiles, key heads and batches, or with `linear_grid` as many as there are whole tiles. With
    `split_q`, `split_table` has an entry for each: tile, first block of queries, block behind the last, number of the
    split. BY_LENGTH: causal tiles are taken by length.
    """
    tile, h_kv, batch = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    split = tile
    entry = split_table + tile * 4
    if CONFIG.linear_grid:
        if CONFIG.split_q:
            tile = gl.load(entry)
            split = gl.load(entry + 3)
        tiles, heads = gl.cdiv(shape.seqlen_k, CONFIG.block_n), num_key_heads(shape, CONFIG)
        h_kv = tile // tiles
        tile -= h_kv * tiles
        batch = h_kv // heads
        h_kv -= batch * heads
    elif BY_LENGTH and (CONFIG.causal and not CONFIG.has_window):
        heads = gl.num_programs(1)
        head = batch * heads + h_kv
        if head >= order.heads_in_order:
            tile, head = tile_by_length(
                tile, head, gl.num_programs(0), heads * gl.num_programs(2), order.heads_in_order, order.heads_per_group
            )
            batch = head // heads
            h_kv = head - batch * heads
    n0 = tile * CONFIG.block_n
    low, left, right, high = query_blocks(n0, shape.n_m, shape, CONFIG)
    if CONFIG.split_q:
        low = gl.load(entry + 1)
        high = gl.load(entry + 2)
        left = gl.minimum(gl.maximum(left, low), high)
        right = gl.minimum(gl.maximum(right, left), high)
    return KeyTile(batch=batch, h_kv=h_kv, n0=n0, low=low, left=left, right=right, high=high), split


@gluon.jit
def num_key_heads(shape, CONFIG: gl.constexpr):
    """Return how many key heads a sequence has, each part of a group counted as one."""
    if CONFIG.uneven_group > 0:
        return shape.num_heads // CONFIG.uneven_group * CONFIG.group_splits
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        return shape.num_heads // shape.group_size


@gluon.jit
def heads_of_part(h_kv, group_size, CONFIG: gl.constexpr):
    """Return the first query head of a key head, or of a part of its group, and how many there are."""
    if CONFIG.uneven_group > 0:
        first = h_kv % CONFIG.group_splits * group_size
        members = gl.minimum(group_size, CONFIG.uneven_group - first)
        return h_kv // CONFIG.group_splits * CONFIG.uneven_group + first, members
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        return h_kv * group_size, group_size


@gluon.jit
def packed_place(tiles, heads):
    """Return the place of the program's tile in the list of packed_tiles.py, negative if it has none, and its key head.

    Key heads come one by one, each with its longest tile first. The last ones, as many as the list says, come together:
    so what is left for the last round is short.
    """
    count = gl.load(tiles)
    together = gl.minimum(gl.load(tiles + 1), heads)
    number = gl.program_id(1) * gl.num_programs(0) + gl.program_id(0)
    head = number // count
    place = number - head * count
    first = heads - together
    if head >= first:
        number -= first * count
        place = number // together
        head = first + number - place * together
    return count - 1 - place, head


@gluon.jit
def packed_key_tile(tiles, place, h_kv, total, CONFIG: gl.constexpr):
    """Return a key head's KeyTile at a place of the list of packed_tiles.py, and the sequence's PackedBackwardShape.

    `total` is the BackwardShape of all sequences together.
    """
    entry = tiles + _PACKED_FIELDS * (place + 1)
    n0 = gl.load(entry) * CONFIG.block_n
    seqlen_q, seqlen_k = gl.load(entry + 3), gl.load(entry + 4)
    shape = PackedBackwardShape(
        num_heads=total.num_heads, group_size=total.group_size, seqlen_q=seqlen_q, seqlen_k=seqlen_k,
        padded_q=total.padded_q, n_m=total.n_m, window=total.window, first_q=gl.load(entry + 1),
        first_k=gl.load(entry + 2), first_m=gl.load(entry + 5))  # fmt: skip
    low, left, right, high = query_blocks(n0, gl.cdiv(seqlen_q, CONFIG.block_m), shape, CONFIG)
    right = gl.maximum(gl.minimum(right, seqlen_q // CONFIG.block_m), left)  # the last block has rows of the next one
    batch = gl.program_id(2)
    return KeyTile(batch=batch, h_kv=h_kv, n0=n0, low=low, left=left, right=right, high=high), shape


@gluon.jit
def tile_by_length(tile, head, tiles, heads, heads_in_order, heads_per_group):
    """Return the (tile, head) that comes where `tile` of `head` would, of `heads` key heads of `tiles` tiles.

    `heads_in_order` heads come one by one before the groups of `heads_per_group`.
    """
    place = (head - heads_in_order) * tiles + tile
    first = place // (tiles * heads_per_group) * heads_per_group
    place -= first * tiles
    width = gl.minimum(heads_per_group, heads - heads_in_order - first)
    tile = place // width
    return tile, heads_in_order + first + place - tile * width


@gluon.jit
def store_partial_dkv(consumer: gl.constexpr, dk, dv, partial_dkv, split, CONFIG: gl.constexpr):
    """Store dK and dV of a consumer's half of the keys of a split, as float32 rows."""
    first = partial_dkv + split.to(gl.int64) * (2 * CONFIG.block_n * CONFIG.head_dim)
    for piece in gl.static_range(CONFIG.sums):
        _store_partial_columns(consumer, dk[piece], dv[piece], first + piece * dk[0].shape[1], CONFIG)


@gluon.jit
def _store_partial_columns(consumer: gl.constexpr, dk, dv, address, CONFIG: gl.constexpr):
    """Store sums over some columns of dK and dV."""
    HALF: gl.constexpr = CONFIG.block_n // 2
    layout: gl.constexpr = dk.type.layout
    rows = consumer * HALF + gl.arange(0, HALF, gl.SliceLayout(1, layout))
    place = address + (rows[:, None] * CONFIG.head_dim + gl.arange(0, dk.shape[1], gl.SliceLayout(0, layout))[None, :])
    gl.store(place, dk)
    gl.store(place + CONFIG.block_n * CONFIG.head_dim, dv)


@gluon.jit
def store_packed_dkv(consumer: gl.constexpr, dk, dv, dk_address, dv_address, tile, shape, softmax_scale,
                     CONFIG: gl.constexpr):  # fmt: skip
    """Store dK and dV of a consumer's half of the keys, up to the end of their sequence."""
    HALF: gl.constexpr = CONFIG.block_n // 2
    heads = shape.num_heads // shape.group_size
    WIDTH: gl.constexpr = CONFIG.unpadded_head_dim
    stored: gl.constexpr = WIDTH if CONFIG.head_dim > WIDTH else 0
    dtype: gl.constexpr = dk_address.dtype.element_ty
    stride = heads * (WIDTH // 8)
    place = (shape.first_k.to(gl.int64) * heads + tile.h_kv) * WIDTH
    row = tile.n0 + consumer * HALF
    store_tile(dk_address + place, stride, row, shape.seqlen_k, (dk * softmax_scale).to(dtype), stored)
    store_tile(dv_address + place, stride, row, shape.seqlen_k, dv.to(dtype), stored)
