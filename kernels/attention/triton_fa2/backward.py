"""The backward as two kernels (FlashAttention-2, arXiv:2307.08691, algorithm 2, split): dq, then dk and dv.

The dq kernel runs first and leaves delta = rowsum(dout * out) for the other, which saves a launch. No atomics: the
gradients are the same bits on every run.
"""

import triton
import triton.language as tl

from kernels.attention.triton_fa2.forward import assign, key_ranges, load_rows, store_rows, visible


@triton.jit
def _dq_of_keys(
    dq, q, dout, lse, delta, k_base, v_base, k_n, v_n, positions, lo, hi, seqlen_k, left, right, scale,
    BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add to dq what the keys lo .. hi contribute."""
    for start in tl.range(lo, hi, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = load_rows(k_base, start, k_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if MASKED:
            keys = start + tl.arange(0, BLOCK_N)
            seen = visible(positions[:, None], keys[None, :], seqlen_k, left, right, HAS_LEFT, HAS_RIGHT)
            scores = tl.where(seen, scores, float("-inf"))
        p = tl.exp2(scores - lse[:, None])
        v = load_rows(v_base, start, v_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED)
        dp = tl.dot(dout, tl.trans(v), input_precision=PRECISION)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(
    do_not_specialize=["num_heads", "group", "total_heads", "heads_at_once", "seqlen_q", "seqlen_k", "left", "right"]
)
def dq_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, dout_ptr, dq_ptr, lse_ptr, delta_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, out_b, out_h, out_m, do_b, do_h, do_m, dq_b, dq_h, dq_m,
    num_heads, group, total_heads, heads_at_once, seqlen_q, seqlen_k, left, right, scale, softmax_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M query rows, and their delta."""
    tiles = tl.cdiv(seqlen_q, BLOCK_M)
    tile, head = assign(tl.program_id(0), tiles, total_heads, heads_at_once)
    if HAS_RIGHT:
        tile = tiles - 1 - tile
    start_m = tile * BLOCK_M
    batch = tl.cast(head // num_heads, tl.int64)
    head_q = tl.cast(head % num_heads, tl.int64)
    head_k = head_q // group

    dout_base = dout_ptr + batch * do_b + head_q * do_h
    dout = load_rows(dout_base, start_m, do_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
    out = load_rows(
        out_ptr + batch * out_b + head_q * out_h, start_m, out_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True
    )
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    rows = start_m + tl.arange(0, BLOCK_M)
    row_offset = tl.cast(head, tl.int64) * seqlen_q
    tl.store(delta_ptr + row_offset + rows, delta, mask=rows < seqlen_q)
    lse = tl.load(lse_ptr + row_offset + rows, mask=rows < seqlen_q, other=float("inf"))

    q = load_rows(q_ptr + batch * q_b + head_q * q_h, start_m, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
    k_base = k_ptr + batch * k_b + head_k * k_h
    v_base = v_ptr + batch * v_b + head_k * v_h
    shift = seqlen_k - seqlen_q
    positions = rows + shift
    last_position = tl.minimum(start_m + BLOCK_M, seqlen_q) - 1 + shift
    lo, full_lo, full_hi, hi = key_ranges(
        start_m + shift, last_position, seqlen_k, left, right, BLOCK_N, HAS_LEFT, HAS_RIGHT
    )

    dq = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    if HAS_LEFT:
        dq = _dq_of_keys(
            dq, q, dout, lse, delta, k_base, v_base, k_n, v_n, positions, lo, tl.minimum(full_lo, hi), seqlen_k,
            left, right, scale, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, PRECISION, True,
        )  # fmt: skip
    dq = _dq_of_keys(
        dq, q, dout, lse, delta, k_base, v_base, k_n, v_n, positions, full_lo, full_hi, seqlen_k,
        left, right, scale, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, PRECISION, False,
    )  # fmt: skip
    dq = _dq_of_keys(
        dq, q, dout, lse, delta, k_base, v_base, k_n, v_n, positions, full_hi, hi, seqlen_k,
        left, right, scale, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, PRECISION, True,
    )  # fmt: skip
    dq_base = dq_ptr + batch * dq_b + head_q * dq_h
    store_rows(dq_base, start_m, dq_m, seqlen_q, dq * softmax_scale, BLOCK_M, HEAD_DIM, BLOCK_D)


@triton.jit
def query_ranges(
    first_key, seqlen_q, seqlen_k, left, right,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
):  # fmt: skip
    """Bounds lo <= full_lo <= full_hi and hi of the query rows that see a tile of keys; see forward.key_ranges.

    The last rows need no mask, so full_hi may lie beyond them.
    """
    shift = seqlen_k - seqlen_q
    last_key = tl.minimum(first_key + BLOCK_N, seqlen_k) - 1
    lo = 0
    full_lo = 0
    hi = seqlen_q
    full_hi = seqlen_q
    if HAS_LEFT:
        hi = tl.minimum(hi, tl.maximum(last_key + left - shift + 1, 0))
        full_hi = tl.minimum(full_hi, (tl.maximum(first_key + left - shift + 1, 0) // BLOCK_M) * BLOCK_M)
    if HAS_RIGHT:
        lo = (tl.maximum(first_key - right - shift, 0) // BLOCK_M) * BLOCK_M
        full_lo = tl.cdiv(tl.maximum(last_key - right - shift, 0), BLOCK_M) * BLOCK_M
        full_lo = tl.minimum(full_lo, tl.maximum(tl.cdiv(hi, BLOCK_M) * BLOCK_M, lo))
    full_hi = tl.maximum(full_hi, full_lo)
    return lo, full_lo, full_hi, hi


@triton.jit
def _dkdv_of_queries(
    dk, dv, k, v, q_ptr, dout_ptr, lse_ptr, delta_ptr, q_h, q_m, do_h, do_m, keys, lo, hi, group, seqlen_q, seqlen_k,
    left, right, scale, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr, GROUPED: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add to dk and dv what the query rows lo .. hi of all heads of the group contribute.

    Scores are transposed: keys down, queries across. One loop runs over heads and rows; nested, the compiler keeps the
    addresses of both loops in registers and spills (296 bytes at head_dim 128, 64x64, 8 warps on sm_90).
    """
    steps = tl.cdiv(tl.maximum(hi - lo, 0), BLOCK_M)
    for step in tl.range(0, steps * group if GROUPED else steps):
        member = tl.cast(step // steps if GROUPED else 0, tl.int64)
        start = tl.multiple_of(lo + (step % steps if GROUPED else step) * BLOCK_M, BLOCK_M)
        rows = start + tl.arange(0, BLOCK_M)
        lse_base = lse_ptr + member * seqlen_q
        delta_base = delta_ptr + member * seqlen_q
        dout_base = dout_ptr + member * do_h
        q = load_rows(q_ptr + member * q_h, start, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale
        if MASKED:
            positions = rows + (seqlen_k - seqlen_q)
            seen = visible(positions[None, :], keys[:, None], seqlen_k, left, right, HAS_LEFT, HAS_RIGHT)
            scores = tl.where(seen, scores, float("-inf"))
        # beyond the last row the logsumexp is +inf and p is 0: the tail needs no mask of its own
        lse = tl.load(lse_base + rows, mask=rows < seqlen_q, other=float("inf"))
        delta = tl.load(delta_base + rows, mask=rows < seqlen_q, other=0.0)
        p = tl.exp2(scores - lse[None, :])
        dout = load_rows(dout_base, start, do_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True)
        dv = tl.dot(p.to(dout.dtype), dout, dv, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(dout), input_precision=PRECISION)
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(
    do_not_specialize=["num_heads", "group", "total_heads", "heads_at_once", "seqlen_q", "seqlen_k", "left", "right"]
)
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, dk_ptr, dv_ptr, lse_ptr, delta_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, do_b, do_h, do_m, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    num_heads, group, total_heads, heads_at_once, seqlen_q, seqlen_k, left, right, scale, softmax_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, GROUPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_N keys of one key head, summed over the query heads that share it; heads are key heads."""
    tiles = tl.cdiv(seqlen_k, BLOCK_N)
    tile, head = assign(tl.program_id(0), tiles, total_heads, heads_at_once)
    start_n = tile * BLOCK_N
    num_kv_heads = num_heads // group
    batch = tl.cast(head // num_kv_heads, tl.int64)
    head_k = tl.cast(head % num_kv_heads, tl.int64)

    k = load_rows(k_ptr + batch * k_b + head_k * k_h, start_n, k_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, True)
    v = load_rows(v_ptr + batch * v_b + head_k * v_h, start_n, v_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, True)
    keys = start_n + tl.arange(0, BLOCK_N)
    lo, full_lo, full_hi, hi = query_ranges(
        start_n, seqlen_q, seqlen_k, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT
    )

    dk = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    first_head = head_k * group
    q_base = q_ptr + batch * q_b + first_head * q_h
    dout_base = dout_ptr + batch * do_b + first_head * do_h
    lse_base = lse_ptr + (batch * num_heads + first_head) * seqlen_q
    delta_base = delta_ptr + (batch * num_heads + first_head) * seqlen_q
    if HAS_RIGHT:
        dk, dv = _dkdv_of_queries(
            dk, dv, k, v, q_base, dout_base, lse_base, delta_base, q_h, q_m, do_h, do_m, keys, lo, tl.minimum(full_lo, hi),
            group,
            seqlen_q, seqlen_k, left, right, scale, BLOCK_M, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, GROUPED, PRECISION,
            True,
        )  # fmt: skip
    dk, dv = _dkdv_of_queries(
        dk, dv, k, v, q_base, dout_base, lse_base, delta_base, q_h, q_m, do_h, do_m, keys, full_lo, full_hi, group,
        seqlen_q, seqlen_k, left, right, scale, BLOCK_M, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, GROUPED, PRECISION,
        False,
    )  # fmt: skip
    if HAS_LEFT:
        dk, dv = _dkdv_of_queries(
            dk, dv, k, v, q_base, dout_base, lse_base, delta_base, q_h, q_m, do_h, do_m, keys, full_hi, hi, group,
            seqlen_q, seqlen_k, left, right, scale, BLOCK_M, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, GROUPED, PRECISION,
            True,
        )  # fmt: skip
    dk_base = dk_ptr + batch * dk_b + head_k * dk_h
    dv_base = dv_ptr + batch * dv_b + head_k * dv_h
    store_rows(dk_base, start_n, dk_n, seqlen_k, dk * softmax_scale, BLOCK_N, HEAD_DIM, BLOCK_D)
    store_rows(dv_base, start_n, dv_n, seqlen_k, dv, BLOCK_N, HEAD_DIM, BLOCK_D)
