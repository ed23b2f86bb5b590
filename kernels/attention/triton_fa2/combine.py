"""The second pass of split walks (split.py): outputs weighted by their softmax sums, gradients added up."""

import triton
import triton.language as tl

from .arguments import SPLIT_SIZES
from .backward import query_ranges
from .forward import key_ranges, wait_for_previous_kernel
from .tile_ops import store_logsumexp


@triton.jit
def _rows_of(slot, lo, hi, splits, split_len, limit):
    """Return how many of `limit` rows a slot holds: all, or none if it was not written."""
    first = lo // split_len
    number = first + (slot + splits - first % splits) % splits
    rows = tl.where(number * split_len < tl.where(lo < hi, hi, 0), limit, 0)
    return tl.where(splits > slot, rows, 0)


@triton.jit
def _load(base, start, rows_there, CONFIG: tl.constexpr):
    """Load block_m rows of one head in one slot; zeros where it has none. A single row is read like many."""
    rows = start + tl.arange(0, CONFIG.block_m)
    dims = tl.arange(0, CONFIG.block_d)
    mask = (rows < rows_there)[:, None] & (dims < CONFIG.head_dim)[None, :]
    return tl.load(base + tl.cast(rows, tl.int64)[:, None] * CONFIG.head_dim + dims[None, :], mask=mask, other=0.0)


