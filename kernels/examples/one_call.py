"""Compute attention once and compare it with PyTorch: `python -m kernels.examples.one_call`."""

import torch
from torch.nn.functional import scaled_dot_product_attention

import kernels  # installed with pip, the name is attnbench

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

# 2 sequences of 1024 tokens, 8 query heads that share 2 key heads, head_dim 64
q = torch.randn(2, 8, 1024, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
k, v = (torch.randn(2, 2, 1024, 64, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))

out = kernels.attention(q, k, v, causal=True, window_size=256)
out.float().square().mean().backward()

positions = torch.arange(1024, device=device)
distance = positions[:, None] - positions[None, :]
expected = scaled_dot_product_attention(q, k, v, attn_mask=(distance >= 0) & (distance < 256), enable_gqa=True)
print(f"out {tuple(out.shape)} on {device}, dq {tuple(q.grad.shape)}")
print(f"largest difference from PyTorch: {(out - expected).abs().max().item():.4f}")
