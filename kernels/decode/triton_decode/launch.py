"""Launches of decoding kernels, whose compiled kernels are found again while a cache grows, and their scratch memory.

Scratch memory is parts of outputs, and tickets, which are zero before and after every launch: the program with the last
ticket of a tile resets the counter. Launches on one stream run in order and share their scratch. A launch in a CUDA
graph has separate scratch, because a graph may run at the same time as other launches: its parts are in the graph's
memory, its tickets in a reserve that is zeroed outside of captures.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple

import torch
from triton.runtime.errors import OutOfResources

from ...launches import INTERPRETED, InterpretedLaunch, PreparedLaunch, kind
from ...plans import PlanCache
from ...registry import UnsupportedCase

# kernel, grid, scalars, constants and compiler options of a launch
LaunchOf = tuple[Any, tuple[int, int, int], tuple[Any, ...], dict[str, Any], dict[str, Any]]
_COMPILED: PlanCache[Any] = PlanCache()
_RESERVE = 1 << 20  # tickets; beyond them a recorded launch clears its own
_FEWEST_TICKETS = 4096


def prepared(launch: LaunchOf, tensors: Sequence[torch.Tensor | None]) -> PreparedLaunch | InterpretedLaunch:
    """Return a launch compiled for tensors like these; where it takes addresses, None is no tensor."""
    kernel, grid, scalars, constants, options = launch
    constants = {name: constants[name] for name in kernel.arg_names if name in constants}
    if INTERPRETED:
        return InterpretedLaunch(kernel, grid, scalars, constants)
    return PreparedLaunch(_compiled((kernel, grid, scalars, constants, options), tensors), grid, scalars, constants)


def _compiled(launch: LaunchOf, tensors: Sequence[torch.Tensor | None]) -> Any:
    """Return Triton's CompiledKernel, cached by everything that Triton specializes a kernel on.

    The length of a cache changes with every generated token, and Triton's own lookup takes longer.
    """
    kernel, _, scalars, constants, options = launch
    device = next(x.device for x in tensors if x is not None)
    key = (kernel, device, *map(kind, (*tensors, *scalars)), tuple(constants.items()), tuple(options.items()))
    made = _COMPILED.get(key)
    if made is None:
        warm_up = partial(kernel.warmup, *tensors, *scalars, grid=(1,), **constants, **options)
        made = Context().run(warm_up)  # not in an AsyncCompileMode of the caller
        try:
            made.run  # noqa: B018 - loads the kernel, which is when Triton checks its needs against the device
        except OutOfResources as error:
            raise UnsupportedCase(
                f"The tile of {kernel.__name__} needs {error.required} of a block's {error.name}, and this device has "
                f"{error.limit}; use a smaller head_dim or a 16-bit dtype."
            ) from error
        _COMPILED.remember(key, made)
    return made


class Workspace(NamedTuple):
    """Scratch memory and its size."""

    tickets: torch.Tensor  # int32
    parts: torch.Tensor  # float32
    most_tickets: int
    most_parts: int
    addresses: tuple[int, int]  # parts, tickets


def _of(tickets: torch.Tensor, parts: torch.Tensor) -> Workspace:
    return Workspace(tickets, parts, tickets.numel(), parts.numel(), (parts.data_ptr(), tickets.data_ptr()))


_BY_STREAM: dict[tuple[int | None, int], Workspace] = {}
_RESERVES: dict[int, tuple[torch.Tensor, int]] = {}  # by device: tickets, and the number in use


def workspace(tickets: int, parts: int, device: torch.device, stream: int) -> Workspace:
    """Return scratch of at least that many tickets and parts for a launch on the stream."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return _recorded(tickets, parts, device)
    key = (device.index, stream)
    found = _BY_STREAM.get(key)
    if found is None or found.most_tickets < tickets or found.most_parts < parts:
        found = _BY_STREAM[key] = _larger(found, tickets, parts, device)
    return found


def _larger(found: Workspace | None, tickets: int, parts: int, device: torch.device) -> Workspace:
    if device.type == "cuda" and device.index not in _RESERVES:
        _RESERVES[device.index] = torch.zeros(_RESERVE, dtype=torch.int32, device=device), 0
    tickets = max(tickets, found.most_tickets if found else _FEWEST_TICKETS)
    parts = max(parts, found.most_parts if found else 1)
    return _of(
        torch.zeros(tickets, dtype=torch.int32, device=device), torch.empty(parts, dtype=torch.float32, device=device)
    )


def _recorded(tickets: int, parts: int, device: torch.device) -> Workspace:
    tickets = -(-tickets // 4) * 4  # keeps the next tickets aligned to 16 bytes
    counters, taken = _RESERVES.get(device.index, (None, 0))
    if counters is None or taken + tickets > counters.numel():
        own = torch.zeros(tickets, dtype=torch.int32, device=device)
    else:
        _RESERVES[device.index] = counters, taken + tickets
        own = counters[taken : taken + tickets]
    return _of(own, torch.empty(parts, dtype=torch.float32, device=device))
