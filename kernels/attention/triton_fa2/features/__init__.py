"""FlashAttention-2 with features: separate kernels, so that calls without a feature are not affected."""
