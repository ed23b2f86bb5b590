"""The forward of a full mask where a head has few rows, or head_dim is no power of two.

Columns of head_dim are two panels (72 are 64 and 16, where one panel has 128), and the keys behind the last whole block
are one smaller block (257 keys are twice 128 and 16, where a third of 128 computes 127 for nothing).

For 16-bit factors.
"""

import triton
import triton.language as tl

from .forward import HeadOutput, Keys, assign, inputs_of, wait_for_previous_kernel, weigh
from .panels import load_panels, scores_of_panels, store_outputs_of_panels


@triton.jit
def _attend(
    acc, acc2, row_sum, row_max, q, keys, start, scale, ROWS: tl.constexpr, CONFIG: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """Fold ROWS keys into the running sum, maximum and output of each query row; every row sees one of them."""
    k = load_panels(keys.k, start, keys.k_stride, keys.seqlen, ROWS, CONFIG, MASKED)
    scores = scores_of_panels(q, k, row_max, start, keys.seqlen, 0, 0, scale, ROWS, CONFIG, MASKED)
    factor = 1.0 if CONFIG.scale_first else scale
    p, alpha, row_sum, row_max = weigh(scores, row_sum, row_max, factor, False)
    v = load_panels(keys.v, start, keys.v_stride, keys.seqlen, ROWS, CONFIG, MASKED)
    acc = tl.dot(p.to(v[0].dtype), v[0], acc * alpha[:, None])
    if CONFIG.block_d2 > 0:
        acc2 = tl.dot(p.to(v[1].dtype), v[1], acc2 * alpha[:, None])
    return acc, acc2, row_sum, row_max


@triton.jit(do_not_specialize_on_alignment=["num_heads", "group", "total_heads", "heads_at_once"])
def panels_kernel(
    tensors, strides, num_heads, group, total_heads, heads_at_once, seqlen_q, seqlen_k, scale, CONFIG: tl.constexpr
):  # fmt: skip
    """Compute output and base-2 logsumexp of block_m query rows. The last seqlen_k % block_n keys are block_n2."""
    BLOCK_M: tl.constexpr = CONFIG.block_m
    BLOCK_N: tl.constexpr = CONFIG.block_n
    BLOCK_D: tl.constexpr = CONFIG.block_d
    BLOCK_D2: tl.constexpr = CONFIG.block_d2
    wait_for_previous_kernel(CONFIG.pdl)
    tile, head = assign(tl.program_id(0), tl.cdiv(seqlen_q, BLOCK_M), total_heads, heads_at_once)
    start_m = tile * BLOCK_M
    batch, head_q, head_k, q_base, k_base, v_base = inputs_of(head, num_heads, group, tensors, strides)
    q = load_panels(q_base, start_m, strides.q.row, seqlen_q, BLOCK_M, CONFIG, True)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    acc2 = acc
    if BLOCK_D2 > 0:
        acc2 = tl.zeros([BLOCK_M, BLOCK_D2], dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    keys = Keys(k=k_base, k_transposed=None, v=v_base, k_stride=strides.k.row, v_stride=strides.v.row, seqlen=seqlen_k,
                left=None, right=None)  # fmt: skip
    whole = seqlen_k // BLOCK_N * BLOCK_N
    for start in tl.range(0, whole, BLOCK_N):
        acc, acc2, row_sum, row_max = _attend(
            acc, acc2, row_sum, row_max, q, keys, start, scale, BLOCK_N, CONFIG, False
        )
    if CONFIG.block_n2 > 0:
        acc, acc2, row_sum, row_max = _attend(
            acc, acc2, row_sum, row_max, q, keys, whole, scale, CONFIG.block_n2, CONFIG, True
        )

    factor = 1.0 if CONFIG.scale_first else scale
    rows = start_m + tl.arange(0, BLOCK_M)
    output = HeadOutput(out=tensors.out, lse=tensors.lse, strides=strides.out, batch=batch, head_q=head_q, head=head)
    store_outputs_of_panels(
        output, start_m, rows, seqlen_q, acc, acc2, row_sum, row_max, factor, CONFIG, tensors.v.dtype.element_ty
    )
