"""Memory of a whole model by arithmetic: weights, cache, activations and training states. Standard library only.

The peak of training can be at three moments: at the loss, with the activations of every layer; in the backward of the
first layer, with nearly all gradients; or at the optimizer's step. PyTorch frees gradients after the step
(`zero_grad(set_to_none=True)`) and activations during the backward, so that they do not add up. Activations are those
that Hugging Face's modules save, which a test compares with torch's own count.

Sources: Korthikanti et al., arXiv 2205.05198 (activations); Rajbhandari et al., arXiv 1910.02054 (training states).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from results.levels.memory import WorkspaceLaw
from results.levels.model_table import ModelConfig
from results.levels.tensors import DTYPE_BYTES, MIB, Fields, known, numbers_of
from results.paths import toml_of

_FLOAT32 = 4
_TOKEN_ID = 8  # int64


@dataclass(frozen=True)
class Optimizer:
    """The state that a training step keeps for each parameter in addition to weight and gradient."""

    words: str
    states: int  # tensors in the dtype of the weights
    float32_states: int = 0

    def bytes_a_parameter(self, size: int) -> int:
        """Return the bytes of the states of one parameter of `size` bytes."""
        return self.states * size + self.float32_states * _FLOAT32

    def bytes_moved(self, size: int) -> int:
        """Return the bytes of a step per parameter: weight and states read and written, and the gradient read."""
        return 2 * (size + self.bytes_a_parameter(size)) + size


@dataclass(frozen=True)
class SavedByLayer:
    """Elements per token that a layer of an architecture saves for its backward, without q, k, v, out and lse."""

    hidden: float  # multiples of the hidden size, in the dtype
    hidden_float32: float  # multiples of the hidden size, in float32
    ffn: float  # multiples of the MLP's width, in the dtype
    in_flight: float  # most multiples of the MLP's width at the same time, if nothing is saved
    queries: float = 0.0  # copies of q, k and v in another layout


_READ = toml_of(__file__)
OPTIMIZERS: Mapping[str, Optimizer] = {name: Optimizer(**said) for name, said in _READ["optimizers"].items()}
SAVED = {family: SavedByLayer(**said) for family, said in _READ["saved"].items()}
SAVED_COMPILED = SAVED | {family: SavedByLayer(**said) for family, said in _READ["saved_compiled"].items()}
# Multiples of the width of each active expert per token, with torch.nn.functional.grouped_mm: a prefill of 1024 tokens
# by DeepSeek-V2-Lite adds 161 MiB on an H200 (2026-11).
_EXPERTS_IN_FLIGHT = 4
# Elements per token and vocabulary entry at the first operation of the backward: log-probabilities, their gradient and
# the gradient of the logits.
_LOSS_FLOAT32 = 3


@dataclass(frozen=True)
class ModelMemory:
    """The parts of a model's memory at one moment, in MiB."""

    moment: str
    weights: float
    cache: float = 0.0  # keys and values of all previous tokens
    gradients: float = 0.0
    optimizer: float = 0.0  # optimizer states, including master weights
    activations: float = 0.0  # saved for the backward
    matrices: float = 0.0  # scores and probabilities of the attention
    workspace: float = 0.0  # logits, loss, and the workspace of one layer

    @property
    def peak(self) -> float:
        """Return the sum."""
        parts = (self.cache, self.gradients, self.optimizer, self.activations, self.matrices, self.workspace)
        return self.weights + sum(parts)


def cache_bytes(case: Fields, config: ModelConfig, batch: int, context: int) -> float:
    """Return the bytes of the keys and values of all layers.

    With a window, the cache of a layer has at most as many tokens as the window. If the case has `latent_dim`, the
    latent is cached instead of keys and values. `cache_dtype` defaults to the case's dtype.
    """
    window = known(case.get("window_size"))
    window = config.window_size if window is None else window
    tokens = min(context, window) if window else context
    size = DTYPE_BYTES[str(known(case.get("cache_dtype")) or case["dtype"])]
    latent = bool(known(case.get("latent_dim"))) and config.latent is not None
    return float(batch) * tokens * config.layers * config.cache_numbers(latent=latent) * size


def inference(case: Fields, config: ModelConfig, work: WorkspaceLaw) -> ModelMemory | None:
    """Return the memory of a prefill of the whole context, or of decoding if the case has one query token.

    A prefill computes logits of the last token only, and its peak is in the attention or in the MLP of a layer. None if
    a size is not stated.
    """
    found, size = numbers_of(case, "batch", "seqlen_k"), DTYPE_BYTES.get(str(case.get("dtype")))
    if found is None or size is None:
        return None
    batch, context = (int(number) for number in found)
    tokens = 1 if known(case.get("seqlen_q")) == 1 else context
    moment = "decoding" if tokens == 1 else "prefill"
    weights = config.parameters * size / MIB
    cache = cache_bytes(case, config, batch, context) / MIB
    matrices = work.matrices * _matrix_bytes(config, work, batch, tokens, context, size) / MIB
    logits = batch * config.vocab * (size + _FLOAT32)
    attended = tokens * (2 * config.hidden + _attention_numbers(config)) + _expanded_numbers(case, config, context)
    in_attention, in_mlp = (
        (batch * numbers * size + logits) / MIB
        for numbers in (attended, tokens * _mlp_numbers(_saved(case, config), config))
    )
    if matrices + in_attention > in_mlp:
        return ModelMemory(moment, weights, cache, matrices=matrices, workspace=in_attention)
    return ModelMemory(moment, weights, cache, workspace=in_mlp)


