"""Record which declared features passed their check on a GPU: `python -m runner.validate.features --record FILE`.

The file has one entry per GPU, {"environment", "implementations"}: versions, commit and the kernels' hash, and the
report of `kernels.tools.check features`. Checking a GPU again replaces what was found with other kernels or versions,
and adds to what was found with the same. `results.capabilities` reads it.
"""

import argparse
import json
import re
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
_SAME = ("seqlen", "head_dim", "torch", "triton", "kernel_hash")  # facts of entries that belong together


def facts(device: devices.DeviceInfo) -> dict[str, Any]:
    """Return the time and the facts of a device and its software that a record of checks holds."""
    said = environment.describe(device)
    created = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"created": created, **{name: said.get(name) for name in _RECORDED}}


def add_entry(path: Path | None, device: str, environment: dict[str, Any], found: Any, **more: Any) -> None:
    """Write what was found on a device into a file of records: added to an entry of the same code, or in its place.

    What holds no other table is one line of the file.
    """
    if path is None:
        return
    record = json.loads(path.read_text()) if path.exists() else {}
    before = record.get(device, {"environment": {}})
    if isinstance(found, dict) and all(before["environment"].get(name) == environment.get(name) for name in _SAME):
        found, more = dict(sorted((before["implementations"] | found).items())), {**before, **more}
    record[device] = more | {"environment": environment, "implementations": found}
    text = json.dumps(dict(sorted(record.items())), indent=1)
    path.write_text(re.sub(r"\{[^{}]*\}", lambda table: " ".join(table[0].split()), text) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check features on a device and add its entry to a file; return 1 if any feature is wrong."""
    parser = argparse.ArgumentParser(prog="python -m runner.validate.features", description=__doc__.splitlines()[0])
    check_features.add_choices(parser)
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="results/published/features.json")
    options = parser.parse_args(arguments)
    device = devices.resolve(options.device)
    found = dict(sorted(check_features.chosen_report(options).items()))
    add_entry(options.record, device.name, {"head_dim": options.head_dim, **facts(device)}, found)
    return int(not check_features.is_right(found))


if __name__ == "__main__":
    sys.exit(main())
