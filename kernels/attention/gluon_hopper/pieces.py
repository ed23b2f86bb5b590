"""Tiles whose rows are stored in shared memory as pieces: of 64 columns up to head_dim 192, of 256 at 512.

Shapes of tiles are powers of two, and a TMA instruction loads up to 256 columns. A tile of a slot is `pieces` tiles one
behind the other, each loaded by a separate TMA instruction, and a product over rows is as many in a chain. Other
rows are one piece.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .compat import opaque_zero, tma_load, tma_store


@gluon.jit
def load_pieces(desc, batch, head, row, full, tiles, slot, PIECES: gl.constexpr):
    """Load a tile, all pieces of it, and have its barrier expect as much."""
    mbarrier.expect(full, PIECES * desc.block_type.nbytes)
    columns: gl.constexpr = tiles.shape[4]
    for piece in gl.static_range(PIECES):
        tma_load(desc, [batch, head, row, piece * columns], full, place_of(tiles, slot, piece, PIECES))


@gluon.jit
def place_of(tiles, slot, piece: gl.constexpr, PIECES: gl.constexpr):
    """Return a piece of a tile as TMA takes it."""
    if PIECES == 1:  # without arithmetic: instructions come in another order with it
        return tiles.index(slot)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        return tiles.index(slot * PIECES + piece)


@gluon.jit
def piece_of(tiles, slot, piece: gl.constexpr, PIECES: gl.constexpr):
    """Return a piece of a tile as (rows, columns)."""
    return place_of(tiles, slot, piece, PIECES).reshape([tiles.shape[3], tiles.shape[4]])


@gluon.jit
def pieces_of(tiles, slot, PIECES: gl.constexpr):
    """Return all pieces of a tile, (rows, columns) each, as a tuple."""
    found = (piece_of(tiles, slot, 0, PIECES),)
    for piece in gl.static_range(1, PIECES):
        found = found + (piece_of(tiles, slot, piece, PIECES),)
    return found


@gluon.jit
def transposed(tile, PIECES: gl.constexpr):
    """Return the pieces of a tile, each transposed."""
    found = (tile[0].permute((1, 0)),)
    for piece in gl.static_range(1, PIECES):
        found = found + (tile[piece].permute((1, 0)),)
    return found


@gluon.jit
def product_of_rows(a, b_t, acc, PIECES: gl.constexpr, COLUMNS: gl.constexpr = 0):
    """Begin the product of two tiles, in pieces, the second transposed; what `acc` holds is not added to.

    COLUMNS: how many of all pieces; one that is alone as in `product_over_columns`; 0: all.
    """
    REST: gl.constexpr = COLUMNS % a[0].shape[1]  # of the last piece; 0: all
    if PIECES == 1 and REST > 0:
        return product_over_columns(a[0], b_t[0].permute((1, 0)), acc, COLUMNS)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        for piece in gl.static_range(PIECES):
            if REST > 0 and piece == PIECES - 1:
                last = b_t[piece].permute((1, 0)).slice(0, REST, 1).permute((1, 0))
                acc = warpgroup_mma(a[piece].slice(0, REST, 1), last, acc, is_async=True)
            else:
                acc = warpgroup_mma(a[piece], b_t[piece], acc, use_acc=piece > 0, is_async=True)
        return acc


@gluon.jit
def load_keys_by_piece(desc, batch, head, row, count, buffers, CONFIG: gl.constexpr):
    """Load the count-th block's keys into the only slot, each piece when both consumers have released it."""
    for piece in gl.static_range(CONFIG.pieces):
        full = buffers.k_full.index(piece)
        mbarrier.wait(buffers.k_empty.index(piece), (count & 1) ^ 1)
        mbarrier.expect(full, desc.block_type.nbytes)
        column = piece * buffers.k.shape[4]
        tma_load(desc, [batch, head, row, column], full, place_of(buffers.k, 0, piece, CONFIG.pieces))


@gluon.jit
def product_by_piece(q, exists, count, buffers, layout: gl.constexpr, CONFIG: gl.constexpr):
    """Begin the product of queries with the count-th block's keys, in the only slot; release all pieces but the last.

    Unless the block `exists`, nobody reads the product.
    """
    acc = gl.zeros([CONFIG.rows, CONFIG.block_n], gl.float32, layout)
    for piece in gl.static_range(CONFIG.pieces):
        if exists:
            mbarrier.wait(buffers.k_full.index(piece), count & 1)
        keys = piece_of(buffers.k, opaque_zero(), piece, CONFIG.pieces)
        acc = warpgroup_mma(q[piece], keys.permute((1, 0)), acc, use_acc=piece > 0, is_async=True)
        if piece > 0:
            acc = warpgroup_mma_wait(1, deps=(acc,))
            if exists:
                mbarrier.arrive(buffers.k_empty.index(piece - 1), count=1)
    return acc


@gluon.jit
def product_over_columns(a, b, zero, COLUMNS: gl.constexpr):
    """Begin a b^T over the first 32, 64 + 16, 64 + 32 or all columns of two tiles of rows."""
    FIRST: gl.constexpr = 64
    REST: gl.constexpr = COLUMNS - FIRST
    if a.shape[1] == COLUMNS:
        return warpgroup_mma(a, b.permute((1, 0)), zero, use_acc=False, is_async=True)
    elif COLUMNS < FIRST:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        b_t = b.slice(0, COLUMNS, 1).permute((1, 0))
        return warpgroup_mma(a.slice(0, COLUMNS, 1), b_t, zero, use_acc=False, is_async=True)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        b_t = b.slice(0, FIRST, 1).permute((1, 0))
        token = warpgroup_mma(a.slice(0, FIRST, 1), b_t, zero, use_acc=False, is_async=True)
        b_t = b.slice(FIRST, REST, 1).permute((1, 0))
        return warpgroup_mma(a.slice(FIRST, REST, 1), b_t, token, is_async=True)


