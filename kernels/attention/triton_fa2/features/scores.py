"""Scores with features, for tiles either way round, and the parts of tiles that forward and backward share.

Scores are in powers of two. Rows and keys are given as (rows, 1) and (1, keys), or as (1, rows) and (keys, 1).

Rows of q and k are two panels of powers of two, so that head_dim 192 takes 128 and 64 columns rather than 256.
"""

import triton
import triton.language as tl

from ....plans import LOG2_E
from ..forward import visible
from ..panels import load_panels, store_panels
from ..tile_ops import INTERPRETED

_LOG2_E = tl.constexpr(LOG2_E)
FAR = tl.constexpr(1 << 30)  # beyond all keys


@triton.jit
def place(seqlen, first_b, TILE: tl.constexpr, LAST_FIRST: tl.constexpr):
    """Return a program's first row, head and batch, the axes of the grid."""
    tile = tl.program_id(0)
    if LAST_FIRST:
        tile = tl.cdiv(seqlen, TILE) - 1 - tile
    return tile * TILE, tl.cast(tl.program_id(1), tl.int64), tl.cast(first_b + tl.program_id(2), tl.int64)


@triton.jit
def rows_of(rows, batch, head, first, CONFIG: tl.constexpr):
    """Return the address of row `first` of a batch and head, and the stride of rows."""
    stride = rows.m * CONFIG.unit
    base = rows.base + (batch * rows.b + head * rows.h) * CONFIG.unit
    return base + tl.cast(first, tl.int64) * stride, stride


@triton.jit
def load_tile(rows, batch, head, first, start, limit, ROWS: tl.constexpr, CONFIG: tl.constexpr, COLUMNS: tl.constexpr,
              MASKED: tl.constexpr):  # fmt: skip
    """Load rows as panels.load_panels does; those of a sequence begin at row `first`."""
    base, stride = rows_of(rows, batch, head, first, CONFIG)
    return load_panels(base, start, stride, limit, ROWS, COLUMNS, MASKED and not CONFIG.whole)


