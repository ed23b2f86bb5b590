"""Configurations of published models, with their numbers of parameters and cache sizes. Standard library only.

Sizes come from each model's `config.json` at its source, see model_table.toml. `gpt2-tiny` is ours: GPT-2's block,
small enough to train on a CPU. Counts are exact; tests compare them with the published numbers of parameters.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from results.paths import toml_of
from results.records import Case, whole_case


class UnknownModel(LookupError):
    """A model that is not in the table; the message lists those that are."""


@dataclass(frozen=True)
class LatentAttention:
    """Widths of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    rank: int  # width of the compressed keys and values, which a cache can hold instead
    nope_dim: int  # width of a query or key head without position
    rope_dim: int  # width with position, shared by all key heads


@dataclass(frozen=True)
class Experts:
    """A mixture of experts instead of the MLP (DeepSeekMoE, arXiv 2401.06066)."""

    routed: int
    active: int  # routed experts per token
    shared: int  # experts that process every token
    ffn: int  # width of one expert
    dense_layers: int  # leading layers with an ordinary MLP


@dataclass(frozen=True)
class Architecture:
    """Common properties of the layers of a model family."""

    family: str  # Hugging Face's model_type
    norm: str  # "layer" (weight and bias) or "rms" (weight)
    norms: int  # number per layer
    positions: str  # "learned", "rotary"
    gated_mlp: bool = False  # three matrices (SwiGLU) instead of two
    attention_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False  # whether the output head has a bias
    head_norms: bool = False  # whether queries and keys are normalized by head


@dataclass(frozen=True)
class ModelConfig:
    """One model's sizes."""

    name: str
    title: str  # name for users
    architecture: Architecture
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int  # width of a query or key head
    ffn: int
    vocab: int
    source: str  # URL of the configuration
    tied: bool = False  # the output head is the embedding
    max_context: int = 0  # longest sequence the model was made for
    head_dim_v: int = 0  # 0: head_dim
    rotary_dim: int = 0  # leading elements of a head that are rotated; 0: all of them
    rope_theta: float | None = None
    window_size: int = 0  # 0: every layer sees the whole context
    latent: LatentAttention | None = None
    experts: Experts | None = None

    @property
    def value_dim(self) -> int:
        """Return the width of a head's values."""
        return self.head_dim_v or self.head_dim

    @property
    def embedding_parameters(self) -> int:
        """Count the parameters of the embedding, if the head has a separate matrix; otherwise 0."""
        return 0 if self.tied else self.vocab * self.hidden

    @property
    def position_parameters(self) -> int:
        """Count the learned position embeddings."""
        return self.max_context * self.hidden if self.architecture.positions == "learned" else 0

    @property
    def parameters(self) -> int:
        """Count all parameters."""
        return self.layers * self._of_each_layer() + self._mlp_matrices(active=False) + self.outside_parameters

    @property
    def outside_parameters(self) -> int:
        """Count the parameters outside the layers: embeddings, last norm, output head."""
        head = 0 if self.tied else self.vocab * self.hidden
        bias = self.vocab if self.architecture.head_bias else 0
        return self.vocab * self.hidden + self.position_parameters + self._norm(self.hidden) + head + bias

    @property
    def matmul_parameters(self) -> int:
        """Count the parameters of the matrix products of a token: matrices of the layers and the output head.

        Only active experts count. An embedding tied to the head counts once, as the head.
        """
        layers = self.layers * self._attention_matrices() + self._mlp_matrices(active=True)
        return layers + self.vocab * self.hidden

    def matrices_read(self, tokens: int) -> float:
        """Count the matrix parameters that a step over some tokens reads, with the experts chosen by any token.

        This is an expectation, which assumes that tokens choose experts independently and uniformly.
        """
        if self.experts is None:
            return float(self.matmul_parameters)
        routed, active = self.experts.routed, self.experts.active
        chosen = routed * (1 - (1 - active / routed) ** tokens)
        of_an_expert = (3 if self.architecture.gated_mlp else 2) * self.hidden * self.experts.ffn
        layers = max(0, self.layers - self.experts.dense_layers)
        return self.matmul_parameters + (chosen - active) * of_an_expert * layers

    @property
    def active_parameters(self) -> int:
        """Count the parameters that one token uses: all except inactive experts."""
        if self.experts is None:
            return self.parameters
        return self.parameters - self._mlp_matrices(active=False) + self._mlp_matrices(active=True)

    def at_depth(self, layers: int | None) -> "ModelConfig":
        """Return the model with its first `layers` only, or unchanged if None."""
        return self if layers is None else replace(self, layers=layers)

    def cache_numbers(self, *, latent: bool = False) -> int:
        """Count the elements per token in one layer's cache: keys and values, or the latent and its rope part.

        Raises ValueError for a latent cache of a model without latent attention.
        """
        if not latent:
            return self.kv_heads * (self.head_dim + self.value_dim)
        if self.latent is None:
            raise ValueError(f"{self.name} has no latent attention, so its cache holds keys and values.")
        return self.latent.rank + self.latent.rope_dim

    def _of_each_layer(self) -> int:
        """Count the parameters of a layer without the matrices of its MLP, which differ between layers."""
        kind = self.architecture
        kv = self.kv_heads * (self.head_dim + self.value_dim)
        biases = self.heads * self.head_dim + kv + self.hidden if kind.attention_bias else 0
        biases += self.ffn + self.hidden if kind.mlp_bias else 0
        norms = kind.norms * self._norm(self.hidden) + (self.latent.rank if self.latent else 0)
        norms += 2 * self.head_dim if kind.head_norms else 0
        return self._attention_matrices() + biases + norms

    def _norm(self, width: int) -> int:
        return 2 * width if self.architecture.norm == "layer" else width

    def _attention_matrices(self) -> int:
        queries = self.hidden * self.heads * self.head_dim
        out = self.heads * self.value_dim * self.hidden
        if self.latent is None:
            return queries + self.hidden * self.kv_heads * (self.head_dim + self.value_dim) + out
        down = self.hidden * (self.latent.rank + self.latent.rope_dim)
        up = self.latent.rank * self.heads * (self.latent.nope_dim + self.value_dim)
        return queries + down + up + out

    def _mlp_matrices(self, *, active: bool) -> int:
        """Count the parameters of the MLPs of all layers, by arithmetic: a case can state any number of layers."""
        of_width = (3 if self.architecture.gated_mlp else 2) * self.hidden
        if self.experts is None:
            return self.layers * of_width * self.ffn
        dense = min(self.layers, self.experts.dense_layers)
        routed = self.experts.active if active else self.experts.routed
        sparse = of_width * self.experts.ffn * (routed + self.experts.shared) + self.hidden * self.experts.routed
        return dense * of_width * self.ffn + (self.layers - dense) * sparse


