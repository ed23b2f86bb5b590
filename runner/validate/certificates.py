"""Properties that no speed shows, for every implementation: `python -m runner.validate.certificates [--device cpu]`.

Each column asks one question of the output and of the gradients; a cell has the largest deviation, relative to the
largest number, or 0 where the bits are the same.

- no leak: with a causal mask, earlier results do not change when later tokens do, nor when rows of a cache beyond its
  length hold NaN.
- alone: a sequence gives the same alone and in a batch. In decoding the other sequence has another length.
- padding: tokens appended below a causal mask, more room in a cache and other pages do not change the result.
- repeat: the same call gives the same bits twice.
- NaN: a NaN and an inf in one sequence stay there.

`batch_invariant` is `kernels.attention` and `kernels.decode` within `kernels.batch_invariant()`; on a GPU its price is
measured, too.

On a CPU, Triton kernels run in the interpreter ($TRITON_INTERPRET=1) and are slow; rivals that need a GPU give their
reason. What must hold exactly is marked where it does not: a leak, and a NaN that is seen elsewhere.
"""

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional

import kernels
from kernels import registry
from kernels.decode.step import DecodeStep
from results.records import Case, attention_case, decode_case
from results.render.certificates import COMMAND, FAILS, QUESTIONS, prices, table
from runner.levels import decode, make_inputs, op
from runner.machine import devices, environment
from runner.measure import errors
from runner.measure.stopwatch import KernelStopwatch
from runner.validate.features import add_entry, facts

Tensors = tuple[torch.Tensor, ...]
Certificate = dict[str, dict[str, float]]
INVARIANT = "batch_invariant"
PACKAGES = ("flash-attn-4", "flash-attn", "flashinfer-python", "xformers", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
CONTEXT = 16  # times the seqlen of attention; long enough that kernels split it
_LATENTS = {"latent_dim": 512, "head_dim": 576, "num_heads": 16, "num_kv_heads": 1, "page_size": 64}
# What comes after a name in the table -> fields of the cases, by level.
KINDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "op": {"": {}, ", packed": {"features": "varlen=uniform"}},
    "decode": {", decode": {}, ", decode over pages": {"page_size": 64}, ", decode of latents": _LATENTS},
}
# Calls with a price: batch, heads, key heads, queries, keys. Decoding of batch 1 pays most, because it cannot be split.
_PRICED = ((4, 16, 16, 4096, 4096), (1, 32, 8, 1024, 1024), (1, 32, 8, 1, 8192), (8, 32, 8, 1, 8192))
_SAMPLES = 20


def certificate(attention: Any, q: Tensors, *, causal: bool = True, backward: bool) -> Certificate:
    """Return the largest deviations by question, of out and of gradients, with q, k, v and dout of a batch of two.

    Without a causal mask later tokens change all results, so two questions are left out.
    """
    half = q[0].shape[2] // 2

    def run(inputs: Sequence[torch.Tensor]) -> Tensors:
        leaves = [x.detach().clone().requires_grad_(backward) for x in inputs[:3]]
        out = attention(*leaves, causal=causal)
        if not backward:
            return (out.detach(),)
        return (out.detach(), *torch.autograd.grad(out, leaves, inputs[3][:, :, : out.shape[2]]))

    def first(found: Tensors, upto: int | None = None) -> Tensors:
        return tuple(x[:1, :, :upto] for x in found)

    whole = run(q)
    spoiled = [x.clone() for x in q]
    for x, value in zip(spoiled[:3], (math.nan, math.inf, math.nan), strict=True):
        x[1, :, half] = value
    answers = {
        "alone": (first(whole), run([x[:1].contiguous() for x in q])),
        "repeat": (whole, run(q)),
        "NaN": (first(whole), first(run(spoiled))),
    }
    if causal:
        later = [x.clone() for x in q]
        for x in later[:3]:
            x[:, :, half:] *= -64
        # with dout of 0 in the second half, the gradients of the first half do not depend on the second
        dout = torch.cat([q[3][:, :, :half], torch.zeros_like(q[3][:, :, half:])], 2)
        cut = run((*q[:3], dout))
        answers["no leak"] = (first(cut, half), first(run((*later[:3], dout)), half))
        answers["padding"] = (run([x[:, :, :half].contiguous() for x in q]), tuple(x[:, :, :half] for x in cut))
    return _apart(answers)


