"""Algorithms 1 and 4 of FlashAttention (arXiv 2205.14135), and their launches: one program processes all of one head.

Every block of queries within a block of keys has its own rows. A barrier separates one block of keys from the next,
because a thread may read what another thread wrote to device memory.
"""

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from ...constants import Constants
from ...plans import check_inputs, device_guard
from ...registry import UnsupportedCase, refuse_cpu
from ...tables import family

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_MAX_HEAD_DIM = 256  # of the tiles
LOG2_E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True)
class Fa1Config:
    """Constants of both kernels."""

    block_m: int  # queries of a block
    block_n: int  # keys of a block
    block_d: int  # head_dim, padded
    head_dim: int
    causal: bool


# A tensor (batch, heads, rows, head_dim) and its strides; the last dimension is contiguous.
Heads = namedtuple("Heads", "ptr batch head row")
# Sizes of a call, and the factor of the scores.
Fa1Sizes = namedtuple("Fa1Sizes", "num_heads num_kv_heads seqlen_q seqlen_k scale")


@triton.jit
def _at(x, batch, head):
    """Return the address of a head of a sequence."""
    return x.ptr + batch * x.batch + head * x.head


@triton.jit
def _tile(ptr, rows, stride, limit, CONFIG: tl.constexpr):
    """Return pointers and mask of rows: (rows, block_d)."""
    dims = tl.arange(0, CONFIG.block_d)
    pointers = ptr + rows.to(tl.int64)[:, None] * stride + dims[None, :]
    return pointers, (rows < limit)[:, None] & (dims < CONFIG.head_dim)[None, :]


