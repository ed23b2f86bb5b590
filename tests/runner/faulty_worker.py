"""The real worker, with implementations that cheat or break added to those of the checkout."""

import dataclasses
import os
import signal
import threading

import torch

from kernels import registry
from runner import worker
from runner.machine import environment

_real = registry.implementations


class OutOfResources(RuntimeError):
    """Stands for Triton's, which carries the same fields."""

    name, required, limit = "shared memory", 300_000, 232_448


def zeros(q, k, v, **options):
    return (q + k.sum() + v.sum()) * 0


def kills_itself(q, k, v, **options):
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(q, k, v, **options):
    threading.Event().wait()


def out_of_memory(q, k, v, **options):
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 16.00 GiB. "
        "GPU 0 has a total capacity of 8.00 GiB of which 3.20 GiB is free."
    )


def too_large(q, k, v, **options):
    return torch.empty(2**45, dtype=torch.int8, device=q.device)


def device_fault(q, k, v, **options):
    return q[:, :, torch.full((1,), 10**6, device=q.device)]  # an assertion on a GPU, which poisons the context


def out_of_resources(q, k, v, **options):
    raise OutOfResources


def raises(q, k, v, **options):
    raise RuntimeError("a fault of its own\nwith more lines")


def broken_backward(q, k, v, *, causal=False, window_size=0, softmax_scale=None):
    out = _real()["torch_naive"].attention(q, k, v, causal=causal)
    if out.requires_grad:
        out.register_hook(lambda gradient: gradient * 1.5)
    return out


FAULTS = (zeros, kills_itself, hangs, out_of_memory, too_large, device_fault, out_of_resources, raises, broken_backward)


def with_faults(level="op"):
    if level != "op":
        return _real(level)
    plain = _real()["torch_naive"]
    return _real() | {f.__name__: dataclasses.replace(plain, name=f.__name__, attention=f) for f in FAULTS}


if __name__ == "__main__":
    registry.implementations = with_faults
    environment.kernel_hash = lambda: "fixed"  # somebody may edit a kernel while the tests run
    worker.main()
