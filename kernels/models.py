"""Whole language models of Hugging Face's transformers with random weights, around any attention of this package.

`build` takes a configuration as a plain mapping and makes a model of that shape on the device. Nothing is downloaded:
the code is that of transformers, the weights are scaled normals. The attention can be exchanged between calls
(`CausalModel.use`). It is registered with transformers' AttentionInterface, so transformers passes masks, grouped key
heads, scale and cache.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import inspect
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn

from .decode.step import DecodeStep
from .generation.step import FAMILIES, LlamaStep
from .registry import Attention, AttentionCase, DecodeAttention, Device, Implementation, UnsupportedCase

NAME = "attnbench_inside"  # name of our attention in transformers' AttentionInterface
_COMPILED = "attnbench_inside_compiled"  # its name if the layers around it are compiled
NEEDS = "Whole models need transformers: pip install 'transformers>=5.17,<6'."
# Weights of a matrix have variance 1 / fan_in, so activations stay near 1 over any depth. The weights of an attention
# also have a gain: it spreads the scores, so that a wrong key shows in the logits.
_ATTENTION_GAIN = 1.5
_BIAS_STD = 0.02
# A step of Llama-2 7B at 2048 tokens on an H200: 6.8 ms eager, 5.2 ms compiled, 4.6 ms with these (2026-11).
_OF_ONE_TOKEN = {"coordinate_descent_tuning": True}
_INSIDE_FUSED = "triton_split_kv"
_MOST_COMPILED = 512  # compiled forms of a layer in one process: one for each model, shape and gradient mode

Sizes = Mapping[str, Any]  # the fields of results.levels.model_table.ModelConfig, as plain data


@dataclass(frozen=True)
class AttentionInside:
    """The attention inside a model; None for a call that an implementation does not support."""

    full: Attention | None  # for as many queries as keys
    cached: DecodeAttention | None  # for few queries and a cache
    widened: bool = False  # whether `full` gets values padded with zeros to the width of keys
    widened_cache: bool = False  # whether `cached` gets padded values
    fused: bool = False  # whether kernels.generation computes a step of one token, around `cached`

    def whole(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **mask: Any) -> torch.Tensor:
        """Attend with `full`; values are padded if `widened`, as transformers does for FlashAttention."""
        return self.full(q, k, _as_wide_as(k, v) if self.widened else v, **mask)[..., : v.shape[3]]

    def step(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache_seqlens: torch.Tensor, **mask: Any
    ) -> torch.Tensor:
        """Attend with `cached` to all keys. The step is prepared for each call, because q has a new address."""
        lengths = (k.shape[2],) * len(k)
        values = _as_wide_as(k, v) if self.widened_cache else v
        step = DecodeStep(q, k, values, lengths, cache_seqlens, **mask)
        return self.cached(step)()[..., : v.shape[3]]


def _as_wide_as(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(v, (0, k.shape[3] - v.shape[3])) if k.shape[3] > v.shape[3] else v


class _Slot:
    """The attention of one model, shared by its modules."""

    def __init__(self) -> None:
        self.inside = AttentionInside(None, None)
        self._lengths: dict[tuple[Any, ...], torch.Tensor] = {}

    def lengths(self, batch: int, context: int, device: torch.device) -> torch.Tensor:
        """Return the context as int32 (batch,) on the device; the tensor is kept, because captured graphs read it."""
        key = (batch, context, device)
        if key not in self._lengths:
            self._lengths[key] = torch.full((batch,), context, dtype=torch.int32, device=device)
        return self._lengths[key]


class KeyValueCache:
    """A cache of one length for every layer; each step overwrites its last tokens. `CausalModel.cache` makes it.

    It is transformers' `cache` (`past_key_values` before 5.24). The tensors of a layer are made at its first step,
    (batch, heads, held, width) like the keys and values of that step, and filled with standard normal numbers. `held`
    is the context, or the window that its last token sees. A layer is identified by the order of the calls, because
    torch.compile would compile each layer separately for its index.
    """

    is_compileable = False

    def __init__(self, context: int, held: int, num_layers: int, generator: torch.Generator) -> None:
        self.context, self.held, self._generator = context, held, generator
        self.layers: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * num_layers
        self._calls = 0

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors of all layers that have taken a step."""
        return [tensor for layer in self.layers if layer for tensor in layer]

    def fill(self, seed: int) -> None:
        """Fill every layer with the normal numbers of a seed, as `CausalModel.cache` does with its seed."""
        self._generator.manual_seed(seed)
        for tensor in self.tensors:
            tensor.normal_(generator=self._generator)

    def double(self) -> KeyValueCache:
        """Return a copy in float64. Raises TypeError before the first step."""
        copied = KeyValueCache(self.context, self.held, len(self.layers), self._generator)
        copied.layers = [(k.double(), v.double()) for k, v in self.layers]
        return copied

    def begin(self) -> None:
        """Expect the first layer next, also after a step that failed."""
        self._calls = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the tokens of the context; positions are passed separately."""
        return self.context

    def update(
        self, k: torch.Tensor, v: torch.Tensor, *rest: object, **options: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values of a step to the end of the next layer's cache, and return all that the step sees.

        Raises UnsupportedCase if the cache holds a window and the step has several tokens, but not all of the context.
        """
        at, self._calls = self._calls % len(self.layers), self._calls + 1
        if self.layers[at] is None:
            shapes = [(*x.shape[:2], self.held, x.shape[3]) for x in (k, v)]
            empty = (torch.empty(shape, dtype=k.dtype, device=k.device) for shape in shapes)
            keys, values = (x.normal_(generator=self._generator) for x in empty)
            self.layers[at] = keys, values
        new = k.shape[2]
        if self.held < self.context and 1 < new < self.context:
            raise UnsupportedCase(f"A cache of a window takes one token or {self.context}, not {new}.")
        for cached, x in zip(self.layers[at], (k, v), strict=True):
            cached[:, :, max(0, self.held - new) :].copy_(x[:, :, max(0, new - self.held) :])
        return (k, v) if new > self.held else self.layers[at]


