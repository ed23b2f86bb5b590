"""Plans: the launches of a request, which depends only on shapes, strides and options and is cached.

A call allocates, and passes addresses to compiled kernels. There is no device-to-host synchronization, so a CUDA graph
can capture a call after a first call has compiled the kernels.
"""

from copy import copy
from functools import cache
from typing import Any, Self

import torch

from ...constants import Constants
from ...plans import device_guard
from ...tables import machine_of
from .combine import CombinePartsConfig, combine_kernel
from .launch import INTERPRETED, LaunchOf, prepared, workspace
from .request import Caches, Request
from .split import CacheStrides, SplitConfig, split_kernel
from .tuning import DecodeTile, divide, power_of_2_from, tile

_CACHES = {torch.float8_e4m3fn: "e4m3", torch.float32: "float32", torch.bfloat16: "half", torch.float16: "half"}
_REGISTERS = 65536  # registers of a multiprocessor
_FLOATS = 64  # values of parts that a thread of the first kernel holds at once
_FLOATS_FEW = 16  # the same, if more than two programs share the registers of a multiprocessor
_COMBINED = 128  # values of a part that a warp of the second kernel combines
_MANY = 1 << 19  # values of all outputs; from here on, programs of the second kernel have four warps, else one
_FEW_PARTS = 4  # parts loaded at once if a tile has no more; only two forms, so a growing cache compiles few kernels
_COMBINED_AT_ONCE = 32  # parts that the second kernel loads at once
_PROGRAMS_OF_A_TILE = 4  # tiles are few if each gets this many programs; the first loads and combining then dominate
_SHORT_KEYS = 128, 512  # keys for each multiprocessor, up to which few tiles are "short"; up to 4 rows of head_dim 128
_WHOLE_KEYS = 2048, 8192  # keys up to which one program for each tile is fastest, at head_dim up to 64 and above
_WHOLE_BLOCK, _WHOLE_BLOCKS = 128, 8  # keys of a block; blocks that take less time than sharing tiles
_DOUBLED = 1.8  # tiles of a multiprocessor, from which on the tile of "many" is faster
_BRIEF_KEYS = 512  # keys of a sequence, up to which many tiles are "brief"
_ONE_STEP_KEYS = 64  # keys of a sequence, up to which every tile processes them in one step
_as_constants = cache(Constants)  # a growing cache uses the same object at each length
_NO_TENSORS = (None,) * 4
_SHORT = 8  # steps of a program, up to which loading q in the loop is faster


Machine = tuple[str, int, int]  # family of kernels.tables, multiprocessors, compute capability (90 for 9.0)


