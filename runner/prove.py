"""`python -m runner prove`: time the calls of a recorded program by `kernels.attention` with and without rules.

Both sides take turns in the same rounds. A total is the sum over the calls, each as often as the program makes it; its
interval adds up the ends of the calls' intervals, as if all had the same error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from kernels import choice, explain, routes
from results import levels
from results.compare.verdicts import judge
from results.programs import Call, Program
from results.records import Case, Measurement, Status
from results.spread import spread
from runner.measure import errors
from runner.measure.stopwatch import EagerStopwatch, KernelStopwatch, Stopwatch, sample_round
from runner.protocol import Protocol

ROUNDS = 5
CAPTURED = "not timed: calls of compiled programs and CUDA graphs; `kernels.explain(…, compiled=True)` says what runs"
PACKED = "not timed: calls of packed sequences; `kernels.explain` says what runs"


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
    watches: dict[str, Stopwatch] = {"eager": EagerStopwatch(torch.cuda.synchronize if on_gpu else _nothing)}
    if on_gpu:
        watches["kernel"] = KernelStopwatch(device)
    proofs = []
    for call in program.tuned:
        if call.timing == "kernel" or call.case.features:
            note = CAPTURED if call.timing == "kernel" else PACKED
            proofs.append(Proof(_words(call), call.count, baseline, baseline, note=note))
            continue
        try:
            proofs.append(_proof(call, device, watches.get(call.timing, watches["eager"]), protocol, baseline))
        except Exception as error:  # noqa: BLE001 - every exception of a kernel is a result
            status, note = errors.describe(error)
            proofs.append(Proof(_words(call), call.count, baseline, "the rule's", note=f"{status}: {note}"))
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


def as_record(program: Program, proofs: list[Proof]) -> dict[str, Any]:
    """Return the proofs as plain data."""
    return {"program": program.name, "calls": [asdict(proof) for proof in proofs], "total": total(proofs)}


def sample_in_turns(
    sides: Mapping[str, Callable[[], Any]], watch: Stopwatch, protocol: Protocol
) -> dict[str, tuple[list[float], list[int]]]:
    """Return the samples in ms and the sizes of the rounds of each side."""
    taken: dict[str, tuple[list[float], list[int]]] = {name: ([], []) for name in sides}
    for number in range(ROUNDS):
        for name in list(sides)[:: 1 - 2 * (number % 2)]:
            samples, sizes = taken[name]
            new = sample_round(watch, sides[name], samples, protocol)
            samples += new
            sizes.append(len(new))
    return taken


def measurement(case: Case, mode: str, timing: str, name: str, samples: list[float], sizes: list[int]) -> Measurement:
    """Return the latency of a side, for a verdict."""
    fields: dict[str, Any] = {"mode": mode, "timing": timing, "round_sizes": tuple(sizes), **spread(samples)}
    return Measurement("prove", case, name, "latency_ms", Status.OK, **fields)


def _proof(call: Call, device: str, watch: Stopwatch, protocol: Protocol, baseline: str) -> Proof:
    tensors = _tensors(call, device)
    before, after = (_side(call, tensors, name) for name in (baseline, None))
    sides = dict((before, after))  # one where both use the same implementation
    for attend in sides.values():
        attend()  # compiles
    taken = sample_in_turns(sides, watch, protocol)
    first, second = (measurement(call.case, call.mode, call.timing, name, *taken[name]) for name, _ in (before, after))
    fields = _words(call), call.count, before[0], after[0], first.value, second.value
    if len(sides) == 1:
        return Proof(*fields, 1.0, 1.0, 1.0)
    found = judge(first, second, protocol=protocol.name, paired=True)
    return Proof(*fields, found.speedup, found.low, found.high)


def one_call(call: Call, device: str) -> None:
    """Make a call of a program once, as `kernels.attention` decides it."""
    _side(call, _tensors(call, device), None)[1]()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def _side(call: Call, tensors: list[torch.Tensor], implementation: str | None) -> tuple[str, Callable[[], Any]]:
    """Return what computes a call, by name, and the call itself; without an implementation the rules decide."""
    q, k, v, dout = tensors
    causal, window = call.problem["mask"].startswith("causal"), call.problem.get("window_size", 0)
    with _decided_by(implementation):
        said = explain(q, k, v, causal=causal, window_size=window)
        attend = routes.bound(q, k, v, causal, window, None)
    name = said.split(" for ")[0]
    if call.mode == "fwd":
        return name, partial(attend, q, k, v)
    return name, lambda: torch.autograd.grad(attend(q, k, v), (q, k, v), dout)


@contextmanager
def _decided_by(implementation: str | None) -> Iterator[None]:
    """Let an implementation, or the rules, decide the calls that are planned within."""
    outside = os.environ.pop(choice.IMPLEMENTATION, None)
    routes.forget()
    try:
        if implementation:
            os.environ[choice.IMPLEMENTATION] = implementation
        yield
    finally:
        os.environ.pop(choice.IMPLEMENTATION, None)
        if outside is not None:
            os.environ[choice.IMPLEMENTATION] = outside


def _tensors(call: Call, device: str) -> list[torch.Tensor]:
    """Return q, k, v and the gradient of out, with heads inside tokens where the program has them so."""
    case, dtype = call.case, getattr(torch, call.case.dtype)
    generator = torch.Generator(device).manual_seed(0)
    queries, keys = (case.batch, case.num_heads, case.seqlen_q), (case.batch, case.num_kv_heads, case.seqlen_k)
    shapes = ((*queries, case.head_dim), (*keys, case.head_dim), (*keys, case.head_dim_v), (*queries, case.head_dim_v))
    made = [torch.randn(shape, generator=generator, device=device, dtype=dtype) for shape in shapes]
    if call.problem.get("layout", "contiguous") != "contiguous":
        made = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in made]
    return [x.requires_grad_(call.mode != "fwd") for x in made[:3]] + made[3:]


def _words(call: Call) -> str:
    return f"{levels.words(call.case)} {call.mode}"


def _nothing() -> None:
    """Do nothing, in place of synchronizing a device."""
