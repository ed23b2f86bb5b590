"""How the cases of a level are measured: inputs, calls and oracle, one module a level. Needs torch.

`results.levels` answers for what a level means on paper (modes, operations, bytes, memory), this package for tensors.
Whoever measures asks `level_of` and knows no level by name.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from results.records import Case

Call = Callable[[], object]
Tensors = tuple[torch.Tensor, ...]


class CaseInputs(Protocol):
    """The tensors of a case; never constant, because constant data runs faster than real."""

    case: Case

    @property
    def device(self) -> torch.device:
        """Return where the tensors are."""
        ...

    def fill(self, seed: int) -> None:
        """Write the data of a seed into the tensors; on one kind of device the same seed gives the same data."""
        ...

    def bytes_of(self, mode: str) -> int:
        """Return the bytes that the call of a mode is given."""
        ...

    def result_shapes(self) -> list[torch.Size]:
        """Return the shapes of what calls return, in the dtype of the inputs."""
        ...


@dataclass(frozen=True)
class Pass:
    """A part of an implementation's work that is checked by itself, before any mode that contains it is timed."""

    mode: str  # under which its errors are recorded
    words: str
    modes: tuple[str, ...]  # that contain it
    tensors: tuple[str, ...]  # that it returns, in this order
    # A tensor and the oracle's result that its error is recorded against too, where there is one; it decides nothing.
    beside: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Trial:
    """One pass of one implementation at work."""

    run: Callable[[], torch.Tensor | Tensors]  # returns the tensors of the pass
    prepare: Callable[[], None] = lambda: None  # comes before each run and is not part of it
    prepared: Callable[[], Mapping[str, torch.Tensor]] = dict  # tensors that `prepare` made, to be checked too


class MeasuredLevel(Protocol):
    """What a module of this package offers. `attention` is the callable of an implementation of the level.

    A level whose calls are more launches than a stopwatch can hide also offers `device_call`, with the arguments of
    `call`: what is timed as `kernel`, None for a mode that has no such time. RETRIES is how often a throttled cell of
    the level is measured again, where that is not what the runner does otherwise.
    """

    # In the order of their checks; a level whose tensors depend on the case offers `passes(case)` instead.
    PASSES: tuple[Pass, ...]

    def empty_inputs(self, case: Case, device: str) -> CaseInputs:
        """Return the tensors of a case, with whatever their memory held."""
        ...

    def trial(self, attention: Any, inputs: CaseInputs, mode: str) -> Trial:
        """Return the pass whose errors are recorded under `mode`, ready to be checked."""
        ...

    def call(self, attention: Any, inputs: CaseInputs, mode: str) -> Call:
        """Return what is timed as `mode`."""
        ...

    # `inner_call(attention, inputs, mode)`, where there is something around the attention: what is timed of it alone.

    def kept_for_backward(self, attention: Any, inputs: CaseInputs, mode: str) -> Call | None:
        """Return a forward whose result keeps what the backward of `mode` needs; None without a backward."""
        ...

    def oracle(self, inputs: CaseInputs, modes: tuple[str, ...], *, fp8: bool = False) -> dict[str, torch.Tensor]:
        """Return the float64 results of the passes of `modes` by the names of tensors; with `fp8` of rounded inputs."""
        ...

    # `fused_oracle(inputs, modes)`, where it is known what the best fused kernel of a 16-bit dtype loses: its results.
    # `doubled(inputs, mode)`, where a result follows an input that is doubled: a context that tells by what.

    def small_case(self, dtype: str, head_dim: int) -> Case:
        """Return a case that takes no time, for what the first call of a library waits for."""
        ...


def timed(forward: Callable[[], Any], backward: Callable[[Any, bool], Tensors], mode: str) -> Call:
    """Return what is timed: fwd without gradients, bwd on one kept graph, or both as in training.

    `backward(out, keep)` returns the gradients; with `keep` the graph stays for another time.
    """
    if mode == "bwd":
        out = forward()
        return lambda: backward(out, True)
    if mode == "fwd_bwd":
        return lambda: backward(forward(), False)

    def inference() -> object:
        with torch.no_grad():
            return forward()

    return inference


def trial_of(
    forward: Callable[[], torch.Tensor], backward: Callable[[torch.Tensor, bool], Tensors], mode: str
) -> Trial:
    """Return the forward without gradients, or the backward of an out that is made, and checked, beside it."""
    if mode == "fwd":
        return Trial(timed(forward, backward, "fwd"))
    outs: list[torch.Tensor] = []

    def prepare() -> None:
        outs[:] = [forward()]

    return Trial(lambda: backward(outs[0], False), prepare, lambda: {"out": outs[0].detach()})


def level_of(case: Case) -> MeasuredLevel:
    """Return the module of a case's level. Raises ModuleNotFoundError if cases of that level cannot be measured."""
    return cast(MeasuredLevel, importlib.import_module(f"runner.levels.{case.level}"))


def passes_of(case: Case) -> tuple[Pass, ...]:
    """Return the passes of a case, in the order of their checks."""
    level = level_of(case)
    return level.passes(case) if hasattr(level, "passes") else level.PASSES


def make_inputs(case: Case, device: str, seed: int) -> CaseInputs:
    """Return the tensors of a case, filled from the seed."""
    inputs = level_of(case).empty_inputs(case, device)
    inputs.fill(seed)
    return inputs


def generator_of(case: Case, device: torch.device, seed: int) -> torch.Generator:
    """Return the generator of a case's data under a seed."""
    digest = hashlib.sha256(f"{seed}/{case}".encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:6], "big"))


def fill_normal(tensors: Iterable[torch.Tensor], generator: torch.Generator) -> None:
    """Write standard normal numbers into the tensors, one after the other."""
    with torch.no_grad():
        for tensor in tensors:
            tensor.normal_(generator=generator)
