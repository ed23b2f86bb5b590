"""Memory of a call, in a pass of its own: what it allocates at its peak, above what it was given."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch

from runner.subjects import Inputs, Subject

MIB = 1024 * 1024
NO_MEMORY_ON_CPU = "torch counts allocations on GPUs only, so memory is not measured on a CPU."


@dataclass(frozen=True)
class Memory:
    """In MiB, as torch's allocator counts: its blocks are multiples of 512 bytes."""

    peak: float  # the inputs and what the call adds; not what the runner itself holds
    extra: float  # what the call adds


def peak_memory(subject: Subject, inputs: Inputs, mode: str) -> Memory:
    """The largest allocation during a warm call on a GPU; workspaces that libraries keep are there before it."""
    call: Callable[[], object] = subject.call(mode)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    del result
    return Memory(peak=(inputs.bytes_of(mode) + extra) / MIB, extra=extra / MIB)
