"""Correctness checks before timing: every tensor of every pass against the float64 oracle of the case's level.

The budget of an error is twice the error of torch_naive in the same dtype plus a rounding floor. TF32 implementations
are compared with torch_naive under TF32, and implementations that round 16-bit inputs to FP8 with the float64 result of
rounded inputs. `precision` is "tf32", "fp8", or None for the precision of the dtype.

torch_naive rounds its scores to 16 bits, which a fused kernel does not. The budget of a fused kernel is therefore at
most twice the error of an exact computation that rounds only its factors and its results (kernels.reference,
`stored_as`). Each row is also compared with the error of the rows around it, because a wrong row among thousands hardly
changes the mean or the largest error.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from runner.levels import CaseInputs, Growth, Pass, Place, Trial, level_of
from runner.measure import tf32
from runner.measure.errors import is_out_of_memory

ALLOWED = 2.0  # allowed error over torch_naive's error
_ALLOWED_IN_FP8 = 1.0, "the error of rounding the inputs to FP8 plus a floor"

# 16-bit dtypes have half a unit in the last place; rounding the exact result costs about a third of it. TF32 has two
# units, because tensor cores truncate the factors instead of rounding them (PTX ISA, mma .tf32), in two successive
# products. float32 has more, because exp2 on a GPU is approximate (PTX ISA, ex2.approx.f32: 2^-22) and sums are long.
# FP8 has half a unit of e4m3's 4 bits, for the attention weights.
FLOORS = {
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "tf32": 2.0**-9,
    "float32": 2.0**-20,
    "float64": 2.0**-40,
    "fp8": 2.0**-4,
}
# Allowed error of a row: a multiple of the yardstick's error in it or in the rows around it, and at least a share of
# the row itself, because a few roundings scatter widely, most of all if two scores are nearly equal.
_ALLOWED_IN_ROW, _SHARE_OF_ROW = 8.0, 1 / 64
_ROWS_AROUND = 33
_ROW_FLOOR = 2.0**-5  # factor on a 16-bit dtype's floor, relative to the whole tensor, because sums are never exactly 0
# If torch_naive does not fit in memory: a multiple of the floor that covers twice its error in all cases that fit.
ALONE = 4.0
_HALF = ("bfloat16", "float16")
# Allowed errors of the softmax scale and of a head's size as out shows them: a share, and a multiple of what rounding
# errors make of it.
_SCALE_OFF, _HEAD_OFF, _NOISE = 2.0**-11, 2.0**-7, 6.0
_LEAST_ROWS = 64
_ALLOWED_ON_HARD = 4.0  # times the budget; on an H200 sound kernels exceed it by up to a third in float32
# Calls after timing: 20 notice a fault in every twentieth. Five seconds bound what this adds to a cell, less than three
# rounds of ten such calls take. Calls of more than 250 ms are looked at less often, but at least twice, because some
# cheats are wrong in every second call.
_CALLS_LOOKED_AT, _LEAST_CALLS, LONGEST_LOOK_S = 20, 2, 5.0
_CYCLES_PER_MS = 2_000_000  # approximate GPU clock
_LONGEST_HOLD_MS = 20.0
_FILLING_MS = 1.2  # host time for new data, poison, and the forward that a backward needs


@dataclass(frozen=True)
class TensorError:
    """The difference of a tensor from the reference; NaN if the tensor has NaN."""

    relative: float  # root mean square of the difference over root mean square of the reference
    largest: float  # largest absolute difference
    rows: torch.Tensor | None = field(default=None, compare=False, repr=False)  # root mean square difference by row


@dataclass(frozen=True)
class CheckedPass:
    """The result of the check of a pass."""

    errors: dict[str, TensorError]
    reason: str | None  # why the pass is incorrect; None if it is correct
    first_ms: float | None = None  # time of the first call, compiling included
    warm_ms: float | None = None  # time of the second call


@dataclass(frozen=True)
class Oracle:
    """The float64 results of a case and the allowed errors, shared by all implementations and modes."""

    inputs: CaseInputs
    seed: int
    exact: Mapping[str, torch.Tensor]
    reach: Mapping[str, float]  # scale of the largest errors, by tensor
    naive: Mapping[str | None, Mapping[str, TensorError] | None]  # torch_naive's errors by precision; None: no memory
    fused: Mapping[str, TensorError] = field(default_factory=dict)  # errors of the most accurate fused kernel, if known
    hard: "tuple[Oracle, Place] | None" = None  # of a part of the inputs filled with data on which a wrong score shows
    slope: tuple[torch.Tensor, Place] | None = None  # the change of a part of out with the softmax scale

    @property
    def by_row(self) -> bool:
        """Return whether rows are checked, which is possible for attention on normal data.

        With other data, errors of correct rows scatter by more than a wrong row adds.
        """
        return level_of(self.inputs.case).checks_rows and self.inputs.case.inputs in (None, "normal")

    def budget(self, name: str, precision: str | None = None, *, fused: bool = False) -> tuple[TensorError, str]:
        """Return the allowed errors of an implementation, and in words where they come from."""
        plain, words = self._plain_budget(name, precision)
        best = self.fused.get(name) if fused and precision is None else None
        if best is None:
            return plain, words
        largest = ALLOWED * best.largest + FLOORS[str(self.inputs.case.dtype)] * self.reach[name]
        tight = TensorError(ALLOWED * best.relative, largest, self._rows(name, best))
        if tight.relative > plain.relative:
            return plain, words
        return tight, "twice the error of an exact fused kernel"

    def _rows(self, name: str, yardstick: TensorError) -> torch.Tensor | None:
        if yardstick.rows is None or not self.by_row:
            return None
        exact, dtype = self.exact[name], str(self.inputs.case.dtype)
        floor = FLOORS[dtype] * _size(float(exact.square().mean().sqrt()), exact)
        floor *= _ROW_FLOOR if dtype in _HALF else 1.0
        noise = _ALLOWED_IN_ROW * torch.maximum(yardstick.rows, _around(yardstick.rows)) + floor
        return torch.maximum(noise, _SHARE_OF_ROW * _rows_of(exact))

    def _plain_budget(self, name: str, precision: str | None) -> tuple[TensorError, str]:
        naive = self.naive[precision]
        floor = FLOORS[precision or str(self.inputs.case.dtype)]
        reach = self.reach[name]
        if naive is None:
            return TensorError(
                ALONE * floor, ALONE * floor * reach
            ), "the floor of the dtype, because torch_naive does not fit"
        times, words = _ALLOWED_IN_FP8 if precision == "fp8" else (ALLOWED, "twice torch_naive plus a floor")
        relative = times * naive[name].relative + floor
        rows = self._rows(name, naive[name]) if precision is None else None
        return TensorError(relative, times * naive[name].largest + 2 * floor * reach, rows), words


def make_oracle(
    inputs: CaseInputs,
    seed: int,
    precisions: Collection[str | None] = (None,),
    *,
    modes: Collection[str] | None = None,
    fused: bool = True,
    hard: bool = True,
) -> Oracle:
    """Return the float64 results of the current inputs, with the errors allowed in each of the precisions.

    `modes` are the modes to be measured, by default all modes of the level; other passes are left out. `fused` tells
    whether fused implementations will be checked, and `hard` whether a part is also checked on harder data.
    """
    level = level_of(inputs.case)
    passes = [p for p in level.passes(inputs.case) if modes is None or set(p.modes) & set(modes)]
    exact = level.oracle(inputs, tuple(p.mode for p in passes))
    reach = {name: _size(float(tensor.abs().amax()), tensor) for name, tensor in exact.items()}
    naive = {each: _naive_errors(inputs, passes, exact, in_tf32=each == "tf32") for each in precisions if each != "fp8"}
    if "fp8" in precisions:
        forward = passes[0]
        rounded = level.oracle(inputs, (forward.mode,), fp8=True)
        naive["fp8"] = {name: error_of(rounded[name], exact[name]) for name in forward.tensors}
    oracle = Oracle(inputs, seed, exact, reach, naive, _fused_errors(inputs, passes, exact) if fused else {})
    if not hard or None not in precisions:
        return oracle
    oracle = replace(oracle, slope=level.slope(inputs))
    if hardened := level.harden(inputs, seed + 1):
        part = make_oracle(hardened[0], seed + 1, modes=(passes[0].mode,), fused=fused, hard=False)
        oracle = replace(oracle, hard=(part, hardened[1]))
        inputs.fill(seed)
    return oracle


def check(
    attention: Callable[..., torch.Tensor],
    checked: Pass,
    oracle: Oracle,
    precision: str | None = None,
    *,
    warm: bool = True,
    compiles: bool = True,
    fused: bool = False,
) -> CheckedPass:
    """Compare the results of an implementation's pass, and of its preparation, with the oracle.

    `warm` first runs the pass on other data in the same tensors, so that cached outputs are wrong; with `compiles` it
    runs twice, which gives the compile time. If the oracle has harder data, that is the other data, and out is checked
    there, too. On a GPU the final data is written and the result is copied in the order of the current stream while the
    stream is held. Work on another stream that does not wait reads the other data, and results that are not waited for
    are not there yet.
    """
    inputs, first_ms, warm_ms, found = oracle.inputs, None, None, None
    make = partial(level_of(inputs.case).trial, attention, inputs, checked.mode)
    trial = make()
    if warm:
        first_ms, warm_ms, out = _run_on_other_data(trial, make, oracle, compiles=compiles)
        if oracle.hard and precision is None and checked.tensors == ("out",) and not _not_plain((out,), inputs):
            found = _reason_on_hard(out, *oracle.hard, fused=fused)
        del out
        if inputs.device.type == "cuda":  # hold the stream for longer than the host needs to queue new data and a call
            torch.cuda._sleep(int(_CYCLES_PER_MS * min(warm_ms + _FILLING_MS, _LONGEST_HOLD_MS)))
        inputs.fill(oracle.seed)
    poison(inputs)
    trial.prepare()
    result = trial.run()
    results = result if isinstance(result, tuple) else (result,)
    if reason := _not_plain(results, inputs):
        return CheckedPass({}, reason, first_ms if compiles else None, warm_ms)
    tensors = [tensor.detach().clone() for tensor in results]
    _synchronize(inputs)
    returned = dict(zip(checked.tensors, tensors, strict=True))
    errors = {name: error_of(tensor, oracle.exact[name]) for name, tensor in returned.items()}
    prepared = {name: error_of(tensor, oracle.exact[name]) for name, tensor in trial.prepared().items()}
    reason = _reason(errors, oracle, precision, fused=fused) or _reason(prepared, oracle, precision, fused=fused)
    # An implementation that rounds its scores may be off in a head in which few keys count.
    exact_scores = fused or inputs.case.dtype not in _HALF
    if precision is None and oracle.by_row and exact_scores and "out" in returned:
        reason = reason or _off_by_a_factor(returned["out"], oracle.exact["out"])
        reason = reason or (oracle.slope and _off_scale(returned["out"], oracle.exact["out"], *oracle.slope))
    reason = reason or found
    also = [(name, other) for name, other in checked.also_recorded if other in oracle.exact]
    errors |= {other: error_of(returned[name], oracle.exact[other]) for name, other in also}
    return CheckedPass(errors, reason, first_ms if compiles else None, warm_ms)


def _run_on_other_data(
    trial: Trial, make: Callable[[], Trial], oracle: Oracle, *, compiles: bool
) -> tuple[float, float, Any]:
    """Run on other data in the same tensors, twice if it compiles; return the times of the first and last run, and out.

    The data is the harder one where the oracle knows its results. The first run is then of another trial, because a
    preparation may have read the data before.
    """
    if oracle.hard:
        level_of(oracle.inputs.case).harden(oracle.inputs, oracle.seed + 1)
        runs = [make(), trial]
    else:
        oracle.inputs.fill(oracle.seed + 1)
        runs = [trial] * (1 + compiles)
    found = []
    for each in runs:
        each.prepare()
        found.append(_timed(each.run, oracle.inputs))
    return found[0][0], found[-1][0], found[0][1]


def _reason_on_hard(out: torch.Tensor, part: Oracle, place: Place, *, fused: bool) -> str | None:
    """Return why out is wrong on harder data, where errors of sound kernels scatter more; None if it is not."""
    error, (allowed, _) = error_of(out[place], part.exact["out"]), part.budget("out", fused=fused)
    relative, largest = _ALLOWED_ON_HARD * allowed.relative, _ALLOWED_ON_HARD * allowed.largest
    if error.relative <= relative and error.largest <= largest:  # NaN fails
        return None
    return (
        f"With large scores out is wrong: relative error {error.relative:.3g} (allowed {relative:.3g}), largest "
        f"{error.largest:.3g} (allowed {largest:.3g})."
    )


def _off_scale(out: torch.Tensor, exact: torch.Tensor, slope: torch.Tensor, place: Place) -> str | None:
    """Return why out is that of another softmax scale; None if it is not, or if there are too few rows to tell."""
    share, noise = _along(out[place].double(), exact[place], slope, (0, 1, 2))
    if slope[..., 0].numel() < _LEAST_ROWS or not bool(share.abs() > _SCALE_OFF + _NOISE * noise):
        return None
    return f"out is that of a softmax scale that is {float(share):+.2%} off (allowed {_SCALE_OFF:.2%})."


def _off_by_a_factor(out: torch.Tensor, exact: torch.Tensor) -> str | None:
    """Return why a head of out is too large or too small; None if none is, as far as rounding errors can tell."""
    share, noise = _along(out.double(), exact, exact, (0, 2))
    if not bool((wrong := share.abs() > _HEAD_OFF + _NOISE * noise).any()):
        return None
    head = int(wrong.nonzero()[0])
    return f"out of head {head} is off by a factor of {1 + float(share[head]):.4f} (allowed {_HEAD_OFF:.1%})."


def _along(
    out: torch.Tensor, exact: torch.Tensor, direction: torch.Tensor, dims: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how much of out's error follows a direction, summed over some dims of rows, and its standard error.

    Rounding errors of two rows do not depend on each other, so that they cancel in the sum. Those within a row do: one
    rounded probability moves the whole row. They grow with the row, which therefore counts the less.
    """
    sizes = exact.square().sum(3)
    weights = 1 / (sizes + 1e-3 * sizes.mean())
    followed, full = ((x * direction).sum(3) * weights for x in (out - exact, direction))
    share = followed.sum(dims, keepdim=True) / full.sum(dims, keepdim=True)
    noise = (followed - share * full).square().sum(dims).sqrt() / full.sum(dims)
    return share.flatten(), noise.flatten()