class CausalModel:
    """A language model of transformers whose attention can be exchanged between calls."""

    def __init__(self, module: Any) -> None:
        self.module, self._slot, self._compiled = module, _Slot(), False
        self._cache_argument = cache_argument(module)
        self._step: LlamaStep | None = None
        _plug(module, self._slot, NAME, _attend)

    @property
    def num_layers(self) -> int:
        """Return the depth."""
        return sum(1 for _ in _layers(self.module))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Return all parameters; tied parameters occur once."""
        return list(self.module.parameters())

    @property
    def attention_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the attention of the first layer."""
        return list(next(_attentions(self.module)).parameters())

    def use(self, inside: AttentionInside) -> None:
        """Use this attention in every later call."""
        self._slot.inside = inside

    def double(self) -> CausalModel:
        """Return a copy in float64, except for norms and rotary angles, which transformers computes in float32.

        The model must be neither compiled nor checkpointed.
        """
        module = copy.deepcopy(self.module).double()
        module.config._experts_implementation = "eager"  # grouped matrix products take no float64
        return CausalModel(module)

    def cache(self, context: int, seed: int) -> KeyValueCache:
        """Return an empty cache of that many tokens for this model, or of the model's window if that is shorter."""
        generator = torch.Generator(self.parameters[0].device).manual_seed(seed)
        kind = _not_traced()[1] if self._compiled else KeyValueCache
        window = getattr(self.module.config, "sliding_window", None) or context
        return kind(context, min(context, window), self.num_layers, generator)

    def compile_layers(self, *, one_token: bool = False, backend: str = "inductor") -> None:
        """Compile each layer around its attention with torch.compile, at its first call. Call it before `checkpoint`.

        With `one_token`, matrix-vector products become reductions, whose tiles are autotuned. A call raises
        torch._dynamo.exc.FailOnRecompileLimitHit where torch.compile would continue uncompiled.
        """
        torch._dynamo.config.recompile_limit = _MOST_COMPILED
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        torch._functorch.config.donated_buffer = False  # a backward may be called twice after one forward
        _plug(self.module, self._slot, _COMPILED, _not_traced()[0])
        for attention in _attentions(self.module):
            attention.layer_idx = 0
        for layer in _layers(self.module):
            options: Any = _OF_ONE_TOKEN if one_token and backend == "inductor" else None
            layer.forward = torch.compile(layer.forward, dynamic=False, backend=backend, options=options)
        self._compiled = True

    def checkpoint(self) -> None:
        """Recompute the activations of each layer in the backward."""
        again = partial(torch.utils.checkpoint.checkpoint, use_reentrant=False, preserve_rng_state=False)
        for layer in _layers(self.module):
            layer.forward = partial(again, layer.forward)

    def logits(self, tokens: torch.Tensor, *, cache: KeyValueCache | None = None, keep: int = 0) -> torch.Tensor:
        """Return the logits (batch, keep, vocabulary) of the last `keep` of tokens (batch, seqlen); 0 keeps all.

        With a cache, the tokens are the last tokens of its context.
        """
        if cache is None:
            return self.module(input_ids=tokens, use_cache=False, logits_to_keep=keep).logits
        if self._slot.inside.fused:
            return self._fused_logits(tokens, cache)
        cache.begin()
        positions = torch.arange(cache.context - tokens.shape[1], cache.context, device=tokens.device)
        positions = positions.expand(tokens.shape)
        placed = {"position_ids": positions, self._cache_argument: cache, "use_cache": True}
        return self.module(input_ids=tokens, logits_to_keep=keep, **placed).logits

    def _fused_logits(self, token: torch.Tensor, cache: KeyValueCache) -> torch.Tensor:
        """Return the logits after a token (1, 1) by kernels.generation. The tensors of the cache must exist."""
        if token.shape != (1, 1):
            raise UnsupportedCase(f"A fused step takes one token of one sequence, not {tuple(token.shape)}.")
        self._step = self._step or LlamaStep(self.module)
        attend = partial(self._slot.inside.step, causal=True)
        lengths = self._slot.lengths(1, cache.held, token.device)
        return self._step.logits(token, cache.layers, lengths, attend, dropped=cache.context - cache.held)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of logits (batch, seqlen, vocabulary) and targets (batch, seqlen).

    It is transformers' ForCausalLMLoss for targets that are already shifted, in at least float32.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return nn.functional.cross_entropy(wide.flatten(0, 1), targets.flatten())


