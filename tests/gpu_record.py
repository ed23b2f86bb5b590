"""The record of when the GPU tests last ran, where and with what: `python -m pytest -m gpu --record-gpu` adds to it.

CI has no GPU, so this file is the only witness. `python -m tests.gpu_record` prints it as a table.
"""

import datetime
import json
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("gpu_record.json")


def add(counts: Mapping[str, int], failed: Iterable[Any], place: Path = RECORD) -> None:
    """Add a run of the GPU tests: one entry for each GPU model, the newest run replaces the one before."""
    import torch

    from runner.machine.kernel_hash import kernel_hash

    if not torch.cuda.is_available():
        raise RuntimeError("--record-gpu needs a CUDA device; this machine has none.")
    entries = json.loads(place.read_text()) if place.exists() else {}
    entries[torch.cuda.get_device_name()] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "kernel_hash": kernel_hash(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": version("triton"),
        "cuda": torch.version.cuda,
        **counts,
        "failures": sorted(report.nodeid for report in failed),
    }
    place.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Print one line for each GPU, and whether the kernels have changed since."""
    from runner.machine.kernel_hash import kernel_hash

    entries = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for gpu, entry in entries.items():
        state = "these kernels" if entry["kernel_hash"] == kernel_hash() else "older kernels"
        outcome = ", ".join(f"{entry[name]} {name}" for name in ("passed", "failed", "skipped"))
        print(f"{gpu}: {entry['date']}, {state}, torch {entry['torch']}, triton {entry['triton']}: {outcome}")


if __name__ == "__main__":
    main()
