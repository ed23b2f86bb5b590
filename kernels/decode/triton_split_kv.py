"""Split-KV decoding of this repository (`kernels.decode.triton_decode`) as an implementation of level decode."""

from __future__ import annotations

import importlib.util
import os

import torch

from kernels.decode.triton_decode import MAX_HEAD_DIM, MAX_SEQLEN_Q
from kernels.decode.triton_decode import decode as split_kv
from kernels.registry import AttentionCase, Device, Implementation


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    context: int,
    cache_seqlens: torch.Tensor | None = None,
    causal: bool = True,
    window_size: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Attend to the first `context` keys, as PyTorch's backends are given them; see `kernels.registry.DecodeAttention`.

    All sequences of a case are alike, so their lengths need not be read from the device.
    """
    return split_kv(
        q,
        k_cache[:, :, :context],
        v_cache[:, :, :context],
        causal=causal,
        window_size=window_size,
        softmax_scale=softmax_scale,
    )


def _refuses(case: AttentionCase, device: Device) -> str | None:
    if (case.seqlen_q or 1) > MAX_SEQLEN_Q:
        return f"triton_split_kv takes up to {MAX_SEQLEN_Q} query tokens, not {case.seqlen_q}."
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return (
            "triton_split_kv runs on the CPU only in Triton's interpreter: set TRITON_INTERPRET=1 before Python starts."
        )
    if device.type == "cpu" and case.dtype == "bfloat16":
        return "triton_split_kv runs in Triton's interpreter on the CPU, which has no bfloat16."
    return None


def _unavailable() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; it exists for Linux: pip install 'triton>=3.6,<4'."
    return None


IMPLEMENTATIONS = (
    Implementation(
        name="triton_split_kv",
        description="Split-KV decoding in Triton",
        attention=decode,
        level="decode",
        max_head_dim=MAX_HEAD_DIM,
        backward=False,
        min_compute_capability=(8, 0),
        memory={"growth": "linear"},
        colour="#e69f00",
        compiled="ahead",
        interpreted_on_cpu=True,
        unavailable=_unavailable(),
        refuses=_refuses,
    ),
)