def check_timed(
    make: Callable[[], Callable[[], torch.Tensor | tuple[torch.Tensor, ...]]],
    names: Collection[str],
    doubled: Callable[[int], AbstractContextManager[Growth]],
    oracle: Oracle,
    precision: str | None = None,
    *,
    fused: bool = False,
) -> str | None:
    """Return why the result of a timed call is wrong in one of several calls; None if it is correct.

    `make` returns the call. `doubled` gives for each call a context in which an input is changed, and the factor
    between each result there and the oracle's result. Twenty calls are looked at, so that a fault in every twentieth
    call shows; two of a call that takes long. A result with the bits of a correct one is correct, because factors are
    powers of two, which change no digit.
    """
    call: Callable[[], Any] | None = None  # made where an input is doubled, because a plan may read its inputs
    correct: list[torch.Tensor] = []
    started = time.perf_counter()
    for number in range(_CALLS_LOOKED_AT):
        if number >= _LEAST_CALLS and time.perf_counter() - started > LONGEST_LOOK_S:
            break
        with doubled(number) as growth:
            call = call or make()
            poison(oracle.inputs)
            result = call()
        tensors = result if isinstance(result, tuple) else (result,)
        if reason := _not_plain(tensors, oracle.inputs):
            return f"After timing: {reason}"
        factors = [growth[name] for name in names]
        now = [tensor.detach() for tensor in tensors]
        expected = [(x * by).to(x.dtype) for x, by in zip(correct, factors, strict=False)]
        if correct and all(map(torch.equal, now, expected)):
            continue
        if reason := reason_against_result(result, names, growth, oracle, precision, fused=fused):
            return f"After timing: {reason}"
        if not correct and number + 1 < _CALLS_LOOKED_AT:
            correct.extend((x / by).to(x.dtype) for x, by in zip(now, factors, strict=True))
    return None