def cache_argument(module: Any) -> str:
    """Return the name of a model's argument for its cache, which transformers 5.24 changed."""
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"


def unavailable() -> str | None:
    """Return why no model can be built on this machine, or None."""
    return None if importlib.util.find_spec("transformers") else NEEDS


def build(
    sizes: Sizes, *, num_layers: int, context: int, dtype: torch.dtype, device: torch.device | str, seed: int
) -> CausalModel:
    """Return a model of these sizes with `num_layers` layers and random weights of a seed on the device.

    Rotary positions are extended to `context` if that exceeds the model's maximum; learned positions are not.

    Raises UnsupportedCase if transformers is missing or does not know the family.
    """
    if reason := unavailable():
        raise UnsupportedCase(reason)
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    kind = sizes["architecture"]["family"]
    sizes = {**sizes, "max_context": max(context, sizes["max_context"])} if kind != "gpt2" else sizes
    no_special_tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = AutoConfig.for_model(kind, **config_of(sizes, num_layers), **no_special_tokens)
    with torch.device(device), no_init_weights():
        module = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    module.tie_weights()
    _randomise(module, seed)
    return CausalModel(module.eval())


def implementations(ops: Mapping[str, Implementation], decodes: Mapping[str, Implementation]) -> list[Implementation]:
    """Return an implementation of level model for each name of level op, of level decode, or of both.

    Implementations that round to FP8 are left out: the float64 model does not round.
    """
    pairs = [(name, ops.get(name), decodes.get(name)) for name in dict.fromkeys((*ops, *decodes))]
    found = [_around(name, op, decode) for name, op, decode in pairs if not (op and op.precision == "fp8")]
    return [*found, *(_fused(each) for each in found if each.name == _INSIDE_FUSED)]