@triton.jit
def _store(base, start, stride, limit, values, CONFIG: tl.constexpr):
    """Write block_m rows of one head; a single row is written like many."""
    rows = start + tl.arange(0, CONFIG.block_m)
    dims = tl.arange(0, CONFIG.block_d)
    pointers = base + tl.cast(rows, tl.int64)[:, None] * stride + dims[None, :]
    mask = (rows < limit)[:, None] & (dims < CONFIG.head_dim)[None, :]
    tl.store(pointers, values.to(base.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=["left", "right", "splits", "split_len"],
    do_not_specialize_on_alignment=["num_heads", "total_heads"],
)
def combine_outputs(
    tensors, strides, num_heads, total_heads, seqlen_q, seqlen_k, left, right, splits, split_len, CONFIG: tl.constexpr
):  # fmt: skip
    """Store output and logsumexp of block_m query rows from those of the splits. block_m divides the forward's."""
    wait_for_previous_kernel(CONFIG.pdl)
    tiles = tl.cdiv(seqlen_q, CONFIG.block_m)
    head = tl.cast(tl.program_id(0) // tiles, tl.int64)
    start = (tl.program_id(0) % tiles) * CONFIG.block_m
    shift = seqlen_k - seqlen_q
    last = tl.minimum(start + CONFIG.block_m, seqlen_q) - 1 + shift
    lo, full_lo, full_hi, hi = key_ranges(
        start + shift, last, seqlen_k, left, right, 16, CONFIG.has_left, CONFIG.has_right
    )
    rows = start + tl.arange(0, CONFIG.block_m)
    slots_lse = tensors.slots_lse + head * seqlen_q
    slots_base = tensors.slots + head * seqlen_q * CONFIG.head_dim
    slot_rows = tl.cast(total_heads, tl.int64) * seqlen_q
    parts = ()
    lses = ()
    for slot in tl.static_range(CONFIG.slots):  # issues all loads before the first use
        there = _rows_of(slot, lo, hi, splits, split_len, seqlen_q)
        offset = slot * slot_rows
        parts = parts + (_load(slots_base + offset * CONFIG.head_dim, start, there, CONFIG),)
        lse = tl.load(slots_lse + offset + rows, mask=rows < there, other=float("inf"))
        lses = lses + (tl.where(lse == float("inf"), float("-inf"), lse),)  # +inf: a split, or a row, that saw no key
    top = lses[0]
    for slot in tl.static_range(1, CONFIG.slots):
        top = tl.maximum(top, lses[slot])
    some = top != float("-inf")
    base = tl.where(some, top, 0.0)
    total = tl.zeros([CONFIG.block_m], dtype=tl.float32)
    out = tl.zeros([CONFIG.block_m, CONFIG.block_d], dtype=tl.float32)
    for slot in tl.static_range(CONFIG.slots):  # a fixed order: the same bits in every layout, with lse and without
        weight = tl.exp2((lses[slot] - base).to(tl.float32))
        total += weight
        out += parts[slot] * weight[:, None]
    total = tl.where(some, total, 1.0)
    out = out / total[:, None]
    out_base = tensors.out + head // num_heads * strides.out.batch + head % num_heads * strides.out.head
    _store(out_base, start, strides.out.row, seqlen_q, out, CONFIG)
    if CONFIG.store_lse:
        store_logsumexp(tensors.lse + head * seqlen_q + rows, base, total, some, rows < seqlen_q)


@triton.jit(do_not_specialize=SPLIT_SIZES)
def combine_gradients(
    tensors, strides, num_heads, total_heads, seqlen_q, seqlen_k, left, right, splits, split_len, slots, slot_keys,
    CONFIG: tl.constexpr,
):  # fmt: skip
    """Store dq, dk or dv (by program) of block_m rows from the slots of dq_dkdv_kernel, whose tiles block_m divides."""
    wait_for_previous_kernel(CONFIG.pdl)
    which = tl.program_id(0) % 3
    tiles = tl.cdiv(tl.maximum(seqlen_q, seqlen_k), CONFIG.block_m)
    head = tl.cast(tl.program_id(0) // 3 // tiles, tl.int64)
    start = (tl.program_id(0) // 3 % tiles) * CONFIG.block_m
    batch = head // num_heads
    head_in_batch = head % num_heads
    if which == 0:
        shift = seqlen_k - seqlen_q
        last = tl.minimum(start + CONFIG.block_m, seqlen_q) - 1 + shift
        lo, full_lo, full_hi, hi = key_ranges(
            start + shift, last, seqlen_k, left, right, 16, CONFIG.has_left, CONFIG.has_right
        )
        dq_base = tensors.dq + batch * strides.dq.batch + head_in_batch * strides.dq.head
        _add_slots(
            tensors.dq_slots, dq_base, strides.dq.row, head, total_heads, start, seqlen_q, lo, hi, slots, slot_keys,
            CONFIG,
        )  # fmt: skip
    else:
        lo, full_lo, full_hi, hi = query_ranges(
            start, seqlen_q, seqlen_k, left, right, 16, CONFIG.block_m, CONFIG.has_left, CONFIG.has_right
        )
        if which == 1:
            dk_base = tensors.dk + batch * strides.dk.batch + head_in_batch * strides.dk.head
            _add_slots(
                tensors.dk_slots, dk_base, strides.dk.row, head, total_heads, start, seqlen_k, lo, hi, splits,
                split_len, CONFIG,
            )  # fmt: skip
        else:
            dv_base = tensors.dv + batch * strides.dv.batch + head_in_batch * strides.dv.head
            _add_slots(
                tensors.dv_slots, dv_base, strides.dv.row, head, total_heads, start, seqlen_k, lo, hi, splits,
                split_len, CONFIG,
            )  # fmt: skip


@triton.jit
def _add_slots(
    slots_ptr, base, stride, head, total_heads, start, limit, lo, hi, splits, split_len, CONFIG: tl.constexpr
):  # fmt: skip
    """Sum the slots in their order."""
    slots_ptr += head * limit * CONFIG.head_dim
    slot_size = tl.cast(total_heads, tl.int64) * limit * CONFIG.head_dim
    total = tl.zeros([CONFIG.block_m, CONFIG.block_d], dtype=tl.float32)
    for begin in tl.range(0, splits, CONFIG.at_once):
        for i in tl.static_range(CONFIG.at_once):
            there = _rows_of(begin + i, lo, hi, splits, split_len, limit)
            slot = tl.cast(begin + i, tl.int64) * slot_size
            total += _load(slots_ptr + slot, start, there, CONFIG)
    _store(base, start, stride, limit, total, CONFIG)