def reason_against_result(
    result: torch.Tensor | tuple[torch.Tensor, ...],
    names: Collection[str],
    growth: Growth,
    oracle: Oracle,
    precision: str | None = None,
    *,
    fused: bool = False,
) -> str | None:
    """Return why the result of a call is wrong, with the factors between it and the oracle's; None if it is correct."""
    tensors = result if isinstance(result, tuple) else (result,)
    if reason := _not_plain(tensors, oracle.inputs):
        return reason
    named = zip(names, tensors, strict=True)
    errors = {name: error_of(tensor.detach(), oracle.exact[name], growth[name]) for name, tensor in named}
    return _reason(errors, oracle, precision, fused=fused)


def _not_plain(tensors: Collection[torch.Tensor], inputs: CaseInputs) -> str | None:
    """Return why a result may not be there yet; None if all are plain tensors with memory on the inputs' device.

    An object that acts like a tensor can compute its numbers when they are read, which is after the timing. Attention
    also owes its caller the dtype of the inputs.
    """
    dtype = getattr(torch, str(inputs.case.dtype))
    if level_of(inputs.case).checks_rows and (tensor := next(iter(tensors))).dtype != dtype:
        return f"The result is {tensor.dtype}, not {dtype}."
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return f"The result is a {type(tensor).__name__}, not a plain tensor: it can compute when it is read."
        if tensor.device.type != inputs.device.type or tensor.layout is not torch.strided or tensor.is_neg():
            return f"The result is not a dense tensor on {inputs.device}: it can be computed when it is read."
    return None


