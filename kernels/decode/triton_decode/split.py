"""The split-KV kernel: each program attends to its share of key blocks (schedule.py) and parts are then combined.

The query heads that share a key head, and the query tokens, are packed into the rows of one tile, so that each key is
read once for all of them. A tile that one program has alone is stored at once. Of the programs that share a tile, each
leaves a part in memory; a second kernel combines them, or the program that draws the tile's last ticket.

With a latent cache (multi-head latent attention, absorbed: DeepSeek-V2, arXiv:2405.04434, section 2.1) the values are
the first dimensions of the keys, read once for both, and the rest of a key is its rotary part.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.decode.triton_decode.cache import load_block, widened, widened_values
from kernels.decode.triton_decode.combine import combined, store_rows
from kernels.decode.triton_decode.schedule import block_ends, sequence_at, share_of, visible_blocks

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def in_float16(q):
    """Rows of q as float16 and the factors that undo it: powers of two, so that no value of a row overflows."""
    top = tl.max(tl.abs(q), 1)
    exponent = ((top.to(tl.int32, bitcast=True) >> 23) & 0xFF) - 127
    exponent = tl.minimum(tl.maximum(exponent, -126), 126)
    down = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    up = ((127 + exponent) << 23).to(tl.float32, bitcast=True)
    return (q * down[:, None]).to(tl.float16), up


@dataclass(frozen=True)
class SplitConfig:
    """What split_kernel is compiled for; `plan.Plan` fills it in."""

    block_m: int  # rows of a tile
    block_n: int  # keys of a step
    head_dim: int
    block_d: int  # padded
    head_dim_v: int
    block_dv: int
    rope_dim: int  # of a latent cache, whose keys have as much beyond head_dim, else 0
    batch: int  # padded, 0 where every length is the capacity
    page: int  # keys of a page, 0 for a contiguous cache
    cache: str  # "plain", or how e4m3 is read (cache.py; for "pairs" v is given as pairs of columns)
    k_scaled: bool
    v_scaled: bool
    causal: bool
    has_left: bool
    store_lse: bool
    q_in_loop: bool
    chained: bool  # by programmatic dependent launch
    at_once: int  # parts asked for at once
    rows: int  # of a part
    tickets: bool  # whether the program with a tile's last ticket combines its parts


@triton.jit(
    do_not_specialize=["batch", "num_kv_heads", "group", "capacity", "left", "slots", "least", "table_b"],
    do_not_specialize_on_alignment=["seqlen_q", "row_tiles", "stats_offset"],
)
def split_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, parts_ptr, tickets_ptr, lengths_ptr, table_ptr, k_scale_ptr, v_scale_ptr,
    q_strides, k_strides, v_strides, table_b, scale_strides,
    batch, num_kv_heads, group, seqlen_q, capacity, left, slots, least, row_tiles, stats_offset, softmax_scale,
    CONFIG: tl.constexpr,
):  # fmt: skip
    """Attend to the share of program_id(0) // row_tiles, for the BLOCK_M rows of program_id(0) % row_tiles.

    capacity: the keys that the cache, or the page table, has room for, and the length unless lengths are read.
    least: blocks of a share, the least of them if lengths are read. Strides: of q batch, head and token, of k and v
    sequence or page, head, key and dim, of the factors sequence and head, of keys and then of values.
    """
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    HEAD_DIM: tl.constexpr = CONFIG.head_dim
    BLOCK_D: tl.constexpr = CONFIG.block_d
    HEAD_DIM_V: tl.constexpr = CONFIG.head_dim_v
    BLOCK_DV: tl.constexpr = CONFIG.block_dv
    ROPE_DIM: tl.constexpr = CONFIG.rope_dim
    BATCH: tl.constexpr = CONFIG.batch
    PAGE: tl.constexpr = CONFIG.page
    CACHE: tl.constexpr = CONFIG.cache
    CAUSAL: tl.constexpr = CONFIG.causal
    HAS_LEFT: tl.constexpr = CONFIG.has_left
    STORE_LSE: tl.constexpr = CONFIG.store_lse
    Q_IN_LOOP: tl.constexpr = CONFIG.q_in_loop
    ROWS: tl.constexpr = CONFIG.rows
    q_b, q_h, q_m = q_strides
    k_b, k_h, k_n, k_d = k_strides
    v_b, v_h, v_n, v_d = v_strides
    k_scale_b, k_scale_h, v_scale_b, v_scale_h = scale_strides
    row_tile = tl.program_id(0) % row_tiles
    slot = tl.program_id(0) // row_tiles
    in_tile = tl.arange(0, BLOCK_M)
    rows = row_tile * BLOCK_M + in_tile
    token = rows % seqlen_q
    dims = tl.arange(0, BLOCK_D)
    dims_v = tl.arange(0, BLOCK_DV)
    PAIRS: tl.constexpr = CACHE == "pairs"
    ACC_DIMS: tl.constexpr = BLOCK_DV // 2 if PAIRS else BLOCK_DV
    if CONFIG.chained:
        gdc_launch_dependents()  # the next kernel starts beside this one, and waits for it before it reads anything
        gdc_wait()
    if BATCH > 0:
        ends, total, even = block_ends(
            lengths_ptr, batch, num_kv_heads, capacity, seqlen_q, left, BATCH, BLOCK_N, HAS_LEFT
        )
        chunk = share_of(total, even, batch * num_kv_heads, slots, least)
    else:
        length = capacity
        first_block, blocks = visible_blocks(length, seqlen_q, left, BLOCK_N, HAS_LEFT)
        total = blocks * batch * num_kv_heads
        chunk = least
    unit = slot * chunk
    end = tl.minimum(unit + chunk, total)
    while unit < end:
        if BATCH > 0:
            seq, begin = sequence_at(unit, ends, even, num_kv_heads)
            length = tl.minimum(tl.maximum(tl.load(lengths_ptr + seq), 0), capacity)
            first_block, blocks = visible_blocks(length, seqlen_q, left, BLOCK_N, HAS_LEFT)
        else:
            seq = unit // (blocks * num_kv_heads)
            begin = seq * blocks * num_kv_heads
        head = (unit - begin) // blocks
        block = unit - begin - head * blocks
        count = tl.minimum(blocks - block, end - unit)

        far_seq = tl.cast(seq, tl.int64)
        q_at = far_seq * q_b + tl.cast(head * group + rows // seqlen_q, tl.int64) * q_h + token * q_m
        q_pointers = q_ptr + q_at[:, None] + dims
        q_mask = (rows < group * seqlen_q)[:, None] & (dims < HEAD_DIM)
        scale = tl.full([BLOCK_M], 1.0, dtype=tl.float32) * (softmax_scale * LOG2_E)
        v_scale = 1.0
        if not Q_IN_LOOP:
            q = tl.load(q_pointers, mask=q_mask, other=0.0)
        if CACHE != "plain":
            q, up = in_float16(q.to(tl.float32))
            scale = scale * up
            if CONFIG.k_scaled:
                scale = scale * tl.load(k_scale_ptr + seq * k_scale_b + head * k_scale_h)
            if CONFIG.v_scaled:
                v_scale = tl.load(v_scale_ptr + seq * v_scale_b + head * v_scale_h)
            if CACHE == "bytes":
                scale = scale * 256.0
                v_scale = v_scale * 256.0
        if ROPE_DIM > 0:
            dims_r = tl.arange(0, ROPE_DIM)
            q_rope = tl.load(
                q_ptr + HEAD_DIM + q_at[:, None] + dims_r, mask=(rows < group * seqlen_q)[:, None], other=0.0
            )
        position = length - seqlen_q + token
        bound = tl.zeros_like(position) + (length - 1)
        if CAUSAL:
            bound = tl.minimum(bound, position)
        elif HAS_LEFT:
            bound = tl.minimum(bound, position + left)
        first_key = tl.maximum(length - seqlen_q - left, 0)
        of_page = far_seq if PAGE == 0 else tl.zeros_like(far_seq)
        k_base = k_ptr + of_page * k_b + tl.cast(head, tl.int64) * k_h
        v_base = k_base + HEAD_DIM if ROPE_DIM > 0 else v_ptr + of_page * v_b + tl.cast(head, tl.int64) * v_h
        table = table_ptr
        if PAGE > 0:
            table += far_seq * table_b

        acc = tl.zeros([BLOCK_M, ACC_DIMS], dtype=tl.float32)
        acc_odd = acc
        row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
        row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
        start_key = (first_block + block) * BLOCK_N
        for start in tl.range(start_key, start_key + count * BLOCK_N, BLOCK_N):
            start = tl.multiple_of(start, BLOCK_N)
            if Q_IN_LOOP:  # read before, it is waited for before any key is asked for; the minimum is 0
                q = tl.load(q_pointers + tl.minimum(start, 0), mask=q_mask, other=0.0)
            k = load_block(
                k_base, table, start, first_key, length, k_b, k_n, k_d, BLOCK_N, HEAD_DIM, BLOCK_D, PAGE, HAS_LEFT
            )
            k = widened(k, CACHE)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            if ROPE_DIM > 0:
                k_rope = load_block(
                    v_base, table, start, first_key, length, v_b, v_n, v_d, BLOCK_N, ROPE_DIM, ROPE_DIM, PAGE, HAS_LEFT
                )
                scores = tl.dot(q_rope, tl.trans(k_rope), scores, input_precision="ieee")
            scores = scores * scale[:, None]
            keys = start + tl.arange(0, BLOCK_N)
            seen = keys[None, :] <= bound[:, None]
            if HAS_LEFT:
                seen = seen & (keys[None, :] >= (position - left)[:, None])
            scores = tl.where(seen, scores, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(scores, 1))
            base = tl.where(new_max == float("-inf"), 0.0, new_max)
            p = tl.exp2(scores - base[:, None])
            alpha = tl.exp2(row_max - base)
            row_sum = row_sum * alpha + tl.sum(p, 1)
            row_max = new_max
            if ROPE_DIM > 0:
                acc = tl.dot(p.to(k.dtype), k, acc * alpha[:, None], input_precision="ieee")
            elif PAIRS:
                v = load_block(
                    v_base, table, start, first_key, length, v_b, v_n, v_d,
                    BLOCK_N, HEAD_DIM_V // 2, ACC_DIMS, PAGE, HAS_LEFT,
                )  # fmt: skip
                v_even, v_odd = widened_values(v)
                p = p.to(tl.float16)
                acc = tl.dot(p, v_even, acc * alpha[:, None])
                acc_odd = tl.dot(p, v_odd, acc_odd * alpha[:, None])
            else:
                v = load_block(
                    v_base, table, start, first_key, length, v_b, v_n, v_d,
                    BLOCK_N, HEAD_DIM_V, BLOCK_DV, PAGE, HAS_LEFT,
                )  # fmt: skip
                v = widened(v, CACHE)
                acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")

        divisor = tl.where(row_sum == 0.0, 1.0, row_sum)
        out = acc
        if PAIRS:
            out = tl.reshape(tl.join(acc, acc_odd), [BLOCK_M, BLOCK_DV])
        out = out * (v_scale / divisor)[:, None]
        lse = tl.where(row_sum == 0.0, float("-inf"), row_max + tl.log2(divisor))
        if count == blocks:
            store_rows(
                out_ptr, lse_ptr, out, lse, seq, head, num_kv_heads * group, group, seqlen_q, rows, dims_v,
                HEAD_DIM_V, STORE_LSE,
            )  # fmt: skip
        else:
            index = tl.cast(slot * 2 + (block == 0).to(tl.int32), tl.int64) * row_tiles + row_tile
            at = index * BLOCK_M + in_tile
            real = rows < group * seqlen_q
            tl.store(parts_ptr + at[:, None] * BLOCK_DV + dims_v, out, mask=real[:, None])
            tl.store(parts_ptr + stats_offset + at, lse, mask=real)
            if CONFIG.tickets:
                tile_start = unit - block
                first, last = tile_start // chunk, (tile_start + blocks - 1) // chunk
                ticket_ptr = tickets_ptr + (seq * num_kv_heads + head) * row_tiles + row_tile
                tl.debug_barrier()  # every thread's part is stored before the ticket says so
                ticket = tl.atomic_add(ticket_ptr, 1, sem="acq_rel")
                if ticket == last - first:
                    tl.store(ticket_ptr, 0)
                    few = tl.arange(0, ROWS)
                    rows_c = row_tile * BLOCK_M + few
                    out_c, lse_c = combined(
                        parts_ptr, stats_offset, first, last, row_tile, row_tiles, rows_c < group * seqlen_q, few,
                        dims_v, BLOCK_M, BLOCK_DV, CONFIG.at_once, ROWS, BLOCK_DV,
                    )  # fmt: skip
                    store_rows(
                        out_ptr, lse_ptr, out_c, lse_c, seq, head, num_kv_heads * group, group, seqlen_q, rows_c,
                        dims_v, HEAD_DIM_V, STORE_LSE,
                    )  # fmt: skip
        unit += count
