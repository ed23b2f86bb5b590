"""The second pass of split walks (split.py): outputs weighted by their softmax sums, gradients added up."""

import triton
import triton.language as tl

from .backward import query_ranges
from .forward import key_ranges
from .pdl import wait_for_previous_kernel
from .tile_ops import store_logsumexp


@triton.jit
def _rows_of(slot, lo, hi, splits, split_len, limit):
    """Return how many of `limit` rows a slot holds: all, or none if it was not written."""
    first = lo // split_len
    number = first + (slot + splits - first % splits) % splits
    rows = tl.where(number * split_len < tl.where(lo < hi, hi, 0), limit, 0)
    return tl.where(splits > slot, rows, 0)


@triton.jit
def _load(base, start, rows_there, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load ROWS rows of one head in one slot; zeros where it has none. A single row is read like many."""
    rows = start + tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_D)
    mask = (rows < rows_there)[:, None] & (dims < HEAD_DIM)[None, :]
    return tl.load(base + tl.cast(rows, tl.int64)[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)


@triton.jit
def _store(base, start, stride, limit, values, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write ROWS rows of one head; a single row is written like many."""
    rows = start + tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_D)
    pointers = base + tl.cast(rows, tl.int64)[:, None] * stride + dims[None, :]
    tl.store(pointers, values.to(base.dtype.element_ty), mask=(rows < limit)[:, None] & (dims < HEAD_DIM)[None, :])


