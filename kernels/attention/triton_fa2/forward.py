"""The forward kernel: FlashAttention-2 (Dao 2023, arXiv:2307.08691, algorithm 1) with a softmax in base 2.

A program owns BLOCK_M query rows of one head and walks over the keys they may see. Masks are two distances: a query
at position p (its row, shifted so that the last query meets the last key) sees the keys j with
p - left <= j <= p + right. Causal is right = 0; without a mask on a side, that side is compiled away.
"""

from collections import namedtuple

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from .split import longest_first, share
from .tile_ops import (
    add_product,
    load_factor,
    padded,
    products,
    scaled_maximum,
    store_logsumexp,
    store_rows,
    sum_of_rounded,
)


@triton.jit
def wait_for_previous_kernel(PDL: tl.constexpr):
    """Wait, if PDL, until all that the kernel before wrote is visible; the first thing a kernel does.

    Programmatic dependent launch (CUDA C++ Programming Guide, from compute capability 9.0): a kernel may start when the
    last blocks of the one before end. Blocks let in earlier, by a signal of the first kernel, crowd on the few
    multiprocessors that are free then: a forward of 2048 x 128 in 8 splits took 38 us on an H200, 23 without the
    signal, 25 without PDL.
    """
    if PDL:
        gdc_wait()


@triton.jit
def assign(program, tiles, total_heads, heads_at_once):
    """Return a program's tile and head: all tiles of `heads_at_once` heads (as many as the L2 holds), by rank."""
    batch_of_heads = program // (heads_at_once * tiles)
    rank = program % (heads_at_once * tiles)
    first = batch_of_heads * heads_at_once
    width = tl.minimum(heads_at_once, total_heads - first)
    return rank // width, first + rank % width


