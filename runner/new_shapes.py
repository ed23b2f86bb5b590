"""`python -m runner shapes`: the cost of calls whose lengths were never seen, with an empty and a filled compile cache.

Each implementation computes forward and backward of random lengths in a new process, first with empty folders for the
caches of Triton and Inductor, then with what the first process left there. `python -m runner warm` fills Triton's
cache for the calls of a recorded program.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

import kernels
from kernels import registry
from results.paths import REPOSITORY
from results.programs import Program
from runner.measure import errors, triton_hooks
from runner.prove import one_call
from runner.supervise.job import Refused

OURS = "kernels.attention"
IMPLEMENTATIONS = (OURS, "torch_sdpa_auto", "torch_flex")
SETTLED = 10  # lengths after which no length should need a new kernel
_CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
_LEAST = 16  # tokens


@dataclass(frozen=True)
class NewShapes:
    """The calls of one process. Seconds are of first calls; planning: a first call less a second one, the median."""

    implementation: str
    cache: str  # "empty" or "filled"
    total_s: float
    first_forward_s: float
    first_backward_s: float
    compiled: int  # kernels of Triton; Inductor's are compiled in other processes and not counted
    compiled_late: int  # after SETTLED lengths
    planning_ms: float  # of the lengths after them, forward and backward

    @property
    def words(self) -> str:
        """Return a line."""
        first = f"first forward {self.first_forward_s:.2f} s, first backward {self.first_backward_s:.2f} s"
        kernels = f"{self.compiled} kernels compiled, {self.compiled_late} of them after {SETTLED} lengths"
        said = f"{self.total_s:.2f} s; {first}; {kernels}; planning {self.planning_ms:.2f} ms a length"
        return f"{self.implementation}, {self.cache} cache: {said}"


def lengths(count: int, longest: int, seed: int = 0) -> list[int]:
    """Return random lengths, each once. Raises Refused if there are not so many."""
    possible = range(_LEAST, longest + 1)
    if not 0 < count <= len(possible):
        raise Refused(
            f"--count {count} must be 1 to {len(possible)}: there are no more lengths from {_LEAST} to {longest}."
        )
    return random.Random(seed).sample(possible, count)


def measured(name: str, cache: str, wanted: Sequence[int], sizes: Sequence[int], dtype: str, device: str) -> NewShapes:
    """Compute causal attention of each length in this process. sizes: batch, num_heads, num_kv_heads and head_dim."""
    attend = kernels.attention if name == OURS else registry.get(name).attention
    wait: Callable[[], object] = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    one = torch.ones(1, device=device, requires_grad=True)
    torch.autograd.grad(one * one, one, one.detach())  # PyTorch imports sympy at its first, which takes seconds
    batch, heads, kv_heads, head_dim = sizes
    firsts: list[tuple[float, float]] = []
    planning: list[float] = []
    early = 0
    with triton_hooks.watch() as seen:
        for number, length in enumerate(wanted):
            made = partial(torch.randn, device=device, dtype=getattr(torch, dtype))
            q, dout = (made(batch, heads, length, head_dim) for _ in range(2))
            k, v = (made(batch, kv_heads, length, head_dim) for _ in range(2))
            call = partial(_seconds, attend, tuple(x.requires_grad_() for x in (q, k, v)), dout, wait)
            firsts.append(call())
            if number < SETTLED:
                early = seen.compiled
            else:
                planning.append(sum(firsts[-1]) - sum(call()))
    total = sum(map(sum, firsts))
    late = statistics.median(planning) * 1e3 if planning else 0.0
    return NewShapes(name, cache, total, *firsts[0], seen.compiled, seen.compiled - early, late)


def compared(names: Sequence[str], *call: Any) -> list[NewShapes]:
    """Return what each implementation takes with an empty and with a filled cache. call: as of `measured`."""
    found = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            caches = {variable: os.path.join(folder, variable) for variable in _CACHES}
            for cache in ("empty", "filled"):
                command = [sys.executable, "-m", "runner.new_shapes", json.dumps([name, cache, *call])]
                environment = {**os.environ, **caches}
                done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
                if done.returncode:
                    print(f"{name}: {(done.stderr.splitlines() or ['ended'])[-1][:200]}", file=sys.stderr)
                    break
                found.append(NewShapes(**json.loads(done.stdout.splitlines()[-1])))
                print(found[-1].words, file=sys.stderr)
    return found


def warm(program: Program, device: str) -> str:
    """Make each call of a program once, which leaves its kernels in Triton's cache, and return what that took."""
    begun = time.perf_counter()
    with triton_hooks.watch() as seen:
        failures = [errors.failure(partial(one_call, call, device)) for call in program.tuned]
    said = f"{program.name}: {seen.compiled} kernels compiled, {seen.loaded} found in Triton's cache, "
    said += f"in {time.perf_counter() - begun:.1f} s, by {len(program.tuned)} calls."
    return "\n".join([said, *(f"A call failed: {': '.join(each)}" for each in failures if each), *program.left_out])


def _seconds(
    attend: Callable[..., torch.Tensor],
    inputs: tuple[torch.Tensor, ...],
    dout: torch.Tensor,
    wait: Callable[[], object],
) -> tuple[float, float]:
    """Return the seconds of a forward and of its backward."""
    wait()
    begun = time.perf_counter()
    out = attend(*inputs, causal=True)
    wait()
    between = time.perf_counter()
    torch.autograd.grad(out, inputs, dout)
    wait()
    return between - begun, time.perf_counter() - between


if __name__ == "__main__":
    print(json.dumps(asdict(measured(*json.loads(sys.argv[1])))))
