"""The forwards of few keys and of short windows: a program holds all keys and values that its query rows see.

With few keys it holds those of a head and walks over its query rows. In a window it holds those that a tile of rows
sees, which serve the query heads that share them, one after the other. Keys, and columns of head_dim, are two panels of
powers of two each (77 keys are 64 and 16, head_dim 72 is 64 and 16). No key is left for a second step, so a row's
maximum is final: nothing is rescaled, and there is no loop over keys. Factors have 16 bits.
"""

import triton
import triton.language as tl

from .forward import HeadOutput, inputs_of, wait_for_previous_kernel
from .panels import load_panels, outputs_of_held_keys, product_of_panels, scores_of_panels, store_outputs_of_panels
from .tile_ops import recomputed


@triton.jit(do_not_specialize=["left", "right", "rows_each"], do_not_specialize_on_alignment=["num_heads", "group"])
def few_keys_kernel(
    tensors, strides, num_heads, group, seqlen_q, seqlen_k, left, right, rows_each, scale, CONFIG: tl.constexpr
):  # fmt: skip
    """Compute output and base-2 logsumexp of `rows_each` query rows of a head, a multiple of block_m.

    seqlen_k <= block_n + block_n2; whole: every query sees the first block_n keys.
    """
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
    for start in tl.range(first, tl.minimum(first + rows_each, seqlen_q), CONFIG.block_m):
        q = load_panels(q_base, start, strides.q.row, seqlen_q, CONFIG.block_m, CONFIG, True)
        rows = start + tl.arange(0, CONFIG.block_m)
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


@triton.jit
def _scores_in_window(q, k, first, count, scale, BLOCK_N: tl.constexpr, CONFIG: tl.constexpr):
    """Return the scores of BLOCK_N keys, -inf where a key is before a row's `first` or `count` keys or more behind."""
    scores = product_of_panels(q, k, CONFIG)
    if CONFIG.scale_first:
        scores = scores * scale
    own = tl.arange(0, BLOCK_N)
    # A thread's columns are 8 g + 2 lane + (0 or 1), and 8 g + (0 or 1) is known at compile time: one number a row
    # represents the rest.
    below = first[:, None] - (own & 6)[None, :]
    beyond = ((own & ~6)[None, :] - below).to(tl.uint32, bitcast=True)  # one comparison for both ends
    return tl.where(beyond < count[:, None], scores, float("-inf"))


@triton.jit(do_not_specialize=["left", "right", "heads_each"], do_not_specialize_on_alignment=["num_heads", "group"])
def window_kernel(
    tensors, strides, num_heads, group, seqlen_q, seqlen_k, left, right, heads_each, scale, CONFIG: tl.constexpr
):  # fmt: skip
    """Compute output and base-2 logsumexp of block_m query rows of `heads_each` heads, which share a key head.

    block_m + left + right <= block_n + block_n2.
    """
    BLOCK_N: tl.constexpr = CONFIG.block_n
    BLOCK_N2: tl.constexpr = CONFIG.block_n2
    wait_for_previous_kernel(CONFIG.pdl)
    parts = group // heads_each
    tiles = tl.cdiv(seqlen_q, CONFIG.block_m)
    program = tl.program_id(0)
    head = program // (parts * tiles) * group + program % parts * heads_each
    start_m = program // parts % tiles * CONFIG.block_m
    batch, head_q, head_k, q_base, k_base, v_base = inputs_of(head, num_heads, group, tensors, strides)
    shift = seqlen_k - seqlen_q
    start_n = tl.maximum(start_m + shift - left, 0)
    k = load_panels(k_base, start_n, strides.k.row, seqlen_k, BLOCK_N, CONFIG, True)
    v = load_panels(v_base, start_n, strides.v.row, seqlen_k, BLOCK_N, CONFIG, True)
    k2 = k
    v2 = v
    if BLOCK_N2 > 0:
        k2 = load_panels(k_base, start_n + BLOCK_N, strides.k.row, seqlen_k, BLOCK_N2, CONFIG, True)
        v2 = load_panels(v_base, start_n + BLOCK_N, strides.v.row, seqlen_k, BLOCK_N2, CONFIG, True)
    rows = start_m + tl.arange(0, CONFIG.block_m)
    first = rows + shift - left
    count = tl.maximum(tl.minimum(rows + shift + right + 1, seqlen_k) - first, 0).to(tl.uint32, bitcast=True)
    factor = 1.0 if CONFIG.scale_first else scale
    for i in tl.range(0, heads_each):
        own_q = q_base + tl.cast(i, tl.int64) * strides.q.head
        q = load_panels(own_q, start_m, strides.q.row, seqlen_q, CONFIG.block_m, CONFIG, True)
        own_first = recomputed(first - start_n)
        scores = _scores_in_window(q, k, own_first, count, scale, BLOCK_N, CONFIG)
        scores2 = scores
        if BLOCK_N2 > 0:
            scores2 = _scores_in_window(q, k2, own_first - BLOCK_N, count, scale, BLOCK_N2, CONFIG)
        acc, acc2, row_sum, row_max = outputs_of_held_keys(scores, scores2, v, v2, factor, CONFIG, True)
        output = HeadOutput(tensors.out, tensors.lse, strides.out, batch, head_q + i, head + i)
        store_outputs_of_panels(
            output, start_m, rows, seqlen_q, acc, acc2, row_sum, row_max, factor, CONFIG, tensors.v.dtype.element_ty
        )
