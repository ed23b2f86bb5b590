"""Packed queries over a paged cache: few queries go to the decoder, many to kernels of prefill.

Lengths are on the device alone, so a kernel divides the batch. Sequences with up to `few_of` queries go to
triton_decode. gluon_hopper's forward loads the pages of the others where they lie; for all other kernels they are
copied into rows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from . import routes
from .attention.triton_fa2.features.call import FeatureCall
from .decode.triton_decode import MAX_SEQLEN_Q, decode
from .decode.triton_decode.cache import SKIPPED
from .features import Features, SequenceBounds
from .lse import natural
from .plans import Masks, device_guard

FEW = 8
_BLOCK = 4096  # numbers that a program copies at a time
_PROGRAMS = 8192  # of the copy, where there are so many rows
Starts = tuple[torch.Tensor, torch.Tensor]  # of q and of k, int32 (sequences + 1,)
Pages = tuple[torch.Tensor, torch.Tensor]  # k and v: (pages, page_size, heads, width), each page contiguous


@triton.jit
def divide_kernel(q, few_q, found, starts_q, starts_k, room, q_m, NUMBERS: tl.constexpr, FEW: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    """Write where each sequence's copied keys lie, and copy its last queries to `few_q` if it has up to FEW.

    found: int32 (4, sequences): keys to decode, or SKIPPED, and starts of q, starts of k and ends of k for the others.
    Nothing is left of a sequence that is decoded, not even a tile without keys behind the last one.
    """
    own, i = tl.program_id(0), tl.program_id(1)
    sequences = tl.num_programs(0)
    first, last = tl.load(starts_q + own), tl.load(starts_q + own + 1)
    keys = tl.load(starts_k + own + 1) - tl.load(starts_k + own)
    few = last - first <= FEW
    if (i == 0) & (tl.program_id(2) == 0):
        tl.store(found + own, tl.where(few & (last > first), keys, SKIPPED))
        tl.store(found + sequences + own, tl.where(few, last, first))
        tl.store(found + 2 * sequences + own, own * room)
        tl.store(found + 3 * sequences + own, own * room + tl.where(few, 0, keys))
    if FEW > 0:
        row = last - FEW + i
        at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
        there = tl.where(few & (row >= first), NUMBERS, 0)
        x = tl.load(q + row.to(tl.int64) * q_m + at, mask=at < there, other=0.0)
        tl.store(few_q + (own * FEW + i).to(tl.int64) * NUMBERS + at, x, mask=at < NUMBERS)


@triton.jit
def put_kernel(few_out, out, starts_q, NUMBERS: tl.constexpr, WIDTH: tl.constexpr, FEW: tl.constexpr,
               BLOCK: tl.constexpr):  # fmt: skip
    """Copy decoded rows (sequences, heads, FEW, WIDTH) of sequences with up to FEW queries to their places in `out`."""
    own, i = tl.program_id(0), tl.program_id(1)
    first, last = tl.load(starts_q + own), tl.load(starts_q + own + 1)
    row = last - FEW + i
    if (last - first <= FEW) & (row >= first):
        at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
        place = (own * FEW).to(tl.int64) * NUMBERS + (at // WIDTH * FEW + i) * WIDTH + at % WIDTH
        x = tl.load(few_out + place, mask=at < NUMBERS)
        tl.store(out + row.to(tl.int64) * NUMBERS + at, x, mask=at < NUMBERS)


@triton.jit(do_not_specialize=["entries", "last_page", "few"])
def copy_kernel(x, to, table, starts_q, starts_k, entries, x_b, last_page, few, PAGE: tl.constexpr,
                NUMBERS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, CHAINED: tl.constexpr):  # fmt: skip
    """Copy rows of so many numbers of a sequence with more than `few` queries from its pages, ROWS at a time.

    CHAINED: the next kernel, which needs none of them, may begin before this one has ended.
    """
    if CHAINED:
        gdc_launch_dependents()
    own = tl.program_id(0)
    queries = tl.load(starts_q + own + 1) - tl.load(starts_q + own)
    keys = tl.where(queries > few, tl.load(starts_k + own + 1) - tl.load(starts_k + own), 0)
    columns = tl.arange(0, COLUMNS)[None, :]
    for start in range(tl.program_id(1) * ROWS, keys, tl.num_programs(1) * ROWS):
        at = start + tl.arange(0, ROWS)
        pages = tl.load(table + own * entries + at // PAGE, mask=at < keys, other=0)
        pages = tl.minimum(tl.maximum(pages, 0), last_page).to(tl.int64)[:, None]
        mask = (at < keys)[:, None] & (columns < NUMBERS)
        place = to + (own * entries * PAGE + at).to(tl.int64)[:, None] * NUMBERS + columns
        tl.store(place, tl.load(x + pages * x_b + (at % PAGE)[:, None] * NUMBERS + columns, mask=mask), mask=mask)
    if CHAINED:
        gdc_wait()  # the second copy ends after the first


def ways(q: torch.Tensor, pages: Pages, table: torch.Tensor, sequences: int, masks: Masks) -> tuple[bool, bool]:
    """Return whether gluon_hopper computes so many sequences with many queries, and loads pages where they lie."""
    room = table.numel() * pages[0].shape[1]
    k, v = (x[0, :1].expand(room, -1, -1).transpose(0, 1)[None] for x in pages)  # sizes as if copied
    if routes.packed_names(q.transpose(0, 1)[None], k, v, sequences, masks)["forward"] != "gluon_hopper":
        return False, False
    from .attention.gluon_hopper.packed import takes_pages

    return True, takes_pages(*(x.transpose(1, 2) for x in pages))


def takes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Return whether each page lies in one piece and rows of q do."""
    return q[:1].is_contiguous() and all(len(x) > 0 and x[0].is_contiguous() for x in (k, v))


