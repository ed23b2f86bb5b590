"""`python -m runner prove --steps`: time whole steps of other people's models with PyTorch's attention and with ours.

The models are declared in steps.toml, or in a file of the user's own with the same fields. They get random weights, and
a step is a forward, a forward and backward (without an optimizer, which would hide the difference), or a generation.
Models of transformers use ours by `attn_implementation="attnbench"`; those that keep their own classes of attention, as
Falcon, and all others by `kernels.sdpa_replacement()`. Models that transformers refuses SDPA, as Gemma 2, are timed
with their eager attention in its place.
"""

import gc
import importlib
import math
import time
import tomllib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn

from kernels import sdpa_replacement
from kernels.drop_in import SdpaCalls
from kernels.transformers import FRONT_DOOR, register
from results.programs import ProgramError
from results.spread import spread
from runner.measure import errors
from runner.measure.stopwatch import EagerStopwatch

SHIPPED = Path(__file__).with_name("steps.toml")
ALLOWED = 0.05  # of the largest number of the output: both sides compute in bfloat16, through many layers
FARTHER = 1.25  # where outputs differ by more: the distance from float32 that is still right, over that of SDPA's
SIDES = SDPA, OURS = "sdpa", "ours"
LEAST, SECONDS = 8, 4.0  # pairs of steps, and how long more of them are taken
MOST_GRAPHS = 256  # of a code object
NO_CALL = "not timed: a step makes no call of scaled_dot_product_attention"


@dataclass(frozen=True)
class Declared:
    """A model and its input. `library` is a package, `model` a class of it or, for timm, a name of its registry."""

    name: str
    library: str
    model: str
    inputs: Mapping[str, Any]  # shapes of random tensors, tables with more of them, or plain values
    config: str | None = None  # a class of configurations, which `settings` are for
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: bool = False
    generate: int = 0  # new tokens; 0: one forward
    source: str = ""  # where the sizes come from


@dataclass(frozen=True)
class StepProof:
    """The steps of one model: times in ms, and their ratio with its 95 % interval, above 1 where ours are faster."""

    name: str
    sdpa_ms: float | None = None
    ours_ms: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    differs: float = 0.0  # largest difference of the outputs, in shares of the largest number
    farther: float = 0.0  # our output's distance from that in float32 over SDPA's, where `differs` is above ALLOWED
    calls: str = ""
    note: str = ""
    baseline: str = "SDPA"  # or "eager", which `sdpa_ms` is of where transformers refuses a model SDPA


def load(path: Path, only: list[str] | None = None) -> list[Declared]:
    """Return the models of a file, or those of the given names. Raises ProgramError."""
    try:
        found = tomllib.loads(path.read_text())
        models = [Declared(name, **table) for name, table in found.items()]
    except (OSError, ValueError, TypeError) as fault:
        raise ProgramError(f"The models of {path} cannot be read: {' '.join(str(fault).split())}.") from fault
    if missing := set(only or ()) - set(found):
        raise ProgramError(f"{path} has no {', '.join(sorted(missing))}. It has: {', '.join(found)}.")
    return [model for model in models if not only or model.name in only]


def prove(models: list[Declared], device: str, *, compiled: bool) -> Iterator[StepProof]:
    """Time the steps of each model. A model that cannot be built or run has a note in place of times."""
    register(())
    for model in models:
        try:
            yield _proof(model, device, compiled)
        except Exception as error:  # noqa: BLE001 - a model of another package may fail in any way
            yield StepProof(model.name, note=": ".join(errors.describe(error)))
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()


def as_line(proof: StepProof) -> str:
    """Return a proof as a line."""
    if proof.note:
        return f"{proof.name}: {proof.note}"
    span = f"{proof.ratio:.3f}× ({proof.low:.3f} to {proof.high:.3f})" if proof.low else f"{proof.ratio:.3f}×"
    wrong = " WRONG:" if proof.farther > FARTHER else ""
    far = f", {proof.farther:.2f} times as far from float32 as SDPA's" if proof.farther else ""
    return (
        f"{proof.name}: {proof.baseline} {proof.sdpa_ms:.4g} ms, ours {proof.ours_ms:.4g} ms: {span};"
        f"{wrong} outputs differ by {proof.differs:.2g}{far}; {proof.calls}"
    )


def as_summary(proofs: list[StepProof]) -> str:
    """Return the geometric mean of the ratios and the least one."""
    timed = [proof for proof in proofs if proof.ratio]
    if not timed:
        return "No model was timed."
    mean = math.exp(sum(math.log(proof.ratio or 1) for proof in timed) / len(timed))
    least = min(timed, key=lambda proof: proof.ratio or 1)
    return f"{len(timed)} models of {len(proofs)}: {mean:.3f}× in the mean, least {least.ratio:.3f}× ({least.name})"


