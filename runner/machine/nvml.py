"""Readings of a GPU from NVML, the NVIDIA management library. Values that it does not provide are None."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

try:
    import pynvml
except ImportError:  # nvidia-ml-py is optional
    pynvml = None

POWER_LIMIT = 0x04
# nvmlClocksEventReasons in NVML's API reference; idle and application settings do not count as throttling.
THROTTLE_REASONS = {
    POWER_LIMIT: "power limit",
    0x08: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
_WATCHED = {
    "SM clock": "sm_clock_mhz", "memory clock": "memory_clock_mhz", "power": "power_w", "energy": "energy_j",
    "temperature": "temperature_c", "other processes": "others",
}  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """The state of a GPU at one time."""

    sm_clock_mhz: int | None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: int = 0  # bits of THROTTLE_REASONS
    max_sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    energy_j: float | None = None  # since the driver was loaded
    others: int | None = None  # number of other processes on the GPU; None if the driver does not report it


class Gpu:
    """One GPU in NVML."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._max_sm_clock_mhz = _ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM)

    def reading(self) -> Reading:
        """Return the current clock, power, temperature, throttling and other processes."""
        power = _ask(pynvml.nvmlDeviceGetPowerUsage, self._handle)
        return replace(
            self.clock_reading(),
            power_w=None if power is None else power / 1000,
            temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, self._handle, pynvml.NVML_TEMPERATURE_GPU),
            memory_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, self._handle, pynvml.NVML_CLOCK_MEM),
            energy_j=self.energy_j(),
            others=self._others(),
        )

    def clock_reading(self) -> Reading:
        """Return clock and throttling only, which takes a third of the time of a full reading."""
        reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, self._handle)
        return Reading(
            sm_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, self._handle, pynvml.NVML_CLOCK_SM),
            throttle=(reasons or 0) & sum(THROTTLE_REASONS),
            max_sm_clock_mhz=self._max_sm_clock_mhz,
        )

    def energy_j(self) -> float | None:
        """Return the GPU's energy since the driver was loaded, from a counter that moves in steps."""
        millijoules = _ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._handle)
        return None if millijoules is None else millijoules / 1000

    def power_limit_w(self) -> float | None:
        """Return the enforced power limit."""
        limit = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, self._handle)
        return None if limit is None else limit / 1000

    def _others(self) -> int | None:
        processes = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, self._handle)
        if not processes:  # a container may hide all processes, including this one
            return None
        ours = any(process.pid == os.getpid() for process in processes)
        return len(processes) - 1 if ours or len(processes) > 1 else 0  # a container shows this process by another id


def find(uuid: str) -> Gpu | None:
    """Return the GPU of that UUID in torch's format; None without NVML."""
    if pynvml is None:
        return None
    try:
        pynvml.nvmlInit()
        return Gpu(pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"))
    except pynvml.NVMLError:
        return None


def what_is_missing(uuid: str) -> str | None:
    """Return a sentence on the values that cannot be read on the GPU of that UUID; None if all can."""
    if pynvml is None:
        return "NVML is missing (pip install nvidia-ml-py), so clocks, power, throttling and energy were not watched."
    gpu = find(uuid)
    if gpu is None:
        return "NVML does not know this GPU, so clocks, power, throttling and energy were not watched."
    now = gpu.reading()
    unknown = [words for words, name in _WATCHED.items() if getattr(now, name) is None]
    return f"NVML does not tell {', '.join(unknown)} here." if unknown else None


def driver_version() -> str | None:
    """Return the driver's version, from NVML or else from the kernel module."""
    if pynvml is not None:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            return str(pynvml.nvmlSystemGetDriverVersion())
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return None
    return next((word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()), None)


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None
