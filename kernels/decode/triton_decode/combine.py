"""Weighing together what several programs found for one tile, always in the order of its keys: the same bits every run.

With logsumexp L_i and output O_i of part i, L = logsumexp(L_i) and O = sum(exp(L_i - L) O_i) ("flash-decoding", Dao,
Haziza, Massa and Sizov, 2023). Logarithms are base 2 until the last store.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .schedule import begin_of, block_ends, share_of, visible_blocks

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def store_rows(
    out_ptr, lse_ptr, out, lse, seq, head, num_heads, group, seqlen_q, rows, dims,
    HEAD_DIM_V: tl.constexpr, STORE_LSE: tl.constexpr,
):  # fmt: skip
    """Store rows of a tile: row r is query token r % seqlen_q of the group's head r // seqlen_q; out is contiguous."""
    real = rows < group * seqlen_q
    at = (tl.cast(seq, tl.int64) * num_heads + head * group) * seqlen_q + rows
    tl.store(
        out_ptr + at[:, None] * HEAD_DIM_V + dims,
        out.to(out_ptr.dtype.element_ty),
        mask=real[:, None] & (dims < HEAD_DIM_V),
    )
    if STORE_LSE:
        tl.store(lse_ptr + at, lse * LN_2, mask=real)


@triton.jit
def combined(
    parts_ptr, stats_offset, first, last, row_tile, row_tiles, real, in_tile, dims,
    BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr, AT_ONCE: tl.constexpr, ROWS: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Return out (ROWS, DIMS) and base-2 lse (ROWS,) of parts of programs first to last, AT_ONCE of them in flight.

    parts_ptr: float32 (slots, 2, row_tiles, BLOCK_M, BLOCK_DV), and from stats_offset on their lse without the last
    dimension. A program's part 1 begins its tile, part 0 goes on with one.
    """
    top = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    out = tl.zeros([ROWS, DIMS], dtype=tl.float32)
    for begin in tl.range(first, last + 1, AT_ONCE, num_stages=1):
        slots = begin + tl.arange(0, AT_ONCE)
        index = (slots * 2 + (slots == first).to(tl.int32)).to(tl.int64) * row_tiles + row_tile
        at = index * BLOCK_M + in_tile[:, None]
        mask = (slots <= last) & real[:, None]
        lses = tl.load(parts_ptr + stats_offset + at, mask=mask, other=float("-inf"))
        outs = tl.load(parts_ptr + at[:, :, None] * BLOCK_DV + dims, mask=mask[:, :, None], other=0.0)
        # Once: ptxas moves no load into a loop. It would move each to its use, where they wait one after another.
        for _ in tl.range(tl.minimum(last + 1 - begin, 1), num_stages=1):
            new_top = tl.maximum(top, tl.max(lses, 1))
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
            weights = tl.exp2(lses - base[:, None])
            alpha = tl.exp2(top - base)
            total = total * alpha + tl.sum(weights, 1)
            out = out * alpha[:, None] + tl.sum(outs * weights[:, :, None], 1)
            top = new_top
    divisor = tl.where(total == 0.0, 1.0, total)
    return out / divisor[:, None], tl.where(total == 0.0, float("-inf"), top + tl.log2(divisor))


@triton.jit(
    do_not_specialize=["batch", "num_kv_heads", "group", "seqlen_q", "capacity", "left", "slots", "least"],
    do_not_specialize_on_alignment=["row_tiles", "stats_offset"],
)
def combine_kernel(
    out_ptr, lse_ptr, parts_ptr, lengths_ptr,
    batch, num_kv_heads, group, seqlen_q, capacity, left, slots, least, row_tiles, stats_offset,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM_V: tl.constexpr, BLOCK_DV: tl.constexpr,
    BATCH: tl.constexpr, HAS_LEFT: tl.constexpr, STORE_LSE: tl.constexpr,
    AT_ONCE: tl.constexpr, ROWS: tl.constexpr, DIMS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Combine ROWS x DIMS of a tile a program, in a launch of its own where a program for each tile were too few."""
    tile, piece, slice_d = tl.program_id(0) // row_tiles, tl.program_id(1), tl.program_id(2)
    row_tile = tl.program_id(0) % row_tiles
    seq, head = tile // num_kv_heads, tile % num_kv_heads
    if BATCH > 0:
        if CHAINED:
            gdc_wait()
        ends, total, even = block_ends(
            lengths_ptr, batch, num_kv_heads, capacity, seqlen_q, left, BATCH, BLOCK_N, HAS_LEFT
        )
        length = tl.minimum(tl.maximum(tl.load(lengths_ptr + seq), 0), capacity)
        _, blocks = visible_blocks(length, seqlen_q, left, BLOCK_N, HAS_LEFT)
        tile_start = begin_of(seq, ends, even, num_kv_heads, BATCH) + head * blocks
        chunk = share_of(total, even, batch * num_kv_heads, slots, least)
    else:
        _, blocks = visible_blocks(capacity, seqlen_q, left, BLOCK_N, HAS_LEFT)
        tile_start = tile * blocks
        chunk = least
    first, last = tile_start // chunk, (tile_start + blocks - 1) // chunk
    if CHAINED:
        gdc_launch_dependents()
    in_tile = piece * ROWS + tl.arange(0, ROWS)
    rows = row_tile * BLOCK_M + in_tile
    dims = slice_d * DIMS + tl.arange(0, DIMS)
    if CHAINED and BATCH == 0:
        gdc_wait()
    if first != last:
        out, lse = combined(
            parts_ptr, stats_offset, first, last, row_tile, row_tiles, rows < group * seqlen_q, in_tile, dims,
            BLOCK_M, BLOCK_DV, AT_ONCE, ROWS, DIMS,
        )  # fmt: skip
        store_rows(
            out_ptr, lse_ptr, out, lse, seq, head, num_kv_heads * group, group, seqlen_q, rows, dims,
            HEAD_DIM_V, STORE_LSE,
        )  # fmt: skip
