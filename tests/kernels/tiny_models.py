"""Configurations as small as a family allows: fewer key heads than query heads, latent attention, experts, a window."""

import dataclasses

from results.levels.model_table import Experts, LatentAttention, ModelConfig, model

FAMILIES = (
    "gpt2",
    "gpt-j-6b",
    "gpt-neox-20b",
    "llama2-7b",
    "llama2-70b",
    "qwen3-8b",
    "gemma-7b",
    "mistral-7b",
    "deepseek-v2-lite",
)
VOCAB = 97


def tiny(name: str) -> ModelConfig:
    """Return a model of the table with three layers of width 64."""
    config = model(name)
    grouped = config.kv_heads < config.heads
    shape = {"hidden": 64, "layers": 3, "heads": 4, "kv_heads": 2 if grouped else 4, "head_dim": 16, "ffn": 96}
    shape |= {"vocab": VOCAB, "max_context": 64}
    if config.rotary_dim:
        shape["rotary_dim"] = 4
    if config.window_size:
        shape["window_size"] = 8
    if config.latent:
        shape |= {"head_dim": 24, "head_dim_v": 16, "rotary_dim": 8, "latent": LatentAttention(32, 16, 8)}
        shape["experts"] = Experts(routed=4, active=2, shared=1, ffn=32, dense_layers=1)
    return dataclasses.replace(config, **shape)