def training(case: Fields, config: ModelConfig, work: WorkspaceLaw) -> ModelMemory | None:
    """Return the memory of a training step at its peak; None if a size is not stated."""
    return max(training_moments(case, config, work), key=lambda moment: moment.peak, default=None)


def training_moments(case: Fields, config: ModelConfig, work: WorkspaceLaw) -> tuple[ModelMemory, ...]:
    """Return the memory of a training step at the loss, in the backward of the first layer, and at the step.

    Return nothing if a size is not stated. An unstated optimizer counts as none.
    """
    found, size = numbers_of(case, "batch", "seqlen_k"), DTYPE_BYTES.get(str(case.get("dtype")))
    if found is None or size is None:
        return ()
    batch, seqlen = (int(number) for number in found)
    tokens, optimizer = batch * seqlen, OPTIMIZERS[str(known(case.get("optimizer")) or "none")]
    weights = config.parameters * size / MIB
    states = config.parameters * optimizer.bytes_a_parameter(size) / MIB
    matrix = _matrix_bytes(config, work, batch, seqlen, seqlen, size)
    saved = _saved(case, config)
    layer, inputs = tokens * saved_bytes(saved, config, size), tokens * config.hidden * size
    recomputed = bool(known(case.get("checkpointing")))
    kept = config.layers * (inputs if recomputed else layer) + tokens * _saved_outside(config, size)
    at_loss = ModelMemory(
        "at the loss",
        weights,
        optimizer=states,
        activations=kept / MIB,
        matrices=0.0 if recomputed or not work.matrices else config.layers * matrix / MIB,  # the probabilities
        workspace=tokens * config.vocab * _LOSS_FLOAT32 * _FLOAT32 / MIB,
    )
    missing = (config.vocab * config.hidden + (config.at_depth(1).parameters - config.outside_parameters)) * size / MIB
    in_mlp = ModelMemory(
        "in the backward",  # of the first layer
        weights,
        optimizer=states,
        gradients=max(0.0, weights - missing),
        activations=(inputs + layer) / MIB,
        matrices=min(1.0, work.matrices) * matrix / MIB,  # the probabilities, saved for the attention
        workspace=tokens * _mlp_numbers(saved, config) * size / MIB,
    )
    in_attention = replace(
        in_mlp,
        activations=(inputs + tokens * _attention_numbers(config) * size) / MIB,
        matrices=work.matrices * matrix / MIB,
        workspace=2 * inputs / MIB,  # gradients of out and of the residual stream
    )
    in_backward = max(in_mlp, in_attention, key=lambda moment: moment.peak)
    return at_loss, in_backward, ModelMemory("at the step", weights, gradients=weights, optimizer=states)


def saved_bytes(saved: SavedByLayer, config: ModelConfig, size: int) -> float:
    """Return the bytes per token that one layer saves for its backward, without score matrices."""
    queries = saved.queries * config.heads * config.head_dim
    numbers = saved.hidden * config.hidden + saved.ffn * _ffn(config) + queries + _attention_numbers(config)
    normed = (config.heads + config.kv_heads) * config.head_dim if config.architecture.head_norms else 0
    float32 = saved.hidden_float32 * config.hidden + config.heads + normed
    return (numbers + normed) * size + _FLOAT32 * float32


def _saved(case: Fields, config: ModelConfig) -> SavedByLayer:
    return (SAVED_COMPILED if known(case.get("compiled")) else SAVED)[config.architecture.family]


def _attention_numbers(config: ModelConfig) -> int:
    """Count the elements of q, k, v and out per token."""
    return (config.heads + config.kv_heads) * (config.head_dim + config.value_dim)


def _expanded_numbers(case: Fields, config: ModelConfig, context: int) -> int:
    """Count the elements of one layer's cached latents after their expansion to keys and values."""
    latent = config.latent if known(case.get("latent_dim")) else None
    return context * config.heads * (latent.nope_dim + config.value_dim + config.head_dim) if latent else 0


def _mlp_numbers(saved: SavedByLayer, config: ModelConfig) -> float:
    """Count the most elements per token inside the MLP at the same time, with its input and the residual stream."""
    # Rows sorted by expert: inputs, outputs and their weighted sum; gate, up and their product.
    if experts := config.experts:
        return _EXPERTS_IN_FLIGHT * experts.active * (config.hidden + experts.ffn) + 2 * config.hidden
    return saved.in_flight * config.ffn + 2 * config.hidden


def _ffn(config: ModelConfig) -> int:
    """Return the MLP's width for a token; with experts, the sum over those that process it."""
    experts = config.experts
    return config.ffn if experts is None else experts.ffn * (experts.active + experts.shared)


def _saved_outside(config: ModelConfig, size: int) -> float:
    """Return the bytes per token saved outside the layers: token ids and the tensors of the last norm."""
    float32 = config.hidden * _FLOAT32 if config.architecture.norm == "rms" else 0
    return 2 * _TOKEN_ID + 2 * config.hidden * size + float32


def _matrix_bytes(config: ModelConfig, work: WorkspaceLaw, batch: int, tokens: int, context: int, size: int) -> float:
    """Return the bytes of one score matrix of a layer."""
    return float(batch) * config.heads * tokens * context * (_FLOAT32 if work.float32_matrices else size)