def build(model: Declared, device: str) -> nn.Module:
    """Return the model with random bfloat16 weights (float32 on a CPU), ready for its steps."""
    torch.manual_seed(0)
    library = importlib.import_module(model.library)
    with torch.device(device):
        if model.library == "timm":
            module = library.create_model(model.model, **model.settings)
        elif model.config:
            config, maker = getattr(library, model.config)(**model.settings), getattr(library, model.model)
            module = maker._from_config(config, attn_implementation=_baseline(maker).lower())
        else:
            module = getattr(library, model.model)(**model.settings)
    return module.to(_dtype(device)).train(model.training)


def _baseline(model: Any) -> str:
    """Return the attention that ours is compared with: eager if transformers refuses a model, or its class, SDPA."""
    return StepProof.baseline if getattr(model, "_supports_sdpa", True) else "eager"


def make_inputs(model: Declared, device: str) -> dict[str, Any]:
    """Return the keyword arguments of the model's forward."""
    generator = torch.Generator(device).manual_seed(0)
    return {name: _value(said, device, generator) for name, said in model.inputs.items()}


def _dtype(device: str) -> torch.dtype:
    return torch.float32 if device == "cpu" else torch.bfloat16


def _value(said: Any, device: str, generator: torch.Generator) -> Any:
    """Return the tensor of a shape, or of a table with `shape` and `below` (integers) or `kept` (padding)."""
    if isinstance(said, list):
        return torch.randn(said, device=device, dtype=_dtype(device), generator=generator)
    if not isinstance(said, Mapping):
        return said
    if "below" in said:
        return torch.randint(said["below"], said["shape"], device=device, generator=generator)
    if "kept" in said:  # from this share of the tokens in the first row to all in the last
        rows, tokens = said["shape"]
        kept = torch.linspace(said["kept"], 1, rows, device=device)[:, None] * tokens
        return torch.arange(tokens, device=device) < kept.round()
    return {name: _value(inner, device, generator) for name, inner in said.items()}


def _proof(model: Declared, device: str, compiled: bool) -> StepProof:
    module, inputs = build(model, device), make_inputs(model, device)
    modules, shared = one_each(module)
    calls = {name: _compiled(modules[name], name) if compiled else modules[name] for name in SIDES}
    outputs = []
    for name in SIDES:
        modules[name].eval()  # without dropout
        with torch.no_grad(), _attention(model, modules[name], name):
            outputs.append(_without_padding(_first(modules[name](**inputs)), inputs).float())
        modules[name].train(model.training)
    steps = {name: partial(_step, model, modules[name], calls[name], inputs) for name in SIDES}
    around = {name: partial(_attention, model, modules[name], name) for name in SIDES}
    for name in (*SIDES, *SIDES, OURS):  # compiles, and counts the calls of the last one
        with around[name]() as counts:
            steps[name]()
    if counts and not compiled and not (counts.served or counts.passed_on):
        return StepProof(model.name, note=NO_CALL)
    pairs = list(_pairs(steps, device, around))
    before, after = (spread(times)["value"] for times in zip(*pairs, strict=True))
    found = spread([sdpa / ours for sdpa, ours in pairs])
    differs = float((outputs[1] - outputs[0]).abs().max() / (outputs[0].abs().max() or 1))  # a new head may give 0
    ends = found["ci_low"], found["ci_high"]
    farther = 0.0 if differs <= ALLOWED else _farther(model, module, inputs, outputs)
    values = before, after, found["value"], *ends, differs, farther
    return StepProof(model.name, *values, _words(counts) + shared, baseline=_baseline(module))


def one_each(module: nn.Module) -> tuple[dict[str, nn.Module], str]:
    """Return a module for each side, which share all tensors, and why both have the same one if it cannot be copied.

    If the sides take turns at the attention of one module, torch.compile checks the guards of both sides more slowly.
    """
    attributes = [each for part in module.modules() for each in vars(part).values()]
    kept = [x for each in attributes for x in (each.values() if isinstance(each, dict) else [each])]
    memo: dict[int, Any] = {id(x): x for x in kept if isinstance(x, torch.Tensor)}
    try:
        held = [cell.cell_contents for x in kept if isinstance(x, FunctionType) for cell in x.__closure__ or ()]
        held += [x() for x in kept if isinstance(x, weakref.ref)]
        if not any(isinstance(x, nn.Module) for x in held):  # of which a copy would use the same one
            return {SDPA: module, OURS: deepcopy(module, memo)}, ""
        reason = "a function refers to it"
    except Exception as error:  # noqa: BLE001 - a model of another package may hold anything
        reason = ": ".join(errors.describe(error))
    return dict.fromkeys(SIDES, module), f"; both sides take turns at one module: {reason}"


