"""The fields of a Run that describe this machine: GPU, versions, commit. Unknown values are None."""

import importlib.metadata
import os
import platform
from typing import Any

import torch

from runner.machine import nvml
from runner.machine.devices import DeviceInfo, cpu_name, hashed
from runner.machine.kernel_hash import kernel_hash
from runner.supervise.other_version import git

MIB = 1024 * 1024


def describe(device: DeviceInfo) -> dict[str, Any]:
    """Return the fields of results.records.Run that depend on the machine and the checkout, not on the sweep."""
    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    of_device = _gpu(device) if device.type == "cuda" else {"gpu_name": device.name, "device_type": "cpu"}
    return {
        "torch": torch.__version__,
        "triton": version("triton"),
        "python": platform.python_version(),
        "os": platform.platform(),
        "cpu": f"{cpu_name()}, {os.cpu_count()} threads",
        "host": hashed(platform.node()),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "git_commit": commit.decode().strip() if commit else None,
        "git_dirty": None if not commit or changed is None else bool(changed),
        "kernel_hash": kernel_hash(),
        **of_device,
    }


def _gpu(device: DeviceInfo) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device.id)
    gpu = nvml.find(device.uuid or "")
    cudnn = torch.backends.cudnn.version()
    return {
        "gpu_name": properties.name,
        "gpu_uuid": device.lock.removeprefix("gpu-"),
        "device_type": "cuda",
        "compute_capability": f"{properties.major}.{properties.minor}",
        "sm_count": properties.multi_processor_count,
        "gpu_memory_mb": properties.total_memory / MIB,
        "l2_mb": properties.L2_cache_size / MIB,
        "power_limit_w": gpu.power_limit_w() if gpu else None,
        "driver": nvml.driver_version(),
        "cuda": torch.version.cuda,
        "cudnn": str(cudnn) if cudnn else None,
        "notes": nvml.what_is_missing(device.uuid or ""),
    }


def version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
