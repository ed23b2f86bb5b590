"""Properties that no speed shows, for every implementation: `python -m runner.validate.certificates [--device cpu]`.

Each column asks one question of the output and of the gradients; a cell has the largest deviation, relative to the
largest number, or 0 where the bits are the same.

- no leak: with a causal mask, the first half of a sequence does not change when the second half does.
- alone: a sequence gives the same alone and in a batch.
- padding: tokens appended below a causal mask do not change the sequence before them.
- repeat: the same call gives the same bits twice.
- NaN: a NaN and an inf in one sequence stay there.

`batch_invariant` is `kernels.attention` within `kernels.batch_invariant()`; on a GPU its price is measured, too.

On a CPU, Triton kernels run in the interpreter ($TRITON_INTERPRET=1) and are slow; rivals that need a GPU give their
reason. What must hold exactly is marked where it does not: a leak, and a NaN that is seen elsewhere.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import kernels
from kernels import registry
from results.records import attention_case
from results.render.certificates import COMMAND, FAILS, table
from runner.machine import devices, environment
from runner.measure.stopwatch import KernelStopwatch
from runner.validate.features import add_entry, facts

Tensors = tuple[torch.Tensor, ...]
Certificate = dict[str, dict[str, float]]
INVARIANT = "batch_invariant"
PACKAGES = ("flash-attn-4", "flash-attn", "flashinfer-python", "xformers", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
# Calls with a price: batch, heads, key heads, queries, keys. Decoding of batch 1 pays most, because it cannot be split.
_PRICED = ((4, 16, 16, 4096, 4096), (1, 32, 8, 1024, 1024), (1, 32, 8, 1, 8192), (8, 32, 8, 1, 8192))
_SAMPLES = 20


def certificate(attention: registry.Attention, q: Tensors, *, backward: bool) -> Certificate:
    """Return the largest deviations by question, of out and of gradients, with q, k, v and dout of a batch of two."""
    half = q[0].shape[2] // 2

    def run(inputs: Sequence[torch.Tensor], *, causal: bool = True) -> Tensors:
        leaves = [x.detach().clone().requires_grad_(backward) for x in inputs[:3]]
        out = attention(*leaves, causal=causal)
        if not backward:
            return (out.detach(),)
        return (out.detach(), *torch.autograd.grad(out, leaves, inputs[3][:, :, : out.shape[2]]))

    def first(found: Tensors, upto: int | None = None) -> Tensors:
        return tuple(x[:1, :, :upto] for x in found)

    whole = run(q)
    later = [x.clone() for x in q]
    for x in later[:3]:
        x[:, :, half:] *= -64
    cut = [torch.cat([x[:, :, :half], torch.zeros_like(x[:, :, half:])], 2) if at == 3 else x for at, x in enumerate(q)]
    cut_later = [*later[:3], cut[3]]
    spoiled = [x.clone() for x in q]
    for x, value in zip(spoiled[:3], (float("nan"), float("inf"), float("nan")), strict=True):
        x[1, :, half] = value
    answers = {
        # with dout of 0 in the second half, the gradients of the first half do not depend on the second
        "no leak": (first(run(cut), half), first(run(cut_later), half)),
        "alone": (first(whole), run([x[:1].contiguous() for x in q])),
        "padding": (run([x[:, :, :half].contiguous() for x in q]), tuple(x[:, :, :half] for x in run(cut))),
        "repeat": (whole, run(q)),
        "NaN": (first(whole), first(run(spoiled))),
    }
    apart = {name: [_deviation(*pair) for pair in zip(*both, strict=True)] for name, both in answers.items()}
    gradients = {name: max(found[1:]) for name, found in apart.items()} if backward else {}
    return {"out": {name: found[0] for name, found in apart.items()}, "gradients": gradients}


def _deviation(one: torch.Tensor, other: torch.Tensor) -> float:
    if torch.equal(one, other):
        return 0.0
    apart = ((one.double() - other.double()).abs().max() / one.double().abs().max()).item()
    return apart if apart == apart else float("inf")


def certificates(device: str, names: Sequence[str], seqlen: int, head_dim: int) -> dict[str, Certificate | str]:
    """Return the certificate of each implementation, or the reason why it has none."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    where, torch_device = registry.describe_device(device), torch.device(device)
    sizes: dict[str, Any] = {"batch": 2, "num_heads": 2, "seqlen": seqlen, "head_dim": head_dim, "causal": True}
    case: Any = attention_case(dtype=str(dtype).removeprefix("torch."), **sizes)
    source = torch.Generator(device=torch_device).manual_seed(1)
    shape = (2, 2, seqlen, head_dim)
    q = tuple(torch.randn(shape, generator=source, device=torch_device, dtype=dtype) for _ in range(4))
    found: dict[str, Certificate | str] = {}
    for name in names or [*registry.implementations(), INVARIANT]:
        known = registry.implementations().get(name)
        if known and (reason := known.reason_against(case, where)):
            found[name] = reason
            continue
        try:
            attention: Any = known.attention if known else invariant
            found[name] = certificate(attention, q, backward=known is None or known.backward)
        except Exception as error:  # a package of others may refuse a call in any way
            found[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
    return found


def invariant(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """Return attention whose bits do not depend on the batch."""
    with kernels.batch_invariant():
        return kernels.attention(q, k, v, causal=causal)


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
    found = certificates(options.device, names, options.seqlen, options.head_dim)
    print(printed := table(found))
    if options.record:
        device = devices.resolve(options.device)
        packages = {name: version for name in PACKAGES if (version := environment.version(name))}
        sizes = {"seqlen": options.seqlen, "head_dim": options.head_dim, "packages": packages}
        more = {"price": price(options.device)} if INVARIANT in found and device.type == "cuda" else {}
        where = f"{device.name}, Triton's interpreter" if os.environ.get("TRITON_INTERPRET") == "1" else device.name
        add_entry(options.record, where, facts(device) | sizes, dict(sorted(found.items())), **more)
    return int(FAILS in printed)


if __name__ == "__main__":
    sys.exit(main())
