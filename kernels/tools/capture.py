"""Record what a package would launch on a GPU that is not there.

Within `launches_on` the real code of a package runs: its checks, plans, tuning tables and autograd. Tensors have no
memory and say that they are on a GPU, whose properties are those of FACTS; a launch of a Triton or Gluon kernel is
recorded and not run. So nothing here repeats the arguments of a kernel.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from triton.runtime.jit import JITFunction

from .. import parallel_compile
from ..attention.triton_fa2 import launch
from ..tables import shared_memory
from .compile import RecordedLaunch

MULTIPROCESSORS = 132
_L2_BYTES = 50 << 20


@contextmanager
def launches_on(chip: int) -> Iterator[list[RecordedLaunch]]:
    """Pretend that there is a GPU of a compute capability (90 for 9.0), and record the launches on it.

    The device's index is `chip`, so that plans of several chips are cached apart.
    """
    found: list[RecordedLaunch] = []

    def record(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> SimpleNamespace:
        own = {name: value for name, value in named.items() if name in kernel.arg_names}
        options = {name: value for name, value in named.items() if name not in own}
        found.append(RecordedLaunch(kernel, arguments, own, options))
        return SimpleNamespace(run=_launch_nothing, packed_metadata=None, function=None)

    facts = SimpleNamespace(
        name=f"sm_{chip}",
        major=chip // 10,
        minor=chip % 10,
        multi_processor_count=MULTIPROCESSORS,
        L2_cache_size=_L2_BYTES,
        shared_memory_per_block_optin=shared_memory()[chip],
        total_memory=80 << 30,
    )
    with ExitStack() as stack:
        for owner, name, stand_in in (
            (JITFunction, "run", record),
            (torch.cuda, "get_device_properties", lambda device=None: facts),
            (parallel_compile, "ahead", lambda warm_ups: None),
            (launch, "_COMPILED", _Nothing()),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
            (torch._C, "_cuda_getDevice", lambda: chip),
            (torch._C, "_cuda_getCurrentRawStream", lambda index: 0),
        ):
            stack.enter_context(patch.object(owner, name, stand_in, create=True))
        stack.enter_context(_OnPretendedGpu(chip))
        yield found


class _Nothing(dict[Any, Any]):
    """Keeps nothing, so that every plan asks for its kernels."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Keep nothing."""


class _OnPretendedGpu(TorchFunctionMode):
    """Makes tensors without memory where a CUDA device is requested; all tensors say that they are on it."""

    def __init__(self, chip: int) -> None:
        super().__init__()
        self._device = torch.device("cuda", chip)

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: tuple[Any, ...] = (), named: Any = None
    ) -> Any:
        if function == torch.Tensor.device.__get__:
            return self._device
        if function == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]  # the stubs have a bool
            return True
        if function is torch.autograd.grad:
            return self._gradients(*arguments, **(named or {}))
        named = {name: _without_memory(value) for name, value in (named or {}).items()}
        return function(*map(_without_memory, arguments), **named)

    def _gradients(self, outputs: Any, inputs: Any, grad_outputs: torch.Tensor, **_: Any) -> tuple[torch.Tensor, ...]:
        """Run the backward by PyTorch's engine: `torch.autograd.grad` itself would run it outside of this mode."""
        engine = torch.autograd.Variable._execution_engine
        with self:
            return engine.run_backward(
                outputs, (grad_outputs,), False, False, tuple(inputs), allow_unreachable=True, accumulate_grad=False
            )


def _without_memory(argument: Any) -> Any:
    is_gpu = isinstance(argument, (str, torch.device)) and str(argument).startswith("cuda")
    return torch.device("meta") if is_gpu else argument


def _launch_nothing(*arguments: Any) -> None:
    """Replace a compiled kernel's launcher."""


# Makes kernels.parallel_compile.in_c take the launcher of any version.
_launch_nothing.global_scratch_size = 1  # type: ignore[attr-defined]  # an attribute of a function
