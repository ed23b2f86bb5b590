"""The split-KV kernel: each program attends to its share of key blocks (schedule.py), and parts are then combined.

The query heads that share a key head, and the query tokens, are the rows of one tile. If several programs share a tile,
each stores a part, and a second kernel or the program that draws the last ticket of the tile combines them.

In a latent cache (multi-head latent attention, absorbed: DeepSeek-V2, arXiv:2405.04434, section 2.1) the values are the
first dimensions of the keys and are read once for both; the other dimensions of a key are its rotary part.
"""

from collections import namedtuple
from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .cache import SeenKeys, load_block, widened, widened_values
from .combine import PartsConfig, combined, store_rows
from .schedule import block_ends, length_of, sequence_at, share_of, visible_blocks

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def in_float16(q):
    """Return rows of q as float16, and the factors that restore them: powers of two, so that no value overflows."""
    top = tl.max(tl.abs(q), 1)
    exponent = ((top.to(tl.int32, bitcast=True) >> 23) & 0xFF) - 127
    exponent = tl.minimum(tl.maximum(exponent, -126), 126)
    down = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    up = ((127 + exponent) << 23).to(tl.float32, bitcast=True)
    return (q * down[:, None]).to(tl.float16), up


@dataclass(frozen=True)
class SplitConfig(PartsConfig):
    """Constants of split_kernel."""

    head_dim: int
    block_d: int  # head_dim, padded
    rope_dim: int  # dimensions of a latent key beyond head_dim, else 0
    page: int  # keys of a page, 0 for a contiguous cache
    cache: str  # "plain", or the way that e4m3 is read (cache.py); for "pairs" v is a tensor of pairs of columns
    k_scaled: bool
    v_scaled: bool
    causal: bool
    q_in_loop: bool  # whether queries are loaded in the first step rather than before it
    tickets: bool  # whether the program with the last ticket of a tile combines the parts of the tile


# Strides of the tensors of a launch, from the host. `q`: batch, head, token; `k`, `v`: page or sequence, head, key,
# dim; `scales`: sequence and head of the factors of keys, then of values.
CacheStrides = namedtuple("CacheStrides", "q k v scales")
# Query rows of a program: row r is query token r % seqlen_q of head r // seqlen_q of the group. `number`: (BLOCK_M,);
# `in_tile`: from 0 to BLOCK_M; `tile`: program_id(0) % tiles; `group`: query heads of a key head.
QueryRows = namedtuple("QueryRows", "number token in_tile tile tiles group seqlen_q")
# Key blocks of one sequence and key head, which a program processes together. `length`: keys of the sequence; `start`:
# the first key; `steps`: blocks; `block`: the first block, counted from the first block that any query sees, which are
# `blocks`.
KeyPiece = namedtuple("KeyPiece", "seq head length start steps block blocks")
# Addresses of the keys and values of a sequence and key head. `k`: keys of the sequence, or of page 0; `v`: values, or
# the rotary part of the keys of a latent cache; strides: page or sequence, head, key, dim.
CacheAt = namedtuple("CacheAt", "k v table k_strides v_strides")


