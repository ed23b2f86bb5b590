"""Copies of the pages of packed sequences into rows: each sequence has room for all pages of its line of the table."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_BLOCK = 4096  # numbers that a program copies at a time
_PROGRAMS = 8192  # where there are so many rows


@triton.jit(do_not_specialize=["entries", "last_page", "few"])
def copy_kernel(k, v, rows_k, rows_v, table, starts_q, ends_q, starts_k, ends_k, entries, k_b, v_b, last_page, few,
                PAGE: tl.constexpr, NUMBERS: tl.constexpr, NUMBERS_V: tl.constexpr, COLUMNS: tl.constexpr,
                ROWS: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Copy a sequence's rows of k and v, of so many numbers each, from their pages; its programs take them in turn.

    Sequences with up to `few` queries are left out. PDL: the kernel before this one, of which it needs nothing, may not
    have ended, and the next, which needs both, may begin.
    """
    if PDL:
        gdc_launch_dependents()
    own = tl.program_id(0)
    few_queries = tl.load(ends_q + own) - tl.load(starts_q + own) <= few
    keys = tl.where(few_queries, 0, tl.load(ends_k + own) - tl.load(starts_k + own))
    columns = tl.arange(0, COLUMNS)
    for start in range(tl.program_id(1) * ROWS, keys, tl.num_programs(1) * ROWS):
        at = start + tl.arange(0, ROWS)
        pages = tl.load(table + own * entries + at // PAGE, mask=at < keys, other=0)
        pages = tl.minimum(tl.maximum(pages, 0), last_page).to(tl.int64)[:, None]
        inside, to = (at % PAGE)[:, None], (own * entries * PAGE + at).to(tl.int64)[:, None]
        mask = (at < keys)[:, None] & (columns < NUMBERS)[None, :]
        x = tl.load(k + pages * k_b + inside * NUMBERS + columns[None, :], mask=mask)
        tl.store(rows_k + to * NUMBERS + columns[None, :], x, mask=mask)
        mask = (at < keys)[:, None] & (columns < NUMBERS_V)[None, :]
        x = tl.load(v + pages * v_b + inside * NUMBERS_V + columns[None, :], mask=mask)
        tl.store(rows_v + to * NUMBERS_V + columns[None, :], x, mask=mask)
    if PDL:
        gdc_wait()


def launch_of(k: torch.Tensor, v: torch.Tensor, sequences: int, entries: int, few: int, pdl: bool) -> tuple[Any, ...]:
    """Return the grid of the copy of `sequences` lines of so many pages each, and its arguments after the tensors.

    k, v: (pages, page_size, heads, width), each page contiguous.
    """
    room, numbers = entries * k.shape[1], [x.shape[2] * x.shape[3] for x in (k, v)]
    columns = triton.next_power_of_2(max(numbers))
    rows = max(1, _BLOCK // columns)
    programs = max(1, min(triton.cdiv(room, rows), _PROGRAMS // sequences))
    rest = (entries, k.stride(0), v.stride(0), len(k) - 1, few, k.shape[1], *numbers, columns, rows, pdl)
    return (sequences, programs, 1), rest


def new_rows(like: torch.Tensor, sequences: int, entries: int) -> torch.Tensor:
    """Return room for the rows of pages (pages, page_size, heads, width)."""
    return like.new_empty(sequences * entries * like.shape[1], *like.shape[2:])
