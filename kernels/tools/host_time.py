"""Measure the Python of a call of `kernels.attention`, to compare two versions: `python -m kernels.tools.host_time`.

Tensors are on the CPU, the tables are those of Hopper, and launches do nothing. The rest is routing, allocation and
autograd, which differ on a GPU. There, `python -m runner run` with the timing "eager" has the whole call, and
`python -m runner shapes` first calls, which compile.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

import torch

from .. import attention

SHAPES = ((1, 256, 64), (1, 2048, 64), (8, 128, 128))  # heads, tokens, head_dim
ROWS, CALLS = 21, 1500
_CHIP = ("sm_90", 132, 50 << 20)  # tables, multiprocessors and L2 bytes of an H200


def calls_of(heads: int, tokens: int, head_dim: int) -> dict[str, Callable[[], object]]:
    """Return the calls to time, causal and in bfloat16, by "forward" and "forward + backward"."""
    q, k, v, dout = (torch.randn(1, heads, tokens, head_dim, dtype=torch.bfloat16) for _ in range(4))
    inputs = tuple(x.clone().requires_grad_() for x in (q, k, v))
    attend = partial(attention, causal=True)
    return {
        "forward": partial(attend, q, k, v),
        "forward + backward": lambda: torch.autograd.grad(attend(*inputs), inputs, dout),
    }


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
            (launch, "_first_that_fits", lambda call: (None, call.tiles[0], call.constants(call.tiles[0]))),
            (recorder, "launcher", lambda made: (_nothing, (None,) * 9)),
            (launches, "INTERPRETED", False),
            (launches, "compile_side_by_side", _nothing),
            (torch._C, "_cuda_getCurrentRawStream", _nothing),
        ):
            stack.enter_context(patch.object(owner, name, stand_in, create=True))
        yield


def _nothing(*arguments: object) -> None:
    """Launch or compile nothing."""


def least_us(call: Callable[[], object]) -> float:
    """Return microseconds of processor time per call: the least of some rows, as other programs only add time."""
    call()
    found = []
    for _ in range(ROWS):
        begin = time.process_time()
        for _ in range(CALLS):
            call()
        found.append((time.process_time() - begin) / CALLS * 1e6)
    return min(found)


def main(arguments: list[str] | None = None) -> None:
    """Print microseconds per call, a line for each shape and direction."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.host_time", description=__doc__.splitlines()[0])
    parser.parse_args(arguments)
    with launching_nothing():
        for shape in SHAPES:
            words = "x".join(map(str, shape))
            for mode, call in calls_of(*shape).items():
                print(f"{words}, bfloat16, {mode}, no launches: {least_us(call):.1f} us", flush=True)


if __name__ == "__main__":
    main()
