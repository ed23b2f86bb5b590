"""How the cases of a level are measured: inputs, calls and oracle, one module per level. Needs torch.

A level is a module of this folder that defines LEVEL, a `MeasuredLevel`, and has the name of its counterpart in
`results.levels`, which holds what follows without tensors (modes, operations, bytes, memory). All other modules of the
runner call `level_of` and do not branch on the name of a level.
"""

import contextlib
import hashlib
import importlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kernels.registry import Implementation
from results.records import LEVELS, Case

Call = Callable[[], Any]
Tensors = tuple[torch.Tensor, ...]


class CaseInputs(Protocol):
    """The tensors of a case. They are random, because constant data runs faster than real data."""

    @property
    def case(self) -> Case:
        """Return the case."""

    @property
    def device(self) -> torch.device:
        """Return the device of the tensors."""

    def fill(self, seed: int) -> None:
        """Write the data of a seed into the tensors; a seed gives the same data on all devices of a type."""

    def bytes_of(self, mode: str) -> int:
        """Return the bytes of the inputs of a call in a mode."""

    def result_shapes(self) -> list[torch.Size]:
        """Return the shapes of the tensors that calls return, in the dtype of the inputs."""


@dataclass(frozen=True)
class Pass:
    """A part of an implementation's work that is checked separately, before any mode that contains it is timed."""

    mode: str  # mode under which its errors are recorded
    words: str
    modes: tuple[str, ...]  # modes that contain the pass
    tensors: tuple[str, ...]  # names of the returned tensors, in order
    # Pairs of a tensor and a second oracle result. The error against it is recorded and does not decide the check.
    also_recorded: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Trial:
    """One pass of one implementation, ready to run."""

    run: Callable[[], torch.Tensor | Tensors]  # returns the tensors of the pass
    prepare: Callable[[], None] = lambda: None  # called before each run
    prepared: Callable[[], Mapping[str, torch.Tensor]] = dict  # tensors made by `prepare`, which are checked too


Growth = Mapping[str, float | torch.Tensor]  # factor between two results, by name
STRIDE = 37  # between columns of v that grow in turn; it has no factor in common with usual head_dims
Place = tuple[slice, ...]  # where a part of the inputs has its result in the whole


def no_doubling(inputs: Any, mode: str, number: int = 0) -> AbstractContextManager[Growth]:
    """Return a context that changes no input and reports no growth."""
    return contextlib.nullcontext({})


@dataclass(frozen=True, kw_only=True)
class MeasuredLevel:
    """Everything that measuring a level needs. `attention` is the callable of one of its implementations.

    A member with a default is one that a level can do without; its default says what happens then.
    """

    implementations: Callable[[], Mapping[str, Implementation]]  # by name; "torch_naive" sets the error budget
    around: str | None = None  # level whose implementations are used inside; None: the level has its own
    reason_against: Callable[[Case, Implementation], str | None] = lambda case, implementation: None
    fits_by_prediction: bool = False  # whether a cell that exceeds the device's memory by prediction is skipped
    peak_share: float | None = None  # share of the GPU's 16-bit peak rate assumed in time estimates; None: a fixed rate
    retries: int = 2  # repetitions of a throttled cell

    passes: Callable[[Case], tuple[Pass, ...]]  # passes of a case, in the order of their checks
    small_case: Callable[[str, int], Case]  # a case of a dtype and head_dim whose call takes no time
    empty_inputs: Callable[[Case, str], CaseInputs]  # the tensors of a case on a device, uninitialized
    trial: Callable[[Any, Any, str], Trial]  # (attention, inputs, mode) -> the pass whose errors have that mode
    call: Callable[[Any, Any, str], Call]  # (attention, inputs, mode) -> the call that is timed
    # (attention, inputs, mode, call) -> the call that is timed as `kernel`; None: the mode has no such time.
    device_call: Callable[[Any, Any, str, Call], Call | None] = lambda attention, inputs, mode, call: call
    # (attention, inputs, mode) -> the attention inside the call, timed separately; None: nothing to time.
    inner_call: Callable[[Any, Any, str], Call | None] = lambda attention, inputs, mode: None
    records_share: bool = False  # whether the share of `inner_call` in the call is recorded
    # (attention, inputs, mode) -> a forward whose result keeps the tensors for the backward; None: no backward.
    kept_for_backward: Callable[[Any, Any, str], Call | None] = lambda attention, inputs, mode: None

    # (inputs, passes, fp8=) -> float64 results by the names of tensors; with `fp8` for inputs rounded to FP8.
    oracle: Callable[..., dict[str, torch.Tensor]]
    # (inputs, passes) -> results of the most accurate fused kernel of a 16-bit dtype; empty: not known.
    fused_oracle: Callable[[Any, tuple[str, ...]], dict[str, torch.Tensor]] = lambda inputs, modes: {}
    checks_rows: bool = False  # whether each row is checked, which needs rows of comparable error
    # (inputs, mode, number) -> a context that doubles an input, a part of it if the number is not 0, and yields the
    # growth of each result; empty: no such check.
    doubled: Callable[[Any, str, int], AbstractContextManager[Growth]] = no_doubling
    # (inputs, seed) -> fills the inputs with data on which a wrong score shows; returns the part to be checked there
    # and the place of its out; None: no such data.
    harden: Callable[[Any, int], tuple[Any, Place] | None] = lambda inputs, seed: None
    # (inputs) -> the change of a part of out with the logarithm of the softmax scale, and its place; None: not known.
    slope: Callable[[Any], tuple[torch.Tensor, Place] | None] = lambda inputs: None