@triton.jit(
    do_not_specialize=["batch", "num_kv_heads", "group", "capacity", "left", "slots", "least", "table_b"],
    do_not_specialize_on_alignment=["seqlen_q", "row_tiles", "stats_offset"],
)
def split_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, parts_ptr, tickets_ptr, lengths_ptr, table_ptr, k_scale_ptr, v_scale_ptr,
    strides, table_b,
    batch, num_kv_heads, group, seqlen_q, capacity, left, slots, least, row_tiles, stats_offset, softmax_scale,
    CONFIG: tl.constexpr,
):  # fmt: skip
    """Attend to the share of program_id(0) // row_tiles, for the rows of tile program_id(0) % row_tiles.

    strides: a CacheStrides. table_b: stride between rows of the page table. capacity: keys that fit into the cache or
    the page table, and the length of every sequence if no lengths are given. least: blocks of a share; with lengths,
    the minimum. Triton specializes every member of a tuple, so sizes that change from call to call are not in one.
    """
    row_tile = tl.program_id(0) % row_tiles
    slot = tl.program_id(0) // row_tiles
    in_tile = tl.arange(0, CONFIG.block_m)
    number = row_tile * CONFIG.block_m + in_tile
    rows = QueryRows(number, number % seqlen_q, in_tile, row_tile, row_tiles, group, seqlen_q)
    if CONFIG.chained:
        gdc_launch_dependents()  # the next kernel may start now; it waits for this one before it reads anything
        gdc_wait()
    if CONFIG.batch > 0:
        ends, total, even, same = block_ends(lengths_ptr, batch, num_kv_heads, capacity, seqlen_q, left, CONFIG)
        chunk = share_of(total, same, slots, least, CONFIG.near)
    else:
        length = capacity
        first_block, blocks = visible_blocks(length, seqlen_q, left, CONFIG)
        total = blocks * batch * num_kv_heads
        chunk = least
    unit = slot * chunk
    end = tl.minimum(unit + chunk, total)
    while unit < end:
        if CONFIG.batch > 0:
            seq, begin = sequence_at(unit, ends, even, num_kv_heads)
            length = length_of(lengths_ptr, seq, capacity)
            first_block, blocks = visible_blocks(length, seqlen_q, left, CONFIG)
        else:
            seq = unit // (blocks * num_kv_heads)
            begin = seq * blocks * num_kv_heads
        head = (unit - begin) // blocks
        block = unit - begin - head * blocks
        count = tl.minimum(blocks - block, end - unit)
        piece = KeyPiece(seq, head, length, (first_block + block) * CONFIG.block_n, count, block, blocks)
        queries = _queries(
            q_ptr, strides.q, softmax_scale, k_scale_ptr, v_scale_ptr, strides.scales, piece, rows, CONFIG
        )
        k, v = _addresses(piece, k_ptr, v_ptr, strides.k, strides.v, CONFIG)
        table = table_ptr
        if CONFIG.page > 0:
            table += tl.cast(seq, tl.int64) * table_b
        cache = CacheAt(k, v, table, strides.k, strides.v)
        out, lse = _attended(queries, cache, piece, rows, left, CONFIG)
        if count == blocks:
            store_rows(
                out_ptr, lse_ptr, out, lse, seq, head, num_kv_heads * group, group, seqlen_q, number,
                tl.arange(0, CONFIG.block_dv), CONFIG,
            )  # fmt: skip
        else:
            _leave_part(parts_ptr, stats_offset, out, lse, slot, piece, rows, CONFIG)
            if CONFIG.tickets:
                tile_start = unit - block
                first, last = tile_start // chunk, (tile_start + blocks - 1) // chunk
                ticket_ptr = tickets_ptr + (seq * num_kv_heads + head) * row_tiles + row_tile
                if _is_last(ticket_ptr, last - first):
                    _combine_tile(
                        out_ptr, lse_ptr, parts_ptr, stats_offset, first, last, piece, rows, num_kv_heads, CONFIG
                    )
        unit += count