_AS_INSIDE = ("family", "dtypes", "devices", "precision", "memory", "colour", "interpreted_on_cpu")


def _around(name: str, op: Implementation | None, decode: Implementation | None) -> Implementation:
    of_either = op or decode
    widened, widened_cache = (bool(each) and not _takes_narrow_values(each) for each in (op, decode))
    full, cached = op.attention if op else None, decode.attention if decode else None
    inside = AttentionInside(full, cached, widened, widened_cache)
    return Implementation(
        name=name,
        description=f"A model around: {of_either.description}",
        attention=inside,
        level="model",
        **{field: getattr(of_either, field) for field in _AS_INSIDE},
        backward=bool(op and op.backward),
        compiled="first_call" if of_either.compiled else None,
        unavailable=unavailable() or of_either.unavailable,
        refuses=partial(_refuses, name, op, decode),
    )


def _fused(around: Implementation) -> Implementation:
    """Return the step of kernels.generation around an attention to the cache."""
    attention = around.attention
    # A second launch of the attention would delay the weights of the next product.
    inside = dataclasses.replace(attention, cached=partial(attention.cached, one_launch=True), fused=True)
    return dataclasses.replace(
        around,
        name="triton_step",
        description=f"A step of one token through a Llama in few launches a layer, around {around.name}",
        attention=inside,
        colour="#8c2d04",
        model_families=FAMILIES,
        refuses=partial(_refuses_fused, around),
    )


def _refuses_fused(around: Implementation, case: AttentionCase, device: Device) -> str | None:
    if getattr(case, "batch", 1) != 1 or case.seqlen_q != 1:
        return "triton_step takes one token of one sequence."
    return around.refuses(case, device)


def _refuses(
    name: str, op: Implementation | None, decode: Implementation | None, case: AttentionCase, device: Device
) -> str | None:
    """Return why the attention cannot compute the calls of the model, or None."""
    in_cache = (case.seqlen_q or 1) < (case.seqlen_k or 1)
    inside = decode if in_cache else op
    if inside is None:
        return f"{name} attends to whole sequences only." if in_cache else f"{name} attends to a cache only."
    fields = {field: getattr(case, field) for field in AttentionCase.__annotations__}
    fields |= {"level": inside.level, "latent_dim": 0}  # a latent is expanded before the attention
    fields["window_size"] = 0 if in_cache else case.window_size  # the cache holds only the window
    fields["head_dim_v"] = case.head_dim_v if _takes_narrow_values(inside) else case.head_dim
    return inside.reason_against(SimpleNamespace(**fields), device)


_NARROW_IN_CACHE = ("torch_naive", "torch_sdpa_math")
# At 192 and 128 the kernels for features take 4 times SDPA's time forward and 7 times backward (H100, 2026-11).
_WIDENED_THOUGH = ("triton_fa2", "triton_fa2_tf32")


def _takes_narrow_values(inside: Implementation) -> bool:
    """Return whether an implementation gets values that are narrower than keys without padding."""
    if inside.level == "decode":
        return inside.name in _NARROW_IN_CACHE
    return "head_dim_v" in inside.features and inside.name not in _WIDENED_THOUGH


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """Attend for transformers: q, k, v are (batch, heads, tokens, width), out is (batch, tokens, heads, width).

    Raises UnsupportedCase for a mask tensor, such as padding: attention here is causal over whole sequences.
    """
    if attention_mask is not None:
        raise UnsupportedCase("Models attend causally over sequences of equal length; a mask tensor is not supported.")
    slot, context = module.attnbench_slot, key.shape[2]
    mask = {"causal": True, "softmax_scale": scaling}
    if query.shape[2] < context:  # keys are those of a cache, which holds at most the window
        lengths = slot.lengths(len(query), context, query.device)
        out = slot.inside.step(query, key, value, lengths, **mask)
    else:
        out = slot.inside.whole(query, key, value, window_size=sliding_window or 0, **mask)
    return out.transpose(1, 2), None


