"""Level softmax with tensors. A made-up level, copied to runner/levels/softmax.py."""

from dataclasses import dataclass

import torch

from kernels.registry import Implementation
from results.levels.softmax import softmax_case
from results.records import Case
from runner.levels import MeasuredLevel, Pass, Trial, fill_normal, generator_of


@dataclass(frozen=True)
class SoftmaxInputs:
    case: Case
    x: torch.Tensor  # (rows, columns)

    @property
    def device(self) -> torch.device:
        return self.x.device

    def fill(self, seed: int) -> None:
        fill_normal((self.x,), generator_of(self.case, self.device, seed))

    def bytes_of(self, mode: str) -> int:
        return self.x.numel() * self.x.element_size()

    def result_shapes(self) -> list[torch.Size]:
        return [self.x.shape]


def empty_inputs(case, device):
    dtype = getattr(torch, case.dtype)
    return SoftmaxInputs(case, torch.empty(case.seqlen_q, case.head_dim, dtype=dtype, device=device))


def by_exp(x):
    e = (x - x.amax(1, keepdim=True)).exp()
    return e / e.sum(1, keepdim=True)


def unscaled(x):
    return x.exp()


def call(function, inputs, mode):
    return lambda: function(inputs.x)


IMPLEMENTATIONS = {
    name: Implementation(name, f"softmax by {name}", function, level="softmax", backward=False)
    for name, function in (("torch_naive", lambda x: x.softmax(1)), ("by_exp", by_exp), ("unscaled", unscaled))
}
LEVEL = MeasuredLevel(
    implementations=lambda: IMPLEMENTATIONS,
    passes=lambda case: (Pass("fwd", "forward", ("fwd",), ("out",)),),
    small_case=lambda dtype, columns: softmax_case(2, columns, dtype),
    empty_inputs=empty_inputs,
    trial=lambda function, inputs, mode: Trial(call(function, inputs, mode)),
    call=call,
    oracle=lambda inputs, passes, fp8=False: {"out": inputs.x.double().softmax(1)},
)
