"""Joining query tiles whose keys several programs share: each part has its output, normalised, and its logsumexp."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_heads", "seqlen_q", "out_b", "out_h", "out_m"])
def join_kernel(parts, part_log_sums, out, lse, joins, num_heads, seqlen_q, out_b, out_h, out_m,
                TILE: tl.constexpr, HEAD_DIM: tl.constexpr, ENTRY: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Some rows of a tile: outputs weighted by what each part of the keys weighs. Strides are in eights of numbers."""
    entry = joins + ENTRY * tl.program_id(0)
    m, head = tl.load(entry), tl.load(entry + 1).to(tl.int64)
    first, n = tl.load(entry + 2), tl.load(entry + 3)
    batch = head // num_heads
    h = head - batch * num_heads
    within = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, HEAD_DIM)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    for i in range(n):
        top = tl.maximum(top, tl.load(part_log_sums + (first + i) * TILE + within))
    weight = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    for i in range(n):
        own = tl.exp2(tl.load(part_log_sums + (first + i) * TILE + within) - top)
        place = ((first + i) * TILE + within).to(tl.int64) * HEAD_DIM
        total += own[:, None] * tl.load(parts + place[:, None] + columns[None, :]).to(tl.float32)
        weight += own
    rows = m * TILE + within
    inside = rows < seqlen_q
    tl.store(lse + head * seqlen_q + rows, top + tl.log2(weight), inside)
    place = out + (batch * out_b + h * out_h) * 8 + (rows.to(tl.int64) * out_m)[:, None] * 8
    tl.store(place + columns[None, :], (total / weight[:, None]).to(out.dtype.element_ty), inside[:, None])
