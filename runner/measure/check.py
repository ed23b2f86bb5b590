"""Nothing is timed before it is right: out, dq, dk and dv against the float64 reference.

An error may be at most twice that of torch_naive in the same dtype plus a rounding floor: what counts is not how large
an error is but whether a plain implementation makes it too. TF32 implementations are held to torch_naive under TF32;
those that round 16-bit inputs to FP8, to the float64 result of rounded inputs. Such a `precision` is "tf32" or "fp8",
or None: that of the dtype.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from kernels import reference, registry
from results.records import Case
from runner.measure import tf32
from runner.measure.errors import is_out_of_memory
from runner.measure.inputs import Inputs, Subject, fill

NAMES = ("out", "dq", "dk", "dv")
ALLOWED = 2.0  # times torch_naive's error
_ALLOWED_IN_FP8 = 1.0, "what rounding the inputs to FP8 costs plus a floor"
_FP8_ROWS, _FP8_LARGEST = 128, 448.0  # that share a scale; the largest number of e4m3

# Half a unit in the last place of the 16-bit types: rounding the exact result alone costs about a third of it.
# TF32 gets two whole units: tensor cores cut the factors' low bits off rather than round them (PTX ISA, mma .tf32), in
# two products after each other, while torch_naive's library rounds. float32 gets a wider one, because exp2 on a GPU is
# approximate (PTX ISA, ex2.approx.f32: 2^-22) and sums are long.
# FP8 has half a unit of e4m3's 4 bits, for the weights.
FLOORS = {
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "tf32": 2.0**-9,
    "float32": 2.0**-20,
    "float64": 2.0**-40,
    "fp8": 2.0**-4,
}
# Where torch_naive itself does not fit: a multiple of the floor that covers twice its error wherever it does fit.
ALONE = 4.0
_CYCLES_PER_MS = 2_000_000  # of a GPU's clock, about
_LONGEST_HOLD_MS = 20.0
_FILLING_MS = 1.2  # of the host: new data, poison, and the forward that a backward needs


@dataclass(frozen=True)
class Error:
    """How far a tensor is from the reference; NaN if it holds one."""

    relative: float  # root mean square of the difference over that of the reference
    largest: float  # absolute difference


@dataclass(frozen=True)
class Verdict:
    """What the check of a pass found."""

    errors: dict[str, Error]
    reason: str | None  # why it is incorrect
    first_ms: float | None = None  # of the first call, compiling included
    warm_ms: float | None = None  # of the call after it


@dataclass(frozen=True)
class Oracle:
    """The float64 results of a case and the errors they allow; made once, shared by all implementations and modes."""

    inputs: Inputs
    case: Case
    seed: int
    exact: dict[str, torch.Tensor]
    reach: dict[str, float]  # what largest errors are relative to
    naive: dict[str | None, dict[str, Error] | None]  # a plain implementation's, by precision; None if it does not fit

    def budget(self, name: str, precision: str | None = None) -> tuple[Error, str]:
        """The largest errors that pass, and where they come from."""
        naive = self.naive[precision]
        floor = FLOORS[precision or str(self.case.dtype)]
        reach = self.reach[name]
        if naive is None:
            return Error(ALONE * floor, ALONE * floor * reach), "the floor of the dtype, torch_naive does not fit"
        times, words = _ALLOWED_IN_FP8 if precision == "fp8" else (ALLOWED, "twice torch_naive plus a floor")
        relative = times * naive[name].relative + floor
        return Error(relative, times * naive[name].largest + 2 * floor * reach), words


def make_oracle(
    inputs: Inputs, case: Case, seed: int, precisions: Collection[str | None] = (None,), *, backward: bool = True
) -> Oracle:
    """The reference of a case, from the inputs as they are, with the errors allowed in each of the precisions; without
    `backward` for forwards alone."""
    q, k, v = (tensor.detach() for tensor in (inputs.q, inputs.k, inputs.v))
    mask = {"causal": bool(case.causal), "window_size": case.window_size or 0}
    found = reference.gradients(q, k, v, inputs.dout, **mask) if backward else reference.attention(q, k, v, **mask)
    exact = {name: getattr(found, name) for name in (NAMES if backward else NAMES[:1])}
    reach = {name: _size(float(tensor.abs().amax()), tensor) for name, tensor in exact.items()}
    naive = {each: _naive_errors(inputs, case, exact, in_tf32=each == "tf32") for each in precisions if each != "fp8"}
    if "fp8" in precisions:
        rounded = reference.attention(*map(rounded_to_fp8, (q, k, v)), **mask).out
        naive["fp8"] = {"out": error_of(rounded, exact["out"])}
    return Oracle(inputs, case, seed, exact, reach, naive)


def rounded_to_fp8(x: torch.Tensor) -> torch.Tensor:
    """(batch, heads, rows, columns) as e4m3 holds it when 128 rows share the least power of two as their scale."""
    blocks = [block.double() for block in x.split(_FP8_ROWS, dim=2)]
    scales = [(block.abs().amax((2, 3), keepdim=True) / _FP8_LARGEST).log2().ceil().exp2() for block in blocks]
    scales = [torch.where(scale > 0, scale, 1.0) for scale in scales]
    rounded = [(b / s).float().to(torch.float8_e4m3fn).double() * s for b, s in zip(blocks, scales, strict=True)]
    return torch.cat(rounded, dim=2)


def check_forward(subject: Subject, oracle: Oracle, precision: str | None = None, *, warm: bool = True) -> Verdict:
    """Out against the oracle. With `warm` two calls on other data in the same tensors come first, so that neither
    compiling nor an output remembered from an earlier call passes for a result.

    On a GPU the data arrives and the result is taken in the order of the current stream, while that is held up: what
    runs on another stream without waiting sees the other data, and what is not waited for is not there.
    """
    with torch.no_grad():
        return _check(oracle, subject.forward, ("out",), precision, warm=warm)


def check_backward(subject: Subject, oracle: Oracle, precision: str | None = None, *, warm: bool = True) -> Verdict:
    """dq, dk and dv, and the out that autograd made on the way, against the oracle."""
    outs: list[torch.Tensor] = []

    def prepare() -> None:
        outs[:] = [subject.forward()]

    verdict = _check(oracle, lambda: subject.backward(outs[0]), NAMES[1:], precision, warm=warm, prepare=prepare)
    errors = {"out": error_of(outs[0].detach(), oracle.exact["out"])}
    reason = verdict.reason or _reason(errors, oracle, precision)
    return Verdict(verdict.errors, reason, verdict.first_ms, verdict.warm_ms)


def error_of(tensor: torch.Tensor, exact: torch.Tensor) -> Error:
    """The error of a tensor against the float64 one; infinite if the shape is another."""
    if tensor.shape != exact.shape:
        return Error(math.inf, math.inf)
    difference = tensor.double() - exact
    moments = torch.stack((difference.square().mean().sqrt(), exact.square().mean().sqrt(), difference.abs().amax()))
    error, size, largest = moments.tolist()
    return Error(error / _size(size, exact), largest)


def _size(size: float, exact: torch.Tensor) -> float:
    """What errors are relative to; where the result is zero (dq of a single key), the terms that cancel in it."""
    return size if size > 1e-6 else math.sqrt(exact.shape[-1])


def _check(
    oracle: Oracle,
    call: Callable[[], object],
    names: tuple[str, ...],
    precision: str | None,
    *,
    warm: bool,
    prepare: Callable[[], None] = lambda: None,
) -> Verdict:
    inputs, first_ms, warm_ms = oracle.inputs, None, None
    if warm:
        fill(inputs, oracle.case, oracle.seed + 1)
        prepare()
        first_ms = _timed_ms(call, inputs)
        prepare()
        warm_ms = _timed_ms(call, inputs)
        _hold(inputs, warm_ms)
        fill(inputs, oracle.case, oracle.seed)
    poison(inputs)
    prepare()
    result = call()
    tensors = [tensor.detach().clone() for tensor in (result if isinstance(result, tuple) else (result,))]
    _synchronize(inputs)
    errors = {name: error_of(tensor, oracle.exact[name]) for name, tensor in zip(names, tensors, strict=True)}
    return Verdict(errors, _reason(errors, oracle, precision), first_ms, warm_ms)


def _reason(errors: dict[str, Error], oracle: Oracle, precision: str | None) -> str | None:
    for name, error in errors.items():
        allowed, source = oracle.budget(name, precision)
        if not (error.relative <= allowed.relative and error.largest <= allowed.largest):  # NaN fails too
            return (
                f"{name} is wrong: relative error {error.relative:.3g} (allowed {allowed.relative:.3g}), "
                f"largest {error.largest:.3g} (allowed {allowed.largest:.3g}; {source})."
            )
    return None


def poison(inputs: Inputs) -> None:
    """Leave NaN in the memory that the next outputs will probably get, so that an element never written shows."""
    shapes = [tensor.shape for tensor in (inputs.q, inputs.k, inputs.v, inputs.dout)]
    blocks = [torch.full(shape, math.nan, dtype=inputs.q.dtype, device=inputs.q.device) for shape in shapes * 2]
    del blocks


def _hold(inputs: Inputs, call_ms: float) -> None:
    """Let the current stream wait, longer than the host needs to queue new data and a call of that length."""
    if inputs.q.is_cuda:
        torch.cuda._sleep(int(_CYCLES_PER_MS * min(call_ms + _FILLING_MS, _LONGEST_HOLD_MS)))


def _timed_ms(call: Callable[[], object], inputs: Inputs) -> float:
    _synchronize(inputs)
    start = time.perf_counter()
    call()
    _synchronize(inputs)
    return (time.perf_counter() - start) * 1e3


def _synchronize(inputs: Inputs) -> None:
    if inputs.q.is_cuda:
        torch.cuda.synchronize()


def _naive_errors(
    inputs: Inputs, case: Case, exact: dict[str, torch.Tensor], *, in_tf32: bool
) -> dict[str, Error] | None:
    subject = Subject(registry.get("torch_naive").attention, inputs, case)
    try:
        with tf32.products(allowed=in_tf32):
            out = subject.forward()
            tensors = (out.detach(), *(subject.backward(out) if len(exact) > 1 else ()))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    return {name: error_of(tensor, exact[name]) for name, tensor in zip(exact, tensors, strict=True)}
