"""Scores with features, for tiles either way round, and the parts of tiles that forward and backward share.

Scores are in powers of two. Rows and keys are given as (rows, 1) and (1, keys), or as (1, rows) and (keys, 1).

Rows of q and k are two panels of powers of two, so that head_dim 192 takes 128 and 64 columns rather than 256.
"""

import triton
import triton.language as tl

from ....plans import LOG2_E
from ..forward import visible

_LOG2_E = tl.constexpr(LOG2_E)


@triton.jit
def place(seqlen, heads, TILE: tl.constexpr):
    """Return a program's first row, head and batch; programs count the tiles of a head first, the last tile first."""
    tiles = tl.cdiv(seqlen, TILE)
    tile = tiles - 1 - tl.program_id(0) % tiles
    rest = tl.program_id(0) // tiles
    return tile * TILE, tl.cast(rest % heads, tl.int64), tl.cast(rest // heads, tl.int64)


@triton.jit
def rows_of(rows, batch, head, first):
    """Return the address of row `first` of a batch and head."""
    return rows.base + batch * rows.b + head * rows.h + tl.cast(first, tl.int64) * rows.m


@triton.jit
def places_in_pages(keys, seqlen_k, batch, tensors, CONFIG: tl.constexpr):
    """Return the pages of keys of a sequence, and the places of the keys in them.

    Nothing is read for keys beyond the sequence. A number of a page that does not exist becomes that of one that does.
    """
    entries = tensors.table + batch * tensors.table_b + keys // CONFIG.page_size
    pages = tl.load(entries, mask=keys < seqlen_k, other=0)
    pages = tl.minimum(tl.maximum(pages, 0), tensors.last_page)
    return tl.cast(pages, tl.int64), tl.cast(keys % CONFIG.page_size, tl.int64)


@triton.jit
def load_from_pages(
    rows, head, places, there,
    FIRST: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Load HEAD_DIM columns from FIRST on, of rows of one head at places in pages; zeros where they are not `there`."""
    dims = tl.arange(0, BLOCK_D)
    pointers = rows.base + FIRST + head * rows.h + places[0] * rows.b + places[1] * rows.m
    mask = there[:, None] & (dims < HEAD_DIM)[None, :]
    return tl.load(pointers[:, None] + dims[None, :], mask=mask, other=0.0)


@triton.jit
def load_panels_from_pages(rows, head, places, there, CONFIG: tl.constexpr):
    """Load rows as panels.load_panels does, from pages."""
    FIRST: tl.constexpr = CONFIG.block_d if CONFIG.block_d2 > 0 else CONFIG.head_dim
    low = load_from_pages(rows, head, places, there, 0, FIRST, CONFIG.block_d)
    high = low
    if CONFIG.block_d2 > 0:
        SECOND: tl.constexpr = CONFIG.head_dim - CONFIG.block_d
        high = load_from_pages(rows, head, places, there, CONFIG.block_d, SECOND, CONFIG.block_d2)
    return low, high


@triton.jit
def sequence(tensors, shape, batch, CONFIG: tl.constexpr):
    """Return where a batch's queries and keys begin in their rows, and their numbers."""
    if CONFIG.bounded:
        first_q = tl.load(tensors.starts_q + batch)
        first_k = tl.load(tensors.starts_k + batch)
        seqlen_q = tl.load(tensors.ends_q + batch) - first_q
        seqlen_k = tl.load(tensors.ends_k + batch) - first_k
    else:
        first_q = 0
        first_k = 0
        seqlen_q = shape.seqlen_q
        seqlen_k = shape.seqlen_k
    return first_q, first_k, seqlen_q, seqlen_k


@triton.jit
def zero_panels(ROWS: tl.constexpr, CONFIG: tl.constexpr):
    """Return sums of rows of dq or dk to begin with."""
    low = tl.zeros([ROWS, CONFIG.block_d], dtype=tl.float32)
    high = low
    if CONFIG.block_d2 > 0:
        high = tl.zeros([ROWS, CONFIG.block_d2], dtype=tl.float32)
    return low, high


@triton.jit
def add_to_panels(sums, a, b, CONFIG: tl.constexpr):
    """Return sums + a b, where b has two panels."""
    low = tl.dot(a.to(b[0].dtype), b[0], sums[0], input_precision=CONFIG.precision)
    high = low
    if CONFIG.block_d2 > 0:
        high = tl.dot(a.to(b[1].dtype), b[1], sums[1], input_precision=CONFIG.precision)
    return low, high


@triton.jit
def tanh(x):
    """Return tanh(x), by its series near 0, where 1 - exp(-2x) would lose digits."""
    decay = tl.exp2(tl.abs(x) * (-2.0 * _LOG2_E))
    far = (1.0 - decay) / (1.0 + decay)
    y = x * x
    series = 1.0 + y * (-1.0 / 3 + y * (2.0 / 15 + y * (-17.0 / 315 + y * (62.0 / 2835))))
    return tl.where(y < 0.0625, x * series, tl.where(x < 0, -far, far))


@triton.jit
def load_sink(tensors, head):
    """Return the sink of a head in powers of two."""
    return tl.load(tensors.sinks + head).to(tl.float32) * _LOG2_E


@triton.jit
def capped(products, shape, CONFIG: tl.constexpr):
    """Return the scores of products q k^T before any mask, and the tanh of the softcap (the scores without one)."""
    if CONFIG.softcap:
        x = products * (shape.scale / shape.softcap)
        bend = 1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * _LOG2_E))) if CONFIG.half else tanh(x)  # off by 1e-7 near 0
        scores = bend * (shape.softcap * _LOG2_E)
    else:
        scores = products * (shape.scale * _LOG2_E)
        bend = scores
    return scores, bend


