"""Memory of a call, in a pass of its own: what it is given, what it adds at its peak, what it keeps for a backward."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch

from runner.levels import Call

MIB = 1024 * 1024
NO_MEMORY_ON_CPU = "torch counts allocations on GPUs only, so memory is not measured on a CPU."


@dataclass(frozen=True)
class CallMemory:
    """In MiB, as torch's allocator counts: its blocks are multiples of 512 bytes."""

    inputs: float  # what the call is given
    peak: float  # the inputs and what the call adds; not what the runner itself holds
    extra: float  # what the call adds
    reserved: float  # the inputs and what the allocator took from the device beyond what was in use before
    saved: float | None  # what lies between forward and backward, out included; None without a backward


def memory_of_call(call: Call, given: int, kept_for_backward: Call | None = None) -> CallMemory:
    """Return the largest allocation during a warm call on a GPU; workspaces that libraries keep are there before it.

    `given` are the bytes of its inputs; `kept_for_backward` is a forward that keeps what a backward needs.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    reserved = given + torch.cuda.max_memory_reserved() - before
    del result
    saved = _saved(kept_for_backward) if kept_for_backward else None
    return CallMemory(given / MIB, (given + extra) / MIB, extra / MIB, reserved / MIB, saved)


def _saved(forward: Call) -> float:
    before = torch.cuda.memory_allocated()
    out = forward()
    kept = torch.cuda.memory_allocated() - before
    del out
    return kept / MIB
