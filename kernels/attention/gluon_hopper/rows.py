"""Rows of a tile up to the end of their sequence, stored from registers or cleared behind it; and P that is kept."""

from collections import namedtuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_CLEARED = gl.constexpr(16)  # rows that are cleared at a time


@gluon.jit
def store_tile(address, stride, row, end, x, WIDTH: gl.constexpr):
    """Store WIDTH columns (0: all) of rows from `row` on and before `end`; `stride` is in eights of numbers.

    16 bytes a lane, from registers, which leaves the slot of the queries to the next.
    """
    layout: gl.constexpr = _sixteen_bytes_a_lane(x.shape[1])
    x = gl.convert_layout(x, layout)  # within a warp
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, layout))
    columns = gl.arange(0, x.shape[1], gl.SliceLayout(0, layout))
    address = address + (rows.to(gl.int64) * stride)[:, None] * 8
    inside = (rows < end)[:, None]
    if WIDTH > 0:
        inside = inside & (columns < WIDTH)[None, :]
    gl.store(address + columns[None, :], x, mask=inside)


@gluon.constexpr_function
def _sixteen_bytes_a_lane(width):
    """Return a layout of 64 rows for one warpgroup: a lane holds 8 neighbours, a warp the rows of its products."""
    columns = [[0, 1 << bit] for bit in range(width.bit_length() - 1)]
    lanes = [*columns[3:5], [1, 0], [2, 0], [4, 0]]
    registers = [*columns[:3], [8, 0], *columns[5:]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, width])


@gluon.jit
def clear_rows(tile, inside, COLUMNS: gl.constexpr):
    """Store zeros in the rows of a tile in shared memory, (rows, COLUMNS) of 16 bits, from `inside` on."""
    ROWS: gl.constexpr = _CLEARED
    layout: gl.constexpr = _lines(COLUMNS)
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    PARTS: gl.constexpr = tile.shape[0] // ROWS
    for i in gl.static_range(PARTS):
        part = tile.slice(i * ROWS, ROWS, 0)
        if (i + 1) * ROWS > inside:
            part.store(gl.where((rows < inside - i * ROWS)[:, None], part.load(layout), 0.0))


@gluon.constexpr_function
def _lines(width):
    """Return a layout of a warpgroup whose lanes hold 8 neighbours of a row."""
    lanes = min(32, width // 8)
    return gl.BlockedLayout([1, 8], [32 // lanes, lanes], [4, 1], [1, 0])


# Where P and factors of rows are kept for `second_half_kernel`, and the number of a consumer's first block of them.
KeptBlocks = namedtuple("KeptBlocks", "p factors first")


@gluon.jit
def kept_blocks(consumer: gl.constexpr, p, factors, schedule, CONFIG: gl.constexpr):
    """Return where this consumer keeps its blocks: behind those of the programs before, which the schedule counts."""
    first = gl.load(schedule + 1) * CONFIG.consumers + consumer if CONFIG.keeps_p else gl.to_tensor(0)
    return KeptBlocks(p=p, factors=factors, first=first)


@gluon.jit
def keep_block(kept, count, p, CONFIG: gl.constexpr):
    """Keep P of the count-th block, 64 x 64: a thread stores what it has, 16 bytes at a time."""
    x = p.reshape([4, 2, 8, 4, 2, 4, 2]).permute((3, 0, 2, 5, 4, 1, 6)).reshape([CONFIG.rows, CONFIG.block_n])
    rows = gl.arange(0, CONFIG.rows, gl.SliceLayout(1, x.type.layout))
    columns = gl.arange(0, CONFIG.block_n, gl.SliceLayout(0, x.type.layout))
    place = kept.p + (kept.first + count * CONFIG.consumers) * (CONFIG.rows * CONFIG.block_n)
    gl.store(place + rows[:, None] * CONFIG.block_n + columns[None, :], x)


@gluon.jit
def keep_factors(kept, count, factors, CONFIG: gl.constexpr, LANES: gl.constexpr):
    """Keep a block's factors of rows, (rows, lanes) with LANES, else (rows,)."""
    place = kept.factors + (kept.first + count * CONFIG.consumers) * CONFIG.rows
    if LANES:
        rows = gl.arange(0, CONFIG.rows, gl.SliceLayout(1, factors.type.layout))[:, None]
        gl.store(place + gl.broadcast(rows, factors.to(gl.int32))[0], factors)
    else:
        gl.store(place + gl.arange(0, CONFIG.rows, factors.type.layout), factors)
