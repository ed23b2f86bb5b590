"""A whole model: prefill of a prompt, decoding of a token, and training of a batch of sequences.

`subject` names a configuration of `model_table`. `seqlen_q` counts the tokens of the call (1 in decoding) and
`seqlen_k` the context. `num_layers` below the configuration's is a model cut to that depth. The map is context by
batch.
"""

from dataclasses import dataclass

from results.levels import declared, model_memory
from results.levels.memory import MemoryParts, WorkspaceLaw
from results.levels.model_table import ModelConfig, UnknownModel, model, models
from results.levels.tensors import DTYPE_BYTES, MIB, Fields, known, numbers_of, unmasked_pairs
from results.paths import toml_of
from results.records import Case

INFERENCE, TRAINING = ("prefill", "decode"), ("train", "fwd", "bwd", "step")
_PARTS_OF_TRAINING = {"fwd": 1.0, "bwd": 2.0, "train": 3.0}  # in forward passes
# Seconds to build and check a model, and to compile its layers with torch.compile. On an H200 28 cells of generation
# took 33 s, eight cells of training 25 s beyond the start of the process, and eight compiled cells 55 s (2026-11).
_BUILD_S, _COMPILE_S = 2.0, 4.0


@dataclass(frozen=True)
class FlopConvention:
    """A convention for counting the operations of training."""

    words: str
    source: str
    parameters: str  # "matrices", "all", "without positions" or "without embedding"
    attention: str = "whole"  # the whole sequence, "causal", or "hidden": as if heads were as wide as the model

    def of_token(self, config: ModelConfig, seqlen: int) -> float:
        """Count forward and backward of a token."""
        active = config.active_parameters
        counted = {
            "matrices": config.matmul_parameters,
            "all": active,
            "without positions": active - config.position_parameters,
            "without embedding": active - config.embedding_parameters,
        }
        if self.attention == "hidden":
            return 6.0 * counted[self.parameters] + 12.0 * config.layers * config.hidden * seqlen
        seen = (seqlen + 1) / (2 * seqlen) if self.attention == "causal" else 1
        return 6.0 * counted[self.parameters] + _attention(config, seqlen) * seen


def _attention(config: ModelConfig, seqlen: float) -> float:
    """Count forward and backward of both products for one token that sees the whole sequence."""
    return 6.0 * config.layers * config.heads * (config.head_dim + config.value_dim) * seqlen


_READ = toml_of(__file__)
FLOP_CONVENTIONS = {name: FlopConvention(**said) for name, said in _READ["conventions"].items()}


def config_of(case: Fields) -> ModelConfig | None:
    """Return the configuration of a case at its depth; None if the table does not hold its subject."""
    try:
        config = model(str(known(case.get("subject"))))
    except UnknownModel:
        return None
    layers = known(case.get("num_layers"))
    return config.at_depth(None if layers is None else int(layers))


def training_flops(case: Fields, convention: str) -> float | None:
    """Return the operations of forward and backward of a batch by a convention of FLOP_CONVENTIONS."""
    config, found = config_of(case), numbers_of(case, "batch", "seqlen_q")
    if config is None or found is None:
        return None
    batch, seqlen = (int(number) for number in found)
    return batch * seqlen * FLOP_CONVENTIONS[convention].of_token(config, seqlen)


def flops(case: Fields, mode: str | None) -> float | None:
    """Return the operations of one call by `flops_source`; None if a size is not stated."""
    if mode in _PARTS_OF_TRAINING:
        whole = training_flops(case, "palm")
        return whole and whole * _PARTS_OF_TRAINING[mode] / 3
    config, found = config_of(case), numbers_of(case, "batch", "seqlen_q", "seqlen_k")
    if mode not in INFERENCE or config is None or found is None:
        return None
    batch, tokens, context = found
    head = config.vocab * config.hidden
    matrices = 2.0 * ((config.matmul_parameters - head) * tokens + head)  # logits of the last token
    return batch * (matrices + tokens * _attention(config, context) / 3)


