"""Level model: a whole language model of transformers with random weights, in generation, prefill and training.

Prefill and training take random tokens. A decoding step takes one token of each sequence and a cache filled with random
keys and values, so that no prefill is needed. The check uses a twin of the model, which has its first layers, widths,
vocabulary and kind of call, and compares it with the twin in float64.
"""

import dataclasses
import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from kernels import models, reference, registry
from kernels.decode.step import DecodeStep
from kernels.models import AttentionInside, CausalModel, KeyValueCache, loss_of
from kernels.registry import UnsupportedCase
from results.levels.model_table import model as sizes_of
from results.records import Case
from runner.levels import Call, Pass, Trial, generator_of, measured
from runner.sweeps.model import model_case

PASSES = (
    Pass("decode", "decode step", ("decode",), ("logits",)),
    Pass("prefill", "prefill", ("prefill",), ("logits", "loss")),
    Pass("fwd", "training forward", ("fwd", "bwd", "train"), ("loss",)),
    Pass("bwd", "training backward", ("bwd", "train"), ("grads",)),
)
TRAINING = ("fwd", "bwd", "step", "train")
CHECKED_LAYERS, CHECKED_BATCH, CHECKED_SEQLEN = 2, 2, 4096  # upper limits of the twin
_CHECKED_LOGITS = 1024  # at most, from the end of each sequence
_WEIGHTS_SEED = 0
_SMALL_SEQLEN = 16
_LEARNING_RATE = 1e-6  # small enough to keep weights in range over any number of timed steps
_WARM_UPS = 2  # calls before a capture, which must not record the setup, compilation and allocation of a first call
_PEAK_SHARE = 0.4  # a model consists mostly of large matrix products, so estimates assume this share of the peak


def is_decoding(case: Case) -> bool:
    """Tell whether the case is a step against a cache."""
    return (case.seqlen_q or 1) < (case.seqlen_k or 1)


def is_training(case: Case) -> bool:
    """Tell whether the case has an optimizer."""
    return case.optimizer not in (None, "none")


def passes(case: Case) -> tuple[Pass, ...]:
    """Return the passes of a case."""
    if is_training(case):
        return PASSES[2:]
    return PASSES[:1] if is_decoding(case) else PASSES[1:2]


def states_of(optimizer: Any) -> list[torch.Tensor]:
    """Return the tensors that an optimizer keeps between steps, without parameters and gradients."""
    if isinstance(optimizer, MasterAdamW):
        return optimizer.states
    return [x for kept in optimizer.state.values() for x in kept.values() if torch.is_tensor(x)]


class MasterAdamW:
    """AdamW on float32 copies of 16-bit parameters: 12 bytes per parameter in addition to weight and gradient.

    It updates one parameter at a time, so that only one gradient is in float32 at a time.
    """

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._masters = [parameter.detach().float() for parameter in parameters]
        self._each = [_adamw([master]) for master in self._masters]

    @property
    def states(self) -> list[torch.Tensor]:
        """Return the copies and their moments."""
        return self._masters + [state for each in self._each for state in states_of(each)]

    @torch.no_grad()
    def step(self) -> None:
        """Update the copies by the gradients, and copy them to the parameters."""
        for parameter, master, optimizer in zip(self._parameters, self._masters, self._each, strict=True):
            master.grad = parameter.grad.float()
            optimizer.step()
            master.grad = None
            parameter.copy_(master)

    def zero_grad(self) -> None:
        """Free the gradients."""
        for parameter in self._parameters:
            parameter.grad = None


def _adamw(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=_LEARNING_RATE, fused=True)


StepOptimizer = torch.optim.Optimizer | MasterAdamW
_KINDS: dict[str, Callable[[list[Any]], StepOptimizer]] = {
    "adamw_bf16": _adamw,
    "adamw_fp32_master": MasterAdamW,
    "sgd": partial(torch.optim.SGD, lr=_LEARNING_RATE, fused=True),
}