@triton.jit(
    do_not_specialize=["left", "right", "splits", "split_len"],
    do_not_specialize_on_alignment=["num_heads", "total_heads"],
)
def combine_outputs(
    parts_ptr, part_lse_ptr, out_ptr, lse_ptr, out_b, out_h, out_m,
    num_heads, total_heads, seqlen_q, seqlen_k, left, right, splits, split_len,
    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, STORE_LSE: tl.constexpr, SLOTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Store output and logsumexp of BLOCK_M query rows from those of the splits. BLOCK_M divides the forward's."""
    wait_for_previous_kernel(PDL)
    tiles = tl.cdiv(seqlen_q, BLOCK_M)
    head = tl.cast(tl.program_id(0) // tiles, tl.int64)
    start = (tl.program_id(0) % tiles) * BLOCK_M
    shift = seqlen_k - seqlen_q
    last = tl.minimum(start + BLOCK_M, seqlen_q) - 1 + shift
    lo, full_lo, full_hi, hi = key_ranges(start + shift, last, seqlen_k, left, right, 16, HAS_LEFT, HAS_RIGHT)
    rows = start + tl.arange(0, BLOCK_M)
    part_lse_ptr += head * seqlen_q
    parts_ptr += head * seqlen_q * HEAD_DIM
    slot_rows = tl.cast(total_heads, tl.int64) * seqlen_q
    parts = ()
    lses = ()
    for slot in tl.static_range(SLOTS):  # all that is read is asked for before any of it is needed
        there = _rows_of(slot, lo, hi, splits, split_len, seqlen_q)
        offset = slot * slot_rows
        parts = parts + (_load(parts_ptr + offset * HEAD_DIM, start, there, BLOCK_M, HEAD_DIM, BLOCK_D),)
        lse = tl.load(part_lse_ptr + offset + rows, mask=rows < there, other=float("inf"))
        lses = lses + (tl.where(lse == float("inf"), float("-inf"), lse),)  # +inf: a split, or a row, that saw no key
    top = lses[0]
    for slot in tl.static_range(1, SLOTS):
        top = tl.maximum(top, lses[slot])
    some = top != float("-inf")
    base = tl.where(some, top, 0.0)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    for slot in tl.static_range(SLOTS):  # in order: the same bits in every layout, so with lse and without
        weight = tl.exp2((lses[slot] - base).to(tl.float32))
        total += weight
        out += parts[slot] * weight[:, None]
    total = tl.where(some, total, 1.0)
    out = out / total[:, None]
    out_base = out_ptr + head // num_heads * out_b + head % num_heads * out_h
    _store(out_base, start, out_m, seqlen_q, out, BLOCK_M, HEAD_DIM, BLOCK_D)
    if STORE_LSE:
        store_logsumexp(lse_ptr + head * seqlen_q + rows, base, total, some, rows < seqlen_q)


@triton.jit(
    do_not_specialize=[
        "num_heads",
        "total_heads",
        "seqlen_q",
        "seqlen_k",
        "left",
        "right",
        "splits",
        "split_len",
        "slots",
        "slot_keys",
    ]
)
def combine_gradients(
    dq_parts_ptr, dk_parts_ptr, dv_parts_ptr, dq_ptr, dk_ptr, dv_ptr,
    dq_b, dq_h, dq_m, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    num_heads, total_heads, seqlen_q, seqlen_k, left, right, splits, split_len, slots, slot_keys,
    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, AT_ONCE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store dq, dk or dv (by program) of BLOCK_M rows from the slots of one_pass_kernel, or of dq_dkdv_kernel if split.

    BLOCK_M divides those kernels' tiles.
    """
    wait_for_previous_kernel(PDL)
    which = tl.program_id(0) % 3
    tiles = tl.cdiv(tl.maximum(seqlen_q, seqlen_k), BLOCK_M)
    head = tl.cast(tl.program_id(0) // 3 // tiles, tl.int64)
    start = (tl.program_id(0) // 3 % tiles) * BLOCK_M
    batch = head // num_heads
    head_in_batch = head % num_heads
    if which == 0:
        shift = seqlen_k - seqlen_q
        last = tl.minimum(start + BLOCK_M, seqlen_q) - 1 + shift
        lo, full_lo, full_hi, hi = key_ranges(start + shift, last, seqlen_k, left, right, 16, HAS_LEFT, HAS_RIGHT)
        _add_slots(
            dq_parts_ptr, dq_ptr + batch * dq_b + head_in_batch * dq_h, dq_m, head, total_heads, start, seqlen_q,
            lo, hi, slots, slot_keys, AT_ONCE, BLOCK_M, HEAD_DIM, BLOCK_D,
        )  # fmt: skip
    else:
        lo, full_lo, full_hi, hi = query_ranges(
            start, seqlen_q, seqlen_k, left, right, 16, BLOCK_M, HAS_LEFT, HAS_RIGHT
        )
        if which == 1:
            _add_slots(
                dk_parts_ptr, dk_ptr + batch * dk_b + head_in_batch * dk_h, dk_n, head, total_heads, start, seqlen_k,
                lo, hi, splits, split_len, AT_ONCE, BLOCK_M, HEAD_DIM, BLOCK_D,
            )  # fmt: skip
        else:
            _add_slots(
                dv_parts_ptr, dv_ptr + batch * dv_b + head_in_batch * dv_h, dv_n, head, total_heads, start, seqlen_k,
                lo, hi, splits, split_len, AT_ONCE, BLOCK_M, HEAD_DIM, BLOCK_D,
            )  # fmt: skip


@triton.jit
def _add_slots(
    parts_ptr, base, stride, head, total_heads, start, limit, lo, hi, splits, split_len,
    AT_ONCE: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Sum the slots in their order."""
    parts_ptr += head * limit * HEAD_DIM
    slot_size = tl.cast(total_heads, tl.int64) * limit * HEAD_DIM
    total = tl.zeros([ROWS, BLOCK_D], dtype=tl.float32)
    for begin in tl.range(0, splits, AT_ONCE):
        for i in tl.static_range(AT_ONCE):
            there = _rows_of(begin + i, lo, hi, splits, split_len, limit)
            slot = tl.cast(begin + i, tl.int64) * slot_size
            total += _load(parts_ptr + slot, start, there, ROWS, HEAD_DIM, BLOCK_D)
    _store(base, start, stride, limit, total, ROWS, HEAD_DIM, BLOCK_D)