def is_mixed(q: torch.Tensor, sequences: int, longest_q: int) -> bool:
    """Return whether many of the sequences seem to have few queries, as far as the host knows."""
    return min(sequences, longest_q) > 0 and (longest_q <= MAX_SEQLEN_Q or 2 * len(q) < sequences * longest_q)


def few_of(q: torch.Tensor, sequences: int, longest: int) -> int:
    """Return the most queries that are decoded: as many as each other sequence has if long ones are all the longest."""
    if not is_mixed(q, sequences, longest):
        return 0
    if longest <= MAX_SEQLEN_Q:
        return longest
    long = len(q) // longest
    rest = (len(q) - long * longest) / max(1, sequences - long)
    return next(few for few in (1, 2, 4, FEW) if rest <= few or few == FEW)


def copied(
    q: torch.Tensor, pages: Pages, starts: Starts, longest: tuple[int, int], table: torch.Tensor, few: int = 0
) -> tuple[Pages, SequenceBounds]:
    """Return the keys and values as rows, and the bounds in them, of sequences with more than `few` queries."""
    found, _ = _divided(q, starts, table.shape[1] * pages[0].shape[1], few)
    bounds = SequenceBounds(found[1], starts[0][1:], found[2], found[3], *longest, packed=True)
    return _copied(pages, starts, table, few), bounds


