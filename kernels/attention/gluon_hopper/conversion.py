"""Before and after the backward kernel: delta = rowsum(dout x out), and dQ from float32 fragments to its own dtype.

Both take the heads from the last to the first, as the kernel between them takes them from the first to the last: so
each begins with what the one before it has left in the L2.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_COPIED = tl.constexpr(256)  # rows of lse that a program copies at a time


@triton.jit(do_not_specialize=["num_heads", "seqlen_q", "padded_q", "n_rows"])
def prepare_kernel(out, dout, lse, lse_padded, delta_padded, fragments, out_b, out_h, out_m, do_b, do_h, do_m,
                   num_heads, seqlen_q, padded_q, n_rows, n_zeros, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
                   BLOCK_D: tl.constexpr, ZEROS: tl.constexpr, CHAINED: tl.constexpr = False):  # fmt: skip
    """delta and a copy of lse, padded to whole tiles by rows that weigh nothing (lse = +inf, delta = 0).

    delta of as many heads as there are programs for, lse of all, which have `n_rows` padded rows. And zeros in the
    first `n_zeros` numbers of dQ's fragments, of which each program has ZEROS. CHAINED: the next kernel may begin
    before this one has ended.
    """
    if CHAINED:
        gdc_launch_dependents()
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    n_tiles = padded_q // ROWS
    head = (tile // n_tiles).to(tl.int64)
    batch = head // num_heads
    h = head - batch * num_heads
    rows = tile % n_tiles * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_D)
    inside = rows < seqlen_q
    mask = inside[:, None] & (columns < HEAD_DIM)[None, :]
    place = out + batch * out_b + h * out_h + rows[:, None].to(tl.int64) * out_m + columns[None, :]
    o = tl.load(place, mask, 0.0, eviction_policy="evict_first")
    do = tl.load(dout + batch * do_b + h * do_h + rows[:, None].to(tl.int64) * do_m + columns[None, :], mask, 0.0)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(delta_padded + head * padded_q + rows, delta, rows < padded_q)
    for first in range(tile * _COPIED, n_rows, tl.num_programs(0) * _COPIED):
        line = first + tl.arange(0, _COPIED)
        row = line % padded_q
        own = (line // padded_q).to(tl.int64) * seqlen_q + row
        value = tl.load(lse + own, (row < seqlen_q) & (line < n_rows), float("inf"))
        tl.store(lse_padded + line, value, line < n_rows)
    if ZEROS:
        number = tile.to(tl.int64) * ZEROS + tl.arange(0, ZEROS)
        tl.store(fragments + number, tl.zeros([ZEROS], tl.float32), number < n_zeros)


@triton.jit(do_not_specialize=["num_heads", "seqlen_q", "n_m", "first_head", "ring_heads"])
def finish_kernel(fragments, dq, dq_b, dq_h, dq_m, num_heads, seqlen_q, n_m, softmax_scale, first_head, ring_heads,
                  BLOCK_M: tl.constexpr, FRAGMENTS: tl.constexpr, HEAD_DIM: tl.constexpr,
                  CHAINED: tl.constexpr = False):  # fmt: skip
    """One 64 x 64 fragment of dQ, from the order of the registers that held it to rows and columns.

    Of the heads from `first_head` on; `ring_heads` heads have room among the fragments. CHAINED: the kernel before
    this one may not have ended.
    """
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    head = (first_head + number // (n_m * FRAGMENTS)).to(tl.int64)
    fragment = number % (n_m * FRAGMENTS)
    batch = head // num_heads
    h = head - batch * num_heads
    if CHAINED:
        gdc_wait()
    values = tl.load(fragments + (head % ring_heads * n_m * FRAGMENTS + fragment) * 4096 + tl.arange(0, 4096))
    # bits of the offset, highest first: c5 c4 c3 | r5 r4 | r2 r1 r0 | c2 c1 | r3 | c0
    values = tl.reshape(values, [8, 4, 8, 4, 2, 2])
    values = tl.reshape(tl.permute(values, [1, 4, 2, 0, 3, 5]), [64, 64])
    m = fragment // FRAGMENTS
    part = (fragment % FRAGMENTS) * 64
    if BLOCK_M == 64:  # the fragments of a tile stand side by side
        rows = m * BLOCK_M + tl.arange(0, 64)
        columns = part + tl.arange(0, 64)
    else:  # one below the other
        rows = m * BLOCK_M + part + tl.arange(0, 64)
        columns = tl.arange(0, 64)
    mask = (rows < seqlen_q)[:, None] & (columns < HEAD_DIM)[None, :]
    place = dq + batch * dq_b + h * dq_h + rows[:, None].to(tl.int64) * dq_m + columns[None, :]
    tl.store(place, (values * softmax_scale).to(dq.dtype.element_ty), mask)