def step_certificate(attention: registry.DecodeAttention, poisoned: DecodeStep) -> Certificate:
    """Return the largest deviations of out by question, of a step of two sequences whose unused rows hold NaN.

    Only the first question leaves NaN there: an implementation may multiply such rows by 0, which hides finite numbers.
    """

    def run(step: DecodeStep) -> torch.Tensor:
        with torch.no_grad():
            return attention(step)().clone()

    step = _copied(poisoned, lambda cache: cache.nan_to_num(nan=1.0))
    later, spoiled = _copied(poisoned, torch.clone), _copied(step, torch.clone)
    spoiled.q[1] = math.nan
    for place, value in (("k_cache", math.inf), ("v_cache", math.nan)):
        _row(spoiled, place, 1, step.lengths[1] // 2).fill_(value)
        for at, length in enumerate(step.lengths):
            _row(later, place, at, length - 1).mul_(-64)
    if step.page_table is None:
        moved = _copied(step, lambda cache: functional.pad(cache, (0, 0, 0, decode.ROOM)))
        own = {"k_cache": step.k_cache[:1], "v_cache": step.v_cache[:1]}
    else:
        pages = step.k_cache.shape[0]
        table = torch.where(step.page_table < pages, (step.page_table + 1) % pages, step.page_table)
        moved = replace(_copied(step, lambda cache: cache.roll(1, 0)), page_table=table)
        own = {"page_table": step.page_table[:1, : step.pages_of_sequences[0]]}
    alone: Any = {"q": step.q[:1], "lengths": step.lengths[:1], "cache_seqlens": step.cache_seqlens[:1], **own}
    whole = run(step)
    answers = {
        "no leak": (whole, torch.cat([run(later)[:, :, :-1], run(poisoned)[:, :, -1:]], 2)),
        "alone": (whole[:1], run(replace(step, **alone))),
        "padding": (whole, run(moved)),
        "repeat": (whole, run(step)),
        "NaN": (whole[:1], run(spoiled)[:1]),
    }
    return _apart({question: ((one,), (other,)) for question, (one, other) in answers.items()})


def _apart(answers: Mapping[str, tuple[Tensors, Tensors]]) -> Certificate:
    asked = [question for question in QUESTIONS if question in answers]
    apart = {question: [_deviation(*pair) for pair in zip(*answers[question], strict=True)] for question in asked}
    gradients = {question: max(found[1:]) for question, found in apart.items() if found[1:]}
    return {"out": {question: found[0] for question, found in apart.items()}, "gradients": gradients}


def _copied(step: DecodeStep, change: Callable[[torch.Tensor], torch.Tensor]) -> DecodeStep:
    """Return a step with changed copies of its caches; values of latents are a part of the records."""
    k = change(step.k_cache)
    v = k[..., : step.latent_dim] if step.latent_dim else change(step.v_cache)
    return replace(step, q=step.q.clone(), k_cache=k, v_cache=v)


def _row(step: DecodeStep, cache: str, at: int, token: int) -> torch.Tensor:
    """Return a view of a sequence's row in a cache: (num_kv_heads, head_dim)."""
    rows: torch.Tensor = getattr(step, cache)
    if step.page_table is None:
        return rows[at, :, token]
    return rows[int(step.page_table[at, token // step.page_size]), token % step.page_size]


def _deviation(one: torch.Tensor, other: torch.Tensor) -> float:
    if torch.equal(one, other):
        return 0.0
    apart = ((one.double() - other.double()).abs().max() / one.double().abs().max()).item()
    return apart if apart == apart else float("inf")


def implementations(level: str) -> dict[str, registry.Implementation]:
    """Return the implementations of a level, and the dispatching function within `batch_invariant`."""
    said: Any = {"attention": _INVARIANT[level], "level": level, "paged": True, "ragged": True}
    return {**registry.implementations(level), INVARIANT: registry.Implementation(INVARIANT, "", **said)}


def certificates(
    device: str, names: Sequence[str], seqlen: int, head_dim: int
) -> Iterator[tuple[str, Certificate | str]]:
    """Yield the certificate of each implementation and kind of call, or why it has none of any kind."""
    where = registry.describe_device(device)
    for level, kinds in KINDS.items():
        chosen = {name: known for name, known in implementations(level).items() if name in (names or [name])}
        for name, known in chosen.items():
            cases = {name + words: _case(known, device, seqlen, head_dim, fields) for words, fields in kinds.items()}
            reasons = {kind: known.reason_against(case, where) for kind, case in cases.items()}
            yield from ((kind, _certified(known, cases[kind], device)) for kind in cases if not reasons[kind])
            if all(reasons.values()):
                yield name, str(reasons[next(iter(reasons))])


def _case(known: registry.Implementation, device: str, seqlen: int, head_dim: int, fields: Mapping[str, Any]) -> Any:
    """Return a Case of two sequences that the implementation may take, in 16 bits on a GPU."""
    dtype = "float32" if device == "cpu" else "bfloat16"
    sizes = {"batch": 2, "head_dim": head_dim, "dtype": dtype if dtype in known.dtypes else known.dtypes[0]}
    if known.level == "op":
        return attention_case(**sizes, num_heads=2, seqlen=seqlen, causal=known.causal, **fields)
    lengths = "ragged" if known.ragged else "uniform"
    more = {"num_heads": 8, "num_kv_heads": 2, "context": CONTEXT * seqlen, "query_tokens": 2, "lengths": lengths}
    return decode_case(**{**sizes, **more, **fields})


def _certified(known: registry.Implementation, case: Case, device: str) -> Certificate | str:
    inputs: Any = make_inputs(replace(case, features=None), device, seed=1)
    try:
        if case.level == "decode":
            return step_certificate(known.attention, inputs.step)
        attention = packed(known.attention, case) if case.features else known.attention
        q = tuple(x.detach() for x in (inputs.q, inputs.k, inputs.v, inputs.dout))
        return certificate(attention, q, causal=bool(case.causal), backward=known.backward)
    except Exception as error:  # a package of others may refuse a call in any way
        return f"{type(error).__name__}: {errors.telling_line(error)}"


def packed(attention: Any, case: Case) -> Callable[..., torch.Tensor]:
    """Return an attention over sequences of a case that lie in a row, as one over a batch of them."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
        batch, seqlen = q.shape[0], q.shape[2]
        options = op.options_of(replace(case, batch=batch, seqlen_q=seqlen, seqlen_k=seqlen), str(q.device))
        rows = (x.transpose(0, 1).flatten(1, 2)[None] for x in (q, k, v))
        return attention(*rows, **options)[0].unflatten(1, (batch, seqlen)).transpose(0, 1)

    return attend


def invariant(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """Return attention whose bits do not depend on the batch."""
    with kernels.batch_invariant():
        return kernels.attention(q, k, v, causal=causal)


def invariant_decode(step: DecodeStep) -> Callable[[], torch.Tensor]:
    """Return a step whose bits do not depend on the batch."""

    def attend() -> torch.Tensor:
        cache: dict[str, Any] = {"cache_seqlens": step.cache_seqlens, "page_table": step.page_table}
        with kernels.batch_invariant():
            return kernels.decode(step.q, step.k_cache, step.v_cache, **cache)

    return attend


_INVARIANT = {"op": invariant, "decode": invariant_decode}


def price(device: str) -> list[dict[str, Any]]:
    """Return the device times of calls, as chosen and within `batch_invariant`, in ms."""
    stopwatch, rows = KernelStopwatch(device), []
    for batch, heads, kv_heads, queries, keys in _PRICED:
        shapes = ((batch, heads, queries, 128), *[(batch, kv_heads, keys, 128)] * 2)
        q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for shape in shapes)
        attend = partial(kernels.attention, causal=True) if queries > 1 else kernels.decode
        words = f"batch {batch}, heads {heads}/{kv_heads}, {queries} queries on {keys} keys, head_dim 128, bfloat16"
        row: dict[str, Any] = {"call": words}
        for name, block in (("chosen_ms", nullcontext()), ("invariant_ms", kernels.batch_invariant())):
            with block:
                attend(q, k, v)
                row[name] = median(stopwatch.sample(partial(attend, q, k, v), _SAMPLES))
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the certificates; return 1 if something leaks."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--implementations", default="", help="names separated by commas; default: all")
    parser.add_argument("--seqlen", type=int, default=96)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write results/published/certificates.json")
    options = parser.parse_args(arguments)
    names = [name for name in options.implementations.split(",") if name]
    if unknown := set(names).difference(*map(implementations, KINDS)):
        parser.error(f"no implementation {', '.join(sorted(unknown))}")
    device = devices.resolve(options.device)
    packages = {name: version for name in PACKAGES if (version := environment.version(name))}
    sizes = {"seqlen": options.seqlen, "context": CONTEXT * options.seqlen, "head_dim": options.head_dim}
    where = f"{device.name}, Triton's interpreter" if os.environ.get("TRITON_INTERPRET") == "1" else device.name
    record = partial(add_entry, options.record, where, facts(device) | sizes | {"packages": packages})
    found = {}
    for kind, said in certificates(options.device, names, options.seqlen, options.head_dim):
        found[kind] = said
        record(found)
    print(printed := table(found))
    if INVARIANT in found and device.type == "cuda":
        costs = price(options.device)
        record(found, price=costs)
        print(prices(costs))
    return int(FAILS in printed)


if __name__ == "__main__":
    sys.exit(main())