def make_optimizer(name: str, parameters: Iterable[torch.nn.Parameter]) -> StepOptimizer:
    """Return the optimizer of that name, which allocates its states in its first step. Raises KeyError."""
    return _KINDS[name](list(parameters))


class CapturedCall:
    """A call as a CUDA graph, which replays its launches without host overhead.

    The tensors that the call reads must keep their addresses. Captures of one pool may reuse each other's memory, so
    only the result of the latest replay is valid.
    """

    def __init__(self, call: Callable[[], Any], pool: Any = None) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._result = call()

    def __call__(self) -> Any:
        """Replay the launches and return the result."""
        self._graph.replay()
        return self._result


@dataclass
class ModelAtWork:
    """A model at the depth of a case, with the tensors that its calls need."""

    model: CausalModel
    tokens: torch.Tensor  # (batch, query tokens)
    targets: torch.Tensor
    cache: KeyValueCache | None = None
    optimizer: StepOptimizer | None = None
    state_bytes: int = 0  # optimizer states

    def logits(self, keep: int = 1) -> torch.Tensor:
        """Return the last `keep` logits of each sequence, using the cache if there is one."""
        return self.model.logits(self.tokens, cache=self.cache, keep=keep)

    def loss(self) -> torch.Tensor:
        """Return the loss of all tokens, with its autograd graph if gradients are enabled."""
        return loss_of(self.model.logits(self.tokens), self.targets)

    def train(self) -> torch.Tensor:
        """Take one training step and return its loss."""
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


@dataclass
class ModelInputs:
    """Random tokens, and the models for them, which are built at first use, one at a time."""

    case: Case
    device: torch.device
    tokens: torch.Tensor  # (batch, query tokens)
    targets: torch.Tensor  # (batch, query tokens), the tokens that should follow
    seed: int = 0
    _twin: ModelAtWork | None = field(default=None, repr=False)
    _whole: ModelAtWork | None = field(default=None, repr=False)
    _captured: dict[tuple[int, str], CapturedCall] = field(default_factory=dict, repr=False)
    _pool: tuple[int, int] | None = None  # memory pool shared by all captured calls

    def fill(self, seed: int) -> None:
        """Write the tokens of a seed, and new keys and values into the caches."""
        self.seed, generator = seed, generator_of(self.case, self.device, seed)
        for ids in (self.tokens, self.targets):
            ids.random_(0, sizes_of(str(self.case.subject)).vocab, generator=generator)
        for each in (self._twin, self._whole):
            if each and each.cache:
                each.cache.fill(seed)

    def bytes_of(self, mode: str) -> int:
        """Return the bytes of weights, cache, optimizer states and tokens of the whole model."""
        whole = self.whole()
        tensors = [*whole.model.parameters, *(whole.cache.tensors if whole.cache else ()), self.tokens]
        return sum(x.numel() * x.element_size() for x in tensors) + whole.state_bytes

    def result_shapes(self) -> list[torch.Size]:
        """Return the shape of the last tokens' logits."""
        return [torch.Size((len(self.tokens), sizes_of(str(self.case.subject)).vocab))]

    def twin(self) -> ModelAtWork:
        """Return the model that is checked, compiled and checkpointed as the case states."""
        if self._twin is None:
            self._twin = self._made(checked_case(self.case))
        return self._twin

    def exact(self) -> ModelAtWork:
        """Return the twin in float64."""
        case = dataclasses.replace(checked_case(self.case), compiled=False, checkpointing=False)
        whole = self._made(case)
        whole.model = whole.model.double()
        if whole.cache:
            whole.cache = self.twin().cache.double()
        return whole

    def whole(self) -> ModelAtWork:
        """Return the model of the case; this frees the twin."""
        if self._whole is None:
            self._twin = None
            self._whole = self._made(self.case)
            if is_training(self.case):
                _allocate_states(self._whole, str(self.case.optimizer))
        return self._whole

    def captured(self, key: tuple[int, str], call: Call) -> CapturedCall:
        """Return the call as a CUDA graph, captured once for each key."""
        if key not in self._captured:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._captured[key] = CapturedCall(call, self._pool)
        return self._captured[key]

    def _made(self, case: Case) -> ModelAtWork:
        """Build the model of a case, with as many of the tokens as the case has."""
        made = _model_of(case, self.device)
        tokens, targets = (ids[: case.batch, : case.seqlen_q] for ids in (self.tokens, self.targets))
        whole = ModelAtWork(made, tokens, targets)
        if not is_training(case):
            whole.cache = made.cache(int(case.seqlen_k), self.seed)
            made.use(registry.get("torch_naive", "model").attention)
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                made.logits(whole.tokens[:, -1:], cache=whole.cache)  # allocates the cache
        return whole