def unmasked_flops(case: Fields, mode: str | None) -> float | None:
    """Return the operations of a call, counting only the attention that mask and window leave."""
    whole, config, found = flops(case, mode), config_of(case), numbers_of(case, "batch", "seqlen_q", "seqlen_k")
    if whole is None or config is None or found is None:
        return None
    batch, tokens, context = (int(number) for number in found)
    left = unmasked_pairs(tokens, context, causal=True, window_size=config.window_size) / (tokens * context)
    in_full = _PARTS_OF_TRAINING.get(mode, 1.0) * batch * tokens * _attention(config, context) / 3
    return whole - (1 - left) * in_full


def bytes_moved(case: Fields, mode: str | None) -> float | None:
    """Return the bytes of a decoding or optimizer step by `bytes_source`; None if a size is not stated."""
    config, size = config_of(case), DTYPE_BYTES.get(str(case.get("dtype")))
    if config is None or size is None:
        return None
    if mode == "step":
        optimizer = model_memory.OPTIMIZERS.get(str(case.get("optimizer")))
        return optimizer.bytes_moved(size) * config.parameters if optimizer else None
    found = numbers_of(case, "batch", "seqlen_k")
    if mode != "decode" or found is None:
        return None
    batch, context = (int(number) for number in found)
    cache = model_memory.cache_bytes(case, config, batch, context) + model_memory.cache_bytes(case, config, batch, 1)
    return (config.matrices_read(batch) + batch * config.hidden) * size + cache


def memory(case: Fields, work: WorkspaceLaw, of_pass: str) -> MemoryParts | None:
    """Return the parts of the peak of a call, for inference ("fwd") or training ("fwd_bwd")."""
    config = config_of(case)
    if config is None:
        return None
    parts = (model_memory.training if of_pass == "fwd_bwd" else model_memory.inference)(case, config, work)
    if parts is None:
        return None
    return MemoryParts(
        given=parts.weights + parts.optimizer + parts.cache,
        returned=parts.gradients,
        matrices=parts.matrices,
        workspace=parts.activations + parts.workspace,
    )


def longest(case: Fields) -> int | None:
    """Return the number of learned positions of the model of a case; None if it takes any number."""
    config = config_of(case)
    return config.max_context if config and config.architecture.positions == "learned" else None


def setup_s(case: Case) -> float:
    """Return the seconds that building and compiling the model of a case takes, for estimates."""
    return _BUILD_S + (_COMPILE_S if case.compiled else 0.0)


def parts_mb(case: Fields, mode: str | None) -> dict[str, float]:
    """Return the parts that a call must hold, in MiB; none if a size is missing. An unstated dtype has 16 bits."""
    case = {**case, "dtype": case["dtype"] or "float16"}
    config, size = config_of(case), DTYPE_BYTES[case["dtype"]]
    if config is None or case["seqlen_k"] is None or case["batch"] is None:
        return {}
    weights = config.parameters * size / MIB
    if mode in ("train", "step"):
        optimizer = model_memory.OPTIMIZERS.get(case["optimizer"] or "none")
        states = config.parameters * optimizer.bytes_a_parameter(size) / MIB
        return {"weights": weights, "gradients": weights} | ({"optimizer": states} if states else {})
    if mode in ("fwd", "bwd"):
        return {"weights": weights}
    cache = model_memory.cache_bytes(case, config, case["batch"], case["seqlen_k"])
    return {"weights": weights, "KV cache": cache / MIB}


def _said(case: Case) -> dict[str, object]:
    """Return words of a case beyond its fields."""
    one_token = case.seqlen_q == 1 and (case.seqlen_k or 1) > 1
    return {"context": case.seqlen_k if one_token else None, "none": "none"}


_FUNCTIONS = (flops, bytes_moved, memory, longest, setup_s, parts_mb)
LEVEL = declared(__file__, _said, subjects=tuple(models()), **{each.__name__: each for each in _FUNCTIONS})
