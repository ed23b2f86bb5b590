"""FlashAttention-1 (arXiv 2205.14135) as a Triton kernel: blocks of keys outside, queries inside, sums in memory.

Compared with FlashAttention-2 it shows the gain of the later loop order. One program processes one head of one
sequence. Out, sum and maximum of a row are float32 in device memory; they are read and written for every block of keys,
and out is divided every time (algorithms 1 and 4). As in the paper's CUDA code, blocks that a causal mask hides are
skipped.
"""

from typing import Any

import torch

from ...registry import declare, triton_missing
from .. import triton_fa2


def attention(*tensors: Any, **masks: Any) -> torch.Tensor:
    """Compute attention as `kernels.registry.Attention` defines it. Raises UnsupportedCase for what it cannot take."""
    from .kernels import attend  # needs triton, which this package must import without

    return attend(*tensors, **masks)


_RULES = triton_fa2.IMPLEMENTATIONS[0].refuses  # of Triton, its interpreter and one head_dim, the same here
IMPLEMENTATIONS = (declare("flash_attn_1", attention, unavailable=triton_missing(), refuses=_RULES),)
