"""Record which declared features passed their check on a GPU: `python -m runner.validate.features --record FILE`.

The file has one entry per GPU, {"environment", "implementations"}: versions, commit and the kernels' hash, and the
report of `kernels.tools.check features`. Checking a GPU again replaces its entry. `results.capabilities` reads it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from kernels.tools import check_features
from runner.machine import devices, environment

_RECORDED = (
    "compute_capability", "driver", "cuda", "torch", "triton", "python", "git_commit", "git_dirty", "kernel_hash",
)  # fmt: skip


def entry(found: dict[str, dict[str, Any]], device: devices.DeviceInfo, head_dim: int) -> dict[str, Any]:
    """Return the file's entry for a device."""
    return {"environment": {"head_dim": head_dim, **facts(device)}, "implementations": found}


def facts(device: devices.DeviceInfo) -> dict[str, Any]:
    """Return the time and the facts of a device and its software that a record of checks holds."""
    said = environment.describe(device)
    created = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"created": created, **{name: said.get(name) for name in _RECORDED}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check features on a device and add its entry to a file; return 1 if any feature is wrong."""
    parser = argparse.ArgumentParser(prog="python -m runner.validate.features", description=__doc__.splitlines()[0])
    check_features.add_choices(parser)
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="results/published/features.json")
    options = parser.parse_args(arguments)
    device = devices.resolve(options.device)
    found = dict(sorted(check_features.chosen_report(options).items()))
    record = json.loads(options.record.read_text()) if options.record.exists() else {}
    record[device.name] = entry(found, device, options.head_dim)
    options.record.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n")
    return int(not check_features.is_right(found))


if __name__ == "__main__":
    sys.exit(main())
