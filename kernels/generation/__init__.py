"""Generation with few launches: a decoding step of a Llama whose layers are Triton kernels around any attention."""
