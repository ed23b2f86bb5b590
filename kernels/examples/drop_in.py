"""Run a model of transformers with these kernels: `python -m kernels.examples.drop_in`."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import kernels.transformers  # installed with pip, the name is attnbench.transformers

kernels.transformers.register()

device = "cuda" if torch.cuda.is_available() else "cpu"
sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 500}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
tokens = torch.randint(0, 500, (2, 64), device=device)
losses = {}
for attention in ("sdpa", "attnbench"):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, attn_implementation=attention)).to(device)
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    losses[attention] = loss.item()
    print(f"{attention}: loss {loss.item():.5f}")

# Models that call PyTorch's function themselves are served within a block.
with kernels.sdpa_replacement() as calls:
    q = torch.randn(1, 4, 64, 32, device=device)
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
print(calls)
assert abs(losses["sdpa"] - losses["attnbench"]) < 1e-3