class Plan:
    """The launches of a request."""

    def __init__(
        self,
        request: Request,
        chosen: DecodeTile | None = None,
        machine: Machine | None = None,
        *,
        one_launch: bool = False,  # whether short calls avoid a second launch, at the cost of time on the device
    ) -> None:
        r = request
        chip, self._multiprocessors, self.capability = machine or machine_on(r.device)
        self.tile = chosen or _tile_of(r, chip, self._multiprocessors, one_launch=one_launch)
        self._left = r.window_size - 1 if r.window_size else 0
        self._divide(r)
        self._form = self._cache_form()
        self._out_shape = (r.batch, r.num_heads, r.seqlen_q, r.head_dim_v)
        self._like_q = r.head_dim == r.head_dim_v and _is_contiguous(r)

    def _divide(self, r: Request) -> None:
        """Take the request, whose capacity decides the shares."""
        self.request = r
        seen = r.seqlen_q + self._left + self.tile.block_n if r.window_size else r.capacity
        self.shares = divide(
            self.tile,
            rows=r.num_heads // r.num_kv_heads * r.seqlen_q,
            tiles=r.batch * r.num_kv_heads,
            most_keys=min(r.capacity, seen),
            head_dim_v=r.head_dim_v,
            ragged=r.ragged,
            multiprocessors=self._multiprocessors,
        )
        self._tickets = self.shares.tiles * self.shares.row_tiles
        self._launches: dict[bool, tuple[Any, Any]] = {}

    def resized(self, request: Request) -> Self | None:
        """Return this plan for a request with a cache of another length; None if that takes another tile."""
        rows = request.num_heads // request.num_kv_heads * request.seqlen_q
        if len({_spread(x, rows, self._multiprocessors) for x in (self.request, request)}) > 1:
            return None
        plan = copy(self)
        plan._divide(request)
        return plan

    def __call__(self, q: torch.Tensor, caches: Caches, return_lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return out (batch, num_heads, seqlen_q, head_dim_v) and, if asked for, its natural logsumexp in float32."""
        out = q.new_empty(self._out_shape)
        lse = q.new_empty(self._out_shape[:3], dtype=torch.float32) if return_lse else None
        self._launch((q, *caches[:2], out, lse), caches[2:])
        return out, lse

    def output(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return out of a contiguous cache that is completely in use. The current device may be another one."""
        out = torch.empty_like(q) if self._like_q else q.new_empty(self._out_shape)
        with device_guard(q.device):
            self._launch((q, k, v, out, None), _NO_TENSORS)
        return out

    def _launch(self, tensors: tuple[Any, ...], others: tuple[Any, ...]) -> None:
        """Launch for q, k, v, out and lse or None, and others: lengths, page table, factors of keys and of values."""
        q, lse = tensors[0], tensors[4]
        stream = torch._C._cuda_getCurrentRawStream(q.device.index) if q.is_cuda else 0
        scratch = workspace(self._tickets, self.shares.room, q.device, stream)
        launches = self._launches.get(lse is not None)
        if launches is None or INTERPRETED:
            viewed = self._views((*tensors, scratch.parts, scratch.tickets, *others))
            launches = self._launches[lse is not None] = launches or self._make(lse is not None, viewed)
        split, combine = launches
        if INTERPRETED:
            arguments: tuple[Any, ...] = viewed
        else:
            if others is not _NO_TENSORS:
                others = _addresses(others)
            arguments = (*_addresses(tensors), *scratch.addresses, *others)
        split.at(stream, self._of_split(arguments))
        if combine is not None:
            combine.at(stream, _of_combine(arguments))

    def _views(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the tensors of a launch with the dtypes that the kernel reads."""
        q, k, v, *rest = tensors
        if self._form == "bytes":
            k, v = k.view(torch.uint8), v.view(torch.uint8)
        elif self._form == "pairs":
            v = v.view(torch.int16)
        return q, k, v, *rest

    def _of_split(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the tensors or addresses that are arguments of the first kernel."""
        return arguments

    def _make(self, store_lse: bool, tensors: tuple[Any, ...]) -> tuple[Any, Any]:
        first, *second = self.kernels(store_lse)
        split = prepared(first, self._of_split(tensors))
        return split, prepared(second[0], _of_combine(tensors)) if second else None

    def kernels(self, store_lse: bool) -> list[LaunchOf]:
        """Return the launches, in their order."""
        split = self._split(store_lse)
        return [split] if self.shares.tickets else [split, self._combine(store_lse)]

    def _split(self, store_lse: bool) -> LaunchOf:
        r, t, shares = self.request, self.tile, self.shares
        threads = 32 * t.num_warps
        registers = _REGISTERS // (t.per_sm * threads) // 8 * 8
        floats = (_FLOATS if registers >= 255 else _FLOATS_FEW) * threads // (shares.rows * shares.block_dv)
        short = shares.block_m == 16 and shares.expected <= _SHORT
        config = SplitConfig(
            **self._constants(store_lse),
            head_dim=r.head_dim,
            block_d=_padded(r.head_dim),
            rope_dim=r.rope_dim,
            page=r.page,
            cache=self._form,
            k_scaled=r.scaled[0],
            v_scaled=r.scaled[1],
            causal=r.causal and (r.seqlen_q > 1 or r.window_size > 0),
            q_in_loop=short and self._form == "plain" and not r.rope_dim,
            at_once=min(16 if shares.splits > _FEW_PARTS else _FEW_PARTS, 1 << max(0, floats.bit_length() - 1)),
            rows=shares.rows,
            tickets=shares.tickets,
        )
        of_v = r.strides[7:11]
        if self._form == "pairs":
            of_v = (*(stride // 2 for stride in of_v[:3]), of_v[3])
        strides = CacheStrides(r.strides[:3], r.strides[3:7], of_v, r.strides[12:])
        options = {"num_warps": t.num_warps, "num_stages": t.num_stages, "launch_pdl": self.capability >= 90}
        if registers < 255:
            options["maxnreg"] = registers
        grid = (shares.slots * shares.row_tiles, 1, 1)
        scalars = (strides, r.strides[11], *self._scalars(), r.softmax_scale)
        return split_kernel, grid, scalars, {"CONFIG": _as_constants(config)}, options

    def _combine(self, store_lse: bool) -> LaunchOf:
        shares = self.shares
        dims = min(shares.block_dv, _COMBINED)
        values = shares.tiles * shares.row_tiles * shares.rows * shares.block_dv
        num_warps = 4 if values >= _MANY else 1
        rows = min(shares.rows, num_warps * _COMBINED // dims)
        at_once = _COMBINED_AT_ONCE if shares.splits > _FEW_PARTS else _FEW_PARTS
        config = CombinePartsConfig(**self._constants(store_lse), at_once=at_once, rows=rows, dims=dims)
        options = {"num_warps": num_warps, "num_stages": 1, "launch_pdl": self.capability >= 90}
        grid = (shares.tiles * shares.row_tiles, -(-shares.rows // rows), -(-shares.block_dv // dims))
        return combine_kernel, grid, self._scalars(), {"CONFIG": _as_constants(config)}, options

    def _constants(self, store_lse: bool) -> dict[str, Any]:
        """Return the constants of both kernels, by the names of PartsConfig."""
        r, shares = self.request, self.shares
        return {
            "block_m": shares.block_m, "block_n": self.tile.block_n, "head_dim_v": r.head_dim_v, "near": shares.near,
            "block_dv": shares.block_dv, "batch": power_of_2_from(r.batch) if r.ragged else 0,
            "has_left": bool(r.window_size), "chained": self.capability >= 90, "store_lse": store_lse,
        }  # fmt: skip

    def _scalars(self) -> tuple[int, ...]:
        """Return the scalar arguments of both kernels."""
        r, shares = self.request, self.shares
        return (
            r.batch, r.num_kv_heads, r.num_heads // r.num_kv_heads, r.seqlen_q, r.capacity, self._left, shares.slots,
            shares.least, shares.row_tiles, shares.parts,
        )  # fmt: skip

    def _cache_form(self) -> str:
        if _CACHES[self.request.cache_dtype] != "e4m3":
            return "plain"
        if self.capability < 89 or INTERPRETED:
            return "bytes"
        return "pairs" if self.request.pairs and self.shares.block_dv >= 64 else "e4m3"


def _tile_of(r: Request, chip: str, multiprocessors: int, *, one_launch: bool) -> DecodeTile:
    """Return the table's tile."""
    rows = r.num_heads // r.num_kv_heads * r.seqlen_q
    spread = _spread(r, rows, multiprocessors)
    if one_launch and spread in ("short", "shortest") and rows <= 16:
        spread = "single"
    return tile(
        chip,
        _CACHES[r.cache_dtype],
        min(128, rows),
        max(_padded(r.head_dim), _padded(r.head_dim_v)),
        spread=spread,
        page=r.page,
        latent=r.rope_dim > 0,
    )


def _is_contiguous(r: Request) -> bool:
    """Return whether q is contiguous, ignoring dimensions of size 1."""
    sizes, strides = (r.batch, r.num_heads, r.seqlen_q), r.strides[:3]
    wanted = (r.num_heads * r.seqlen_q * r.head_dim, r.seqlen_q * r.head_dim, r.head_dim)
    return all(size == 1 or stride == want for size, stride, want in zip(sizes, strides, wanted, strict=True))


def _spread(r: Request, rows: int, multiprocessors: int) -> str:
    """Return a name of tuning.SPREADS."""
    tiles = r.batch * r.num_kv_heads
    if tiles * _PROGRAMS_OF_A_TILE > multiprocessors:
        programs = -(-tiles // multiprocessors)
        blocks = -(-min(r.capacity, r.window_size or r.capacity) // _WHOLE_BLOCK)
        share = -(-tiles * blocks // (multiprocessors * programs))
        even = r.ragged or blocks <= share + max(_WHOLE_BLOCKS // programs, share // 3)
        moderate = r.capacity <= _WHOLE_KEYS[r.head_dim > 64]
        if moderate and multiprocessors < 2 * tiles <= 2 * multiprocessors:
            if _ONE_STEP_KEYS < r.capacity <= _BRIEF_KEYS:
                return "whole_brief"
            return "whole" if even else "uneven"
        doubled = moderate and even and not r.ragged and multiprocessors < tiles < _DOUBLED * multiprocessors
        return "brief" if r.capacity <= _BRIEF_KEYS else "doubled" if doubled else "many"
    most = _SHORT_KEYS[rows <= 4 and _padded(r.head_dim) == 128] * multiprocessors
    if tiles * -(-rows // 16) * r.capacity <= most:
        return "shortest"
    return "short" if tiles * r.capacity <= most else "few"


def _addresses(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([None if x is None else x.data_ptr() for x in tensors])


def _of_combine(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return out, lse, parts and lengths from the tensors or addresses of a launch."""
    return arguments[3], arguments[4], arguments[5], arguments[7]


def _padded(number: int) -> int:
    return max(16, power_of_2_from(number))


def machine_on(device: torch.device) -> Machine:
    """Return the machine of a device; a made-up small one for the CPU."""
    if device.type != "cuda":
        return "sm_90", 4, 0
    machine = machine_of(device)
    return machine.family, machine.multiprocessors, machine.capability
