"""dk and dv: a program owns BLOCK_N keys of one key head and walks over the query rows that see them."""

import triton
import triton.language as tl

from kernels.attention.triton_fa2.chain import wait_for_turn
from kernels.attention.triton_fa2.factors import add_product, load_factor, padded, products, store_rows
from kernels.attention.triton_fa2.forward import assign, visible
from kernels.attention.triton_fa2.softmax import load_logsumexp, weights
from kernels.attention.triton_fa2.split import share


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
    dk, dv, k, v, k_base, v_base, q_ptr, dout_ptr, lse_ptr, delta_ptr, qt_ptr, dot_ptr, k_n, v_n, q_h, q_m, do_h, do_m,
    start_n, keys, lo, hi, group, seqlen_q, seqlen_k, left, right, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, GROUPED: tl.constexpr, COPIED: tl.constexpr,
    PRECISION: tl.constexpr, MASKED: tl.constexpr,
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
        copy = member * HEAD_DIM * padded(seqlen_q) if COPIED else 0
        q = load_factor(q_ptr + member * q_h, start, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True, PRECISION)
        scores = products(
            k, q, k_base, start_n, k_n, seqlen_k, qt_ptr + copy, start, seqlen_q,
            BLOCK_N, BLOCK_M, HEAD_DIM, BLOCK_D, COPIED, PRECISION, True,
        )  # fmt: skip
        positions = rows + (seqlen_k - seqlen_q)
        seen = visible(positions[None, :], keys[:, None], seqlen_k, left, right, HAS_LEFT, HAS_RIGHT)
        lse = load_logsumexp(lse_base + rows, rows < seqlen_q)
        delta = tl.load(delta_base + rows, mask=rows < seqlen_q, other=0.0)
        p = weights(scores, scale, lse, seen, 0, MASKED, COPIED or PRECISION == "pieces")
        dout = load_factor(dout_ptr + member * do_h, start, do_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True, PRECISION)
        dv = add_product(dv, p, dout, COPIED, PRECISION)
        dp = products(
            v, dout, v_base, start_n, v_n, seqlen_k, dot_ptr + copy, start, seqlen_q,
            BLOCK_N, BLOCK_M, HEAD_DIM, BLOCK_D, COPIED, PRECISION,
        )  # fmt: skip
        ds = p * (dp - delta[None, :])
        if COPIED:  # again, late: held since above, its parts are spilled
            q = load_factor(q_ptr + member * q_h, start, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, True, PRECISION)
        dk = add_product(dk, ds, q, COPIED, PRECISION)
    return dk, dv


