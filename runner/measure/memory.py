"""Memory of a call in a separate pass: its inputs, its additional peak, and the tensors kept for the backward."""

import gc
from dataclasses import dataclass

import torch

from runner.levels import Call

MIB = 1024 * 1024
NO_MEMORY_ON_CPU = "torch counts allocations on GPUs only, so memory is not measured on a CPU."


@dataclass(frozen=True)
class CallMemory:
    """Memory in MiB as counted by torch's allocator, whose blocks are multiples of 512 bytes."""

    inputs: float  # tensors passed to the call
    peak: float  # inputs and additional memory of the call, without other tensors of the runner
    extra: float  # additional memory of the call
    reserved: float  # inputs and memory that the allocator reserved beyond the memory in use before
    saved: float | None  # memory kept between forward and backward, out included; None without a backward


def memory_of_call(call: Call, given: int, kept_for_backward: Call | None = None) -> CallMemory:
    """Return the memory of a warm call on a GPU; persistent workspaces of libraries exist before it.

    `given` are the bytes of its inputs; `kept_for_backward` is a forward that keeps the tensors for a backward.
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
    gc.collect()  # memory freed during the forward would hide what it keeps
    before = torch.cuda.memory_allocated()
    out = forward()
    kept = torch.cuda.memory_allocated() - before
    del out
    return kept / MIB