@triton.jit
def inputs_of(head, num_heads, group, tensors, strides):
    """Return the batch, query head and key head of a head counted over all batches, and the addresses of its inputs."""
    batch = tl.cast(head // num_heads, tl.int64)
    head_q = tl.cast(head % num_heads, tl.int64)
    head_k = head_q // group
    q_base = tensors.q + batch * strides.q.batch + head_q * strides.q.head
    k_base = tensors.k + batch * strides.k.batch + head_k * strides.k.head
    v_base = tensors.v + batch * strides.v.batch + head_k * strides.v.head
    return batch, head_q, head_k, q_base, k_base, v_base


@triton.jit
def addresses_of(head, num_heads, tensors, strides):
    """Return where a head, counted over all batches, begins in q, k, v, out, dout, dq, dk and dv."""
    batch = tl.cast(head // num_heads, tl.int64)
    own = tl.cast(head % num_heads, tl.int64)
    found = ()
    for i in tl.static_range(8):
        found += (tensors[i] + batch * strides[i].batch + own * strides[i].head,)
    return found


@triton.jit
def visible(positions, keys, seqlen_k, left, right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """Return which keys each position sees; the arguments broadcast against one another."""
    seen = keys < seqlen_k
    if HAS_RIGHT:
        seen = seen & (keys <= positions + right)
    if HAS_LEFT:
        seen = seen & (keys >= positions - left)
    return seen


@triton.jit
def key_ranges(
    first_position, last_position, seqlen_k, left, right,
    BLOCK_N: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
):  # fmt: skip
    """Return bounds lo <= full_lo <= full_hi and hi of the keys that a range of positions sees.

    Blocks in [full_lo, full_hi) are seen whole by every position; those before and after need a mask.
    """
    lo, full_lo, hi = 0, 0, seqlen_k
    full_hi = (seqlen_k // BLOCK_N) * BLOCK_N
    if HAS_RIGHT:
        hi = tl.minimum(hi, tl.maximum(last_position + right + 1, 0))
        full_hi = tl.minimum(full_hi, (tl.maximum(first_position + right + 1, 0) // BLOCK_N) * BLOCK_N)
    if HAS_LEFT:
        lo = (tl.maximum(first_position - left, 0) // BLOCK_N) * BLOCK_N
        full_lo = tl.cdiv(tl.maximum(last_position - left, 0), BLOCK_N) * BLOCK_N
        full_lo = tl.minimum(full_lo, tl.maximum(tl.cdiv(hi, BLOCK_N) * BLOCK_N, lo))
    full_hi = tl.maximum(full_hi, full_lo)
    return lo, full_lo, full_hi, hi


@triton.jit
def weigh(scores, row_sum, row_max, factor, HIDES: tl.constexpr):
    """Return probabilities, the factor of earlier sums, and the new sums and maxima of rows.

    HIDES: a row may have seen no key yet.
    """
    new_max = tl.maximum(row_max, tl.max(scores, 1))
    top = tl.where(new_max == float("-inf"), 0.0, new_max) if HIDES else new_max
    p = tl.exp2(tl.fma(scores, factor, -tl.expand_dims(top * factor, 1)))
    alpha = tl.exp2((row_max - top) * factor)
    return p, alpha, row_sum * alpha + tl.sum(p, 1), new_max


# A tile of query rows, and where it is in memory. `rows`: as load_factor returns them.
Queries = namedtuple("Queries", "rows base stride first seqlen positions")
# Where a head's keys and values are, and how many before and after its own position a query sees.
Keys = namedtuple("Keys", "k k_transposed v k_stride v_stride seqlen left right")
# Where the output and the logsumexp of a head are. `strides`: of out; `head_q`: the head in its batch; `head`: over all
# batches.
HeadOutput = namedtuple("HeadOutput", "out lse strides batch head_q head")


@triton.jit
def fold_keys(acc, row_sum, row_max, queries, keys, lo, hi, scale, CONFIG: tl.constexpr, MASKED: tl.constexpr):
    """Fold the keys lo .. hi into the running sum, maximum and output of each query row."""
    BLOCK_N: tl.constexpr = CONFIG.block_n
    for start in tl.range(lo, hi, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = queries.rows
        if not CONFIG.copied:
            k = load_factor(keys.k, start, keys.k_stride, keys.seqlen, BLOCK_N, MASKED, CONFIG)
        scores = products(
            queries.rows, k, queries.base, queries.first, queries.stride, queries.seqlen, keys.k_transposed, start,
            keys.seqlen, CONFIG.block_m, BLOCK_N, CONFIG,
        )  # fmt: skip
        if CONFIG.scale_first:
            scores = scores * scale
        if MASKED:
            columns = start + tl.arange(0, BLOCK_N)
            seen = visible(
                queries.positions[:, None], columns[None, :], keys.seqlen, keys.left, keys.right, CONFIG.has_left,
                CONFIG.has_right,
            )  # fmt: skip
            scores = tl.where(seen, scores, float("-inf"))
        factor = 1.0 if CONFIG.scale_first else scale
        p, alpha, row_sum, row_max = weigh(scores, row_sum, row_max, factor, MASKED)
        v = load_factor(keys.v, start, keys.v_stride, keys.seqlen, BLOCK_N, MASKED, CONFIG)
        acc = add_product(acc * alpha[:, None], p, v, False, CONFIG.precision)
    return acc, row_sum, row_max


@triton.jit
def store_outputs(
    output, start_m, rows, seqlen_q, acc, row_sum, row_max, factor,
    CONFIG: tl.constexpr, P_DTYPE: tl.constexpr,
):  # fmt: skip
    """Write output and logsumexp of block_m query rows; 0 and +inf for a row that sees no key.

    row_max is the maximum of the scores: probabilities are exp2(score x factor - row_max x factor). On the FMA units
    (copied) the quotients are rounded to nearest, for delta's sake (preprocess.py): a plain quotient is up to two units
    off.
    """
    some = row_sum != 0.0
    row_sum = tl.where(some, row_sum, 1.0)
    row_max = tl.where(some, row_max, 0.0)
    total = sum_of_rounded(row_sum, row_max, factor, P_DTYPE)
    out_base = output.out + output.batch * output.strides.batch + output.head_q * output.strides.head
    out = tl.div_rn(acc, total[:, None]) if CONFIG.copied else acc / total[:, None]
    store_rows(out_base, start_m, output.strides.row, seqlen_q, out, CONFIG.block_m, CONFIG.head_dim, CONFIG.block_d)
    if CONFIG.store_lse:
        lse_ptrs = output.lse + tl.cast(output.head, tl.int64) * seqlen_q + rows
        store_logsumexp(lse_ptrs, scaled_maximum(row_max, factor), row_sum, some, rows < seqlen_q)


@triton.jit(
    do_not_specialize=["left", "right", "splits", "split_len"],
    do_not_specialize_on_alignment=["num_heads", "group", "total_heads", "heads_at_once"],
)
def forward_kernel(
    tensors, strides, num_heads, group, total_heads, heads_at_once, seqlen_q, seqlen_k, left, right, splits, split_len,
    scale, CONFIG: tl.constexpr,
):  # fmt: skip
    """Compute output and base-2 logsumexp of block_m query rows. `scale` is softmax_scale x log2(e).

    If one_loop, all blocks of keys are masked: half of the code, which a short call reads from memory. If split, a
    program walks over one split of the keys, and out and lse are the slot of that split (split.py).
    """
    BLOCK_M: tl.constexpr = CONFIG.block_m
    out_ptr = tensors.out
    lse_ptr = tensors.lse
    wait_for_previous_kernel(CONFIG.pdl)
    tiles = tl.cdiv(seqlen_q, BLOCK_M)
    program = tl.program_id(0)
    after = 0
    if CONFIG.split:  # first the whole splits, which have others behind them
        after = splits - 1 - program // (total_heads * tiles)
        program = program % (total_heads * tiles)
    tile, head = assign(program, tiles, total_heads, heads_at_once)
    if CONFIG.has_right:  # the longest first, so that no late start decides the time
        tile = longest_first(tile, tiles, split_len // BLOCK_M) if CONFIG.split else tiles - 1 - tile
    start_m = tile * BLOCK_M
    batch, head_q, head_k, q_base, k_base, v_base = inputs_of(head, num_heads, group, tensors, strides)
    kt_base = tensors.k_transposed + (batch * (num_heads // group) + head_k) * CONFIG.head_dim * padded(seqlen_k)
    rows = start_m + tl.arange(0, BLOCK_M)
    shift = seqlen_k - seqlen_q
    positions = rows + shift
    last_position = tl.minimum(start_m + BLOCK_M, seqlen_q) - 1 + shift
    lo, full_lo, full_hi, hi = key_ranges(
        start_m + shift, last_position, seqlen_k, left, right, CONFIG.block_n, CONFIG.has_left, CONFIG.has_right
    )
    if CONFIG.split:
        own_split = (tl.maximum(hi - 1, 0) // split_len + splits - after) % splits
        lo, full_lo, full_hi, hi = share(lo, full_lo, full_hi, hi, own_split, splits, split_len)
        if lo >= hi:
            return
        out_ptr += tl.cast(own_split, tl.int64) * total_heads * seqlen_q * CONFIG.head_dim
        lse_ptr += tl.cast(own_split, tl.int64) * total_heads * seqlen_q

    q = load_factor(q_base, start_m, strides.q.row, seqlen_q, BLOCK_M, True, CONFIG)
    acc = tl.zeros([BLOCK_M, CONFIG.block_d], dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    queries = Queries(rows=q, base=q_base, stride=strides.q.row, first=start_m, seqlen=seqlen_q, positions=positions)
    keys = Keys(k=k_base, k_transposed=kt_base, v=v_base, k_stride=strides.k.row, v_stride=strides.v.row,
                seqlen=seqlen_k, left=left, right=right)  # fmt: skip
    acc, row_sum, row_max = fold_all_keys(
        acc, row_sum, row_max, queries, keys, (lo, full_lo, full_hi, hi), scale, CONFIG
    )

    factor = 1.0 if CONFIG.scale_first else scale
    P_DTYPE: tl.constexpr = tl.float32 if CONFIG.precision == "bf16x6" else tensors.v.dtype.element_ty
    output = HeadOutput(out=out_ptr, lse=lse_ptr, strides=strides.out, batch=batch, head_q=head_q, head=head)
    store_outputs(output, start_m, rows, seqlen_q, acc, row_sum, row_max, factor, CONFIG, P_DTYPE)


@triton.jit
def fold_all_keys(acc, row_sum, row_max, queries, keys, bounds, scale, CONFIG: tl.constexpr):
    """Fold all keys within the bounds (key_ranges) into the sums; blocks that every row sees whole take no mask."""
    lo, full_lo, full_hi, hi = bounds
    if CONFIG.one_loop:
        acc, row_sum, row_max = fold_keys(acc, row_sum, row_max, queries, keys, lo, hi, scale, CONFIG, True)
    else:
        if CONFIG.has_left:
            acc, row_sum, row_max = fold_keys(
                acc, row_sum, row_max, queries, keys, lo, tl.minimum(full_lo, hi), scale, CONFIG, True
            )
        acc, row_sum, row_max = fold_keys(acc, row_sum, row_max, queries, keys, full_lo, full_hi, scale, CONFIG, False)
        acc, row_sum, row_max = fold_keys(acc, row_sum, row_max, queries, keys, full_hi, hi, scale, CONFIG, True)
    return acc, row_sum, row_max
