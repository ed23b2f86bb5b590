"""The plan of a shape: tiles, grid, descriptors and launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...plans import LOG2_E, PlanCache, device_guard
from ..gluon_hopper.configs import padded_head_dim
from ..gluon_hopper.launch import Descriptor, Launch
from . import tuning
from .forward import forward_kernel
from .quantising import quantise_kernel
from .tiles import Fp8Shape

_PLANS: PlanCache[Fp8Plan] = PlanCache()


@dataclass(frozen=True)
class Quantised:
    """Queries, keys and values in e4m3 with the scales of every 128 rows; what `quantising.py` makes of q, k and v."""

    q: torch.Tensor  # (batch, num_heads, seqlen_q, size), size being the kernel's head_dim
    k: torch.Tensor  # (batch, num_kv_heads, seqlen_k, size)
    v: torch.Tensor  # (batch, num_kv_heads, size, seqlen_k in whole blocks), keys in the kernel's order
    q_scales: torch.Tensor  # (batch, num_heads, blocks), powers of two
    k_scales: torch.Tensor  # (batch, num_kv_heads, blocks), powers of two
    v_scales: torch.Tensor  # (batch, num_kv_heads, blocks), exponents of powers of two
    head_dim: int
    dtype: torch.dtype  # the output's dtype


def quantise(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Quantised:
    """Quantise q, k and v of 16 bits, with any strides, to the form that `attend` takes."""
    (batch, num_heads, seqlen_q, head_dim), (num_kv_heads, seqlen_k) = q.shape, k.shape[1:3]
    size = padded_head_dim(head_dim)
    q_blocks, k_blocks = (-(-seqlen // tuning.SCALE_ROWS) for seqlen in (seqlen_q, seqlen_k))
    empty: dict[str, Any] = {"dtype": torch.float8_e4m3fn, "device": q.device}
    made = Quantised(
        q=torch.empty((batch, num_heads, seqlen_q, size), **empty),
        k=torch.empty((batch, num_kv_heads, seqlen_k, size), **empty),
        v=torch.empty((batch, num_kv_heads, size, k_blocks * tuning.SCALE_ROWS), **empty),
        q_scales=q.new_empty((batch, num_heads, q_blocks), dtype=torch.float32),
        k_scales=q.new_empty((batch, num_kv_heads, k_blocks), dtype=torch.float32),
        v_scales=q.new_empty((batch, num_kv_heads, k_blocks), dtype=torch.float32),
        head_dim=head_dim,
        dtype=q.dtype,
    )
    programs = made.q_scales.numel(), made.k_scales.numel()
    with device_guard(q.device):
        quantise_kernel[(programs[0] + 2 * programs[1],)](
            *((q, k, v), (made.q, made.k, made.v), (made.q_scales, made.k_scales, made.v_scales)),
            (q.stride(), k.stride(), v.stride()),
            *(num_heads, num_kv_heads, seqlen_q, seqlen_k, q_blocks, k_blocks, *programs, head_dim, size),
            num_warps=tuning.quantising_warps(size),
        )
    return made


def attend(tensors: Quantised, softmax_scale: float) -> torch.Tensor:
    """Compute attention of quantised tensors, none of them empty, for a positive scale."""
    key = (tensors.q.shape, tensors.k.shape, tensors.q.device, tensors.dtype, tensors.head_dim, softmax_scale)
    plan = _PLANS.get(key)
    if plan is None:
        plan = _PLANS.remember(key, Fp8Plan(tensors, softmax_scale))
    return plan(tensors)


class Fp8Plan:
    """The launch for one shape."""

    def __init__(self, tensors: Quantised, softmax_scale: float) -> None:
        batch, num_heads, seqlen_q, size = tensors.q.shape
        num_kv_heads, seqlen_k = tensors.k.shape[1:3]
        tiles = tuning.tiles(size)
        n_heads, group_size = batch * num_heads, num_heads // num_kv_heads
        blocks = (tuning.ROWS, size), (tiles.block_n, size), (size, tiles.block_n), (tuning.ROWS, size)
        shaped = tensors.q, tensors.k, tensors.v, _room(tensors)
        makers = [Descriptor(x, [1, 1, *block]) for x, block in zip(shaped, blocks, strict=True)]
        programs = torch.cuda.get_device_properties(tensors.q.device).multi_processor_count
        n_m, n_long = -(-seqlen_q // (tuning.ROWS * 2)), None
        if tiles.consumers == 3:
            n_long, short = tuning.tiles_of_head(seqlen_q, n_heads, programs)
            n_m = n_long + short
        n_tiles = n_m * n_heads
        config = tuning.Fp8Config(**vars(tiles), head_dim=size, masked=seqlen_k % tiles.block_n > 0)
        shape = Fp8Shape(n_tiles, n_m, num_heads, n_heads, group_size, seqlen_q, seqlen_k)
        rest = shape, n_long, softmax_scale * LOG2_E, config
        grid = (min(programs, n_tiles), 1, 1)
        self._launch = Launch(forward_kernel, grid, tensors.q.device, [*makers, None, None, None], rest)

    def __call__(self, tensors: Quantised) -> torch.Tensor:
        """Return the output, (batch, num_heads, seqlen_q, head_dim)."""
        out = _room(tensors)
        scales = tensors.q_scales, tensors.k_scales, tensors.v_scales
        with device_guard(out.device):
            self._launch(tensors.q, tensors.k, tensors.v, out, *scales)
        return out


def _room(tensors: Quantised) -> torch.Tensor:
    """Return an empty output, with rows that TMA can address."""
    width = -(-tensors.head_dim // 8) * 8
    room = torch.empty((*tensors.q.shape[:3], width), dtype=tensors.dtype, device=tensors.q.device)
    return room if width == tensors.head_dim else room[..., : tensors.head_dim]