def attend(
    q: torch.Tensor,
    pages: Pages,
    starts: Starts,
    longest: tuple[int, int],
    table: torch.Tensor,
    masks: Masks,
    return_lse: bool = False,
) -> Any:
    """Compute attention without features of sequences of which some may have few queries: like q.

    With return_lse, no sequence is decoded, and the result is out and the natural logsumexp (num_heads, total_q).
    """
    causal, window_size, scale = masks
    k, v = pages
    sequences = len(starts[0]) - 1
    few = 0 if return_lse else few_of(q, sequences, longest[0])
    table = table.int()
    if longest[0] <= few:
        out = q.new_zeros(*q.shape[:2], v.shape[3])  # zeros in rows of no sequence
    else:
        out, lse = _attend_to_pages(q, pages, starts, longest, table, masks, few)
        if return_lse:
            return out, natural(lse)[0]
        out = out.contiguous()
    if few:
        found, few_q = _divided(q, starts, table.shape[1] * k.shape[1], few)
        options: dict[str, Any] = {"causal": causal, "window_size": window_size, "softmax_scale": scale}
        decoded: Any = decode(few_q.transpose(1, 2), k, v, cache_seqlens=found[0], page_table=table, **options)
        numbers = out.shape[1] * out.shape[2]
        with device_guard(q.device):
            grid = (sequences, few, triton.cdiv(numbers, _BLOCK))
            put_kernel[grid](decoded, out, starts[0], numbers, out.shape[2], few, _BLOCK)
    return out


def _divided(q: torch.Tensor, starts: Starts, room: int, few: int) -> tuple[torch.Tensor, torch.Tensor]:
    sequences, numbers = len(starts[0]) - 1, q.shape[1] * q.shape[2]
    found = starts[0].new_empty(4, sequences)
    few_q = q.new_empty(sequences, few, *q.shape[1:])
    with device_guard(q.device):
        grid = (sequences, few, triton.cdiv(numbers, _BLOCK)) if few else (sequences, 1, 1)
        if sequences:
            divide_kernel[grid](q, few_q, found, *starts, room, q.stride(0), numbers, few, _BLOCK)
    return found, few_q


def _copied(pages: Pages, starts: Starts, table: torch.Tensor, few: int, chained: bool = False) -> Pages:
    """Return as rows the pages of sequences with more than `few` queries.

    `chained`: what is launched next waits for the end of both copies before it reads the rows.
    """
    rows_k, rows_v = (x.new_empty(table.numel() * x.shape[1], *x.shape[2:]) for x in pages)
    for x, rows in zip(pages, (rows_k, rows_v), strict=True) if len(rows_k) else ():
        numbers = x.shape[2] * x.shape[3]
        columns = triton.next_power_of_2(numbers)
        step = max(1, _BLOCK // columns)
        grid = len(table), max(1, min(triton.cdiv(table.shape[1] * x.shape[1], step), _PROGRAMS // len(table)))
        rest = (table.shape[1], x.stride(0), len(x) - 1, few, x.shape[1], numbers, columns, step, chained)
        with device_guard(x.device):
            options = {"launch_pdl": True} if chained and rows is rows_v else {}
            copy_kernel[grid](x, rows, table.contiguous(), *starts, *rest, **options)
    return rows_k, rows_v


def _attend_to_pages(
    q: torch.Tensor, pages: Pages, starts: Starts, longest: tuple[int, int], table: torch.Tensor, masks: Masks, few: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and the base-2 logsumexp of sequences with more than `few` queries, by the kernels for these alone."""
    long, room = -(-len(q) // longest[0]), table.shape[1] * pages[0].shape[1]
    on_hopper, in_place = ways(q, pages, table, long, masks)
    if on_hopper:
        from .attention.gluon_hopper import packed

        rows = pages if in_place else _copied(pages, starts, table, few, chained=True)
        sizes = packed.Pages(room, few, long, long * (1 << max(1, longest[1] - 1).bit_length()), in_place)
        (first_q, end_q), (first_k, end_k) = ((x[:-1], x[1:]) for x in starts)
        bounds = SequenceBounds(first_q, end_q, first_k, end_k, *longest, packed=True)
        call: Any = packed.PackedCall(bounds, *masks, pages=sizes, table=table if in_place else None)
    else:
        rows, bounds = copied(q, pages, starts, longest, table, few)
        call = FeatureCall(Features(), *masks, "ieee", bounds)
    k, v = (x.transpose(1, 2) if in_place else x.transpose(0, 1)[None] for x in rows)
    out, lse = call.forward(q.transpose(0, 1)[None], k, v)
    return out[0].transpose(0, 1), lse