def checked_case(case: Case) -> Case:
    """Return the case of the twin, which is checked instead of the whole model."""
    batch, layers = min(case.batch, CHECKED_BATCH), min(case.num_layers, CHECKED_LAYERS)
    shorter = dataclasses.replace(case, batch=batch, num_layers=layers)
    if is_decoding(case):
        return shorter
    seqlen = min(case.seqlen_q, CHECKED_SEQLEN)
    return dataclasses.replace(shorter, seqlen_q=seqlen, seqlen_k=seqlen)


def empty_inputs(case: Case, device: str) -> ModelInputs:
    """Return the tokens of a case, uninitialized; models are built at first use.

    Raises UnsupportedCase without transformers.
    """
    if reason := models.unavailable():
        raise UnsupportedCase(reason)
    shape = (case.batch, case.seqlen_q)
    tokens, targets = (torch.empty(shape, dtype=torch.int64, device=device) for _ in range(2))
    return ModelInputs(case, tokens.device, tokens, targets)


def trial(attention: AttentionInside, inputs: ModelInputs, mode: str) -> Trial:
    """Return the pass of the twin; on a GPU a decoding step is checked as a CUDA graph, as it is timed."""
    whole = inputs.twin()

    def run() -> Any:
        whole.model.use(attention)
        return _result(whole, mode)

    if mode != "decode" or inputs.device.type != "cuda":
        return Trial(run)
    captured: list[CapturedCall] = []

    def replay() -> Any:
        if not captured:  # the time of the first run counts as compiling
            captured.append(CapturedCall(run))
        return captured[0]()

    return Trial(replay)


def call(attention: AttentionInside, inputs: ModelInputs, mode: str) -> Call:
    """Return a plain call of the whole model, as a program that uses transformers makes it."""
    whole = inputs.whole()
    whole.model.use(attention)
    if whole.optimizer:
        whole.optimizer.zero_grad()
    return _used(whole, attention, _CALLS[mode](whole))


def device_call(attention: AttentionInside, inputs: ModelInputs, mode: str, call: Call) -> Call | None:
    """Return the call as a CUDA graph, timed as `kernel`; None in training, whose steps are plain calls."""
    return None if mode in TRAINING else inputs.captured((id(attention), mode), call)


def reason_against(case: Case, implementation: registry.Implementation) -> str | None:
    """Return why a model does not take a case or an implementation; None if it does."""
    sizes, taken = sizes_of(str(case.subject)), implementation.model_families
    if sizes.architecture.positions == "learned" and case.seqlen_k > sizes.max_context:
        return f"{sizes.title} has {sizes.max_context} positions, the case has {case.seqlen_k} tokens."
    if taken and sizes.architecture.family not in taken:
        family = sizes.architecture.family
        return f"{implementation.name} takes models of {' and '.join(taken)}, {sizes.title} is {family}."
    return None


def kept_for_backward(attention: AttentionInside, inputs: ModelInputs, mode: str) -> Call | None:
    """Return a forward whose loss keeps the tensors for the backward of a training step; None for other modes."""
    if mode != "train":
        return None
    whole = inputs.whole()
    return _used(whole, attention, whole.loss)


