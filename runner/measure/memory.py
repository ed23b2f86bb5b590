"""Memory of a call in a separate pass: its inputs, its additional peak, and the tensors kept for the backward."""

import gc

import torch

from runner.levels import Call

MIB = 1024 * 1024
NO_MEMORY_ON_CPU = "torch counts allocations on GPUs only, so memory is not measured on a CPU."


def memory_of_call(call: Call, given: int, kept_for_backward: Call | None = None) -> dict[str, float]:
    """Return the memory of a warm call on a GPU by metric, in MiB; persistent workspaces of libraries exist before it.

    `given` are the bytes of its inputs; `kept_for_backward` is a forward that keeps the tensors for a backward. torch's
    allocator counts, whose blocks are multiples of 512 bytes.
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
    found = {
        "inputs_memory_mb": given,
        "peak_memory_mb": given + extra,  # without other tensors of the runner
        "extra_memory_mb": extra,
        "reserved_memory_mb": reserved,  # inputs, and what the allocator reserved beyond the memory in use before
    }
    if kept_for_backward:
        found["activation_memory_mb"] = _saved(kept_for_backward)
    return {metric: size / MIB for metric, size in found.items()}


def _saved(forward: Call) -> int:
    """Return the bytes kept between forward and backward, out included."""
    gc.collect()  # memory freed during the forward would hide what it keeps
    before = torch.cuda.memory_allocated()
    out = forward()
    kept = torch.cuda.memory_allocated() - before
    del out
    return kept
