"""Measured peaks of this GPU at the start of a run: the rates of a large matrix product and of a copy."""

import statistics
from collections.abc import Callable
from typing import Any

import torch

from runner.measure import tf32

_SIZE = 8192  # rows and columns of the matrices, enough for many waves on every multiprocessor
_COPY_BYTES = 1 << 30  # larger than any L2
_BUDGET_MS = 120.0  # time for one kind, without warm-up
_MOST = 30
_KINDS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "tf32": torch.float32, "float32": torch.float32}


def measure(device: str, settle: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Return medians of products of 8192 x 8192 normal matrices and of copies of 1 GiB, in about a second.

    `tflops` is by dtype, and "tf32"; `gbs` counts 10^9 bytes per second, read and written. Empty if the device has too
    little memory. `settle` is called before each kind, because a product lowers the clock for the next one.
    """
    try:
        rates = {kind: _product_tflops(kind, device, settle) for kind in _KINDS}
        source = torch.ones(_COPY_BYTES // 4, device=device)
        target = torch.empty_like(source)
        return {"tflops": rates, "gbs": 2.0 * _COPY_BYTES / _median_ms(lambda: target.copy_(source)) / 1e6}
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {}


def _product_tflops(kind: str, device: str, settle: Callable[[], object]) -> float:
    settle()
    a, b = (torch.randn(_SIZE, _SIZE, device=device).to(_KINDS[kind]) for _ in range(2))
    out = torch.empty_like(a)
    with tf32.products(allowed=kind == "tf32"):
        milliseconds = _median_ms(lambda: torch.mm(a, b, out=out))
    return 2.0 * _SIZE**3 / milliseconds / 1e9


def _median_ms(call: Callable[[], object]) -> float:
    """Return the median time of back-to-back calls, each between two events, after two calls to warm up."""
    first = _times(call, 2)[-1]
    return statistics.median(_times(call, max(3, min(_MOST, int(_BUDGET_MS / first)))))


def _times(call: Callable[[], object], count: int) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in zip(events, events[1:], strict=False)]
