"""Add an attention of your own and check it as sweeps do: `python -m kernels.examples.add_implementation`.

In a checkout, every sweep and page finds a file with such a tuple IMPLEMENTATIONS in `kernels/attention/`.
"""

import torch

from kernels import reference  # installed with pip, the name is attnbench
from kernels.registry import Implementation, describe_device


def attention(q, k, v, *, causal=False, window_size=0, softmax_scale=None):
    """Return attention with the softmax in float32; q, k, v: (batch, heads, seqlen, head_dim)."""
    scores = (q @ k.mT).float() * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1).to(v.dtype) @ v


MINE = Implementation(
    name="mine", description="Softmax in float32", attention=attention, window=False, gqa=False, unequal_causal=False
)
IMPLEMENTATIONS = (MINE,)

if __name__ == "__main__":
    q, k, v = (torch.randn(1, 2, 100, 32) for _ in range(3))
    error = (MINE.attention(q, k, v, causal=True) - reference.attention(q, k, v, causal=True).out).abs().max()
    print(f"largest error against float64: {error:.1e}, on {describe_device('cpu').name}")
    assert error < 1e-5
