"""Measure what a call of `kernels.attention` costs the host, beside PyTorch's: `python -m kernels.tools.host_time`.

At 128 tokens the GPU is done before the next call is issued, so the time a call takes in a long row of calls is the
host's. The first call compiles: it is timed in a new process with an empty Triton cache; `--first-call` times nothing
else. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import kernels

SHAPE = (1, 8, 128)  # batch, heads, tokens
HEAD_DIMS = (64, 128, 256)
FIRST_CALLS = (  # dtype, head_dim, seqlen
    *(("bfloat16", 64, 512), ("bfloat16", 64, 16384), ("bfloat16", 128, 128), ("bfloat16", 256, 4096)),
    *(("float32", 64, 512), ("float32", 128, 2048)),
)
WARM_UP = 30
ROWS, CALLS = 15, 200

_FIRST = """
import sys, time, torch, kernels
dtype, head_dim, seqlen, device = getattr(torch, sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
q, k, v = (torch.randn(1, 8, seqlen, head_dim, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
wait = torch.cuda.synchronize if device == "cuda" else lambda: None
wait()
dout, times = torch.ones_like(q), [time.perf_counter()]
wait()
out = kernels.attention(q, k, v, causal=True)
wait()
times.append(time.perf_counter())
out.backward(dout)
wait()
times.append(time.perf_counter())
print(times[1] - times[0], times[2] - times[1])
"""


def host_times_us(
    calls: dict[str, Callable[[], object]], wait: Callable[[], None], rows: int = ROWS
) -> dict[str, float]:
    """Return microseconds a call, the median of `rows` rows of calls, taken in turn; `wait` ends the work of a row."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    wait()
    for _ in range(rows):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            wait()
            times[name].append((time.perf_counter() - begin) / CALLS * 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def first_call_s(dtype: str, head_dim: int, seqlen: int, device: str = "cuda") -> tuple[float, float]:
    """Return seconds of the first forward and of the first backward of a new process that finds nothing compiled."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", _FIRST, dtype, str(head_dim), str(seqlen), device]
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    forward, backward = map(float, done.stdout.split()[-2:])
    return forward, backward


def calls_of(head_dim: int, device: str = "cuda") -> dict[str, dict[str, Callable[[], object]]]:
    """Return the calls to time by mode ("forward", "forward + backward") and name."""
    q, k, v, dout = (torch.randn(*SHAPE, head_dim, device=device, dtype=torch.bfloat16) for _ in range(4))
    inputs = tuple(x.clone().requires_grad_() for x in (q, k, v))
    attentions: dict[str, Callable[..., torch.Tensor]] = {
        "kernels.attention": lambda *x: kernels.attention(*x, causal=True),
        "scaled_dot_product_attention": lambda *x: scaled_dot_product_attention(*x, is_causal=True),
    }
    return {
        "forward": {name: lambda f=f: f(q, k, v) for name, f in attentions.items()},
        "forward + backward": {
            name: lambda f=f: torch.autograd.grad(f(*inputs), inputs, dout) for name, f in attentions.items()
        },
    }


def main(arguments: list[str] | None = None) -> None:
    """Print microseconds a call and seconds of a first call."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.host_time", description=__doc__.splitlines()[0])
    parser.add_argument("--first-call", action="store_true", help="only the seconds of the first calls")
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("No CUDA device here: on a CPU the calls are computed by the host, so there is nothing to tell apart.")
    print(torch.cuda.get_device_name())
    if not chosen.first_call:
        _print_host_times()
    _print_first_calls()


def _print_host_times() -> None:
    """Print a line for each head_dim and mode; the shape is batch x heads x tokens x head_dim, causal."""
    for head_dim in HEAD_DIMS:
        for mode, calls in calls_of(head_dim).items():
            times = host_times_us(calls, torch.cuda.synchronize)
            row = ", ".join(f"{name} {us:.1f} us" for name, us in times.items())
            print(f"{'x'.join(map(str, SHAPE))}x{head_dim}, bfloat16, {mode}: {row}", flush=True)


def _print_first_calls() -> None:
    """Print a line for each shape, causal."""
    for dtype, head_dim, seqlen in FIRST_CALLS:
        forward, backward = first_call_s(dtype, head_dim, seqlen)
        seconds = f"forward {forward:.1f} s, backward {backward:.1f} s, both {forward + backward:.1f} s"
        print(f"first call, 1x8x{seqlen}x{head_dim}, {dtype}: {seconds}", flush=True)


if __name__ == "__main__":
    main()
