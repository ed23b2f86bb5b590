"""The forward of a full mask where a head has few rows, or head_dim is no power of two.

Columns of head_dim are two panels (72 are 64 and 16, where one panel has 128), and the keys behind the last whole block
are one smaller block (257 keys are twice 128 and 16, where a third of 128 computes 127 for nothing).

For 16-bit factors.
"""

import triton
import triton.language as tl

from .forward import assign, inputs_of, weigh
from .panels import load_panels, scores_of_panels, store_outputs_of_panels
from .pdl import wait_for_previous_kernel


@triton.jit
def _attend(
    acc, acc2, row_sum, row_max, q, k_base, v_base, k_n, v_n, start, seqlen_k, scale,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_D2: tl.constexpr,
    SCALE_FIRST: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold ROWS keys into the running sum, maximum and output of each query row; every row sees one of them."""
    k = load_panels(k_base, start, k_n, seqlen_k, ROWS, HEAD_DIM, BLOCK_D, BLOCK_D2, MASKED)
    scores = scores_of_panels(
        q, k, row_max, start, seqlen_k, 0, 0, scale, ROWS, BLOCK_D2, False, False, SCALE_FIRST, MASKED
    )
    factor = 1.0 if SCALE_FIRST else scale
    p, alpha, row_sum, row_max = weigh(scores, row_sum, row_max, factor, 1, False)
    v = load_panels(v_base, start, v_n, seqlen_k, ROWS, HEAD_DIM, BLOCK_D, BLOCK_D2, MASKED)
    acc = tl.dot(p.to(v[0].dtype), v[0], acc * alpha[:, None])
    if BLOCK_D2 > 0:
        acc2 = tl.dot(p.to(v[1].dtype), v[1], acc2 * alpha[:, None])
    return acc, acc2, row_sum, row_max


@triton.jit(do_not_specialize_on_alignment=["num_heads", "group", "total_heads", "heads_at_once"])
def panels_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, out_b, out_h, out_m,
    num_heads, group, total_heads, heads_at_once, seqlen_q, seqlen_k, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_N2: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_D2: tl.constexpr, SCALE_FIRST: tl.constexpr, STORE_LSE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Compute output and base-2 logsumexp of BLOCK_M query rows. The last seqlen_k % BLOCK_N keys are BLOCK_N2."""
    wait_for_previous_kernel(PDL)
    tile, head = assign(tl.program_id(0), tl.cdiv(seqlen_q, BLOCK_M), total_heads, heads_at_once)
    start_m = tile * BLOCK_M
    batch, head_q, head_k, q_base, k_base, v_base = inputs_of(
        head, num_heads, group, q_ptr, k_ptr, v_ptr, q_b, q_h, k_b, k_h, v_b, v_h
    )
    q = load_panels(q_base, start_m, q_m, seqlen_q, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, True)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    acc2 = acc
    if BLOCK_D2 > 0:
        acc2 = tl.zeros([BLOCK_M, BLOCK_D2], dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    whole = seqlen_k // BLOCK_N * BLOCK_N
    for start in tl.range(0, whole, BLOCK_N):
        acc, acc2, row_sum, row_max = _attend(
            acc, acc2, row_sum, row_max, q, k_base, v_base, k_n, v_n, start, seqlen_k, scale,
            BLOCK_N, HEAD_DIM, BLOCK_D, BLOCK_D2, SCALE_FIRST, False,
        )  # fmt: skip
    if BLOCK_N2 > 0:
        acc, acc2, row_sum, row_max = _attend(
            acc, acc2, row_sum, row_max, q, k_base, v_base, k_n, v_n, whole, seqlen_k, scale,
            BLOCK_N2, HEAD_DIM, BLOCK_D, BLOCK_D2, SCALE_FIRST, True,
        )  # fmt: skip

    store_outputs_of_panels(
        out_ptr, lse_ptr, out_b, out_h, out_m, batch, head_q, head, start_m, start_m + tl.arange(0, BLOCK_M), seqlen_q,
        acc, acc2, row_sum, row_max, 1.0 if SCALE_FIRST else scale, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_D2, STORE_LSE,
        v_ptr.dtype.element_ty,
    )  # fmt: skip