def _attend_in_gptj(attend: Callable[..., Any], *arguments: Any) -> tuple[torch.Tensor, None]:
    """Attend for the module of GPT-J, which expects out in the layout of q."""
    return attend(*arguments)[0].transpose(1, 2), None


@cache
def _not_traced() -> tuple[Callable[..., Any], type[KeyValueCache]]:
    """Return `_attend` and a cache class that torch.compile does not trace; both are kept, since new ones recompile."""

    class UntracedCache(KeyValueCache):
        update = torch.compiler.disable(KeyValueCache.update)

    return torch.compiler.disable(_attend), UntracedCache


def _plug(module: Any, slot: _Slot, name: str, attend: Callable[..., Any]) -> None:
    """Register `attend` with transformers under a name, and use it in the attention of a module."""
    from transformers import AttentionInterface

    AttentionInterface.register(name, attend)
    module.config._attn_implementation = name
    for attention in _attentions(module):
        attention.attnbench_slot = slot
        if hasattr(attention, "_attn"):  # GPT-J does not use AttentionInterface before transformers 5.24
            attention._attn = partial(_attend_in_gptj, attend, attention)


def _attentions(module: nn.Module) -> Iterator[Any]:
    return (each for each in module.modules() if type(each).__name__.endswith("Attention"))


def _layers(module: nn.Module) -> Iterator[Any]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return (each for each in module.modules() if isinstance(each, GradientCheckpointingLayer))


@torch.no_grad()
def _randomise(module: nn.Module, seed: int) -> None:
    """Write scaled normals into every weight and bias, and ones into the weights of norms."""
    inside_attention = {id(weight) for attention in _attentions(module) for weight in attention.parameters()}
    weights = list(module.named_parameters())
    generator = torch.Generator(weights[0][1].device).manual_seed(seed)
    for name, weight in weights:
        if weight.dim() > 1:
            gain = _ATTENTION_GAIN if id(weight) in inside_attention else 1.0
            weight.normal_(0.0, gain * _fan_in(module, name, weight) ** -0.5, generator=generator)
        elif name.endswith("bias"):
            weight.normal_(0.0, _BIAS_STD, generator=generator)
        else:
            weight.fill_(1.0)


def _fan_in(module: nn.Module, name: str, weight: torch.Tensor) -> int:
    """Return the width of the input of a weight, which is the first size of GPT-2's Conv1D."""
    owner = module.get_submodule(name.rpartition(".")[0])
    return weight.shape[0] if type(owner).__name__ == "Conv1D" else weight.shape[-1]


@cache
def _fields() -> dict[str, dict[str, str]]:
    """Return by Hugging Face's model_type the fields of a configuration, and the sizes that they have."""
    found: dict[str, dict[str, str]] = {}
    for family, table in tomllib.loads(Path(__file__).with_name("model_fields.toml").read_text()).items():
        found[family] = found.get(table.pop("like", ""), {}) | table
    return found


def config_of(sizes: Sizes, num_layers: int) -> dict[str, Any]:
    """Return the fields of transformers' configuration of a model. Raises UnsupportedCase for an unknown family."""
    family = sizes["architecture"]["family"]
    if family not in _fields():
        raise UnsupportedCase(f"Unknown family {family!r}. Possible: {', '.join(_fields())}.")
    rope = {"rope_type": "default", "rope_theta": sizes["rope_theta"]}
    if family == "gpt_neox":
        rope["partial_rotary_factor"] = (sizes["rotary_dim"] or sizes["head_dim"]) / sizes["head_dim"]
    known = {**sizes, "num_layers": num_layers, "rope": rope, "no_dropout": 0.0, "no_query_latent": None}
    known |= {"window": sizes["window_size"] or None, "head_dim_v": sizes["head_dim_v"] or sizes["head_dim"]}
    for part in ("latent", "experts"):
        known |= {f"{part}.{name}": value for name, value in (sizes[part] or {}).items()}
    return {field: known[name] for field, name in _fields()[family].items()}
