"""triton_fa2 beside torch_naive and PyTorch's backends on the same inputs, in one run: `python -m kernels.tools.bench`.

A quick look while working on a kernel; the numbers that are kept come from `python -m runner`. Device time only: all
work of a round is queued behind a spinning kernel, so that launching costs nothing, and the L2 is overwritten before
each call. Rounds go through the implementations in turn. Prints medians in microseconds and torch_naive's time over
triton_fa2's for the forward and the backward.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

import torch

from kernels import registry
from kernels.registry import UnsupportedCase

SPIN_CYCLES = 2_000_000  # about a millisecond: longer than it takes to queue a call
FLUSH_BYTES = 1 << 28  # several times the L2 of any GPU so far


def queued_times_us(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median device time of each call in microseconds, taken in turn."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(SPIN_CYCLES)
            flush.zero_()
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e3)
    return {name: statistics.median(samples) for name, samples in times.items()}


def compare(shape: tuple[int, int, int, int], dtype: torch.dtype, causal: bool, names: list[str], rounds: int) -> str:
    """One line: the shape, torch_naive over triton_fa2, and each implementation's forward/backward."""
    q, k, v, dout = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(4))
    inputs = tuple(x.requires_grad_() for x in (q, k, v))
    forward: dict[str, Callable[[], object]] = {}
    backward: dict[str, Callable[[], object]] = {}
    for name in names:
        attention = registry.get(name).attention
        try:
            out = attention(q, k, v, causal=causal)
        except (UnsupportedCase, torch.OutOfMemoryError):
            continue
        forward[name] = lambda attention=attention: attention(q, k, v, causal=causal)
        backward[name] = lambda out=out: torch.autograd.grad(out, inputs, dout, retain_graph=True)
    times = [queued_times_us(calls, rounds) for calls in (forward, backward)]
    ratios = [f"{t['torch_naive'] / t['triton_fa2']:6.2f}" if "torch_naive" in t else "     -" for t in times]
    cells = "  ".join(f"{name} {times[0][name]:.1f}/{times[1][name]:.1f}" for name in forward)
    return f"{str(dtype)[6:]:9} {shape[0]}x{shape[1]} {shape[2]:6} {shape[3]:4} {' '.join(ratios)}   {cells}"


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--seqlen", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--head-dim", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--num-heads", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="no causal mask")
    parser.add_argument("--rounds", type=int, default=9)
    names = ["torch_naive", "torch_sdpa_flash", "torch_sdpa_cudnn", "torch_sdpa_efficient", "triton_fa2"]
    parser.add_argument("--implementations", nargs="+", default=names)
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("kernels.tools.bench needs a CUDA device; this machine has none.", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; naive over triton: fwd bwd; us fwd/bwd")
    for dtype in chosen.dtype:
        for head_dim in chosen.head_dim:
            for seqlen in chosen.seqlen:
                shape = (chosen.batch, chosen.num_heads, seqlen, head_dim)
                causal = not chosen.full
                print(compare(shape, getattr(torch, dtype), causal, chosen.implementations, chosen.rounds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
