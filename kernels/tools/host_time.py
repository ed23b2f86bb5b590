"""Measure the cost of a short call of `kernels.attention` and of PyTorch's: `python -m kernels.tools.host_time`.

Host time ends when the calls have returned, in rows so short that the GPU's queue never fills. Wall time ends when the
GPU has finished a long row. Below a few thousand tokens of one head, both are the host's time. They need a CUDA device.
First calls, which compile, are timed by `python -m runner shapes`.

`--alone` measures the Python of a call on any machine, to compare two versions: tensors are on the CPU, the tables are
those of Hopper, and launches do nothing. The rest is routing, allocation and autograd, which differ on a GPU.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

import torch
from torch.nn.functional import scaled_dot_product_attention

from .. import attention

SHAPES = (  # batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim
    *((1, 1, 1, seqlen, seqlen, head_dim) for head_dim in (64, 128) for seqlen in (256, 512, 1024, 2048)),
    *((1, 8, 8, 128, 128, head_dim) for head_dim in (64, 128, 256)),
    *((1, 4, 4, 256, 256, 32), (1, 8, 2, 256, 256, 64)),
    *((1, 1, 1, 17, 129, 48), (1, 32, 8, 1, 4096, 128)),
    *((8, 20, 20, 448, 448, 64), (2, 8, 8, 256, 256, 160), (8, 16, 16, 257, 257, 88), (2, 8, 8, 1024, 1024, 80)),
    *((2, 10, 10, 4096, 77, 64), (32, 12, 12, 32, 257, 64)),  # these six are from real models
)
ALONE = ((1, 1, 1, 256, 256, 64), (1, 1, 1, 2048, 2048, 64), (1, 8, 8, 128, 128, 128))
WARM_UP = 30
ROWS, CALLS, HOST_CALLS = 9, 200, 20  # CALLS: a row of the wall time, HOST_CALLS: of the host time
ROWS_ALONE, CALLS_ALONE = 21, 1500
_CHIP = ("sm_90", 132, 50 << 20)  # tables, multiprocessors and L2 bytes of an H200


def times_us(
    calls: dict[str, Callable[[], object]], wait: Callable[[], None], rows: int = ROWS
) -> dict[str, tuple[float, float]]:
    """Return host and wall microseconds per call by name: medians of `rows` rows of calls, interleaved.

    `wait` returns when the work of a row is done.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for call in calls.values():
        _row_us(call, WARM_UP, wait)
    for _ in range(rows):
        for name, call in calls.items():
            times[name].append((_row_us(call, HOST_CALLS, wait)[0], _row_us(call, CALLS, wait)[1]))
    return {name: tuple(map(statistics.median, zip(*found, strict=True))) for name, found in times.items()}


def _row_us(call: Callable[[], object], count: int, wait: Callable[[], None]) -> tuple[float, float]:
    """Return microseconds per call until all have returned, and until their work is done."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    returned = time.perf_counter()
    wait()
    return (returned - begin) / count * 1e6, (time.perf_counter() - begin) / count * 1e6


def _forward_and_backward(
    f: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...], dout: torch.Tensor
) -> object:
    return torch.autograd.grad(f(*inputs), inputs, dout)


def calls_of(shape: tuple[int, ...], device: str = "cuda") -> dict[str, dict[str, Callable[[], object]]]:
    """Return the calls to time by mode ("forward", "forward + backward") and name; one query has no backward.

    Causal where there are as many queries as keys.
    """
    batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim = shape
    sizes = ((heads, seqlen_q), (kv_heads, seqlen_k), (kv_heads, seqlen_k), (heads, seqlen_q))
    q, k, v, dout = (torch.randn(batch, *size, head_dim, device=device, dtype=torch.bfloat16) for size in sizes)
    inputs = tuple(x.clone().requires_grad_() for x in (q, k, v))
    causal = seqlen_q == seqlen_k
    attentions: dict[str, Callable[..., torch.Tensor]] = {
        "kernels.attention": partial(attention, causal=causal),
        "scaled_dot_product_attention": partial(
            scaled_dot_product_attention, is_causal=causal, enable_gqa=heads != kv_heads
        ),
    }
    found: dict[str, dict[str, Callable[[], object]]] = {
        "forward": {name: partial(f, q, k, v) for name, f in attentions.items()}
    }
    if seqlen_q > 1:
        found["forward + backward"] = {
            name: partial(_forward_and_backward, f, inputs, dout) for name, f in attentions.items()
        }
    return found


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


def _nothing(*arguments: object) -> None:
    """Launch or compile nothing."""


def least_us(call: Callable[[], object]) -> float:
    """Return microseconds of processor time per call: the least of some rows, as other programs only add time."""
    call()
    found = []
    for _ in range(ROWS_ALONE):
        begin = time.process_time()
        for _ in range(CALLS_ALONE):
            call()
        found.append((time.process_time() - begin) / CALLS_ALONE * 1e6)
    return min(found)


def main(arguments: list[str] | None = None) -> None:
    """Print microseconds per call."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.host_time", description=__doc__.splitlines()[0])
    parser.add_argument("--alone", action="store_true", help="print the Python of a call without launches instead")
    chosen = parser.parse_args(arguments)
    if chosen.alone:
        _print_python_times()
        return
    if not torch.cuda.is_available():
        sys.exit("No CUDA device here: on a CPU the host computes the calls, so host time and wall time are the same.")
    print(torch.cuda.get_device_name())
    _print_host_times()


def _print_host_times() -> None:
    """Print a line for each shape and mode: ours, PyTorch's, and how many times as long PyTorch takes."""
    for shape in SHAPES:
        for mode, calls in calls_of(shape).items():
            ours, theirs = times_us(calls, torch.cuda.synchronize).values()
            parts = [
                f"{what} {own:.1f} and {other:.1f} us, {other / own:.2f}"
                for what, own, other in zip(("host", "wall"), ours, theirs, strict=True)
            ]
            print(f"{'x'.join(map(str, shape))}, bfloat16, {mode}: {'; '.join(parts)}", flush=True)


def _print_python_times() -> None:
    """Print a line for each shape and mode of our calls without launches."""
    with launching_nothing():
        for shape in ALONE:
            for mode, calls in calls_of(shape, "cpu").items():
                microseconds = least_us(calls["kernels.attention"])
                print(f"{'x'.join(map(str, shape))}, bfloat16, {mode}, no launches: {microseconds:.1f} us", flush=True)


if __name__ == "__main__":
    main()
