"""Stopwatches for device time (launches hidden, L2 cold) and for the wall time of a plain call."""

import contextlib
import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from results.spread import is_precise
from runner.levels import Call
from runner.machine import schedstat
from runner.protocol import Protocol

_BATCH = 10  # samples queued behind one spin; CUDA queues about a thousand launches before the host must wait
_LONGEST_SPIN_MS = 400.0
_CALIBRATION_CYCLES = 4_000_000
_EMPTY_SAMPLES = 50
_SETTLING_CYCLES = 20_000_000  # 10 ms at 2 GHz
_SETTLING_S, _LONGEST_SETTLING_S = 0.05, 0.5
SETTLED = 0.97  # share of the highest clock from which the clock counts as settled


PERSISTING_L2 = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE of the CUDA driver


def _persisting_l2_bytes() -> int:
    """Return how much of L2 the process has set aside for persisting data."""
    if not torch.cuda.is_initialized():
        return 0
    size = ctypes.c_size_t()
    driver = ctypes.CDLL("libcuda.so.1")
    return size.value if driver.cuCtxGetLimit(ctypes.byref(size), PERSISTING_L2) == 0 else 0


class EagerStopwatch:
    """Wall time from the call to its end on the device, with host overhead and without flushing caches."""

    flag: str | None = None  # for the samples just taken

    def __init__(self, synchronize: Call = lambda: None, *, watched: bool = False) -> None:
        self._synchronize, self._watched = synchronize, watched
        self._waits: list[float] = []

    def sample(self, call: Call, count: int) -> list[float]:
        """Return `count` times of the call in milliseconds."""
        times = []
        with schedstat.watch() if self._watched else contextlib.nullcontext() as cores:
            for _ in range(count):
                self._synchronize()
                start = time.perf_counter()
                call()
                self._synchronize()
                times.append((time.perf_counter() - start) * 1e3)
                if cores:
                    self._waits.append(cores.lap_ms())
        return times

    def take_waits(self) -> list[float]:
        """Return the milliseconds that the threads waited for a core in each sample since the previous call."""
        taken, self._waits = self._waits, []
        return taken


class KernelStopwatch:
    """Device time between two CUDA events around a call.

    Launch overhead is hidden, because a spinning kernel holds the stream until all launches are queued. L2 is cold,
    because twice its size is written before each call.
    """

    def __init__(self, device: str) -> None:
        properties = torch.cuda.get_device_properties(device)
        self._flush = torch.empty(2 * properties.L2_cache_size // 4, dtype=torch.int32, device=device)
        _spin()
        self._cycles_per_ms = _CALIBRATION_CYCLES / device_ms(_spin, 1)
        self._persisting = _persisting_l2_bytes()
        self.flag: str | None = None

    def sample(self, call: Call, count: int) -> list[float]:
        """Return `count` times of the call in milliseconds. Sets `flag` if the launches could not be hidden."""
        times: list[float] = []
        self.flag = None
        host_ms = self._queue(call, 1, 0.0)[1]
        while len(times) < count:
            batch = min(_BATCH, count - len(times))
            spin_ms = min(2.0 * host_ms * batch + 0.2, _LONGEST_SPIN_MS)
            taken, host_ms, hidden = self._queue(call, batch, spin_ms)
            if not hidden:  # the host was slower than expected: repeat with a longer spin
                taken, host_ms, hidden = self._queue(call, batch, min(4.0 * host_ms * batch + 1.0, _LONGEST_SPIN_MS))
            if not hidden:
                self.flag = "launches not hidden"
            times += taken
        return times

    def l2_is_set_aside(self) -> bool:
        """Return whether a part of L2 was set aside since, whose data the flush before each sample does not evict."""
        return _persisting_l2_bytes() > self._persisting

    def empty_launch_ms(self) -> float:
        """Return the median time of an empty kernel, which is a part of every measured time."""
        return statistics.median(self.sample(lambda: torch.cuda._sleep(0), _EMPTY_SAMPLES))

    def take_waits(self) -> list[float]:
        """Return nothing, because device time does not depend on the host's cores."""
        return []

    def _queue(self, call: Call, count: int, spin_ms: float) -> tuple[list[float], float, bool]:
        """Return the times, the host's time per call, and whether the spin lasted longer than the queueing."""
        events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(count)]
        gate = torch.cuda.Event()
        torch.cuda._sleep(int(spin_ms * self._cycles_per_ms))
        gate.record()
        start = time.perf_counter()
        for before, after in events:
            self._flush.zero_()
            before.record()
            call()
            after.record()
        host_ms = (time.perf_counter() - start) * 1e3 / count
        hidden = not gate.query()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in events], host_ms, hidden


