"""A worker with slowed implementations, for runner.validate only: `python -m runner.validate.slow_worker`.

The JSON file in ATTNBENCH_SLOWED has the additional milliseconds of each forward and backward, by the keys of `key_of`.
The delay is a spinning kernel on a GPU and a loop on a CPU, after the forward or before the backward.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kernels.registry import Attention
from runner import worker
from runner.measure.stopwatch import KernelStopwatch

VARIABLE = "ATTNBENCH_SLOWED"


def key_of(name: str, mode: str, q: tuple[int, ...], k: tuple[int, ...], dtype: str, causal: bool) -> str:
    """Return the key of a delay, made of implementation, pass and shape."""
    return json.dumps([name, mode, list(q), list(k), dtype, bool(causal)])


def slowed(name: str, attention: Attention, delays_ms: dict[str, float], delay: Callable[[float], object]) -> Attention:
    """Return an attention with the delay of its shape after its forward and before its backward."""

    def longer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        out = attention(q, k, v, **options)
        dtype = str(q.dtype).removeprefix("torch.")
        shape = tuple(q.shape), tuple(k.shape), dtype, options.get("causal", False)
        after, before = (delays_ms.get(key_of(name, mode, *shape)) for mode in ("fwd", "bwd"))
        if after:
            delay(after)
        if before and out.requires_grad:
            out.register_hook(lambda _: delay(before))
        return out

    return longer


def delay(milliseconds: float) -> None:
    """Keep the device busy for that time, including the launch of the delay."""
    if torch.cuda.is_available():
        cycles_per_ms, launch_ms = _spin()
        torch.cuda._sleep(max(1, int((milliseconds - launch_ms) * cycles_per_ms)))
        return
    end = time.perf_counter() + milliseconds / 1e3
    while time.perf_counter() < end:
        pass


@cache
def _spin() -> tuple[float, float]:
    """Return the clock cycles per millisecond of the spinning kernel, and its time without spinning."""
    stopwatch, few, many = KernelStopwatch("cuda"), 1, 200_000

    def milliseconds(cycles: int) -> float:
        return statistics.median(stopwatch.sample(lambda: torch.cuda._sleep(cycles), 30))

    nothing = statistics.median(stopwatch.sample(lambda: None, 30))
    launch = milliseconds(few) - nothing
    return (many - few) / (milliseconds(many) - nothing - launch), launch


def main() -> None:
    """Slow every implementation and run the worker."""
    worker.set_interpreter("cuda" if torch.cuda.is_available() else "cpu")
    from kernels import registry

    delays_ms = json.loads(Path(os.environ[VARIABLE]).read_text())
    found = registry.implementations()  # the cached dict, which all later calls return
    for name, implementation in list(found.items()):
        found[name] = replace(implementation, attention=slowed(name, implementation.attention, delays_ms, delay))
    worker.main()


if __name__ == "__main__":
    main()
