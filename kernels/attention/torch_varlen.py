"""PyTorch's attention of packed sequences (torch.nn.attention.varlen, PyTorch 2.10 and later): FlashAttention."""

import inspect
from functools import cache
from typing import Any

import torch

from .. import packages
from ..features import SequenceBounds, Window


def packed(
    *tensors: torch.Tensor, bounds: SequenceBounds, causal: bool, window_size: Window, softmax_scale: float | None
) -> Any:
    """Call the function with packed sequences, see `kernels.packages.op`; causal is a window that ends at a query."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = tensors
    masks = packages.masked(causal, window_size)
    lengths = packages.flash_lengths(bounds)
    starts, longest = (lengths["cu_seqlens_q"], lengths["cu_seqlens_k"]), (bounds.longest_q, bounds.longest_k)
    window = (-1, 0) if masks["causal"] else masks["window_size"]
    options: dict[str, Any] = {"scale": softmax_scale, "window_size": window}
    if q.shape[1] != k.shape[1] and _asks_for_groups():
        options["enable_gqa"] = True
    return varlen_attn(q, k, v, *starts, *longest, **options)


@cache
def _asks_for_groups() -> bool:
    """Return whether grouped heads have an option; PyTorch 2.11 takes them without one."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


def _only_packed(*tensors: Any, **options: Any) -> Any:
    raise packages.UnsupportedCase("torch_varlen takes packed sequences (varlen) only.")


IMPLEMENTATIONS = packages.op("torch_varlen", _only_packed, packed=packed)
