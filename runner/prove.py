"""`python -m runner prove`: time the calls of a recorded program by `kernels.attention` with and without rules.

Both sides take turns in the same rounds. A total is the sum over the calls, each as often as the program makes it; its
interval adds up the ends of the calls' intervals, as if all had the same error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch

import kernels
from kernels import choice, dispatch, explaining, routes
from results import levels
from results.compare.verdicts import judge
from results.programs import Call, Program
from results.records import Measurement, Status
from results.spread import spread
from runner.levels import op
from runner.measure import errors
from runner.measure.stopwatch import EagerStopwatch, KernelStopwatch, Stopwatch, sample_round
from runner.protocol import Protocol

ROUNDS = 5


@dataclass(frozen=True)
class Proof:
    """One problem of a program: both implementations, their times in ms, and the ratio with its 90 % interval."""

    words: str
    count: int
    before: str
    after: str
    before_ms: float | None = None
    after_ms: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""


def prove(program: Program, device: str, protocol: Protocol, baseline: str = choice.DEFAULT) -> list[Proof]:
    """Return the proof of each problem that a sweep measures; `baseline` is an implementation, or the tables."""
    on_gpu = torch.device(device).type == "cuda"
    watches: dict[str, Stopwatch] = {"eager": EagerStopwatch(torch.cuda.synchronize) if on_gpu else EagerStopwatch()}
    if on_gpu:
        watches["kernel"] = KernelStopwatch(device)
    proofs = []
    for call in program.tuned:
        try:
            proofs.append(_proof(call, device, watches.get(call.timing, watches["eager"]), protocol, baseline))
        except Exception as error:  # noqa: BLE001 - every exception of a kernel is a result
            status, note = errors.describe(error)
            words = f"{levels.words(call.case)} {call.mode}"
            proofs.append(Proof(words, call.count, baseline, "the rule's", note=f"{status}: {note}"))
    routes.forget()
    return proofs


def total(proofs: list[Proof]) -> tuple[float, float, float, float, float] | None:
    """Return both times of all calls in ms, their ratio and its interval; None if nothing was timed."""
    timed = [proof for proof in proofs if proof.ratio]
    if not timed:
        return None
    before = sum(proof.count * proof.before_ms for proof in timed)
    after, longest, shortest = (
        sum(proof.count * proof.before_ms / (getattr(proof, end) or proof.ratio) for proof in timed)
        for end in ("ratio", "low", "high")
    )
    return before, after, before / after, before / longest, before / shortest


def as_text(program: Program, proofs: list[Proof]) -> str:
    """Return the proofs as lines."""
    lines = [program.name]
    for proof in proofs:
        span = f" ({proof.low:.3f} to {proof.high:.3f})" if proof.low and proof.high else ""
        times = f"{proof.before_ms:.4g} ms" if proof.before_ms else ""
        if proof.note:
            said = proof.note
        elif proof.before == proof.after:
            said = f"{proof.before} {times}: the same with and without rules"
        else:
            said = f"{proof.before} {times}, {proof.after} {proof.after_ms:.4g} ms: {proof.ratio:.3f}×{span}"
        lines.append(f"  {proof.count} x {proof.words}\n    {said}")
    if found := total(proofs):
        before, after, ratio, low, high = found
        span = f"{ratio:.3f}× ({low:.3f} to {high:.3f})"
        lines.append(f"All calls: {before:.4g} ms before, {after:.4g} ms by the rule: {span}")
    return "\n".join([*lines, *program.left_out])


def as_json(program: Program, proofs: list[Proof]) -> str:
    """Return the proofs as JSON."""
    record = {"program": program.name, "calls": [asdict(proof) for proof in proofs], "total": total(proofs)}
    return json.dumps(record, indent=1)


def _proof(call: Call, device: str, watch: Stopwatch, protocol: Protocol, baseline: str) -> Proof:
    run, name = _made(call, device)
    with _decided_by(baseline):
        before = name()
    with _decided_by(None):
        after = name()
    sides = {before: baseline, after: None}  # one where both use the same implementation
    taken: dict[str, tuple[list[float], list[int]]] = {side: ([], []) for side in sides}
    for number in range(ROUNDS):
        for side in list(sides)[:: 1 - 2 * (number % 2)]:
            samples, sizes = taken[side]
            with _decided_by(sides[side]):
                run()  # plans, and compiles the first time
                new = sample_round(watch, run, samples, protocol)
            samples += new
            sizes.append(len(new))
    first, second = (_measurement(call, *taken[side]) for side in (before, after))
    fields = f"{levels.words(call.case)} {call.mode}", call.count, before, after, first.value, second.value
    if len(sides) == 1:
        return Proof(*fields, 1.0, 1.0, 1.0)
    found = judge(first, second, protocol=protocol.name, paired=True)
    return Proof(*fields, found.speedup, found.low, found.high)


def _measurement(call: Call, samples: list[float], sizes: list[int]) -> Measurement:
    fields: dict[str, Any] = {"mode": call.mode, "timing": call.timing, "round_sizes": tuple(sizes), **spread(samples)}
    return Measurement("prove", call.case, "a side", "latency_ms", Status.OK, **fields)


def one_call(call: Call, device: str) -> None:
    """Make a call of a program once, as `kernels.attention` decides it."""
    _made(call, device)[0]()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def _made(call: Call, device: str) -> tuple[Callable[[], Any], Callable[[], str]]:
    """Return a call of a program, by its own way in, and what returns the implementation that it takes now.

    Calls of compiled programs are those of the operator that torch.compile keeps.
    """
    inputs = op.empty_inputs(call.case, device)
    inputs.fill(0)
    tensors = [x.detach() for x in (inputs.q, inputs.k, inputs.v, inputs.dout)]
    masks = {name: inputs.options[name] for name in ("causal", "window_size")}
    bounds, captured, asked = inputs.options.get("bounds"), call.timing == "kernel", dict(masks)
    attend: Callable[..., torch.Tensor] = partial(kernels.attention, **masks)
    if bounds:
        tensors = [x[0].transpose(0, 1).contiguous() for x in tensors]
        starts = torch.cat((bounds.starts_q, bounds.ends_q[-1:]))
        asked |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
        asked |= {"max_seqlen_q": bounds.longest_q, "max_seqlen_k": bounds.longest_k}
        attend = partial(kernels.attention_varlen, **asked)
    elif captured:
        options: Any = (*masks.values(), None)
        attend = lambda q, k, v: dispatch.traced(q, k, v, *options)  # noqa: E731
    if call.problem.get("layout", "contiguous") != "contiguous":  # heads inside tokens
        tensors = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
    inner, dout = [x.requires_grad_(call.mode != "fwd") for x in tensors[:3]], tensors[3]

    def said() -> str:
        return explaining.answer(*inner, **asked, compiled=captured).what

    if call.mode == "fwd":
        return partial(attend, *inner), said
    return lambda: torch.autograd.grad(attend(*inner), inner, dout), said


@contextmanager
def _decided_by(implementation: str | None) -> Iterator[None]:
    """Let an implementation, or without one the rules, decide the calls within."""
    routes.forget()
    with mock.patch.dict(os.environ):
        os.environ.pop(choice.IMPLEMENTATION, None)
        if implementation:
            os.environ[choice.IMPLEMENTATION] = implementation
        yield
