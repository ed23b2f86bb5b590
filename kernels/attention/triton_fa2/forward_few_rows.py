"""The forward of few rows: the keys of a step are shared out among the warps, which meet only at the end.

A matrix instruction takes 16 rows. Where a program has no more, its warps can share out the keys alone, and if they
share out one softmax they wait for one another's maxima, sums and weights in every step. Here each warp has keys, a
maximum, a sum and an output of its own, as if its keys were the only ones; at the end these are weighed together, as
the splits of a walk are. The warps are the first dimension of every product, so that Triton gives each its own.
Columns are panels (panels.py).

For 16-bit factors. float32 in bf16x6 (tile_ops.py) would be faster here too, but its scores are not the bits of the
backward's, and a logsumexp of other scores costs large ones their gradients.
"""

import triton
import triton.language as tl

from .forward import assign, inputs_of, key_ranges, visible, weigh
from .panels import store_outputs_of_panels
from .pdl import wait_for_previous_kernel


@triton.jit
def _load_shares(
    base, start, stride, limit,
    SHARES: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Load (SHARES, ROWS, BLOCK_D): SHARES times ROWS rows of one head, zeros beyond `limit` and beyond HEAD_DIM."""
    rows = tl.arange(0, SHARES)[:, None, None] * ROWS + tl.arange(0, ROWS)[None, :, None]
    dims = tl.arange(0, BLOCK_D)[None, None, :]
    pointers = base + tl.cast(start, tl.int64) * stride + (rows * stride + dims)
    mask = start + rows < limit
    if HEAD_DIM != BLOCK_D:
        mask = mask & (dims < HEAD_DIM)
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def _together(x, SHARES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sum over the shares, half to half: each half then lies within the threads, where tl.sum would shuffle."""
    if SHARES == 1:
        x = tl.reshape(x, [ROWS, COLUMNS])
    else:
        halves = tl.permute(tl.reshape(x, [2, SHARES // 2, ROWS, COLUMNS]), (1, 2, 3, 0))
        first, second = tl.split(halves)
        x = _together(first + second, SHARES // 2, ROWS, COLUMNS)
    return x


@triton.jit(
    do_not_specialize=["left", "right"],
    do_not_specialize_on_alignment=["num_heads", "group", "total_heads", "heads_at_once"],
)
def few_rows_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, out_b, out_h, out_m,
    num_heads, group, total_heads, heads_at_once, seqlen_q, seqlen_k, left, right, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SHARES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_D2: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, SCALE_FIRST: tl.constexpr,
    STORE_LSE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute output and base-2 logsumexp of BLOCK_M query rows: each step is SHARES times BLOCK_N keys."""
    wait_for_previous_kernel(PDL)
    tiles = tl.cdiv(seqlen_q, BLOCK_M)
    tile, head = assign(tl.program_id(0), tiles, total_heads, heads_at_once)
    if HAS_RIGHT:
        tile = tiles - 1 - tile
    start_m = tile * BLOCK_M
    batch, head_q, head_k, q_base, k_base, v_base = inputs_of(
        head, num_heads, group, q_ptr, k_ptr, v_ptr, q_b, q_h, k_b, k_h, v_b, v_h
    )
    STEP: tl.constexpr = SHARES * BLOCK_N
    rows = start_m + tl.arange(0, BLOCK_M)
    shift = seqlen_k - seqlen_q
    positions = rows + shift
    last_position = tl.minimum(start_m + BLOCK_M, seqlen_q) - 1 + shift
    lo, full_lo, full_hi, hi = key_ranges(
        start_m + shift, last_position, seqlen_k, left, right, STEP, HAS_LEFT, HAS_RIGHT
    )

    all_rows = tl.zeros([SHARES, 1, 1], dtype=tl.int32) + tl.arange(0, BLOCK_M)[None, :, None]  # for each share
    dims = tl.arange(0, BLOCK_D)[None, None, :]
    q_pointers = q_base + tl.cast(start_m, tl.int64) * q_m + (all_rows * q_m + dims)
    FIRST: tl.constexpr = BLOCK_D if BLOCK_D2 > 0 else HEAD_DIM
    q_mask = (start_m + all_rows < seqlen_q) & (dims < FIRST)
    own_keys = tl.arange(0, SHARES)[:, None, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, None, :]
    acc = tl.zeros([SHARES, BLOCK_M, BLOCK_D], dtype=tl.float32)
    acc2 = acc
    if BLOCK_D2 > 0:
        dims2 = BLOCK_D + tl.arange(0, BLOCK_D2)[None, None, :]
        q2_pointers = q_base + tl.cast(start_m, tl.int64) * q_m + (all_rows * q_m + dims2)
        q2_mask = (start_m + all_rows < seqlen_q) & (dims2 < HEAD_DIM)
        acc2 = tl.zeros([SHARES, BLOCK_M, BLOCK_D2], dtype=tl.float32)
    row_sum = tl.zeros([SHARES, BLOCK_M], dtype=tl.float32)
    row_max = tl.full([SHARES, BLOCK_M], float("-inf"), dtype=tl.float32)
    for start in tl.range(lo, hi, STEP):
        start = tl.multiple_of(start, STEP)
        # q comes with the keys of each step, though it is the same (the minimum is 0, which the compiler cannot know):
        # read before the loop, it is waited for before the first keys are asked for
        q = tl.load(q_pointers + tl.minimum(start, 0), mask=q_mask, other=0.0)
        k = _load_shares(k_base, start, k_n, seqlen_k, SHARES, BLOCK_N, FIRST, BLOCK_D)
        scores = tl.dot(q, tl.permute(k, (0, 2, 1)))
        if BLOCK_D2 > 0:
            q2 = tl.load(q2_pointers + tl.minimum(start, 0), mask=q2_mask, other=0.0)
            k2 = _load_shares(k_base + BLOCK_D, start, k_n, seqlen_k, SHARES, BLOCK_N, HEAD_DIM - BLOCK_D, BLOCK_D2)
            scores = tl.dot(q2, tl.permute(k2, (0, 2, 1)), scores)
        if SCALE_FIRST:
            scores = scores * scale
        keys = start + own_keys
        seen = visible(positions[None, :, None], keys, seqlen_k, left, right, HAS_LEFT, HAS_RIGHT)
        scores = tl.where(seen, scores, float("-inf"))
        factor = 1.0 if SCALE_FIRST else scale
        p, alpha, row_sum, row_max = weigh(scores, row_sum, row_max, factor, 2, True)
        v = _load_shares(v_base, start, v_n, seqlen_k, SHARES, BLOCK_N, FIRST, BLOCK_D)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, :, None])
        if BLOCK_D2 > 0:
            v2 = _load_shares(v_base + BLOCK_D, start, v_n, seqlen_k, SHARES, BLOCK_N, HEAD_DIM - BLOCK_D, BLOCK_D2)
            acc2 = tl.dot(p.to(v2.dtype), v2, acc2 * alpha[:, :, None])

    top = tl.max(row_max, 0)
    factor = 1.0 if SCALE_FIRST else scale
    weights = tl.exp2((row_max - tl.where(top == float("-inf"), 0.0, top)[None, :]) * factor)
    row_sum = tl.sum(row_sum * weights, 0)
    acc = _together(acc * weights[:, :, None], SHARES, BLOCK_M, BLOCK_D)
    if BLOCK_D2 > 0:
        acc2 = _together(acc2 * weights[:, :, None], SHARES, BLOCK_M, BLOCK_D2)
    store_outputs_of_panels(
        out_ptr, lse_ptr, out_b, out_h, out_m, batch, head_q, head, start_m, rows, seqlen_q, acc, acc2, row_sum, top,
        factor, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, STORE_LSE, v_ptr.dtype.element_ty,
    )  # fmt: skip