_PARTS: dict[str, type] = {"latent": LatentAttention, "experts": Experts}


@cache
def models() -> dict[str, ModelConfig]:
    """Return every configuration by name."""
    read = toml_of(__file__)
    kinds = {family: Architecture(family, **common) for family, common in read["architectures"].items()}
    return {name: _config(name, kinds, **sizes) for name, sizes in read["models"].items()}


def _config(name: str, kinds: dict[str, Architecture], *, architecture: str, **sizes: Any) -> ModelConfig:
    parts = {part: kind(**sizes.pop(part)) for part, kind in _PARTS.items() if part in sizes}
    return ModelConfig(name=name, architecture=kinds[architecture], **sizes, **parts)


def model(name: str) -> ModelConfig:
    """Return the configuration of that name. Raises UnknownModel naming those there are."""
    try:
        return models()[name]
    except KeyError:
        raise UnknownModel(f"Unknown model {name!r}. Available: {', '.join(models())}.") from None


def model_case(subject: str, *, seqlen: int, query_tokens: int | None = None, **sizes: Any) -> Case:
    """Return a fully specified case of a model: a prefill, a training step if it has an optimizer, or decoding.

    In decoding `query_tokens` are the last of `seqlen`. `num_layers` defaults to all layers of the model. A cache of
    latent attention holds latents, as in transformers. Raises UnknownModel for a name that is not in the table.
    """
    known = model(subject)
    usual: dict[str, Any] = {"num_heads": known.heads, "num_kv_heads": known.kv_heads, "num_layers": known.layers}
    usual |= {"head_dim": known.head_dim, "head_dim_v": known.value_dim, "window_size": known.window_size}
    usual |= {"optimizer": "none", "checkpointing": False, "compiled": False}
    if known.latent and sizes.get("optimizer", "none") == "none":
        usual["latent_dim"] = known.latent.rank
    lengths = {"seqlen_q": query_tokens or seqlen, "seqlen_k": seqlen}
    return whole_case("model", subject, sizes, usual, causal=True, **lengths)