def error_of(tensor: torch.Tensor, exact: torch.Tensor, growth: float | torch.Tensor = 1.0) -> TensorError:
    """Return the error of a tensor, divided by its growth, against the float64 one; infinite if the shapes differ."""
    if tensor.shape != exact.shape:
        return TensorError(math.inf, math.inf)
    difference = tensor.double() / growth - exact
    rows = _rows_of(difference)
    moments = torch.stack((rows.square().mean().sqrt(), exact.square().mean().sqrt(), difference.abs().amax()))
    error, size, largest = moments.tolist()
    return TensorError(error / _size(size, exact), largest, rows)


def _rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the root mean square of each row."""
    return tensor.reshape(-1, tensor.shape[-1] if tensor.dim() else 1).square().mean(1).sqrt()


def _around(rows: torch.Tensor) -> torch.Tensor:
    """Return the root mean square of the errors in a window around each row."""
    width = min(_ROWS_AROUND, 2 * ((len(rows) - 1) // 2) + 1)
    pool = torch.nn.functional.avg_pool1d
    return pool(rows.square()[None], width, stride=1, padding=width // 2, count_include_pad=False)[0].sqrt()


def _size(size: float, exact: torch.Tensor) -> float:
    """Return the scale of errors. If the result is zero (dq with a single key), it is that of the canceling terms."""
    return size if size > 1e-6 else math.sqrt(exact.shape[-1])


def _reason(
    errors: Mapping[str, TensorError], oracle: Oracle, precision: str | None, *, fused: bool = False
) -> str | None:
    for name, error in errors.items():
        allowed, source = oracle.budget(name, precision, fused=fused)
        if not (error.relative <= allowed.relative and error.largest <= allowed.largest):  # NaN fails too
            return (
                f"{name} is wrong: relative error {error.relative:.3g} (allowed {allowed.relative:.3g}), "
                f"largest {error.largest:.3g} (allowed {allowed.largest:.3g}; {source})."
            )
        if error.rows is not None and allowed.rows is not None and bool((beyond := error.rows > allowed.rows).any()):
            row = int(beyond.nonzero()[0])
            where = torch.unravel_index(torch.tensor(row), oracle.exact[name].shape[:-1])
            return (
                f"{name} is wrong in {int(beyond.sum())} of {len(beyond)} rows, first in "
                f"{tuple(int(each) for each in where)}: error {float(error.rows[row]):.3g} "
                f"(allowed {float(allowed.rows[row]):.3g}, {_ALLOWED_IN_ROW:.0f} times that of the rows around it)."
            )
    return None


def _fused_errors(
    inputs: CaseInputs, passes: Collection[Pass], exact: Mapping[str, torch.Tensor]
) -> dict[str, TensorError]:
    """Return the errors of the most accurate fused kernel of a 16-bit dtype; empty if the level has no such oracle."""
    if inputs.case.dtype not in _HALF:
        return {}
    found = level_of(inputs.case).fused_oracle(inputs, tuple(p.mode for p in passes))
    return {name: error_of(tensor, exact[name]) for name, tensor in found.items()}


def poison(inputs: CaseInputs) -> None:
    """Fill the memory that the next outputs will probably get with NaN, which exposes elements that are not written."""
    dtype = getattr(torch, str(inputs.case.dtype))
    blocks = [torch.full(shape, math.nan, dtype=dtype, device=inputs.device) for shape in inputs.result_shapes()]
    del blocks


def _timed(call: Callable[[], Any], inputs: CaseInputs) -> tuple[float, Any]:
    _synchronize(inputs)
    start = time.perf_counter()
    result = call()
    _synchronize(inputs)
    return (time.perf_counter() - start) * 1e3, result


def _synchronize(inputs: CaseInputs) -> None:
    if inputs.device.type == "cuda":
        torch.cuda.synchronize()


def _naive_errors(
    inputs: CaseInputs, passes: Sequence[Pass], exact: Mapping[str, torch.Tensor], *, in_tf32: bool
) -> dict[str, TensorError] | None:
    """Return torch_naive's errors in the passes, starting with gradients; None if it does not fit in memory."""
    level = level_of(inputs.case)
    attention = level.implementations()["torch_naive"].attention
    found: dict[str, torch.Tensor] = {}
    try:
        with tf32.products(allowed=in_tf32):
            for each in reversed(passes):
                if set(each.tensors) <= set(found):
                    continue
                trial = level.trial(attention, inputs, each.mode)
                trial.prepare()
                result = trial.run()
                found |= zip(each.tensors, result if isinstance(result, tuple) else (result,), strict=True)
                found |= trial.prepared()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    return {name: error_of(tensor.detach(), exact[name]) for name, tensor in found.items()}
