"""The forward of few keys: a program holds all keys and values of a head and walks over its query rows.

Keys, and columns of head_dim, are two panels of powers of two each (77 keys are 64 and 16, head_dim 72 is 64 and 16).
No key is left for a second step, so a row's maximum is final: nothing is rescaled, and there is no loop over keys.

For 16-bit factors.
"""

import triton
import triton.language as tl

from .forward import HeadOutput, inputs_of, wait_for_previous_kernel
from .panels import load_panels, outputs_of_held_keys, scores_of_panels, store_outputs_of_panels


@triton.jit(do_not_specialize=["left", "right", "rows_each"], do_not_specialize_on_alignment=["num_heads", "group"])
def few_keys_kernel(
    tensors, strides, num_heads, group, seqlen_q, seqlen_k, left, right, rows_each, scale, CONFIG: tl.constexpr
):  # fmt: skip
    """Compute output and base-2 logsumexp of `rows_each` query rows of a head, a multiple of block_m.

    seqlen_k <= block_n + block_n2; whole: every query sees the first block_n keys.
    """
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    BLOCK_N2: tl.constexpr = CONFIG.block_n2
    wait_for_previous_kernel(CONFIG.pdl)
    programs = tl.cdiv(seqlen_q, rows_each)
    head = tl.program_id(0) // programs
    first = tl.program_id(0) % programs * rows_each
    batch, head_q, head_k, q_base, k_base, v_base = inputs_of(head, num_heads, group, tensors, strides)
    k = load_panels(k_base, 0, strides.k.row, seqlen_k, BLOCK_N, CONFIG, not CONFIG.whole)
    v = load_panels(v_base, 0, strides.v.row, seqlen_k, BLOCK_N, CONFIG, not CONFIG.whole)
    k2 = k
    v2 = v
    behind = tl.cast(BLOCK_N, tl.int32)  # the first key of the second block
    if BLOCK_N2 > 0:
        k2 = load_panels(k_base, behind, strides.k.row, seqlen_k, BLOCK_N2, CONFIG, True)
        v2 = load_panels(v_base, behind, strides.v.row, seqlen_k, BLOCK_N2, CONFIG, True)
    factor = 1.0 if CONFIG.scale_first else scale
    MASKED: tl.constexpr = CONFIG.has_left or CONFIG.has_right or not CONFIG.whole
    for start in tl.range(first, tl.minimum(first + rows_each, seqlen_q), BLOCK_M):
        q = load_panels(q_base, start, strides.q.row, seqlen_q, BLOCK_M, CONFIG, True)
        rows = start + tl.arange(0, BLOCK_M)
        positions = rows + (seqlen_k - seqlen_q)
        scores = scores_of_panels(q, k, positions, 0, seqlen_k, left, right, scale, BLOCK_N, CONFIG, MASKED)
        scores2 = scores
        if BLOCK_N2 > 0:
            scores2 = scores_of_panels(q, k2, positions, behind, seqlen_k, left, right, scale, BLOCK_N2, CONFIG, True)
        acc, acc2, row_sum, row_max = outputs_of_held_keys(scores, scores2, v, v2, factor, CONFIG, MASKED)
        output = HeadOutput(tensors.out, tensors.lse, strides.out, batch, head_q, head)
        store_outputs_of_panels(
            output, start, rows, seqlen_q, acc, acc2, row_sum, row_max, factor, CONFIG, tensors.v.dtype.element_ty
        )
