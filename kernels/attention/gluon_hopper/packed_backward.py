"""The kernels before and after the backward kernel of packed sequences: delta and lse; dQ from its fragments.

Rows of lse, delta and of dQ's sums are padded to whole blocks of queries for each sequence. A program has one of these
blocks, and finds it in the table behind the list of tiles (packed_tiles.py).
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _block_at(table, number):
    """Return whether there is a block of queries of that number, its first row and the end of its sequence."""
    return number < tl.load(table), tl.load(table + 2 * (1 + number)), tl.load(table + 2 * (1 + number) + 1)


@triton.jit(do_not_specialize=["table", "total_q", "n_m"])
def packed_prepare_kernel(out, dout, lse, lse_padded, delta_padded, fragments, listed, strides, table, total_q, n_m,
                          ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
                          PDL: tl.constexpr):  # fmt: skip
    """Compute delta, copy lse and clear dQ's fragments, all of one block of ROWS queries of one head.

    `strides` are those of heads and rows of out and of dout; `table` is where in `listed` the table of blocks begins.
    Rows outside all sequences get lse = +inf, so that their P is 0. PDL: the previous kernel may not have ended, and
    the next may begin.
    """
    out_h, out_m = strides[0]
    do_h, do_m = strides[1]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    number = tl.program_id(0) % n_m
    head = (tl.program_id(0) // n_m).to(tl.int64)
    is_block, first, end = _block_at(listed + table, number)
    if is_block:
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


@triton.jit(do_not_specialize=["table", "n_m"])
def packed_finish_kernel(fragments, dq, listed, dq_h, dq_m, table, n_m, softmax_scale, BLOCK_M: tl.constexpr,
                         FRAGMENTS: tl.constexpr, HEAD_DIM: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Convert a 64 x 64 fragment of dQ from the order of the registers that held it to rows and columns.

    `table` is where in `listed` the table of blocks begins. PDL: the kernel before this one may not have ended.
    """
    fragment = tl.program_id(0)
    block = fragment // FRAGMENTS
    number = block % n_m
    head = (block // n_m).to(tl.int64)
    is_block, first, end = _block_at(listed + table, number)
    if PDL:
        gdc_wait()
    if is_block:
        values = tl.load(fragments + fragment.to(tl.int64) * 4096 + tl.arange(0, 4096))
        # bits of the offset, highest first: c5 c4 c3 | r5 r4 | r2 r1 r0 | c2 c1 | r3 | c0
        values = tl.reshape(values, [8, 4, 8, 4, 2, 2])
        values = tl.reshape(tl.permute(values, [1, 4, 2, 0, 3, 5]), [64, 64])
        part = (fragment % FRAGMENTS) * 64
        rows = first + tl.arange(0, 64)
        columns = tl.arange(0, 64)
        if BLOCK_M == 64:  # the fragments of a block are side by side
            columns += part
        else:  # one below the other
            rows += part
        place = dq + head * dq_h + rows[:, None].to(tl.int64) * dq_m + columns[None, :]
        mask = (rows < end)[:, None] & (columns < HEAD_DIM)[None, :]
        tl.store(place, (values * softmax_scale).to(dq.dtype.element_ty), mask)
