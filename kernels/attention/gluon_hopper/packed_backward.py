"""What stands around the backward kernel for packed sequences: delta and lse in front, dQ from its fragments behind.

Rows of lse, delta and of dQ's sums are padded to whole blocks of queries for each sequence. A program finds by itself
which sequence its block belongs to.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.attention.gluon_hopper.packed_tiles import sequence_of


@triton.jit
def _block_of(number, bounds, ROWS: tl.constexpr, SEQUENCES: tl.constexpr):
    """Return the first row of a block of ROWS queries, the end of its sequence, and how many blocks there are."""
    sequences = bounds[4]
    found = 0
    before = 0
    blocks = 0
    for chunk in range(0, sequences + 1, SEQUENCES):
        numbers = chunk + tl.arange(0, SEQUENCES)
        _, _, seqlen_q, _ = sequence_of(numbers, bounds, False)
        ends = blocks + tl.cumsum(tl.cdiv(seqlen_q, ROWS))
        behind = (ends <= number) & (numbers <= sequences)
        found += tl.sum(behind.to(tl.int32))
        before = tl.maximum(before, tl.max(tl.where(behind, ends, 0)))
        blocks = tl.max(ends)
    first_q, _, seqlen_q, _ = sequence_of(found, bounds, False)
    return first_q + (number - before) * ROWS, first_q + seqlen_q, blocks


@triton.jit(do_not_specialize=["sequences", "total_q", "total_k", "n_m", "num_heads"])
def packed_prepare_kernel(out, dout, lse, lse_padded, delta_padded, fragments, starts_q, ends_q, starts_k, ends_k,
                          out_h, out_m, do_h, do_m, sequences, total_q, total_k, n_m, num_heads,
                          ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
                          SEQUENCES: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Compute delta, copy lse and clear dQ's fragments, all of one block of ROWS queries of one head.

    P is 0 in the rows that are nobody's: their lse is +inf. PDL: the next kernel may begin before this one has ended.
    """
    if PDL:
        gdc_launch_dependents()
    number = tl.program_id(0) % n_m
    head = (tl.program_id(0) // n_m).to(tl.int64)
    bounds = (starts_q, ends_q, starts_k, ends_k, sequences, total_q, total_k)
    first, end, count = _block_of(number, bounds, ROWS, SEQUENCES)
    if number < count:
        within = tl.arange(0, ROWS)
        rows = first + within
        columns = tl.arange(0, BLOCK_D)
        inside = rows < end
        mask = inside[:, None] & (columns < HEAD_DIM)[None, :]
        place = out + head * out_h + rows[:, None].to(tl.int64) * out_m + columns[None, :]
        o = tl.load(place, mask, 0.0, eviction_policy="evict_first")
        do = tl.load(dout + head * do_h + rows[:, None].to(tl.int64) * do_m + columns[None, :], mask, 0.0)
        padded = (head * n_m + number) * ROWS + within
        tl.store(delta_padded + padded, tl.sum(o.to(tl.float32) * do.to(tl.float32), 1))
        tl.store(lse_padded + padded, tl.load(lse + head * total_q + rows, inside, float("inf")))
        own = (head * n_m + number) * (ROWS * BLOCK_D) + tl.arange(0, ROWS * BLOCK_D)
        tl.store(fragments + own, tl.zeros([ROWS * BLOCK_D], tl.float32))


@triton.jit(do_not_specialize=["sequences", "total_q", "total_k", "n_m"])
def packed_finish_kernel(fragments, dq, starts_q, ends_q, starts_k, ends_k, dq_h, dq_m, sequences, total_q, total_k,
                         n_m, softmax_scale, BLOCK_M: tl.constexpr, FRAGMENTS: tl.constexpr, HEAD_DIM: tl.constexpr,
                         SEQUENCES: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Convert a 64 x 64 fragment of dQ from the order of the registers that held it to rows and columns.

    PDL: the kernel before this one may not have ended.
    """
    fragment = tl.program_id(0)
    block = fragment // FRAGMENTS
    number = block % n_m
    head = (block // n_m).to(tl.int64)
    bounds = (starts_q, ends_q, starts_k, ends_k, sequences, total_q, total_k)
    first, end, count = _block_of(number, bounds, BLOCK_M, SEQUENCES)
    if PDL:
        gdc_wait()
    if number < count:
        values = tl.load(fragments + fragment.to(tl.int64) * 4096 + tl.arange(0, 4096))
        # bits of the offset, highest first: c5 c4 c3 | r5 r4 | r2 r1 r0 | c2 c1 | r3 | c0
        values = tl.reshape(values, [8, 4, 8, 4, 2, 2])
        values = tl.reshape(tl.permute(values, [1, 4, 2, 0, 3, 5]), [64, 64])
        part = (fragment % FRAGMENTS) * 64
        rows = first + tl.arange(0, 64)
        columns = tl.arange(0, 64)
        if BLOCK_M == 64:  # the fragments of a block stand side by side
            columns += part
        else:  # one below the other
            rows += part
        place = dq + head * dq_h + rows[:, None].to(tl.int64) * dq_m + columns[None, :]
        mask = (rows < end)[:, None] & (columns < HEAD_DIM)[None, :]
        tl.store(place, (values * softmax_scale).to(dq.dtype.element_ty), mask)
