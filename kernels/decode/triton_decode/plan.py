"""From tensors to launches: what depends on shapes, strides and options alone is decided once and looked up after.

A call then allocates, and hands addresses to compiled kernels. Nothing is read back from the device, so a CUDA graph
captures a call, after one outside of it that compiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton

from kernels.decode.triton_decode.combine import combine_kernel
from kernels.decode.triton_decode.launch import INTERPRETED, Launch
from kernels.decode.triton_decode.split import split_kernel
from kernels.decode.triton_decode.tuning import Tile, chip_class, tile
from kernels.decode.triton_decode.workspace import tickets

_CACHES = {torch.float8_e4m3fn: "e4m3", torch.float32: "float32", torch.bfloat16: "half", torch.float16: "half"}
_ALONE_BYTES = 192 * 1024  # parts of a tile that one program combines; more are left to a launch of their own
_REGISTERS = 65536  # of a multiprocessor
_COMBINED = 64  # float32 values of parts that a thread holds at once
_COMBINED_FEW = 16  # where more programs than two share a multiprocessor's registers


@dataclass(frozen=True)
class Request:
    """What a plan depends on."""

    dtype: torch.dtype  # of the query and the output
    cache_dtype: torch.dtype
    batch: int
    num_heads: int
    num_kv_heads: int
    seqlen_q: int
    capacity: int  # keys that the cache, or a row of the page table, has room for
    page: int  # keys of a page, 0 for a contiguous cache
    head_dim: int
    head_dim_v: int
    ragged: bool
    causal: bool
    window_size: int
    softmax_scale: float
    strides: tuple[int, ...]  # q batch, head, token; k sequence or page, head, key, dim; v likewise; table; scales
    scaled: tuple[bool, bool]  # whether keys and values have factors
    device: torch.device


class Plan:
    """The launches of a request."""

    def __init__(self, request: Request, chosen: Tile | None = None) -> None:
        self.request = r = request
        chip, self.multiprocessors, self.capability = _device(r.device)
        group = r.num_heads // r.num_kv_heads
        rows = group * r.seqlen_q
        self.block_m = min(128, max(16, triton.next_power_of_2(rows)))
        self.block_dv = max(16, triton.next_power_of_2(r.head_dim_v))
        block_d = max(16, triton.next_power_of_2(r.head_dim))
        t = self.tile = chosen or tile(chip, _CACHES[r.cache_dtype], self.block_m, max(block_d, self.block_dv))
        self.row_tiles = -(-rows // self.block_m)
        tiles = r.batch * r.num_kv_heads
        self.tickets = tiles * self.row_tiles
        left = r.window_size - 1 if r.window_size else 0
        most_keys = min(r.capacity, r.seqlen_q + left + t.block_n) if r.window_size else r.capacity
        most_blocks = max(1, -(-most_keys // t.block_n))
        least = max(1, t.least_keys // t.block_n)
        slots = max(1, self.multiprocessors * t.per_sm // self.row_tiles)
        least = least if r.ragged else _aligned_share(tiles, most_blocks, slots, least)
        self.slots = min(slots, -(-tiles * most_blocks // least))
        rows_held = min(self.block_m, triton.next_power_of_2(rows))
        splits = min(self.slots, -(-self.slots // tiles), most_blocks)
        alone = splits * rows_held * self.block_dv * 4 <= _ALONE_BYTES
        self.parts = self.slots * 2 * self.row_tiles * self.block_m * self.block_dv
        self.room = self.parts + self.slots * 2 * self.row_tiles * self.block_m
        shared = {
            "BLOCK_M": self.block_m, "BLOCK_N": t.block_n, "HEAD_DIM_V": r.head_dim_v, "BLOCK_DV": self.block_dv,
            "BATCH": triton.next_power_of_2(r.batch) if r.ragged else 0, "HAS_LEFT": bool(r.window_size),
        }  # fmt: skip
        self._shared, self._alone = shared, alone
        threads = 32 * t.num_warps
        self.registers = _REGISTERS // (t.per_sm * threads) // 8 * 8
        held_values = threads * (_COMBINED if self.registers >= 255 else _COMBINED_FEW)
        cache_form = self._cache_form()
        self._as_bytes = cache_form == "bytes"
        self._split_constants = {
            **shared, "HEAD_DIM": r.head_dim, "BLOCK_D": block_d, "PAGE": r.page, "CACHE": cache_form,
            "K_SCALED": r.scaled[0], "V_SCALED": r.scaled[1],
            "CAUSAL": r.causal and r.seqlen_q > 1 or bool(r.window_size and r.causal), "TICKETS": alone,
            "AT_ONCE": _power_of_2_below(held_values // (rows_held * self.block_dv)), "ROWS": rows_held,
        }  # fmt: skip
        self._split_scalars = (
            *r.strides, r.batch, r.num_kv_heads, group, r.seqlen_q, r.capacity, left, self.slots, least,
            self.row_tiles, self.parts, r.softmax_scale,
        )  # fmt: skip
        held, dims = min(rows_held, 16), min(self.block_dv, 64)
        self._combine_constants = {
            **shared, "AT_ONCE": _power_of_2_below(128 * _COMBINED // (held * dims)), "ROWS": held, "DIMS": dims,
            "CHAINED": self.capability >= 90,
        }  # fmt: skip
        self._combine_scalars = (
            r.batch, r.num_kv_heads, group, r.seqlen_q, r.capacity, left, self.slots, least, self.row_tiles, self.parts,
        )  # fmt: skip
        self._combine_grid = (tiles * self.row_tiles, -(-rows_held // held), -(-self.block_dv // dims))
        self._number, self._integer = (
            torch.zeros(16, dtype=dtype, device=r.device) for dtype in (torch.float32, torch.int32)
        )
        self._launches: dict[bool, tuple[Launch, Launch | None]] = {}

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        lengths: torch.Tensor | None,
        table: torch.Tensor | None,
        k_scale: torch.Tensor | None,
        v_scale: torch.Tensor | None,
        return_lse: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """out (batch, num_heads, seqlen_q, head_dim_v) and, if asked for, its natural logsumexp in float32."""
        r = self.request
        out = q.new_empty((r.batch, r.num_heads, r.seqlen_q, r.head_dim_v))
        lse = None
        if return_lse:
            lse = torch.empty((r.batch, r.num_heads, r.seqlen_q), dtype=torch.float32, device=q.device)
        parts = torch.empty(self.room, dtype=torch.float32, device=q.device)
        stream = torch._C._cuda_getCurrentRawStream(q.device.index) if q.is_cuda else 0
        counters = tickets(self.tickets, q.device, stream) if self._alone else self._integer
        pointers, combine_pointers = self._pointers(
            q, k, v, out, lse, parts, counters, lengths, table, k_scale, v_scale
        )
        launches = self._launches.get(return_lse)
        if launches is None:
            launches = self._launches[return_lse] = self._make(return_lse, pointers, combine_pointers)
        split, combine = launches
        split(stream, *pointers)
        if combine is not None:
            combine(stream, *combine_pointers)
        return out, lse

    def compile(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Leave the kernels in Triton's cache, for tensors like these, which may be on device "meta"."""
        number, integer = self._number, self._integer
        self._make(False, *self._pointers(q, k, v, q, number, number, integer, integer, integer, number, number))

    def _pointers(
        self, q: Any, k: Any, v: Any, out: Any, lse: Any, parts: Any, counters: Any, lengths: Any, table: Any,
        k_scale: Any, v_scale: Any,
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:  # fmt: skip
        """What the two kernels are given; tensors of the right dtype stand for those that there are not."""
        if self._as_bytes:
            k, v = k.view(torch.uint8), v.view(torch.uint8)
        lse = self._number if lse is None else lse
        lengths = self._integer if lengths is None else lengths
        table = self._integer if table is None else table
        k_scale = self._number if k_scale is None else k_scale
        v_scale = self._number if v_scale is None else v_scale
        return (q, k, v, out, lse, parts, counters, lengths, table, k_scale, v_scale), (out, lse, parts, lengths)

    def _make(self, store_lse: bool, pointers: Any, combine_pointers: Any) -> tuple[Launch, Launch | None]:
        t = self.tile
        options = {"num_warps": t.num_warps, "num_stages": t.num_stages}
        if self.registers < 255:
            options["maxnreg"] = self.registers
        constants = {**self._split_constants, "STORE_LSE": store_lse}
        grid = (self.slots * self.row_tiles, 1, 1)
        split = Launch(split_kernel, grid, pointers, self._split_scalars, constants, options)
        if self._alone:
            return split, None
        options = {"num_warps": 4, "num_stages": 1, "launch_pdl": self.capability >= 90}
        constants = {**self._combine_constants, "STORE_LSE": store_lse}
        return split, Launch(
            combine_kernel, self._combine_grid, combine_pointers, self._combine_scalars, constants, options
        )

    def _cache_form(self) -> str:
        if _CACHES[self.request.cache_dtype] != "e4m3":
            return "plain"
        return "e4m3" if self.capability >= 89 and not INTERPRETED else "bytes"


def _aligned_share(tiles: int, blocks: int, slots: int, least: int) -> int:
    """Blocks of a program over uniform lengths: a whole part of a tile's if that leaves few programs without work."""
    even = max(least, -(-tiles * blocks // slots))
    if tiles > slots:
        return even
    aligned = max(least, -(-blocks // (slots // tiles)))
    return aligned if aligned * 9 <= even * 10 else even


def _power_of_2_below(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


@cache
def _device(device: torch.device) -> tuple[str, int, int]:
    """The chip's table, multiprocessors and compute capability; of a small imagined one on the CPU."""
    if device.type != "cuda":
        return "sm_90", 4, 0
    properties = torch.cuda.get_device_properties(device)
    capability = properties.major * 10 + properties.minor
    chip = chip_class(capability, properties.shared_memory_per_block_optin)
    return chip, properties.multi_processor_count, capability
