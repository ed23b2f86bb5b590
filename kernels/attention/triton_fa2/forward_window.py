"""The forward of a short window: a program holds all keys and values that a tile of query rows sees.

They serve the query heads that share them, one after the other, and they are two panels of powers of two, as in
forward_few_keys.py: no key is left for a second step, so nothing is rescaled, and there is no loop over keys.

For 16-bit factors.
"""

import triton
import triton.language as tl

from .forward import inputs_of
from .panels import (
    load_panels,
    outputs_of_held_keys,
    product_of_panels,
    store_outputs_of_panels,
)
from .pdl import wait_for_previous_kernel
from .tile_ops import computed_anew


@triton.jit
def _scores_in_window(
    q, k, first, count, scale, BLOCK_N: tl.constexpr, BLOCK_D2: tl.constexpr, SCALE_FIRST: tl.constexpr
):  # fmt: skip
    """Return a tile's scores of BLOCK_N keys, -inf where a key is before a row's `first` or `count` behind it."""
    scores = product_of_panels(q, k, BLOCK_D2)
    if SCALE_FIRST:
        scores = scores * scale
    own = tl.arange(0, BLOCK_N)
    # A thread's columns are 8 g + 2 lane + (0 or 1), of which 8 g + (0 or 1) is known when compiling: one number a row
    # stands for the rest.
    below = first[:, None] - (own & 6)[None, :]
    beyond = ((own & ~6)[None, :] - below).to(tl.uint32, bitcast=True)  # one comparison for both ends
    return tl.where(beyond < count[:, None], scores, float("-inf"))


@triton.jit(
    do_not_specialize=["left", "right", "heads_each"],
    do_not_specialize_on_alignment=["num_heads", "group"],
)
def window_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, out_b, out_h, out_m,
    num_heads, group, seqlen_q, seqlen_k, left, right, heads_each, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_N2: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_D2: tl.constexpr, SCALE_FIRST: tl.constexpr, STORE_LSE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Compute output and base-2 logsumexp of BLOCK_M query rows of `heads_each` heads, which share a key head.

    BLOCK_M + left + right <= BLOCK_N + BLOCK_N2.
    """
    wait_for_previous_kernel(PDL)
    parts = group // heads_each
    tiles = tl.cdiv(seqlen_q, BLOCK_M)
    program = tl.program_id(0)
    head = program // (parts * tiles) * group + program % parts * heads_each
    start_m = program // parts % tiles * BLOCK_M
    batch, head_q, head_k, q_base, k_base, v_base = inputs_of(
        head, num_heads, group, q_ptr, k_ptr, v_ptr, q_b, q_h, k_b, k_h, v_b, v_h
    )
    shift = seqlen_k - seqlen_q
    start_n = tl.maximum(start_m + shift - left, 0)
    k = load_panels(k_base, start_n, k_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    v = load_panels(v_base, start_n, v_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    k2 = k
    v2 = v
    if BLOCK_N2 > 0:
        k2 = load_panels(k_base, start_n + BLOCK_N, k_n, seqlen_k, BLOCK_N2, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
        v2 = load_panels(v_base, start_n + BLOCK_N, v_n, seqlen_k, BLOCK_N2, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    rows = start_m + tl.arange(0, BLOCK_M)
    first = rows + shift - left
    count = tl.maximum(tl.minimum(rows + shift + right + 1, seqlen_k) - first, 0).to(tl.uint32, bitcast=True)
    factor = 1.0 if SCALE_FIRST else scale
    for i in tl.range(0, heads_each):
        q = load_panels(
            q_base + tl.cast(i, tl.int64) * q_h, start_m, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, True
        )
        own_first = computed_anew(first - start_n)
        scores = _scores_in_window(q, k, own_first, count, scale, BLOCK_N, BLOCK_D2, SCALE_FIRST)
        scores2 = scores
        if BLOCK_N2 > 0:
            scores2 = _scores_in_window(q, k2, own_first - BLOCK_N, count, scale, BLOCK_N2, BLOCK_D2, SCALE_FIRST)
        acc, acc2, row_sum, row_max = outputs_of_held_keys(scores, scores2, v, v2, factor, BLOCK_N2, BLOCK_D2, True)
        store_outputs_of_panels(
            out_ptr, lse_ptr, out_b, out_h, out_m, batch, head_q + i, head + i, start_m, rows, seqlen_q, acc, acc2,
            row_sum, row_max, factor, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, STORE_LSE, v_ptr.dtype.element_ty,
        )  # fmt: skip