def _farther(model: Declared, module: nn.Module, inputs: Mapping[str, Any], outputs: Sequence[torch.Tensor]) -> float:
    """Return how far our output is from that of the model in float32, over how far SDPA's is."""
    exact, wide = deepcopy(module).float().eval(), {name: _in_float32(said) for name, said in inputs.items()}
    with torch.no_grad(), _attention(model, exact, SDPA):
        reference = _without_padding(_first(exact(**wide)), inputs).float()
    before, after = (float((output - reference).norm()) for output in outputs)
    return after / before if before else math.inf


def _in_float32(said: Any) -> Any:
    if isinstance(said, Mapping):
        return {name: _in_float32(inner) for name, inner in said.items()}
    return said.float() if isinstance(said, torch.Tensor) and said.is_floating_point() else said


def _pairs(
    steps: Mapping[str, Callable[[], None]], device: str, around: Mapping[str, Callable[[], Any]]
) -> Iterator[tuple[float, float]]:
    """Yield the times of a step of each side, one after the other; each side is the first one every other time.

    `around` are contexts in which a side computes its attention. The speed of a host drifts by several percent within
    seconds, which both steps of a pair share.
    """
    watch = EagerStopwatch(torch.cuda.synchronize) if device.startswith("cuda") else EagerStopwatch()
    number, begun = 0, time.perf_counter()
    gc.collect()
    gc.disable()  # a collection takes as long as many calls
    try:
        while number < LEAST or time.perf_counter() - begun < SECONDS:
            taken = {}
            for name in SIDES[:: 1 - 2 * (number % 2)]:
                with around[name]():
                    (taken[name],) = watch.sample(steps[name], 1)
            yield taken[SDPA], taken[OURS]
            number += 1
    finally:
        gc.enable()


@contextmanager
def _attention(model: Declared, module: nn.Module, side: str) -> Iterator[SdpaCalls | None]:
    """Let the model compute attention by PyTorch or by ours, and yield the counts of calls where they are counted."""
    if plugged := model.library == "transformers":
        asked = _baseline(module).lower() if side == SDPA else FRONT_DOOR
        if module.config._attn_implementation != asked:  # type: ignore[union-attr]
            module.set_attn_implementation(asked)  # type: ignore[operator]
        plugged = module.config._attn_implementation == FRONT_DOOR  # type: ignore[union-attr]
    with nullcontext() if side == SDPA or plugged else sdpa_replacement() as counts:
        yield counts


def _step(model: Declared, module: nn.Module, call: Callable[..., Any], inputs: Mapping[str, Any]) -> None:
    """Make one step: a forward and backward, a generation, or a forward."""
    if model.training:
        _first(call(**inputs)).float().mean().backward()
        module.zero_grad(set_to_none=True)
        return
    with torch.no_grad():
        if model.generate:
            new = {"max_new_tokens": model.generate, "min_new_tokens": model.generate}
            module.generate(**inputs, **new, do_sample=False)  # type: ignore[operator]
        else:
            call(**inputs)


def _compiled(module: nn.Module, side: str) -> Callable[..., Any]:
    """Return the compiled forward of a side; torch.compile keeps graphs by code object, so each side has its own.

    Behind a graph break the sides share the code of their layers. With torch's limit of 8 graphs for a code object the
    side that comes second ran Whisper's layers without compiling them.
    """
    torch._dynamo.config.recompile_limit = max(MOST_GRAPHS, torch._dynamo.config.recompile_limit)

    def forward(**inputs: Any) -> Any:
        return module(**inputs)

    code = forward.__code__.replace(co_name=f"forward_{side}")
    return torch.compile(FunctionType(code, globals(), code.co_name, None, forward.__closure__))


def _first(output: Any) -> torch.Tensor:
    """Return the first tensor of what a model returns."""
    while not isinstance(output, torch.Tensor):
        output = next(iter(output.values())) if isinstance(output, Mapping) else output[0]
    return output


def _without_padding(output: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
    """Return the rows of an output of tokens that belong to real ones."""
    for given in inputs.values():
        if isinstance(given, torch.Tensor) and given.dtype == torch.bool and given.shape == output.shape[:2]:
            return output[given]
    return output


def _words(counts: SdpaCalls | None) -> str:
    if counts is None:
        return f'by attn_implementation="{FRONT_DOOR}"'
    passed = "".join(f", {count} left to PyTorch ({reason})" for reason, count in counts.passed_on.items())
    return f"{counts.served} calls a step served{passed}"
