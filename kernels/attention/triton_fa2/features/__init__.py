"""FlashAttention-2 with features: kernels of their own, so that calls without one keep theirs as they are."""