def device_ms(call: Callable[[], object], count: int) -> float:
    """Return the milliseconds of successive calls on a GPU, between two events."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(count):
        call()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after)


def _spin() -> None:
    torch.cuda._sleep(_CALIBRATION_CYCLES)


Stopwatch = EagerStopwatch | KernelStopwatch

# What takes or orders times. A program that replaces one of them could report any time.
HOOKS: tuple[tuple[Any, str], ...] = (
    (time, "perf_counter"),
    *((torch.cuda, name) for name in ("synchronize", "current_stream", "Event", "_sleep")),
    (torch.Tensor, "zero_"),  # the flush of L2
    *((each, "sample") for each in (EagerStopwatch, KernelStopwatch)),
    *((torch.cuda.Event, name) for name in ("record", "elapsed_time")),
)
_AS_IMPORTED = tuple(getattr(owner, name) for owner, name in HOOKS)


def replaced_hooks() -> list[str]:
    """Return the names of functions for timing that something has replaced since this module was imported."""
    pairs = zip(HOOKS, _AS_IMPORTED, strict=True)
    return [f"{owner.__name__}.{name}" for (owner, name), known in pairs if getattr(owner, name) is not known]


# Settings of the process that make rivals slower or wrong. An implementation has to leave them as they are.
_SDPA = tuple(f"{name}_sdp" for name in ("flash", "mem_efficient", "math", "cudnn"))
SETTINGS: dict[str, Callable[[], Any]] = {
    "torch.use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "SDPA's backends": lambda: [getattr(torch.backends.cuda, f"{name}_enabled")() for name in _SDPA],
}
_SET_AT_IMPORT = {name: read() for name, read in SETTINGS.items()}


def changed_settings() -> list[str]:
    """Return the settings of the process that something has changed since this module was imported."""
    return [name for name, read in SETTINGS.items() if read() != _SET_AT_IMPORT[name]]


def sample_round(stopwatch: Stopwatch, call: Call, earlier: list[float], protocol: Protocol) -> list[float]:
    """Return one round's samples of a call.

    A round takes a least number of samples, which depends on the length of a plain call, and then more until all
    samples are precise enough or the round's share of the time limit is used up.
    """
    eager = isinstance(stopwatch, EagerStopwatch)
    waits = (torch.cuda.synchronize,) if torch.cuda.is_initialized() else ()
    plain = stopwatch if eager else EagerStopwatch(*waits)
    first = plain.sample(call, 1)
    heated = time.perf_counter() + protocol.heat_s
    while time.perf_counter() < heated:
        plain.sample(call, 1)
    least = protocol.least_of_round(first[0])
    most = max(least, protocol.most // protocol.rounds)
    end = time.perf_counter() + protocol.cap_ms / protocol.rounds / 1e3
    samples = first if eager else []
    samples += stopwatch.sample(call, least - len(samples))
    while len(samples) < most and time.perf_counter() < end and not is_precise(earlier + samples, protocol.precision):
        samples += stopwatch.sample(call, min(_BATCH, most - len(samples)))
    return samples


def settle(
    device: str, sm_clock: Callable[[], float | None], full_clock: float | None, *, steady: bool = False
) -> None:
    """Wait until a GPU has reached its full clock; if it is `steady`, one more reading is enough.

    A spinning kernel keeps the GPU active at low power. Heavy work would lower the clock: an H200 that multiplied
    matrices for half a second runs at 1485 MHz and needs a tenth of a second to return to 1980 MHz, during which a
    round would be up to a fifth slower (2026-11).
    """
    if not device.startswith("cuda"):
        return
    begun = time.perf_counter()
    while (waited := time.perf_counter() - begun) < _LONGEST_SETTLING_S:
        torch.cuda._sleep(_SETTLING_CYCLES)
        torch.cuda.synchronize()
        clock = sm_clock() if full_clock else None
        long_enough = waited >= _SETTLING_S or (steady and clock is not None)
        if long_enough and (clock is None or clock >= SETTLED * full_clock):
            return
