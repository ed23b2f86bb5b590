"""Copies of the pages of packed sequences into rows, in which each has room for all pages of its line of the table."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_BLOCK = 4096  # numbers that a program copies at a time
_PROGRAMS = 8192  # where there are so many rows


@dataclass(frozen=True)
class CopyConfig:
    """Compile-time constants of `copy_kernel`."""

    page: int  # rows of a page
    numbers: int  # of a row of k
    numbers_v: int
    columns: int  # numbers of a row that a program copies at a time
    rows: int  # and rows
    pdl: bool  # the kernel before, of which it needs nothing, may not have ended, and the next may begin


@triton.jit(do_not_specialize=["entries", "last_page", "few"])
def copy_kernel(k, v, rows_k, rows_v, table, starts_q, starts_k, entries, k_b, v_b, last_page, few,
                CONFIG: tl.constexpr):  # fmt: skip
    """Copy the rows of a sequence with more than `few` queries; its programs take them in turn.

    A line of the table has so many entries; CONFIG is a CopyConfig.
    """
    if CONFIG.pdl:
        gdc_launch_dependents()
    own = tl.program_id(0)
    queries = tl.load(starts_q + own + 1) - tl.load(starts_q + own)
    keys = tl.where(queries > few, tl.load(starts_k + own + 1) - tl.load(starts_k + own), 0)
    columns = tl.arange(0, CONFIG.columns)
    for start in range(tl.program_id(1) * CONFIG.rows, keys, tl.num_programs(1) * CONFIG.rows):
        at = start + tl.arange(0, CONFIG.rows)
        pages = tl.load(table + own * entries + at // CONFIG.page, mask=at < keys, other=0)
        pages = tl.minimum(tl.maximum(pages, 0), last_page).to(tl.int64)[:, None]
        inside, to = (at % CONFIG.page)[:, None], (own * entries * CONFIG.page + at).to(tl.int64)[:, None]
        mask = (at < keys)[:, None] & (columns < CONFIG.numbers)[None, :]
        x = tl.load(k + pages * k_b + inside * CONFIG.numbers + columns[None, :], mask=mask)
        tl.store(rows_k + to * CONFIG.numbers + columns[None, :], x, mask=mask)
        mask = (at < keys)[:, None] & (columns < CONFIG.numbers_v)[None, :]
        x = tl.load(v + pages * v_b + inside * CONFIG.numbers_v + columns[None, :], mask=mask)
        tl.store(rows_v + to * CONFIG.numbers_v + columns[None, :], x, mask=mask)
    if CONFIG.pdl:
        gdc_wait()


def launch_of(
    k: torch.Tensor, v: torch.Tensor, lines: tuple[int, int], few: int, pdl: bool
) -> tuple[tuple[int, int, int], tuple[int, ...], CopyConfig]:
    """Return the grid, scalars and constants of the copy of pages (pages, page_size, heads, width), each contiguous.

    `lines`: how many the table has, and pages of each.
    """
    sequences, entries = lines
    numbers = [x.shape[2] * x.shape[3] for x in (k, v)]
    columns = triton.next_power_of_2(max(numbers))
    rows = max(1, _BLOCK // columns)
    programs = max(1, min(triton.cdiv(entries * k.shape[1], rows), _PROGRAMS // sequences))
    scalars = (entries, k.stride(0), v.stride(0), len(k) - 1, few)
    return (sequences, programs, 1), scalars, CopyConfig(k.shape[1], *numbers, columns, rows, pdl)
