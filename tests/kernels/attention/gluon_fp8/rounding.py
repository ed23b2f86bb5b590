"""Queries, keys and values in 8 bits as float32 again: the problem that the kernel of gluon_fp8 solves exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.attention.gluon_fp8.tuning import SCALE_ROWS

if TYPE_CHECKING:
    from kernels.attention.gluon_fp8.plan import Quantised


def dequantised(tensors: Quantised) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, k and v in float32 as the kernel sees them: float64 attention of these leaves its own errors alone."""
    size, seqlen_k = tensors.head_dim, tensors.k.shape[2]
    v = torch.empty_like(tensors.v, dtype=torch.float32)
    v[..., key_of_place(v.shape[-1]).to(v.device)] = tensors.v.float()
    q = tensors.q.float() * _of_rows(tensors.q_scales, tensors.q.shape[2])
    k = tensors.k.float() * _of_rows(tensors.k_scales, seqlen_k)
    v = v.mT[:, :, :seqlen_k] * _of_rows(tensors.v_scales.exp2(), seqlen_k)
    return q[..., :size], k[..., :size], v[..., :size]


def key_of_place(length: int) -> torch.Tensor:
    """Return which key's value stands at each place of `Quantised.v`'s last dimension.

    The place 16 h + 4 c + 2 f + e holds the key 16 h + 8 f + 2 c + e: h counts 16s, c goes to 3, e and f to 1.
    """
    place = torch.arange(length)
    return (place & ~15) + 8 * ((place >> 1) & 1) + 2 * ((place >> 2) & 3) + (place & 1)


def _of_rows(scales: torch.Tensor, rows: int) -> torch.Tensor:
    return scales.repeat_interleave(SCALE_ROWS, -1)[..., :rows, None]