def oracle(inputs: ModelInputs, modes: tuple[str, ...], *, fp8: bool = False) -> dict[str, torch.Tensor]:
    """Return the results of the passes by the twin in float64; its norms and rotary angles are also in float32."""
    if fp8:
        raise UnsupportedCase("A model has no oracle for inputs rounded to FP8.")
    whole = inputs.exact()
    whole.model.use(_EXACT)
    found: dict[str, torch.Tensor] = {}
    for each in passes(inputs.case):
        if each.mode in modes:
            result = _result(whole, each.mode)
            found |= zip(each.tensors, result if isinstance(result, tuple) else (result,), strict=True)
    return {name: tensor.detach().double() for name, tensor in found.items()}


def inner_call(attention: AttentionInside, inputs: ModelInputs, mode: str) -> Call | None:
    """Return the attention of all layers alone, in the shapes of a call; None for the parts of training.

    None also for decoding with latent attention, because transformers expands the latents again in every step, so that
    the attention does not read a cache.
    """
    if mode == "decode":
        latent = sizes_of(str(inputs.case.subject)).latent
        return None if latent else _attention_to_caches(attention, inputs)
    return _attention_of_layers(attention, inputs, training=mode == "train") if mode in ("prefill", "train") else None


def small_case(dtype: str, head_dim: int) -> Case:
    """Return a prefill of a tiny model."""
    return model_case("gpt2-tiny", num_layers=1, batch=1, seqlen=_SMALL_SEQLEN, dtype=dtype)


_LAST: dict[tuple[object, ...], CausalModel] = {}  # the latest model, if it fits into the device _KEPT_SHARE times
_KEPT_SHARE = 4


def _model_of(case: Case, device: torch.device) -> CausalModel:
    """Return the model of a case at its depth. Except in training, the model of the previous case is used if equal."""
    one_token = is_decoding(case) and case.batch == 1
    settings = (bool(case.compiled), one_token, bool(case.checkpointing))
    sizes = sizes_of(str(case.subject))
    longest = max(int(case.seqlen_k), sizes.max_context)
    key = (case.subject, case.num_layers, case.dtype, device, longest, *settings)
    if key in _LAST and not is_training(case):
        return _LAST[key]
    dtype, shape = getattr(torch, str(case.dtype)), {"num_layers": int(case.num_layers), "context": longest}
    if case.num_layers == sizes.layers and _LAST:
        _LAST.clear()
        gc.unfreeze()  # a model is a reference cycle among the objects that were frozen at the start of a case
        gc.collect()
    made = models.build(dataclasses.asdict(sizes), **shape, dtype=dtype, device=device, seed=_WEIGHTS_SEED)
    if case.compiled:
        made.compile_layers(one_token=one_token)
    if case.checkpointing:
        made.checkpoint()
    memory = registry.describe_device(device).memory_bytes or 0
    whole = case.num_layers == sizes.layers and not is_training(case)
    if whole and sizes.parameters * dtype.itemsize * _KEPT_SHARE <= memory:
        _LAST[key] = made
    return made


