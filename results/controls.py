"""PyTorch's own kernels as a control: where two runs have the same PyTorch on the same GPU, they did not change.

What their times differ by is then the machine. Of the device times of one H200 in two processes, minutes apart and at
the same clock, calls of many short kernels moved by 4 % and of one kernel by 1 % (2026-11), in every round alike.
"""

from __future__ import annotations

from results.records import Run

PREFIX = "torch_"


def speak_for_the_machine(first: Run, second: Run) -> bool:
    """Whether PyTorch's kernels are the same in both runs, so that a difference between them is none of the code."""
    return bool(first.torch) and (first.torch, first.gpu_name) == (second.torch, second.gpu_name)


def is_control(implementation: str) -> bool:
    """Whether an implementation is PyTorch's own, and not a pair of two."""
    return implementation.startswith(PREFIX) and " -> " not in implementation
