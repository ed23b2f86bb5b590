"""Tickets: a counter for each tile that programs share, zero before and after every launch.

The program with a tile's last ticket sets its counter back, so nothing is cleared between launches. Launches on one
stream follow one another and share their counters. A launch recorded into a CUDA graph has counters of its own, since
the graph may run beside anything: they come from a reserve that was zeroed outside of any capture.
"""

from __future__ import annotations

import torch

_RESERVE = 1 << 20  # counters; beyond them a recorded launch clears its own
_BY_STREAM: dict[tuple[int, int], torch.Tensor] = {}
_RESERVES: dict[int, tuple[torch.Tensor, int]] = {}  # by device: counters, and how many are taken


def tickets(count: int, device: torch.device, stream: int) -> torch.Tensor:
    """At least `count` int32 zeros for a launch on the stream."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return _recorded(count, device)
    key = (device.index or 0, stream)
    found = _BY_STREAM.get(key)
    if found is None or found.numel() < count:
        if device.type == "cuda" and device.index not in _RESERVES:
            _RESERVES[device.index] = torch.zeros(_RESERVE, dtype=torch.int32, device=device), 0
        found = _BY_STREAM[key] = torch.zeros(max(count, 4096), dtype=torch.int32, device=device)
    return found


def _recorded(count: int, device: torch.device) -> torch.Tensor:
    counters, taken = _RESERVES.get(device.index, (None, 0))
    if counters is None or taken + count > counters.numel():
        return torch.zeros(count, dtype=torch.int32, device=device)
    _RESERVES[device.index] = counters, taken + count
    return counters[taken : taken + count]
