"""Measure the Python of a call of `kernels.attention`, on any machine: `python -m kernels.tools.host_alone`.

Tensors are on the CPU, the tables are those of Hopper, and launches are replaced by a function that does nothing. The
rest is routing, allocation and autograd. The figure compares two versions. It is not the cost of a call on a GPU, where
PyTorch allocates, launches and runs a backward in another way (`kernels.tools.host_time`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch

from .. import attention

SHAPES = ((1, 1, 256, 64), (1, 1, 2048, 64), (1, 8, 128, 128))  # batch, heads, tokens, head_dim
ROWS, CALLS = 21, 1500
_CHIP = ("sm_90", 132, 50 << 20)  # tables, multiprocessors and L2 bytes of an H200


@contextmanager
def launching_nothing() -> Iterator[None]:
    """Let triton_fa2 take tensors on the CPU and launch nothing; results are uninitialized memory."""
    from .. import dispatch, routes
    from .. import launches as recorder
    from ..attention.triton_fa2 import launch, launches, problem

    with ExitStack() as stack:
        for owner, name, stand_in in (
            (routes, "takes", lambda q, k, v: True),
            (routes, "decodes", lambda q, k, v: False),
            (routes, "_ROUTES", type(routes._ROUTES)()),
            (dispatch, "_SEEN", type(dispatch._SEEN)()),
            (problem, "INTERPRETED", False),
            (problem, "_chip", lambda device: _CHIP),
            (launch, "INTERPRETED", False),
            (launch, "_first_that_fits", lambda call: (None, call.tiles[0])),
            (recorder, "launcher", lambda made: (_nothing, (None,) * 9)),
            (launches, "INTERPRETED", False),
            (launches, "compile_side_by_side", _nothing),
            (torch._C, "_cuda_getCurrentRawStream", _nothing),
        ):
            stack.enter_context(patch.object(owner, name, stand_in, create=True))
        yield


def calls_of(shape: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    """Return the calls to time, causal, in bfloat16, by a description."""
    q, k, v, dout = (torch.zeros(shape, dtype=torch.bfloat16) for _ in range(4))
    inputs = tuple(x.clone().requires_grad_() for x in (q, k, v))
    return {
        "forward": lambda: attention(q, k, v, causal=True),
        "forward for a backward": lambda: attention(*inputs, causal=True),
        "forward and backward": lambda: torch.autograd.grad(attention(*inputs, causal=True), inputs, dout),
    }


def least_us(call: Callable[[], object], rows: int = ROWS, calls: int = CALLS) -> float:
    """Return microseconds of processor time per call: the least of `rows` rows, as other programs only add time."""
    call()
    found = []
    for _ in range(rows):
        begin = time.process_time()
        for _ in range(calls):
            call()
        found.append((time.process_time() - begin) / calls * 1e6)
    return min(found)


def main(arguments: list[str] | None = None) -> None:
    """Print microseconds per call by shape and mode."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.host_alone", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of calls; the fastest counts")
    parser.add_argument("--calls", type=int, default=CALLS, help="calls in a row")
    chosen = parser.parse_args(arguments)
    with launching_nothing():
        for shape in SHAPES:
            times = {name: least_us(call, chosen.rows, chosen.calls) for name, call in calls_of(shape).items()}
            row = ", ".join(f"{name} {us:.1f} us" for name, us in times.items())
            print(f"{'x'.join(map(str, shape))}, bfloat16, no launches: {row}", flush=True)


def _nothing(*arguments: object) -> None:
    """Launch or compile nothing."""


if __name__ == "__main__":
    main()
