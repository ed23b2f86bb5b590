"""dK and dV of the tiles of keys that were cut by queries (pieces.py), from the float32 sums of their pieces."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit(do_not_specialize=["first_tile", "tiles", "heads", "seqlen_k"])
def merge_kernel(sums, firsts, dk, dv, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n, first_tile, tiles, heads, seqlen_k,
                 softmax_scale, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
                 BLOCK_D: tl.constexpr, CHAINED: tl.constexpr = False):  # fmt: skip
    """Some rows of dK and dV of one tile; the sums of cut tile i are those from `firsts[i]` to `firsts[i + 1]`.

    A head has `tiles` tiles. CHAINED: the kernel before this one may not have ended, the next may begin.
    """
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()
    cut = tl.program_id(0)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_D)
    of_k = tl.zeros([ROWS, BLOCK_D], tl.float32)
    of_v = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for piece in range(tl.load(firsts + cut).to(tl.int64), tl.load(firsts + cut + 1).to(tl.int64)):
        place = sums + piece * (2 * BLOCK_N * BLOCK_D) + rows[:, None] * BLOCK_D + columns[None, :]
        of_k += tl.load(place)
        of_v += tl.load(place + BLOCK_N * BLOCK_D)
    number = first_tile + cut
    head = number // tiles
    batch = (head // heads).to(tl.int64)
    h = head % heads
    n = ((number - head * tiles) * BLOCK_N + rows)[:, None]
    mask = (n < seqlen_k) & (columns < HEAD_DIM)[None, :]
    place = dk + batch * dk_b + h * dk_h + n.to(tl.int64) * dk_n + columns[None, :]
    tl.store(place, (of_k * softmax_scale).to(dk.dtype.element_ty), mask)
    place = dv + batch * dv_b + h * dv_h + n.to(tl.int64) * dv_n + columns[None, :]
    tl.store(place, of_v.to(dv.dtype.element_ty), mask)
