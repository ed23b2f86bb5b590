"""A worker whose implementations take longer by a known time: `python -m runner.validate.slow_worker`, for
runner.validate only.

What each forward and backward is to take longer stands in the JSON file that ATTNBENCH_SLOWED names: keys as `key_of`
makes them, and milliseconds. On a GPU a spinning kernel follows the forward or comes before the backward, on a CPU a
loop.
"""

from __future__ import annotations

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
    """Return what a delay is looked up by: the implementation, the pass and the shape."""
    return json.dumps([name, mode, list(q), list(k), dtype, bool(causal)])


def slowed(name: str, attention: Attention, delays_ms: dict[str, float], delay: Callable[[float], object]) -> Attention:
    """Return an attention that spins for the delay of its shape, after its forward and before its backward."""

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
    """Keep the device busy for that long, the launch of the delay included. Returns nothing, so that a hook may."""
    if torch.cuda.is_available():
        cycles_per_ms, launch_ms = _spin()
        torch.cuda._sleep(max(1, int((milliseconds - launch_ms) * cycles_per_ms)))
        return
    end = time.perf_counter() + milliseconds / 1e3
    while time.perf_counter() < end:
        pass


@cache
def _spin() -> tuple[float, float]:
    """Return clock cycles a millisecond of the spinning kernel, and how long it takes when it does not spin."""
    stopwatch, few, many = KernelStopwatch("cuda"), 1, 200_000

    def milliseconds(cycles: int) -> float:
        return statistics.median(stopwatch.sample(lambda: torch.cuda._sleep(cycles), 30))

    nothing = statistics.median(stopwatch.sample(lambda: None, 30))
    launch = milliseconds(few) - nothing
    return (many - few) / (milliseconds(many) - nothing - launch), launch


def main() -> None:
    """Slow every implementation, then work as any worker does."""
    worker.set_interpreter("cuda" if torch.cuda.is_available() else "cpu")
    from kernels import registry

    delays_ms = json.loads(Path(os.environ[VARIABLE]).read_text())
    found = registry.implementations()  # cached, so that whoever asks later gets the slowed ones
    for name, implementation in list(found.items()):
        found[name] = replace(implementation, attention=slowed(name, implementation.attention, delays_ms, delay))
    worker.main()


if __name__ == "__main__":
    main()
