"""PyTorch's FlexAttention, compiled: a mask written as a function, which Inductor turns into a Triton kernel.

The mask of blocks is made once a shape and kept, as its users do; making it is not part of a call. Compiling costs
seconds for each new shape, forward and backward.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch

from ..registry import AttentionCase, Device, Implementation, UnsupportedCase

COMPILED_SHAPES = 256  # torch._dynamo gives a function up after eight shapes otherwise
# PyTorch 2.13's own forward tile for float32 at head_dim 192 on sm_90. That of PyTorch 2.11, 64 by 64 in three stages,
# needs 272 KB of shared memory, and an SM has 227.
_WIDE_FLOAT32 = {"fwd_BLOCK_M": 32, "fwd_BLOCK_N": 64, "fwd_num_stages": 1, "fwd_num_warps": 8}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window_size: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Attention by FlexAttention; see `kernels.registry.Attention`. Raises UnsupportedCase off a GPU."""
    if q.device.type != "cuda":
        raise UnsupportedCase(f"torch_flex is compiled for a GPU, not for {q.device}; use torch_sdpa_auto.")
    mask = None
    if causal or window_size:
        mask = _block_mask(q.shape[2], k.shape[2], causal, window_size, q.device)
    tile = _WIDE_FLOAT32 if q.dtype == torch.float32 and 128 < q.shape[3] < 256 else None
    grouped = q.shape[1] != k.shape[1]
    return compiled()(q, k, v, block_mask=mask, scale=softmax_scale, enable_gqa=grouped, kernel_options=tile)


def visible_keys(seqlen_q: int, seqlen_k: int, causal: bool, window_size: int):
    """Return FlexAttention's mask: True where a query looks; the last query is aligned with the last key."""
    offset = seqlen_k - seqlen_q

    def sees(batch, head, query, key):
        position = query + offset
        seen = key <= position if causal or not window_size else key < position + window_size
        return seen & (key > position - window_size) if window_size else seen

    return sees


@cache
def compiled():
    """Return FlexAttention under torch.compile, which compiles for each new shape."""
    from torch.nn.attention.flex_attention import flex_attention  # brings torch._dynamo, seconds at import

    torch._dynamo.config.recompile_limit = max(COMPILED_SHAPES, torch._dynamo.config.recompile_limit)
    return torch.compile(flex_attention, dynamic=False)


@cache
def _block_mask(seqlen_q: int, seqlen_k: int, causal: bool, window_size: int, device: torch.device):
    from torch.nn.attention.flex_attention import create_block_mask

    sees = visible_keys(seqlen_q, seqlen_k, causal, window_size)
    return create_block_mask(sees, None, None, seqlen_q, seqlen_k, device=device, _compile=True)


def _unavailable() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "torch_flex needs Triton, which exists for Linux: pip install 'triton>=3.6,<4'."
    return None


def refuses(case: AttentionCase, device: Device) -> str | None:
    """Return what FlexAttention cannot compute of a case, or None."""
    if (case.head_dim or 16) < 16:
        return f"torch_flex needs a head_dim of at least 16, not {case.head_dim}."
    return None


IMPLEMENTATIONS = (
    Implementation(
        name="torch_flex",
        description="PyTorch's FlexAttention, compiled by Inductor to a Triton kernel",
        attention=attention,
        family="pytorch",
        devices=("cuda",),
        features=("head_dim_v",),
        memory={"growth": "linear", "fwd": {"numbers": 2}, "fwd_bwd": {"numbers": 2}},
        colour="#66a61e",
        compiled="first_call",
        min_compute_capability=(8, 0),
        unavailable=_unavailable(),
        refuses=refuses,
    ),
)
