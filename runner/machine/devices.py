"""The devices that torch finds on this machine."""

import contextlib
import hashlib
import platform
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from runner.supervise.job import Refused


@dataclass(frozen=True)
class DeviceInfo:
    """A device with the names used in lists and locks."""

    id: str  # "cpu" or "cuda:0"
    type: str
    name: str
    lock: str  # name of its lock: "cpu" or "gpu-<hash of the UUID>"
    uuid: str | None = None  # UUID in torch's format; never stored


def available() -> list[DeviceInfo]:
    """Return every device of this machine, GPUs first."""
    gpus = [_gpu(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return [*gpus, DeviceInfo("cpu", "cpu", cpu_name(), "cpu")]


def resolve(wanted: str | None) -> DeviceInfo:
    """Return the device of that name; None or "cuda" means the first GPU, and None the CPU if there is no GPU.

    Raises Refused with the devices of this machine.
    """
    found = available()
    if wanted is None:
        return found[0]
    name = "cuda:0" if wanted == "cuda" else wanted
    for device in found:
        if device.id == name:
            return device
    raise Refused(f"Unknown device {wanted!r}. Available: {', '.join(device.id for device in found)}.")


def current(device: DeviceInfo) -> AbstractContextManager[object]:
    """Make this device the current GPU within the block, so that no work goes to a GPU of another sweep."""
    return torch.cuda.device(device.id) if device.type == "cuda" else contextlib.nullcontext()


def hashed(text: str) -> str:
    """Return a short, stable hash of an identifier that should not be published."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def cpu_name() -> str:
    """Return the processor's model name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            match = re.search(r"^model name\s*:\s*(.+)$", file.read(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def _gpu(index: int) -> DeviceInfo:
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", "")) or f"{platform.node()}/{properties.name}/{index}"
    return DeviceInfo(f"cuda:{index}", "cuda", properties.name, f"gpu-{hashed(uuid)}", uuid)