@triton.jit
def to_nearest(x, CONFIG: tl.constexpr):
    """Round float32 panels that are loaded once to TF32, if products take that: a tensor core cuts low bits off."""
    low, high = x
    if CONFIG.precision == "tf32" and low.dtype == tl.float32:
        low = ((low.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        high = ((high.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return low, high


@triton.jit
def store_tile(rows, batch, head, first, start, limit, values, ROWS: tl.constexpr, CONFIG: tl.constexpr,
               COLUMNS: tl.constexpr):  # fmt: skip
    """Write rows of out or of a gradient; those of a sequence begin at row `first`."""
    base, stride = rows_of(rows, batch, head, first, CONFIG)
    store_panels(base, start, stride, limit, values, ROWS, COLUMNS)


@triton.jit
def load_keys(rows, head, start, own, tensors, CONFIG: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr):
    """Load a tile of keys or values, which may lie in pages; own: as in `masked`.

    Nothing is read for keys that are not there. A number of a page that does not exist becomes that of one that does.
    """
    batch, _, bounds = own
    if CONFIG.page_size == 0:
        tile = load_tile(rows, batch, head, bounds[1], start, bounds[3], CONFIG.block_n, CONFIG, COLUMNS, MASKED)
    else:
        keys = start + tl.arange(0, CONFIG.block_n)
        there = keys < bounds[3]
        pages = tl.load(tensors.table + batch * tensors.table_b + keys // CONFIG.page_size, mask=there, other=0)
        pages = tl.cast(tl.minimum(tl.maximum(pages, 0), tensors.last_page), tl.int64)
        base, stride = rows_of(rows, 0, head, 0, CONFIG)
        pointers = base + pages * rows.b * CONFIG.unit + tl.cast(keys % CONFIG.page_size, tl.int64) * stride
        FIRST: tl.constexpr = COLUMNS.block_d if COLUMNS.block_d2 > 0 else COLUMNS.head_dim
        low = _load_columns(pointers, there, FIRST, COLUMNS.block_d)
        high = low
        if COLUMNS.block_d2 > 0:
            high = _load_columns(pointers + FIRST, there, COLUMNS.head_dim - FIRST, COLUMNS.block_d2)
        tile = low, high
    return tile


@triton.jit
def _load_columns(pointers, there, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    dims = tl.arange(0, BLOCK_D)
    return tl.load(pointers[:, None] + dims[None, :], mask=there[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def sequence(tensors, shape, batch):
    """Return where a batch's queries and keys begin in their rows, and their numbers."""
    found = (0, 0, shape.seqlen_q, shape.seqlen_k)
    if tensors.starts_q is not None:
        first_q = tl.load(tensors.starts_q + batch)
        first_k = tl.load(tensors.starts_k + batch)
        found = (first_q, first_k, tl.load(tensors.ends_q + batch) - first_q, tl.load(tensors.ends_k + batch) - first_k)
    return found


@triton.jit
def zero_panels(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return sums of rows to begin with, as their panels."""
    low = tl.zeros([ROWS, COLUMNS.block_d], dtype=tl.float32)
    high = low
    if COLUMNS.block_d2 > 0:
        high = tl.zeros([ROWS, COLUMNS.block_d2], dtype=tl.float32)
    return low, high


@triton.jit
def add_to_panels(sums, a, b, COLUMNS: tl.constexpr):
    """Return sums + a b, where b has panels."""
    low = tl.dot(a.to(b[0].dtype), b[0], sums[0], input_precision=COLUMNS.precision)
    high = low
    if COLUMNS.block_d2 > 0:
        high = tl.dot(a.to(b[1].dtype), b[1], sums[1], input_precision=COLUMNS.precision)
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
def capped(products, shape, CONFIG: tl.constexpr):
    """Return the scores of products q k^T before any mask, and the tanh of the softcap (the scores without one).

    With `scale_last` they are tanh or products, which `shape.factor` scales where powers of two are taken of them.
    """
    scores = products if CONFIG.scale_last else products * (shape.scale * _LOG2_E)
    bend = scores
    if CONFIG.softcap != "":
        x = products * (shape.scale / shape.softcap)
        if CONFIG.softcap == "hardware":
            bend = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
        else:
            bend = 1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * _LOG2_E))) if CONFIG.softcap == "exponential" else tanh(x)
        scores = bend if CONFIG.scale_last else bend * (shape.softcap * _LOG2_E)
    return scores, bend


@triton.jit
def load_mask(rows, keys, own, tensors, CONFIG: tl.constexpr):
    """Return the mask of rows and keys, 0 beyond the ends of both; own: as in `masked`."""
    batch, head, bounds = own
    first_q, first_k, seqlen_q, seqlen_k = bounds
    there = ((rows < seqlen_q) & (keys < seqlen_k)) | CONFIG.whole
    mask = tensors.mask + batch * tensors.mask_b + head * tensors.mask_h
    mask_rows = tl.cast(first_q + rows, tl.int64) * tensors.mask_m
    pointers = mask + mask_rows + tl.cast(first_k + keys, tl.int64) * tensors.mask_n
    return tl.load(pointers, mask=there, other=0)


@triton.jit
def load_bias(first_row, first_key, own, tensors, CONFIG: tl.constexpr, KEYS_FIRST: tl.constexpr):
    """Return what load_mask does for a tile, by 32-bit offsets from its corner, which hold half as many registers."""
    batch, head, bounds = own
    first_q, first_k, seqlen_q, seqlen_k = bounds
    mask = tensors.mask + batch * tensors.mask_b + head * tensors.mask_h
    mask += tl.cast(first_q + first_row, tl.int64) * tensors.mask_m
    mask += tl.cast(first_k + first_key, tl.int64) * tensors.mask_n
    rows = tl.expand_dims(tl.arange(0, CONFIG.block_m), 0 if KEYS_FIRST else 1)
    keys = tl.expand_dims(tl.arange(0, CONFIG.block_n), 1 if KEYS_FIRST else 0)
    there = ((first_row + rows < seqlen_q) & (first_key + keys < seqlen_k)) | CONFIG.whole
    return tl.load(mask + (rows * tensors.mask_m + keys * tensors.mask_n), mask=there, other=0)


@triton.jit
def _to_float32(added, ROWS_FIRST: tl.constexpr):
    """Return a tile of an added mask in float32; two bfloat16 numbers of a register by two instructions, not three."""
    if ROWS_FIRST and added.dtype == tl.bfloat16 and not INTERPRETED:
        added = tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [added], tl.int32, is_pure=True, pack=2
        ).to(tl.float32, bitcast=True)
    return added.to(tl.float32)


@triton.jit
def masked(scores, added, rows, keys, own, tensors, shape, CONFIG: tl.constexpr, MASKED: tl.constexpr):
    """Return scores with slopes and masks, -inf where a key is not seen.

    own: the batch, the query head and the bounds of the sequence. Without MASKED all keys of the sequence are seen;
    rows and keys beyond it have any score. added: a mask that is added, None if later.
    """
    batch, head, bounds = own
    first_q, first_k, seqlen_q, seqlen_k = bounds
    positions = rows + (seqlen_k - seqlen_q)
    if tensors.slopes is not None:
        slope = tl.load(tensors.slopes + batch * tensors.slopes_b + head).to(tl.float32) * _LOG2_E
        scores = scores - slope * tl.abs(positions.to(tl.float32) - keys.to(tl.float32))
    seen = keys < seqlen_k
    if MASKED:
        if CONFIG.one_loop and CONFIG.has_right:  # a mask in all blocks: one comparison less
            if positions.shape[0] == 1:
                seen = tl.where(seen, keys, FAR) <= positions + shape.right
            else:
                seen = keys <= tl.minimum(positions + shape.right, seqlen_k - 1)
            if CONFIG.has_left:
                seen = seen & (keys >= positions - shape.left)
        else:
            seen = visible(positions, keys, seqlen_k, shape.left, shape.right, CONFIG.has_left, CONFIG.has_right)
        if tensors.prefixes is not None:
            seen = seen | (keys < tl.minimum(tl.load(tensors.prefixes + batch), seqlen_k))
        if tensors.documents is not None:
            ids = tensors.documents + batch * seqlen_k
            of_rows = tl.load(ids + positions, mask=rows < seqlen_q, other=0)
            seen = seen & (of_rows == tl.load(ids + keys, mask=keys < seqlen_k, other=0))
    if CONFIG.mask == "boolean":
        seen = seen & (load_mask(rows, keys, own, tensors, CONFIG) != 0)
    elif CONFIG.mask != "" and added is not None:
        # An addition to products alone would be moved into them, which would wait for the mask.
        added = _to_float32(added, positions.shape[1] == 1)
        scores = tl.fma(added, _LOG2_E / shape.factor, scores) if CONFIG.scale_last else scores + added * _LOG2_E
    return tl.where(seen, scores, float("-inf")) if MASKED else scores


@triton.jit
def kept(x, first_row, first_key, own, tensors, shape, CONFIG: tl.constexpr, KEYS_FIRST: tl.constexpr):
    """Return x where dropout keeps it, divided by the share that it keeps, and 0 elsewhere.

    x is a tile from a row and a key on, multiples of 16; KEYS_FIRST: keys by rows. The four words of a Philox number
    are for rows r and r + 8 by keys k and k + 8, which one thread holds of a product either way round. In tiles with 16
    rows or keys, each score takes its word of a number of its own: on an H200, Triton 3.6 mixed up the words there.
    """
    if tensors.seed is not None:
        OF_FOUR: tl.constexpr = x.shape[0] >= 32 and x.shape[1] >= 32
        FIRST: tl.constexpr = x.shape[0] // 2 if OF_FOUR else x.shape[0]
        SECOND: tl.constexpr = x.shape[1] // 2 if OF_FOUR else x.shape[1]
        if KEYS_FIRST:
            of_rows = tl.arange(0, SECOND)[None, :]
            of_keys = tl.arange(0, FIRST)[:, None]
        else:
            of_rows = tl.arange(0, FIRST)[:, None]
            of_keys = tl.arange(0, SECOND)[None, :]
        is_below = of_rows % 16 >= 8
        is_right = of_keys % 16 >= 8
        if not OF_FOUR:
            of_rows = of_rows // 16 * 8 + of_rows % 8
            of_keys = of_keys // 16 * 8 + of_keys % 8
        line = (own[0] * shape.num_heads + own[1]) * (tl.cdiv(shape.seqlen_q, 16) * 8) + first_row // 2 + of_rows
        place = line * (tl.cdiv(shape.seqlen_k, 16) * 8) + first_key // 2 + of_keys
        low, right, below, far = tl.randint4x(tl.load(tensors.seed), place, 7)
        from_here = tl.cast(shape.keep_from, tl.uint32)
        if OF_FOUR:
            second, third = (below, right) if KEYS_FIRST else (right, below)
            words = tl.join(tl.join(low, third), tl.join(second, far)).to(tl.uint32, bitcast=True)
            halves = tl.reshape(words >= from_here, [FIRST // 8, 8, SECOND // 8, 8, 2, 2])
            keep = tl.reshape(tl.permute(halves, (0, 4, 1, 2, 5, 3)), x.shape)
        else:
            word = tl.where(is_below, tl.where(is_right, far, below), tl.where(is_right, right, low))
            keep = word.to(tl.uint32, bitcast=True) >= from_here
        x = tl.where(keep, x * shape.keep_scale, 0.0)
    return x