@triton.jit
def _load(ptr, rows, stride, limit, CONFIG: tl.constexpr):
    pointers, mask = _tile(ptr, rows, stride, limit, CONFIG)
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def _store(ptr, rows, stride, limit, tile, CONFIG: tl.constexpr):
    pointers, mask = _tile(ptr, rows, stride, limit, CONFIG)
    tl.store(pointers, tile.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _scores(q, k, rows, keys, sizes, CONFIG: tl.constexpr):
    """Return scores times log2(e), -inf where the mask hides a key; the last query is aligned with the last key."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * (sizes.scale * LOG2_E)
    visible = (keys < sizes.seqlen_k)[None, :]
    if CONFIG.causal:
        visible = visible & (keys[None, :] <= rows[:, None] + (sizes.seqlen_k - sizes.seqlen_q))
    return tl.where(visible, s, float("-inf"))


@triton.jit
def _first_row(start_n, sizes, CONFIG: tl.constexpr):
    """Return the start of the first block of queries that sees a key of the block at start_n."""
    first = 0
    if CONFIG.causal:
        first = tl.maximum(0, start_n - (sizes.seqlen_k - sizes.seqlen_q)) // CONFIG.block_m * CONFIG.block_m
    return first


@triton.jit
def forward_kernel(q, k, v, out, total_ptr, highest_ptr, sizes, CONFIG: tl.constexpr):
    """Add every block of keys to out, sum and maximum of all rows of a head, which are float32 in device memory.

    q, k, v, out: Heads. total_ptr, highest_ptr: (batch, num_heads, seqlen_q). sizes: Fa1Sizes.
    """
    seqlen_q = sizes.seqlen_q
    head = tl.program_id(0).to(tl.int64)
    batch, query_head = head // sizes.num_heads, head % sizes.num_heads
    key_head = query_head // (sizes.num_heads // sizes.num_kv_heads)
    q_at, out_at = _at(q, batch, query_head), _at(out, batch, query_head)
    k_at, v_at = _at(k, batch, key_head), _at(v, batch, key_head)
    total_ptr += head * seqlen_q
    highest_ptr += head * seqlen_q
    for start_n in range(0, sizes.seqlen_k, CONFIG.block_n):
        keys = start_n + tl.arange(0, CONFIG.block_n)
        k_block = _load(k_at, keys, k.row, sizes.seqlen_k, CONFIG)
        v_block = _load(v_at, keys, v.row, sizes.seqlen_k, CONFIG)
        for start_m in range(_first_row(start_n, sizes, CONFIG), seqlen_q, CONFIG.block_m):
            rows = start_m + tl.arange(0, CONFIG.block_m)
            s = _scores(_load(q_at, rows, q.row, seqlen_q, CONFIG), k_block, rows, keys, sizes, CONFIG)
            highest = tl.load(highest_ptr + rows, mask=rows < seqlen_q, other=float("-inf"))
            total = tl.load(total_ptr + rows, mask=rows < seqlen_q, other=0.0)
            new_highest = tl.maximum(highest, tl.max(s, 1))
            shown = tl.where(new_highest == float("-inf"), 0.0, new_highest)  # finite for rows without a key so far
            p = tl.exp2(s - shown[:, None])
            rescaled = total * tl.exp2(highest - shown)
            new_total = rescaled + tl.sum(p, 1)
            new_out = _load(out_at, rows, out.row, seqlen_q, CONFIG) * rescaled[:, None]
            new_out += tl.dot(p.to(v_block.dtype), v_block, input_precision="ieee")
            new_out = new_out / tl.where(new_total == 0.0, 1.0, new_total)[:, None]
            _store(out_at, rows, out.row, seqlen_q, new_out, CONFIG)
            tl.store(total_ptr + rows, new_total, mask=rows < seqlen_q)
            tl.store(highest_ptr + rows, new_highest, mask=rows < seqlen_q)
        tl.debug_barrier()


@triton.jit
def backward_kernel(q, k, v, out, dout, dq, dk, dv, total_ptr, highest_ptr, sizes, CONFIG: tl.constexpr):
    """Compute dk and dv of a key head block by block; dq is accumulated in float32 in device memory.

    The first eight arguments are Heads; the others are those of forward_kernel. A program processes all query heads
    that share its key head, so no two programs add to the same numbers.
    """
    seqlen_q, seqlen_k = sizes.seqlen_q, sizes.seqlen_k
    program = tl.program_id(0).to(tl.int64)
    batch, key_head = program // sizes.num_kv_heads, program % sizes.num_kv_heads
    group = sizes.num_heads // sizes.num_kv_heads
    k_at, v_at = _at(k, batch, key_head), _at(v, batch, key_head)
    dk_at, dv_at = _at(dk, batch, key_head), _at(dv, batch, key_head)
    for start_n in range(0, seqlen_k, CONFIG.block_n):
        keys = start_n + tl.arange(0, CONFIG.block_n)
        k_block = _load(k_at, keys, k.row, seqlen_k, CONFIG)
        v_block = _load(v_at, keys, v.row, seqlen_k, CONFIG)
        dk_block = tl.zeros((CONFIG.block_n, CONFIG.block_d), tl.float32)
        dv_block = tl.zeros((CONFIG.block_n, CONFIG.block_d), tl.float32)
        for of_group in range(group):
            query_head = key_head * group + of_group
            q_at, out_at = _at(q, batch, query_head), _at(out, batch, query_head)
            dout_at, dq_at = _at(dout, batch, query_head), _at(dq, batch, query_head)
            row_at = (batch * sizes.num_heads + query_head) * seqlen_q
            for start_m in range(_first_row(start_n, sizes, CONFIG), seqlen_q, CONFIG.block_m):
                rows = start_m + tl.arange(0, CONFIG.block_m)
                q_block = _load(q_at, rows, q.row, seqlen_q, CONFIG)
                do = _load(dout_at, rows, dout.row, seqlen_q, CONFIG)
                o = _load(out_at, rows, out.row, seqlen_q, CONFIG)
                highest = tl.load(highest_ptr + row_at + rows, mask=rows < seqlen_q, other=0.0)
                total = tl.load(total_ptr + row_at + rows, mask=rows < seqlen_q, other=0.0)
                shown = tl.where(highest == float("-inf"), 0.0, highest)
                s = _scores(q_block, k_block, rows, keys, sizes, CONFIG)
                p = tl.exp2(s - shown[:, None]) / tl.where(total == 0.0, 1.0, total)[:, None]
                dv_block += tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
                delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
                dp = tl.dot(do, tl.trans(v_block), input_precision="ieee")
                ds = (p * (dp - delta[:, None]) * sizes.scale).to(q_block.dtype)
                dq_block = _load(dq_at, rows, dq.row, seqlen_q, CONFIG)
                dq_block += tl.dot(ds, k_block, input_precision="ieee")
                _store(dq_at, rows, dq.row, seqlen_q, dq_block, CONFIG)
                dk_block += tl.dot(tl.trans(ds), q_block, input_precision="ieee")
        _store(dk_at, keys, dk.row, seqlen_k, dk_block, CONFIG)
        _store(dv_at, keys, dv.row, seqlen_k, dv_block, CONFIG)
        tl.debug_barrier()


@cache
def options_of(direction: str, size: int, head_dim: int, causal: bool) -> dict[str, Any]:
    """Return CONFIG and the compiler options of a direction ("forward", "backward") for numbers of `size` bytes."""
    table = family("sm_86")["flash_attn_1"]
    block_m, block_n, num_warps = table.first(direction=direction, itemsize=size, head_dim=head_dim)
    config = Fa1Config(block_m, block_n, max(16, triton.next_power_of_2(head_dim)), head_dim, causal)
    return {"CONFIG": Constants(config), "num_warps": num_warps, "num_stages": 1}


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Compute attention, differentiable once. Raises UnsupportedCase for tensors that the kernels cannot take."""
    check_inputs("flash_attn_1", q, k, v, _DTYPES, _MAX_HEAD_DIM)
    if window_size:
        raise UnsupportedCase("flash_attn_1 does not support sliding windows.")
    if q.device.type != "cuda":
        refuse_cpu("flash_attn_1", q)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    return _FlashAttention1.apply(q, k, v, causal, scale)


class _FlashAttention1(torch.autograd.Function):
    """Saves q, k, v, out and the sums and maxima of rows."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
    ) -> torch.Tensor:
        q, k, v = map(_with_dense_rows, (q, k, v))
        out = torch.zeros_like(q, dtype=torch.float32)
        total = torch.zeros(q.shape[:3], dtype=torch.float32, device=q.device)
        rows = total, torch.full_like(total, float("-inf"))
        _launch(forward_kernel, (q, k, v, out), rows, causal, scale)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, *rows)
        ctx.masks = causal, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, *rows = ctx.saved_tensors
        gradients = torch.zeros_like(q, dtype=torch.float32), torch.zeros_like(k), torch.zeros_like(v)
        _launch(backward_kernel, (q, k, v, out, _with_dense_rows(dout), *gradients), rows, *ctx.masks)
        return gradients[0].to(q.dtype), *gradients[1:], None, None


def _launch(
    kernel: Any, tensors: Sequence[torch.Tensor], rows: Sequence[torch.Tensor], causal: bool, scale: float
) -> None:
    """Launch a kernel for q, k, v and the other tensors of its direction; `rows` are their sums and maxima."""
    q, k = tensors[:2]
    direction, heads = ("forward", q.shape[1]) if kernel is forward_kernel else ("backward", k.shape[1])
    sizes = Fa1Sizes(q.shape[1], k.shape[1], q.shape[2], k.shape[2], scale)
    options = options_of(direction, q.element_size(), q.shape[3], causal)
    with device_guard(q.device):
        if q.numel() and k.numel():
            kernel[(q.shape[0] * heads,)](*(Heads(x, *x.stride()[:3]) for x in tensors), *rows, sizes, **options)


def _with_dense_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