@triton.jit
def dkdv_tile(
    k_base, v_base, q_base, dout_base, lse_base, delta_base, qt_base, dot_base, dk_base, dv_base,
    k_n, v_n, q_h, q_m, do_h, do_m, dk_n, dv_n, start_n, group, seqlen_q, seqlen_k, left, right, scale, softmax_scale,
    mine, pieces, piece,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr, GROUPED: tl.constexpr, COPIED: tl.constexpr, PRECISION: tl.constexpr, SPLIT: tl.constexpr,
    ONE_LOOP: tl.constexpr,
):  # fmt: skip
    """Compute and write dk and dv of the BLOCK_N keys from start_n; if SPLIT, what one piece of the rows adds."""
    k = load_factor(k_base, start_n, k_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, True, PRECISION)
    v = load_factor(v_base, start_n, v_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, True, PRECISION)
    keys = start_n + tl.arange(0, BLOCK_N)
    lo, full_lo, full_hi, hi = query_ranges(
        start_n, seqlen_q, seqlen_k, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT
    )
    if SPLIT:
        lo, full_lo, full_hi, hi = share(lo, full_lo, full_hi, hi, mine, pieces, piece)
    dk = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    if ONE_LOOP:
        dk, dv = _dkdv_of_queries(
            dk, dv, k, v, k_base, v_base, q_base, dout_base, lse_base, delta_base, qt_base, dot_base, k_n, v_n,
            q_h, q_m, do_h, do_m, start_n, keys, lo, hi, group, seqlen_q, seqlen_k, left, right,
            scale, BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, GROUPED, COPIED, PRECISION, True,
        )  # fmt: skip
    else:
        if HAS_RIGHT:
            dk, dv = _dkdv_of_queries(
                dk, dv, k, v, k_base, v_base, q_base, dout_base, lse_base, delta_base, qt_base, dot_base, k_n, v_n,
                q_h, q_m, do_h, do_m, start_n, keys, lo, tl.minimum(full_lo, hi), group, seqlen_q, seqlen_k, left,
                right, scale,
                BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, GROUPED, COPIED, PRECISION, True,
            )  # fmt: skip
        dk, dv = _dkdv_of_queries(
            dk, dv, k, v, k_base, v_base, q_base, dout_base, lse_base, delta_base, qt_base, dot_base, k_n, v_n,
            q_h, q_m, do_h, do_m, start_n, keys, full_lo, full_hi, group, seqlen_q, seqlen_k, left, right, scale,
            BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, GROUPED, COPIED, PRECISION, False,
        )  # fmt: skip
        if HAS_LEFT:
            dk, dv = _dkdv_of_queries(
                dk, dv, k, v, k_base, v_base, q_base, dout_base, lse_base, delta_base, qt_base, dot_base, k_n, v_n,
                q_h, q_m, do_h, do_m, start_n, keys, full_hi, hi, group, seqlen_q, seqlen_k, left, right, scale,
                BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, GROUPED, COPIED, PRECISION, True,
            )  # fmt: skip
    if (not SPLIT) or lo < hi:
        store_rows(dk_base, start_n, dk_n, seqlen_k, dk * softmax_scale, BLOCK_N, HEAD_DIM, BLOCK_D)
        store_rows(dv_base, start_n, dv_n, seqlen_k, dv, BLOCK_N, HEAD_DIM, BLOCK_D)


@triton.jit(
    do_not_specialize=["num_heads", "group", "total_heads", "heads_at_once", "seqlen_q", "seqlen_k", "left", "right"]
)
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, dk_ptr, dv_ptr, lse_ptr, delta_ptr, qt_ptr, dot_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, do_b, do_h, do_m, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    num_heads, group, total_heads, heads_at_once, seqlen_q, seqlen_k, left, right, scale, softmax_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr, GROUPED: tl.constexpr, COPIED: tl.constexpr, PRECISION: tl.constexpr,
    ONE_LOOP: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_N keys of one key head, summed over the query heads that share it; heads are key heads."""
    wait_for_turn(CHAINED)
    tiles = tl.cdiv(seqlen_k, BLOCK_N)
    tile, head = assign(tl.program_id(0), tiles, total_heads, heads_at_once)
    num_kv_heads = num_heads // group
    batch = tl.cast(head // num_kv_heads, tl.int64)
    head_k = tl.cast(head % num_kv_heads, tl.int64)
    head_q = head_k * group
    rows = (batch * num_heads + head_q) * seqlen_q
    copy = (batch * num_heads + head_q) * HEAD_DIM * padded(seqlen_q)
    dkdv_tile(
        k_ptr + batch * k_b + head_k * k_h, v_ptr + batch * v_b + head_k * v_h,
        q_ptr + batch * q_b + head_q * q_h, dout_ptr + batch * do_b + head_q * do_h,
        lse_ptr + rows, delta_ptr + rows, qt_ptr + copy, dot_ptr + copy,
        dk_ptr + batch * dk_b + head_k * dk_h, dv_ptr + batch * dv_b + head_k * dv_h,
        k_n, v_n, q_h, q_m, do_h, do_m, dk_n, dv_n, tile * BLOCK_N, group, seqlen_q, seqlen_k, left, right,
        scale, softmax_scale, 0, 1, 0,
        BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_D, HAS_LEFT, HAS_RIGHT, GROUPED, COPIED, PRECISION, False, ONE_LOOP,
    )  # fmt: skip
