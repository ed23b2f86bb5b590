"""Planted bugs that the correctness check must catch: a fused attention in PyTorch and its wrong variants.

The sound version computes in float32 and rounds the same tensors as a fused kernel. A bug changes one of its stages or
wraps the whole call as a cheat would. `caught` measures all of them like a sweep and returns those that were timed.
"""

import ctypes
import math
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch

from kernels import registry
from kernels.attention.torch_naive import hidden_keys
from results.paths import toml_of
from results.records import Case, Measurement, Status, attention_case
from runner.cells import Cell
from runner.machine.telemetry import Telemetry
from runner.measure import check
from runner.measure.case import Bench
from runner.measure.passes import run_case
from runner.measure.stopwatch import HOOKS, PERSISTING_L2, EagerStopwatch, KernelStopwatch, Stopwatch
from runner.protocol import Protocol

SOUND = "sound"
EVERY = ("fwd", "bwd", "fwd_bwd")
BACKWARD = ("bwd", "fwd_bwd")
DTYPES = ("bfloat16", "float16", "float32")
_BRIEF = Protocol("planted", rounds=1, cap_ms=0.0)
# A seqlen that is no multiple of a tile, and two query heads per key head.
PLAIN = attention_case(batch=2, num_heads=4, num_kv_heads=2, seqlen=200, head_dim=32, dtype="bfloat16", causal=True)
WINDOW = replace(PLAIN, window_size=50)
LARGE = replace(PLAIN, inputs="large")  # shows rounding of scores, which on normal data is smaller than that of p

Change = Callable[[Any], Any]
Call = Callable[[], torch.Tensor]
Inputs = tuple[torch.Tensor, ...]
Wrapper = Callable[[registry.Attention], registry.Attention]


@dataclass(frozen=True)
class PlantedBug:
    """A bug: its name, the change, and the modes and dtypes in which it can be detected."""

    name: str
    changes: Mapping[str, Change] = field(default_factory=dict)  # changed stages of `_Fused`
    around: Wrapper | None = None  # wrapper of the whole call
    modes: tuple[str, ...] = EVERY  # modes that must not be timed
    dtypes: tuple[str, ...] = DTYPES  # dtypes in which it can be detected
    case: Case = PLAIN


