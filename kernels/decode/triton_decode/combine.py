"""Combining the parts that several programs computed of one tile, in the order of its keys: the same bits in every run.

With logsumexp L_i and output O_i of part i, L = logsumexp(L_i) and O = sum(exp(L_i - L) O_i) ("flash-decoding", Dao,
Haziza, Massa and Sizov, 2023). Logarithms are base 2 until the last store.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .schedule import begin_of, block_ends, length_of, share_of, visible_blocks

LN_2 = tl.constexpr(0.6931471805599453)


@dataclass(frozen=True)
class PartsConfig:
    """Constants of both kernels; `plan.Plan` fills them in."""

    block_m: int  # rows of a tile
    block_n: int  # keys of a step
    head_dim_v: int
    block_dv: int  # head_dim_v, padded
    batch: int  # padded; 0 if every length is the capacity
    has_left: bool  # whether a window hides early keys
    store_lse: bool
    chained: bool  # whether programmatic dependent launch is used
    near: int  # blocks, see tuning.Shares
    at_once: int  # parts loaded at once
    rows: int  # rows of a part that a program combines


@dataclass(frozen=True)
class CombinePartsConfig(PartsConfig):
    """Constants of combine_kernel."""

    dims: int  # columns that a program combines


@triton.jit
def store_rows(
    out_ptr, lse_ptr, out, lse, seq, head, num_heads, group, seqlen_q, rows, dims, CONFIG: tl.constexpr
):  # fmt: skip
    """Store rows of a tile: row r is query token r % seqlen_q of the group's head r // seqlen_q; out is contiguous."""
    real = rows < group * seqlen_q
    at = (tl.cast(seq, tl.int64) * num_heads + head * group) * seqlen_q + rows
    tl.store(
        out_ptr + at[:, None] * CONFIG.head_dim_v + dims,
        out.to(out_ptr.dtype.element_ty),
        mask=real[:, None] & (dims < CONFIG.head_dim_v),
    )
    if CONFIG.store_lse:
        tl.store(lse_ptr + at, lse * LN_2, mask=real)


@triton.jit
def combined(
    parts_ptr, stats_offset, first, last, row_tile, row_tiles, real, in_tile, dims,
    DIMS: tl.constexpr, CONFIG: tl.constexpr,
):  # fmt: skip
    """Return out (CONFIG.rows, DIMS) and base-2 lse (CONFIG.rows,), combined from the parts of programs first to last.

    parts_ptr: float32 (slots, 2, row_tiles, block_m, block_dv), and from stats_offset on the logsumexp of each row.
    Part 1 of a program begins its tile; part 0 continues a tile. CONFIG.at_once parts are loaded at once.
    """
    top = tl.full([CONFIG.rows], float("-inf"), dtype=tl.float32)
    total = tl.zeros([CONFIG.rows], dtype=tl.float32)
    out = tl.zeros([CONFIG.rows, DIMS], dtype=tl.float32)
    for begin in tl.range(first, last + 1, CONFIG.at_once, num_stages=1):
        slots = begin + tl.arange(0, CONFIG.at_once)
        index = (slots * 2 + (slots == first).to(tl.int32)).to(tl.int64) * row_tiles + row_tile
        at = index * CONFIG.block_m + in_tile[:, None]
        mask = (slots <= last) & real[:, None]
        lses = tl.load(parts_ptr + stats_offset + at, mask=mask, other=float("-inf"))
        outs = tl.load(parts_ptr + at[:, :, None] * CONFIG.block_dv + dims, mask=mask[:, :, None], other=0.0)
        # A loop of one iteration, because ptxas moves no load into a loop. Without it ptxas moves each load to its use,
        # and the loads wait for each other.
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
    CONFIG: tl.constexpr,
):  # fmt: skip
    """Combine CONFIG.rows x CONFIG.dims of a tile in each program: a second launch, for more programs than tiles."""
    tile, piece, slice_d = tl.program_id(0) // row_tiles, tl.program_id(1), tl.program_id(2)
    row_tile = tl.program_id(0) % row_tiles
    seq, head = tile // num_kv_heads, tile % num_kv_heads
    if CONFIG.batch > 0:
        if CONFIG.chained:
            gdc_wait()
        ends, total, even, same = block_ends(lengths_ptr, batch, num_kv_heads, capacity, seqlen_q, left, CONFIG)
        _, blocks = visible_blocks(length_of(lengths_ptr, seq, capacity), seqlen_q, left, CONFIG)
        tile_start = begin_of(seq, ends, even, num_kv_heads, CONFIG.batch) + head * blocks
        chunk = share_of(total, same, slots, least, CONFIG.near)
    else:
        _, blocks = visible_blocks(capacity, seqlen_q, left, CONFIG)
        tile_start = tile * blocks
        chunk = least
    first, last = tile_start // chunk, (tile_start + blocks - 1) // chunk
    if CONFIG.chained:
        gdc_launch_dependents()
    in_tile = piece * CONFIG.rows + tl.arange(0, CONFIG.rows)
    rows = row_tile * CONFIG.block_m + in_tile
    dims = slice_d * CONFIG.dims + tl.arange(0, CONFIG.dims)
    if CONFIG.chained and CONFIG.batch == 0:
        gdc_wait()
    if first != last:
        out, lse = combined(
            parts_ptr, stats_offset, first, last, row_tile, row_tiles, rows < group * seqlen_q, in_tile, dims,
            CONFIG.dims, CONFIG,
        )  # fmt: skip
        store_rows(
            out_ptr, lse_ptr, out, lse, seq, head, num_kv_heads * group, group, seqlen_q, rows, dims, CONFIG
        )  # fmt: skip
