"""The forward of few keys: a program holds all keys and values of a head and walks over its query rows.

Keys, and columns of head_dim, are two panels of powers of two each (77 keys are 64 and 16, head_dim 72 is 64 and 16).
No key is left for a second step, so a row's maximum is final: nothing is rescaled, and there is no loop over keys.

For 16-bit factors.
"""

import triton
import triton.language as tl

from .forward import inputs_of
from .panels import (
    load_panels,
    outputs_of_held_keys,
    scores_of_panels,
    store_outputs_of_panels,
)
from .pdl import wait_for_previous_kernel


@triton.jit(
    do_not_specialize=["left", "right", "rows_each"],
    do_not_specialize_on_alignment=["num_heads", "group"],
)
def few_keys_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, out_b, out_h, out_m,
    num_heads, group, seqlen_q, seqlen_k, left, right, rows_each, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_N2: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_D2: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
    WHOLE: tl.constexpr, SCALE_FIRST: tl.constexpr, STORE_LSE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Compute output and base-2 logsumexp of `rows_each` query rows of a head, a multiple of BLOCK_M.

    seqlen_k <= BLOCK_N + BLOCK_N2; WHOLE: every query sees the first BLOCK_N keys.
    """
    wait_for_previous_kernel(PDL)
    programs = tl.cdiv(seqlen_q, rows_each)
    head = tl.program_id(0) // programs
    first = tl.program_id(0) % programs * rows_each
    batch, head_q, head_k, q_base, k_base, v_base = inputs_of(
        head, num_heads, group, q_ptr, k_ptr, v_ptr, q_b, q_h, k_b, k_h, v_b, v_h
    )
    k = load_panels(k_base, 0, k_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2, not WHOLE)
    v = load_panels(v_base, 0, v_n, seqlen_k, BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2, not WHOLE)
    k2 = k
    v2 = v
    if BLOCK_N2 > 0:
        k2 = load_panels(k_base, BLOCK_N, k_n, seqlen_k, BLOCK_N2, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
        v2 = load_panels(v_base, BLOCK_N, v_n, seqlen_k, BLOCK_N2, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    factor = 1.0 if SCALE_FIRST else scale
    MASKED: tl.constexpr = HAS_LEFT or HAS_RIGHT or not WHOLE
    for start in tl.range(first, tl.minimum(first + rows_each, seqlen_q), BLOCK_M):
        q = load_panels(q_base, start, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
        rows = start + tl.arange(0, BLOCK_M)
        positions = rows + (seqlen_k - seqlen_q)
        scores = scores_of_panels(
            q, k, positions, 0, seqlen_k, left, right, scale,
            BLOCK_N, BLOCK_D2, HAS_LEFT, HAS_RIGHT, SCALE_FIRST, MASKED,
        )  # fmt: skip
        scores2 = scores
        if BLOCK_N2 > 0:
            scores2 = scores_of_panels(
                q, k2, positions, BLOCK_N, seqlen_k, left, right, scale,
                BLOCK_N2, BLOCK_D2, HAS_LEFT, HAS_RIGHT, SCALE_FIRST, True,
            )  # fmt: skip
        acc, acc2, row_sum, row_max = outputs_of_held_keys(scores, scores2, v, v2, factor, BLOCK_N2, BLOCK_D2, MASKED)
        store_outputs_of_panels(
            out_ptr, lse_ptr, out_b, out_h, out_m, batch, head_q, head, start, rows, seqlen_q, acc, acc2, row_sum,
            row_max, factor, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, STORE_LSE, v_ptr.dtype.element_ty,
        )  # fmt: skip
