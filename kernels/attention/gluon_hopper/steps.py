"""Launches that follow one another; of those that never ran, the kernels are compiled side by side before the first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from kernels.attention.gluon_hopper.launch import Launch
from kernels.side_by_side import compile_side_by_side

Step = tuple[Launch, tuple[torch.Tensor, ...]]


def run_in_order(steps: Sequence[Step]) -> None:
    """Launch each with its tensors."""
    new = [partial(launch.warm_up, *tensors) for launch, tensors in steps if launch.is_new]
    if new:
        compile_side_by_side(new)
    for launch, tensors in steps:
        launch(*tensors)