@triton.jit
def masked(scores, rows, keys, batch, head, bounds, tensors, shape, CONFIG: tl.constexpr):
    """Return scores with slopes and masks, -inf where a key is not seen. `head` is the query head."""
    first_q, first_k, seqlen_q, seqlen_k = bounds
    positions = rows + (seqlen_k - seqlen_q)
    there = (rows < seqlen_q) & (keys < seqlen_k)
    seen = there & visible(positions, keys, seqlen_k, shape.left, shape.right, CONFIG.has_left, CONFIG.has_right)
    if CONFIG.prefixes:
        seen = seen | (there & (keys < tl.load(tensors.prefixes + batch)))
    if CONFIG.documents:
        own = tensors.documents + batch * seqlen_k
        of_rows = tl.load(own + positions, mask=rows < seqlen_q, other=0)
        seen = seen & (of_rows == tl.load(own + keys, mask=keys < seqlen_k, other=0))
    if CONFIG.slopes:
        slope = tl.load(tensors.slopes + batch * tensors.slopes_b + head).to(tl.float32) * _LOG2_E
        scores = scores - slope * tl.abs(positions - keys).to(tl.float32)
    if CONFIG.mask != "":
        mask = tensors.mask + batch * tensors.mask_b + head * tensors.mask_h
        mask_rows = tl.cast(first_q + rows, tl.int64) * tensors.mask_m
        pointers = mask + mask_rows + tl.cast(first_k + keys, tl.int64) * tensors.mask_n
        if CONFIG.mask == "boolean":
            seen = seen & (tl.load(pointers, mask=there, other=0) != 0)
        else:
            scores = scores + tl.load(pointers, mask=there, other=0.0).to(tl.float32) * _LOG2_E
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def kept(x, rows, keys, batch, head, tensors, shape, CONFIG: tl.constexpr):
    """Return x where dropout keeps it, divided by the share that it keeps, and 0 elsewhere."""
    if CONFIG.dropout:
        line = (batch * shape.num_heads + head) * shape.seqlen_q + rows
        bits = tl.randint(tl.load(tensors.seed), line * shape.seqlen_k + keys).to(tl.uint32, bitcast=True)
        x = tl.where(bits.to(tl.int64) >= shape.keep_from, x * shape.keep_scale, 0.0)
    return x


@triton.jit
def exponent(scores, lse, AXIS: tl.constexpr):
    """Return exp2(scores - lse); `lse` is a float32 and what it lacks, +inf of rows without a key."""
    return tl.exp2(scores - tl.expand_dims(lse[0], AXIS) - tl.expand_dims(lse[1], AXIS))