@dataclass(frozen=True)
class DifferentiableCalls:
    """The calls of a level with autograd, made from its forward and its backward."""

    forward: Callable[[Any, Any], torch.Tensor]  # (attention, inputs) -> out
    backward: Callable[..., Tensors]  # (inputs, out, keep=) -> the gradients; `keep` retains the graph

    def call(self, attention: Any, inputs: Any, mode: str) -> Call:
        """Return the call that is timed: fwd without gradients, bwd on one retained graph, or both as in training."""
        if mode == "bwd":
            out = self.forward(attention, inputs)
            return lambda: self.backward(inputs, out, keep=True)
        if mode == "fwd_bwd":
            return lambda: self.backward(inputs, self.forward(attention, inputs))

        def inference() -> torch.Tensor:
            with torch.no_grad():
                return self.forward(attention, inputs)

        return inference

    def trial(self, attention: Any, inputs: Any, mode: str) -> Trial:
        """Return the forward without gradients, or the backward of an out that is prepared and checked as well."""
        if mode == "fwd":
            return Trial(self.call(attention, inputs, "fwd"))
        outs: list[torch.Tensor] = []

        def prepare() -> None:
            outs[:] = [self.forward(attention, inputs)]

        return Trial(lambda: self.backward(inputs, outs[0]), prepare, lambda: {"out": outs[0].detach()})

    def kept_for_backward(self, attention: Any, inputs: Any, mode: str) -> Call | None:
        """Return a forward whose out keeps the tensors for its backward; None for a mode without both."""
        return (lambda: self.forward(attention, inputs)) if mode == "fwd_bwd" else None


def measured(functions: Mapping[str, Any], **said: Any) -> MeasuredLevel:
    """Return the level of a module, whose functions have the names of the members; `said` has the other members."""
    names = MeasuredLevel.__dataclass_fields__
    return MeasuredLevel(**{name: functions[name] for name in names if name in functions}, **said)


def level_of(level: Case | str) -> MeasuredLevel:
    """Return the level of a case or of that name. Raises ModuleNotFoundError if it cannot be measured."""
    name = level.level if isinstance(level, Case) else level
    return importlib.import_module(f"runner.levels.{name}").LEVEL


def with_own_implementations() -> dict[str, MeasuredLevel]:
    """Return the levels whose implementations are their own, by name."""
    found = {name: level_of(name) for name in LEVELS}
    return {name: level for name, level in found.items() if level.around is None}


def make_inputs(case: Case, device: str, seed: int) -> CaseInputs:
    """Return the tensors of a case, filled with the data of the seed."""
    inputs = level_of(case).empty_inputs(case, device)
    inputs.fill(seed)
    return inputs


def generator_of(case: Case, device: torch.device, seed: int) -> torch.Generator:
    """Return the generator of a case's data under a seed."""
    said = str(case).replace(", features=None", "")  # data of cases without features stay as they were
    digest = hashlib.sha256(f"{seed}/{said}".encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:6], "big"))


def fill_normal(tensors: Iterable[torch.Tensor], generator: torch.Generator) -> None:
    """Write standard normal numbers into the tensors, in their order."""
    with torch.no_grad():
        for tensor in tensors:
            tensor.normal_(generator=generator)