@triton.jit
def _queries(
    q_ptr, q_strides, softmax_scale, k_scale_ptr, v_scale_ptr, scale_strides, piece, rows, CONFIG: tl.constexpr
):
    """Load the queries of a piece in the form that the products need.

    Returns q, the rotary part of latent queries, the addresses and the mask of q, the factors of the scores of each
    row, in base 2, and the factor of the output.
    """
    q_b, q_h, q_m = q_strides
    k_scale_b, k_scale_h, v_scale_b, v_scale_h = scale_strides
    at = tl.cast(piece.seq, tl.int64) * q_b
    at = at + tl.cast(piece.head * rows.group + rows.number // rows.seqlen_q, tl.int64) * q_h + rows.token * q_m
    dims = tl.arange(0, CONFIG.block_d)
    real = (rows.number < rows.group * rows.seqlen_q)[:, None]
    pointers = q_ptr + at[:, None] + dims
    mask = real & (dims < CONFIG.head_dim)
    scale = tl.full([CONFIG.block_m], 1.0, dtype=tl.float32) * (softmax_scale * LOG2_E)
    v_scale = 1.0
    q = pointers
    if not CONFIG.q_in_loop:
        q = tl.load(pointers, mask=mask, other=0.0)
    if CONFIG.cache != "plain":
        q, up = in_float16(q.to(tl.float32))
        scale = scale * up
        if CONFIG.k_scaled:
            scale = scale * tl.load(k_scale_ptr + piece.seq * k_scale_b + piece.head * k_scale_h)
        if CONFIG.v_scaled:
            v_scale = tl.load(v_scale_ptr + piece.seq * v_scale_b + piece.head * v_scale_h)
        if CONFIG.cache == "bytes":
            scale = scale * 256.0
            v_scale = v_scale * 256.0
    q_rope = q
    if CONFIG.rope_dim > 0:
        q_rope = tl.load(q_ptr + CONFIG.head_dim + at[:, None] + tl.arange(0, CONFIG.rope_dim), mask=real, other=0.0)
    return q, q_rope, pointers, mask, scale, v_scale


@triton.jit
def _addresses(piece, k_ptr, v_ptr, k_strides, v_strides, CONFIG: tl.constexpr):
    """Return the addresses of the keys and values of a piece."""
    seq = tl.cast(piece.seq, tl.int64)
    of_page = seq if CONFIG.page == 0 else tl.zeros_like(seq)
    k = k_ptr + of_page * k_strides[0] + tl.cast(piece.head, tl.int64) * k_strides[1]
    if CONFIG.rope_dim > 0:
        v = k + CONFIG.head_dim
    else:
        v = v_ptr + of_page * v_strides[0] + tl.cast(piece.head, tl.int64) * v_strides[1]
    return k, v


@triton.jit
def _attended(queries, cache, piece, rows, left, CONFIG: tl.constexpr):
    """Return out (BLOCK_M, BLOCK_DV) and base-2 lse (BLOCK_M,) for the keys of a piece."""
    given_q, q_rope, q_pointers, q_mask, scale, v_scale = queries
    BLOCK_N: tl.constexpr = CONFIG.block_n
    PAIRS: tl.constexpr = CONFIG.cache == "pairs"
    position = piece.length - rows.seqlen_q + rows.token
    bound = tl.zeros_like(position) + (piece.length - 1)
    if CONFIG.causal:
        bound = tl.minimum(bound, position)
    elif CONFIG.has_left:
        bound = tl.minimum(bound, position + left)
    first_key = tl.maximum(piece.length - rows.seqlen_q - left, 0)
    seen_keys = SeenKeys(cache.table, first_key, piece.length)
    acc = tl.zeros([CONFIG.block_m, CONFIG.block_dv // 2 if PAIRS else CONFIG.block_dv], dtype=tl.float32)
    acc_odd = acc
    row_sum = tl.zeros([CONFIG.block_m], dtype=tl.float32)
    row_max = tl.full([CONFIG.block_m], float("-inf"), dtype=tl.float32)
    for start in tl.range(piece.start, piece.start + piece.steps * BLOCK_N, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        q = given_q
        if CONFIG.q_in_loop:  # a load before the loop would delay the first keys; the minimum is 0
            q = tl.load(q_pointers + tl.minimum(start, 0), mask=q_mask, other=0.0)
        k = load_block(cache.k, cache.k_strides, start, seen_keys, CONFIG.head_dim, CONFIG.block_d, CONFIG)
        k = widened(k, CONFIG.cache)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if CONFIG.rope_dim > 0:
            k_rope = load_block(cache.v, cache.v_strides, start, seen_keys, CONFIG.rope_dim, CONFIG.rope_dim, CONFIG)
            scores = tl.dot(q_rope, tl.trans(k_rope), scores, input_precision="ieee")
        scores = scores * scale[:, None]
        keys = start + tl.arange(0, BLOCK_N)
        seen = keys[None, :] <= bound[:, None]
        if CONFIG.has_left:
            seen = seen & (keys[None, :] >= (position - left)[:, None])
        p, alpha, row_max, row_sum = _weighed(tl.where(seen, scores, float("-inf")), row_max, row_sum)
        if CONFIG.rope_dim > 0:
            acc = tl.dot(p.to(k.dtype), k, acc * alpha[:, None], input_precision="ieee")
        elif PAIRS:
            v = load_block(
                cache.v, cache.v_strides, start, seen_keys, CONFIG.head_dim_v // 2, CONFIG.block_dv // 2, CONFIG
            )
            v_even, v_odd = widened_values(v)
            p = p.to(tl.float16)
            acc = tl.dot(p, v_even, acc * alpha[:, None])
            acc_odd = tl.dot(p, v_odd, acc_odd * alpha[:, None])
        else:
            v = load_block(cache.v, cache.v_strides, start, seen_keys, CONFIG.head_dim_v, CONFIG.block_dv, CONFIG)
            v = widened(v, CONFIG.cache)
            acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    divisor = tl.where(row_sum == 0.0, 1.0, row_sum)
    out = acc
    if PAIRS:
        out = tl.reshape(tl.join(acc, acc_odd), [CONFIG.block_m, CONFIG.block_dv])
    out = out * (v_scale / divisor)[:, None]
    return out, tl.where(row_sum == 0.0, float("-inf"), row_max + tl.log2(divisor))


@triton.jit
def _weighed(scores, row_max, row_sum):
    """Return exp2 of the scores of a block, the factor of the previous sums, and the new maxima and sums of rows."""
    new_max = tl.maximum(row_max, tl.max(scores, 1))
    base = tl.where(new_max == float("-inf"), 0.0, new_max)
    p = tl.exp2(scores - base[:, None])
    alpha = tl.exp2(row_max - base)
    return p, alpha, new_max, row_sum * alpha + tl.sum(p, 1)


@triton.jit
def _leave_part(parts_ptr, stats_offset, out, lse, slot, piece, rows, CONFIG: tl.constexpr):
    """Store the part of a tile that a program computed (`combine.combined` reads it)."""
    index = tl.cast(slot * 2 + (piece.block == 0).to(tl.int32), tl.int64) * rows.tiles + rows.tile
    at = index * CONFIG.block_m + rows.in_tile
    real = rows.number < rows.group * rows.seqlen_q
    tl.store(parts_ptr + at[:, None] * CONFIG.block_dv + tl.arange(0, CONFIG.block_dv), out, mask=real[:, None])
    tl.store(parts_ptr + stats_offset + at, lse, mask=real)


@triton.jit
def _is_last(ticket_ptr, others):
    """Draw a ticket of a tile, and return whether it is the last of `others` + 1; the last one resets the counter."""
    tl.debug_barrier()  # the parts of all threads are stored before the ticket is drawn
    is_last = tl.atomic_add(ticket_ptr, 1, sem="acq_rel") == others
    if is_last:
        tl.store(ticket_ptr, 0)
    return is_last


@triton.jit
def _combine_tile(
    out_ptr, lse_ptr, parts_ptr, stats_offset, first, last, piece, rows, num_kv_heads, CONFIG: tl.constexpr
):
    """Store the rows of a tile, combined from the parts of programs first to last."""
    few = tl.arange(0, CONFIG.rows)
    number = rows.tile * CONFIG.block_m + few
    dims = tl.arange(0, CONFIG.block_dv)
    out, lse = combined(
        parts_ptr, stats_offset, first, last, rows.tile, rows.tiles, number < rows.group * rows.seqlen_q, few, dims,
        CONFIG.block_dv, CONFIG,
    )  # fmt: skip
    store_rows(
        out_ptr, lse_ptr, out, lse, piece.seq, piece.head, num_kv_heads * rows.group, rows.group, rows.seqlen_q,
        number, dims, CONFIG,
    )  # fmt: skip