class _Fused(torch.autograd.Function):
    """Attention in float32 with the factors and results of a fused kernel rounded; every stage can be changed.

    Stages: heads, scale, hidden, scores, p, product, out; dout, dscores, delta, factors, ds, dq, groups, dk, dv.
    """

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict, changes: dict) -> Any:
        def stage(name: str, x: Any) -> Any:
            return changes.get(name, lambda same: same)(x)

        group = q.shape[1] // k.shape[1]
        keys, values = (stage("heads", x.float().repeat_interleave(group, 1)) for x in (k, v))
        scale = stage("scale", options.get("softmax_scale") or q.shape[3] ** -0.5)
        hidden = hidden_keys(q.shape[2], k.shape[2], options["causal"], options["window_size"], q.device)
        hidden = stage("hidden", hidden)
        bias = torch.zeros(hidden.shape, device=q.device).masked_fill_(hidden, -math.inf)  # of one head
        scores = stage("scores", (q.float() @ keys.mT).mul_(scale)) + bias
        p = stage("p", scores.softmax(-1))
        out = stage("out", stage("product", torch.matmul)(p.to(q.dtype).float(), values)).to(q.dtype)
        ctx.save_for_backward(q, k, v, p, out)
        ctx.scale, ctx.group, ctx.stage, ctx.values, ctx.keys = scale, group, stage, values, keys
        return out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        q, k, v, p, out = ctx.saved_tensors
        stage, gradient = ctx.stage, ctx.stage("dout", dout.float())
        dscores = stage("dscores", gradient @ ctx.values.mT)
        delta = stage("delta", (gradient * out.float()).sum(-1, keepdim=True))
        factors = stage("factors", p)
        ds = stage("ds", factors * (dscores - delta)).to(q.dtype).float()
        dq = stage("dq", ds @ ctx.keys * ctx.scale)
        dk, dv = ds.mT @ q.float() * ctx.scale, factors.to(q.dtype).float().mT @ gradient
        dk, dv = (stage("groups", x.unflatten(1, (-1, ctx.group))) for x in (dk, dv))
        dk, dv = stage("dk", dk.sum(2)), stage("dv", dv.sum(2))
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def fused(changes: Mapping[str, Change]) -> registry.Attention:
    """Return the sound attention with some of its stages changed."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        asked = {"causal": False, "window_size": 0, "softmax_scale": None, **options}
        return _Fused.apply(q, k, v, asked, dict(changes))

    return attention


def _index(text: str) -> tuple[Any, ...]:
    """Return the index that a text such as "..., 192:, :" means."""

    def number(part: str) -> int | None:
        return int(part) if part.strip() else None

    parts = [part.strip() for part in text.split(",")]
    return tuple(... if p == "..." else slice(*map(number, p.split(":"))) if ":" in p else int(p) for p in parts)


def _shifted(hidden: torch.Tensor, offset: int) -> torch.Tensor:
    """Return a mask shifted along the keys, so that a query sees more keys."""
    hidden = hidden.roll(offset, 1)
    hidden[..., :offset] = False
    return hidden


def _too_few(hidden: torch.Tensor, _: int) -> torch.Tensor:
    own = torch.eye(*hidden.shape, dtype=torch.bool, device=hidden.device)
    own[0] = False  # otherwise it would see no key
    return hidden | own


def _summed_in_half(p: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return p @ values, rounded to 8 bits of mantissa after every key."""
    total = torch.zeros((), device=p.device)
    for some, rows in zip(p.split(1, -1), values.split(1, -2), strict=True):
        total = (total + some @ rows).bfloat16().float()
    return total


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "times": lambda x, factor: x * factor,
    "plus": lambda x, number: x + number,
    "set": lambda x, number: torch.full_like(x, number),
    "where_below": lambda x, least: x.where(x >= least, 0.0),
    "clip": lambda x, most: x.clamp(max=most),
    "round": lambda x, dtype: x.to(getattr(torch, dtype)).to(x.dtype),
    "flip": lambda x, dim: x.flip(dim),
    "roll": lambda x, by: x.roll(*by),
    "heads": lambda x, order: x[:, order],
    "over_sum_of": lambda x, keys: x / x[..., :keys].sum(-1, keepdim=True),
    "shifted": _shifted,
    # A mask with a window of one key more, or without one.
    "wider": lambda hidden, keys: hidden & (hidden.roll(-1, 1) | hidden.triu(1) if keys else hidden.triu(1)),
    "too_few": _too_few,
    "summed_in_half": lambda product, _: _summed_in_half,
}