@gluon.constexpr_function
def width_of_sum(piece, config):
    """Return how many columns a sum of `zeros_in_columns` has."""
    if config.sums == 1:
        return config.columns if config.columns < 64 else config.head_dim_v
    return min(64, config.columns - 64 * piece)


@gluon.jit
def _zeros(rows: gl.constexpr, columns: gl.constexpr):
    return gl.zeros([rows, columns], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16]))


@gluon.jit
def zeros_in_columns(rows: gl.constexpr, CONFIG: gl.constexpr):
    """Return sums over the columns in use of a tile of `rows` rows, a tuple: of 64 and of the others, or all in one."""
    sums = (_zeros(rows, width_of_sum(0, CONFIG)),)
    for piece in gl.static_range(1, CONFIG.sums):
        sums = sums + (_zeros(rows, width_of_sum(piece, CONFIG)),)
    return sums


@gluon.jit
def values_of_sum(tiles, slot, piece: gl.constexpr, CONFIG: gl.constexpr):
    """Return the columns of a slot's values that a sum has."""
    width: gl.constexpr = width_of_sum(piece, CONFIG)
    if CONFIG.pieces_v == 1:
        values = tiles.index(slot).reshape([CONFIG.block_n, CONFIG.head_dim_v])
        return values.slice(piece * width_of_sum(0, CONFIG), width, 1)
    elif width < 64:  # noqa: RET505 - the compiler drops all but one branch, not what follows a return
        return piece_of(tiles, slot, piece, CONFIG.pieces_v).slice(0, width, 1)
    else:
        return piece_of(tiles, slot, piece, CONFIG.pieces_v)


@gluon.jit
def add_values(p, tiles, slot, sums, CONFIG: gl.constexpr):
    """Begin the products of P with the columns in use of a slot's values, added to a tuple of sums."""
    tokens = (warpgroup_mma(p, values_of_sum(tiles, slot, 0, CONFIG), sums[0], is_async=True),)
    for piece in gl.static_range(1, CONFIG.sums):
        a = gl.convert_layout(p, gl.DotOperandLayout(0, sums[piece].type.layout, 2), assert_trivial=True)
        token = warpgroup_mma(a, values_of_sum(tiles, slot, piece, CONFIG), sums[piece], is_async=True)
        tokens = tokens + (token,)
    return tokens


@gluon.jit
def columns_of(tile, piece: gl.constexpr, sums):
    """Return the columns of a tile that a sum of `zeros_in_columns` has."""
    return tile.slice(piece * sums[0].shape[1], sums[piece].shape[1], 1)


@gluon.jit
def add_in_columns(a, tile, sums, CONFIG: gl.constexpr):
    """Begin the products of a tile `a`, 16 bits, with the columns in use of another, added to a tuple of sums."""
    if CONFIG.sums == 1:
        return (warpgroup_mma(a, columns_of(tile, 0, sums), sums[0], is_async=True),)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        first = warpgroup_mma(a, columns_of(tile, 0, sums), sums[0], is_async=True)
        a = gl.convert_layout(a, gl.DotOperandLayout(0, sums[1].type.layout, 2), assert_trivial=True)
        return (first, warpgroup_mma(a, columns_of(tile, 1, sums), sums[1], is_async=True))


@gluon.jit
def zeros_of_pieces(rows: gl.constexpr, columns: gl.constexpr, layout: gl.constexpr, PIECES: gl.constexpr):
    """Return a tuple of sums, one for each piece of a tile of `rows` rows."""
    sums = (gl.zeros([rows, columns], gl.float32, layout),)
    for _ in gl.static_range(PIECES - 1):
        sums = sums + (gl.zeros([rows, columns], gl.float32, layout),)
    return sums


@gluon.jit
def add_products(a, tiles, slot, sums, PIECES: gl.constexpr):
    """Begin the products of a tile `a`, 16 bits, with all pieces of another, added to a tuple of sums."""
    tokens = (warpgroup_mma(a, piece_of(tiles, slot, 0, PIECES), sums[0], is_async=True),)
    for piece in gl.static_range(1, PIECES):
        token = warpgroup_mma(a, piece_of(tiles, slot, piece, PIECES), sums[piece], is_async=True)
        tokens = tokens + (token,)
    return tokens


@gluon.jit
def wait_for_pieces(pending: gl.constexpr, sums, operand, PIECES: gl.constexpr):
    """Wait until at most `pending` products run; return the sums, and the operand that had to stay in its registers."""
    if PIECES == 1:
        first, operand = warpgroup_mma_wait(pending, deps=(sums[0], operand))
        return (first,), operand
    elif PIECES == 2:  # noqa: RET505
        first, second, operand = warpgroup_mma_wait(pending, deps=(sums[0], sums[1], operand))
        return (first, second), operand
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        first, second, third, operand = warpgroup_mma_wait(pending, deps=(sums[0], sums[1], sums[2], operand))
        return (first, second, third), operand


@gluon.jit
def store_pieces(desc, batch, head, row, tiles, slot, sums, factor, PIECES: gl.constexpr):
    """Store sums times a factor by TMA, through the tile that they are as wide as, and wait for it."""
    columns: gl.constexpr = tiles.shape[4]
    for piece in gl.static_range(PIECES):
        piece_of(tiles, slot, piece, PIECES).store((sums[piece] * factor).to(tiles.dtype))
    fence_async_shared()
    for piece in gl.static_range(PIECES):
        tma_store(desc, [batch, head, row, piece * columns], place_of(tiles, slot, piece, PIECES))
    tma.store_wait(0)