def _result(whole: ModelAtWork, mode: str) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Return the tensors of a pass."""
    if mode == "fwd":
        return whole.loss().detach()[None]
    if mode == "bwd":
        gradients = torch.autograd.grad(whole.loss(), whole.model.attention_parameters)
        return torch.cat([gradient.flatten() for gradient in gradients])
    with torch.no_grad():
        if mode == "decode":
            return whole.logits()[:, -1]
        keep = min(whole.tokens.shape[1], _CHECKED_LOGITS)
        logits = whole.logits(keep)
        return logits[:, -1], loss_of(logits, whole.targets[:, -keep:])[None]


def _used(whole: ModelAtWork, attention: AttentionInside, call: Call) -> Call:
    def run() -> object:
        whole.model.use(attention)
        return call()

    return run


def _backward(whole: ModelAtWork) -> Call:
    loss, weights = whole.loss(), whole.model.parameters
    return lambda: torch.autograd.grad(loss, weights, retain_graph=True)


def _step(whole: ModelAtWork) -> Call:
    for weight in whole.model.parameters:
        weight.grad = torch.randn_like(weight)
    return whole.optimizer.step


_CALLS: dict[str, Callable[[ModelAtWork], Call]] = {
    "decode": lambda whole: torch.no_grad()(whole.logits),
    "prefill": lambda whole: torch.no_grad()(whole.logits),
    "fwd": lambda whole: whole.loss,
    "bwd": _backward,
    "step": _step,
    "train": lambda whole: whole.train,
}


def _allocate_states(whole: ModelAtWork, name: str) -> None:
    """Give a model its optimizer, with all states allocated as by a first step."""
    whole.optimizer = make_optimizer(name, whole.model.parameters)
    for weight in whole.model.parameters:
        weight.grad = torch.zeros_like(weight)
    whole.optimizer.step()
    whole.optimizer.zero_grad()
    whole.state_bytes = sum(x.numel() * x.element_size() for x in states_of(whole.optimizer))


def _attention_to_caches(attention: AttentionInside, inputs: ModelInputs) -> Call:
    case, cache = inputs.case, inputs.whole().cache
    lengths = torch.full((case.batch,), cache.held, dtype=torch.int32, device=inputs.device)
    dtype = getattr(torch, str(case.dtype))
    q = torch.randn(case.batch, case.num_heads, 1, case.head_dim, dtype=dtype, device=inputs.device)

    def run() -> None:
        with torch.no_grad():
            for k, v in cache.layers:
                attention.step(q, k, v, lengths, causal=True)

    return run


def _attention_of_layers(attention: AttentionInside, inputs: ModelInputs, *, training: bool) -> Call:
    """Return the attention of every layer on tensors laid out like projections, with its backward in training."""
    case, dtype = inputs.case, getattr(torch, str(inputs.case.dtype))
    widths = ((case.num_heads, case.head_dim), (case.num_kv_heads, case.head_dim), (case.num_kv_heads, case.head_dim_v))
    shapes = [
        (case.batch, case.seqlen_q, heads, width) for heads, width in (*widths, (case.num_heads, case.head_dim_v))
    ]
    laid_out = [torch.randn(shape, dtype=dtype, device=inputs.device).transpose(1, 2) for shape in shapes]
    q, k, v = (x.requires_grad_(training) for x in laid_out[:3])
    mask = {"causal": True, "window_size": case.window_size or 0}

    def run() -> None:
        with torch.set_grad_enabled(training):
            for _ in range(case.num_layers):
                out = attention.whole(q, k, v, **mask)
                if training and case.checkpointing:
                    out = attention.whole(q, k, v, **mask)
                if training:
                    torch.autograd.grad(out, (q, k, v), laid_out[3])

    return run


class _ExactAttention(torch.autograd.Function):
    """Attention and its gradients by the float64 reference, whose memory is linear in seqlen."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: dict[str, Any]) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.mask = mask
        return reference.attention(q, k, v, **mask).out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        found = reference.gradients(q, k, v, dout, **ctx.mask)
        return found.dq, found.dk, found.dv, None


def _exact_step(step: DecodeStep) -> Callable[[], torch.Tensor]:
    mask: dict[str, Any] = {"causal": step.causal, "window_size": step.window_size, "softmax_scale": step.softmax_scale}
    return lambda: reference.attention(step.q, *step.in_use(), **mask).out


_EXACT = AttentionInside(lambda q, k, v, **mask: _ExactAttention.apply(q, k, v, mask), _exact_step)

LEVEL = measured(
    globals(),
    implementations=lambda: registry.implementations("model"),
    around="op",
    fits_by_prediction=True,
    peak_share=_PEAK_SHARE,
    # A model runs at the power limit all the time: Llama-2 7B trains at 1515 MHz on an H200 in every attempt (2026-11).
    retries=0,
    records_share=True,
)