def change_of(said: Mapping[str, Any]) -> Change:
    """Return a change of a part of a tensor: `at` is the index of the part, and every other entry is done to it."""
    at, steps = _index(said.get("at", "...")), [(CHANGES[name], said[name]) for name in said if name != "at"]

    def change(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return steps[0][0](x, steps[0][1])
        x = x.clone()
        part = x[at]
        for step, argument in steps:
            part = step(part, argument)
        x[at] = part
        return x

    return change


def around(cheat: Callable[..., torch.Tensor]) -> Wrapper:
    """Return a wrapper of an attention by a function of its call, its inputs and what it remembers."""

    def wrapped(sound: registry.Attention) -> registry.Attention:
        known: dict[Any, Any] = {}
        return lambda *inputs, **options: cheat(lambda: sound(*inputs, **options), inputs, known)

    return wrapped


def cached(key: Callable[[torch.Tensor], Any]) -> Wrapper:
    """Return a wrapper that returns the result of the first call with inputs of the same key."""

    def cheat(call: Call, inputs: Inputs, known: dict[Any, Any]) -> torch.Tensor:
        here = (*map(key, inputs), torch.is_grad_enabled())
        if here not in known:
            known[here] = call()
        return known[here]

    return around(cheat)


def _every_call(of: int, change: Change) -> Wrapper:
    """Return a wrapper that is wrong in one call of so many."""

    def cheat(call: Call, inputs: Inputs, known: dict[Any, Any]) -> torch.Tensor:
        known["calls"] = known.get("calls", 0) + 1
        return call() if known["calls"] % of else change(call())

    return around(cheat)


def _after(change: Callable[[], Any]) -> Wrapper:
    """Return a wrapper that changes something in the process at every call."""
    return around(lambda call, inputs, known: (change(), call())[1])


def _set_l2_aside(size: int = 8 << 20) -> None:
    ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(PERSISTING_L2, ctypes.c_size_t(size))


def _slow_down_the_clock() -> None:
    real = time.perf_counter
    if real.__module__ == "time":
        time.perf_counter = lambda: real() / 2  # type: ignore[assignment]


def _replace(owner: Any, name: str, by: Callable[..., Any]) -> Wrapper:
    """Return a wrapper that puts another function in place of one that takes or orders times."""
    return _after(lambda: setattr(owner, name, by))


_AROUND: dict[str, Wrapper] = {
    "cached_by_address": cached(lambda x: x.data_ptr()),
    "cached_by_version": cached(lambda x: (x.data_ptr(), x._version)),
    "slows_the_clock_down": _after(_slow_down_the_clock),
    "replaces_the_stopwatch": _replace(EagerStopwatch, "sample", lambda _, call, count: [1e-3, call()][:1] * count),
    "keeps_l2_warm": _replace(torch.Tensor, "zero_", lambda x: x),
    "launches_without_a_spin": _replace(torch.cuda, "_sleep", lambda cycles: None),
    "replaces_the_time_of_events": _replace(torch.cuda.Event, "elapsed_time", lambda *_: 1e-3),
    "sets_a_part_of_l2_aside": _after(_set_l2_aside),
    "works_on_another_stream": around(lambda call, *_: _on_a_stream(call, waits=False)),
    "works_next_to_the_stream": around(lambda call, *_: _on_a_stream(call, waits=True)),
    "slows_rivals_down": _after(lambda: torch.use_deterministic_algorithms(True, warn_only=True)),
    "takes_a_backend_from_rivals": _after(lambda: torch.backends.cuda.enable_flash_sdp(False)),
}


def _cheat(function: Callable[..., torch.Tensor]) -> None:
    """Make a function a wrapper that planted.toml can name."""
    _AROUND[function.__name__] = around(function)


@_cheat
def stale(call: Call, inputs: Inputs, known: dict[Any, Any]) -> torch.Tensor:
    """Return the result of the previous call."""
    key, out = _kind(inputs), call()
    before, known[key] = known.get(key, out), out
    return before


class _Unread(torch.Tensor):
    """A tensor that computes its numbers at the first operation on it."""

    later: Call

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        now = [arg.later() if isinstance(arg, cls) else arg for arg in args]
        return function(*now, **(kwargs or {}))


@_cheat
def computed_when_read(call: Call, inputs: Inputs, known: dict[Any, Any]) -> torch.Tensor:
    """Return a result that is computed at the first operation on it."""
    out = torch.empty_like(inputs[0]).as_subclass(_Unread)
    out.later = call
    return out


@_cheat
def computed_in_the_check(call: Call, inputs: Inputs, known: dict[Any, Any]) -> torch.Tensor:
    """Return the latest result of the check where a stopwatch takes the time."""
    callers = {frame.f_code.co_name for frame, _ in traceback.walk_stack(None)}
    if "sample" not in callers or _kind(inputs) not in known:
        known[_kind(inputs)] = call()
    return known[_kind(inputs)]


@_cheat
def computed_after_a_pause(call: Call, inputs: Inputs, known: dict[Any, Any]) -> torch.Tensor:
    """Return the result of the previous call of the shape if it ended less than 20 ms ago."""
    out, ended = known.get(_kind(inputs), (None, 0.0))
    if time.monotonic() - ended > 0.02:
        out = call()
    known[_kind(inputs)] = out, time.monotonic()
    return out


@_cheat
def without_gradients_only(call: Call, inputs: Inputs, known: dict[Any, Any]) -> torch.Tensor:
    """Return a result that is correct for inference and wrong for training."""
    out = call()
    return out * 1.01 if out.requires_grad else out


@_cheat
def changes_its_input(call: Call, inputs: Inputs, known: dict[Any, Any]) -> torch.Tensor:
    """Return the right result and scale q in place."""
    out = call()
    inputs[0].data.mul_(1.05)
    return out


def _on_a_stream(call: Call, *, waits: bool) -> torch.Tensor:
    """Return the result of work on another stream, which may wait for the caller's but is not waited for."""
    stream = torch.cuda.Stream()
    if waits:
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        return call()


def _kind(inputs: Inputs) -> tuple[Any, ...]:
    return inputs[0].shape, torch.is_grad_enabled()


_CASES = {"plain": PLAIN, "window": WINDOW, "large": LARGE}
_OF_BACKWARD = {"dout", "dscores", "delta", "factors", "ds", "dq", "groups", "dk", "dv"}


def declared_bug(said: Mapping[str, Any]) -> PlantedBug:
    """Return a bug as planted.toml declares it."""
    named = ("name", "around", "every", "wrong", "modes", "dtypes", "case")
    changes = {stage: change_of(change) for stage, change in said.items() if stage not in named}
    wrapper = _AROUND[said["around"]] if "around" in said else None
    if "every" in said:
        wrapper = _every_call(said["every"], change_of(said["wrong"]))
    modes = said.get("modes", BACKWARD if set(changes) <= _OF_BACKWARD and changes else EVERY)
    case = _CASES[said.get("case", "plain")]
    return PlantedBug(said["name"], changes, wrapper, modes, said.get("dtypes", DTYPES), case)


_DECLARED = toml_of(__file__)
PLANTED, ON_CPU, ON_GPU = (tuple(map(declared_bug, _DECLARED[name])) for name in ("bugs", "on_cpu", "on_gpu"))


@dataclass(frozen=True)
class BugFinding:
    """The result for a bug in a dtype."""

    name: str
    dtype: str
    missed: tuple[str, ...]  # modes that were timed although they are wrong


def caught(device: str, dtypes: tuple[str, ...]) -> list[BugFinding]:
    """Measure every bug and the sound version in every dtype in which it can be detected.

    A sound version that is not timed counts as missed.
    """
    findings = []
    for dtype in dtypes:
        for case in dict.fromkeys(bug.case for bug in PLANTED):
            there = [bug for bug in PLANTED if bug.case == case and dtype in bug.dtypes]
            there.append(PlantedBug(f"{SOUND}, {'window' if case.window_size else case.inputs or 'plain'}"))
            findings += _measured(replace(case, dtype=dtype), there, device)
    for bug in ON_CPU if device == "cpu" else (*ON_CPU, *ON_GPU):
        with ExitStack() as process:
            for owner, name in HOOKS:
                process.enter_context(mock.patch.object(owner, name, getattr(owner, name)))  # put back at the end
            process.callback(_set_l2_aside if device != "cpu" else int, 0)
            process.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
            process.callback(torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.flash_sdp_enabled())
            findings += _measured(bug.case, [bug], device)
    return findings


def _measured(case: Case, bugs: list[PlantedBug], device: str) -> list[BugFinding]:
    """Return the findings of bugs and of sound versions, measured as the implementations of a sweep."""
    rows: list[Measurement] = []
    clocks: dict[str, Stopwatch] = {"eager": EagerStopwatch()}
    if device != "cpu":
        clocks = {"kernel": KernelStopwatch(device), "eager": EagerStopwatch(torch.cuda.synchronize)}
    timing = next(iter(clocks))
    bench = Bench("planted", device, _BRIEF, (timing,), 0, rows.append, lambda *_: None, Telemetry(None), clocks)
    plain = replace(registry.get("torch_naive"), memory={"growth": "linear"})
    made = {bug.name: bug.around(fused({})) if bug.around else fused(bug.changes) for bug in bugs}
    named = {name: replace(plain, name=name, attention=attention) for name, attention in made.items()}
    # On a busy machine the limit would decide how many calls are looked at.
    with mock.patch.dict(registry.implementations(), named), mock.patch.object(check, "LONGEST_LOOK_S", math.inf):
        run_case(bench, case, [Cell(case, name, mode) for name in named for mode in EVERY])
    status = {(row.implementation, row.mode): row.status for row in rows if row.metric == "latency_ms"}
    findings = []
    for bug in bugs:
        wanted = Status.OK if bug.name.startswith(SOUND) else Status.INCORRECT
        missed = tuple(mode for mode in bug.modes if status[bug.name, mode] is not wanted)
        findings.append(BugFinding(bug.name, str(case.dtype), missed))
    return findings


def main(device: str) -> bool:
    """Print a line for each missed bug and dtype and the number of caught bugs; return whether all were caught."""
    findings = caught(device, DTYPES)
    missed = [finding for finding in findings if finding.missed]
    for finding in missed:
        print(f"missed  {finding.name}, {finding.dtype}: {', '.join(finding.missed)}")
    bugs = [finding for finding in findings if not finding.name.startswith(SOUND)]
    found, kinds = sum(not bug.missed for bug in bugs), len({bug.name for bug in bugs})
    print(f"{found} of {len(bugs)} planted bugs caught: {kinds} kinds in {', '.join(DTYPES)}.")
    sound = len(findings) - len(bugs)
    print(f"{sound - (len(missed) - (len(bugs) - found))} of {sound} sound versions pass.")
    return not missed
