"""Lists of devices, implementations and sweeps, and the plan of one sweep, as text or JSON."""

import importlib.util
import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from results import levels
from results.levels.real_shapes import shape_of
from results.recommend import rule_file
from results.records import Case
from results.render.text import duration
from runner import sweeps
from runner.cells import Cell, cell_to_json
from runner.locks import holder
from runner.machine import devices, environment
from runner.protocol import Protocol
from runner.sweeps import SWEEPS, Sweep
from runner.worker import set_interpreter

# The declarations that users select implementations by.
CAPABILITIES = (
    "dtypes", "max_head_dim", "causal", "window", "gqa", "backward", "paged", "features",
    "min_compute_capability", "max_compute_capability", "materialises_scores",
)  # fmt: skip
_VERSIONS = ("driver", "torch", "triton", "kernel_hash")  # of a rule's runs


def show_list(home: Path, device: str | None, *, as_json: bool) -> None:
    """Print devices, implementations with the reason against each on the device, and sweeps."""
    target = resolve(device)
    found: dict[str, Any] = {
        "devices": [
            {"id": d.id, "name": d.name, "type": d.type, "busy": holder(home, d.lock)} for d in devices.available()
        ],
        "implementations": _implementations(target),
        "sweeps": [(sweeps.to_json(sweep) | {"case_count": len(sweep.cases())}) for sweep in SWEEPS.values()],
        "rule": old_rule(target),
        "ray": importlib.util.find_spec("ray") is not None,
    }
    if as_json:
        print(json.dumps(found, indent=1))
        return
    if found["rule"]:
        print(found["rule"])
    print("Devices")
    for entry in found["devices"]:
        print(f"  {entry['id']:<10}{entry['name']}{', taken by ' + entry['busy'] if entry['busy'] else ''}")
    for level, entries in groupby(found["implementations"], key=lambda entry: entry["level"]):
        print(f"Implementations of level {level} on {target.id}")
        for entry in entries:
            print(f"  {entry['name']:<24}{entry['reason'] or entry['description']}")
    print("Sweeps")
    for entry in found["sweeps"]:
        print(f"  {entry['name']:<24}{entry['description']} ({entry['case_count']} cases)")


def old_rule(target: devices.DeviceInfo) -> str | None:
    """Return a sentence if a device's installed rule is broken or was measured with other versions than today's."""
    path = rule_file.installed_at({"gpu": "CPU" if target.type == "cpu" else target.name})
    rule = rule_file.read(path)
    if rule is None and path.exists():
        return f"The rule {path} is broken and not used. Renew it: python -m runner tune"
    runs = rule["runs"].values() if rule else ()
    today = environment.describe(target) if runs else {}
    other = sorted({name for run in runs for name in _VERSIONS if run.get(name) not in (None, today.get(name))})
    if not other:
        return None
    return f"The rule {path} was measured with another {' and '.join(other)}. Renew it: python -m runner tune"


def show_plan(
    sweep: Sweep,
    device: str | None,
    named: tuple[str, ...] | None,
    protocol: Protocol,
    seed: int,
    *,
    capabilities: tuple[str, ...] = (),
    as_json: bool,
) -> None:
    """Print every cell of a sweep with its estimate or the reason for skipping it."""
    target = resolve(device)
    from runner import plan

    cells = plan.plan(plan.chosen(sweep, named, capabilities, target.id), target, protocol, seed)
    skipped, seconds = sum(1 for cell in cells if cell.reason), sum(cell.seconds for cell in cells)
    if as_json:
        whole = {"sweep": sweep.name, "device": target.id, "cells": [cell_to_json(cell) for cell in cells]}
        print(json.dumps(whole | {"seconds": seconds, "cell_count": len(cells), "skipped_count": skipped}))
        return
    case = None
    for cell in cells:
        if cell.case != case:
            case = cell.case
            print(levels.words(case))
            if shape := shape_of(case):
                print(f"  source of the shape: {shape.source}")
        print(f"  {cell.implementation:<24}{cell.mode:<9}{_fate(cell, target.type)}")
    print(f"{len(cells)} cells on {target.id}, {skipped} of them skipped; about {duration(seconds)}.")


def _fate(cell: Cell, device_type: str) -> str:
    from runner import plan
    from runner.levels import level_of

    if cell.reason:
        return f"skipped: {cell.reason}"
    if plan.is_interpreted(level_of(cell.case).implementations()[cell.implementation], device_type):
        return plan.interpreter_reason(cell) or plan.NOT_TIMED
    memory = "" if cell.memory_mb is None else f", {cell.memory_mb:.0f} MiB"
    return f"about {cell.seconds:.1f} s{memory}"


def resolve(device: str | None) -> devices.DeviceInfo:
    """Return a device by its name, and run Triton there as it can. Raises Refused."""
    found = devices.resolve(device)
    set_interpreter(found.type)
    return found


def _implementations(target: devices.DeviceInfo) -> list[dict[str, Any]]:
    from kernels import registry
    from runner.levels import with_own_implementations

    described = registry.describe_device(target.id)
    return [
        {
            "name": i.name,
            "level": i.level,
            "family": i.family,
            "description": i.description,
            "reason": _reason(level.small_case, i, described),
            "capabilities": {name: getattr(i, name) for name in CAPABILITIES},
        }
        for level in with_own_implementations().values()
        for i in level.implementations().values()
    ]


def _reason(small_case: Callable[[str, int], Case], implementation: Any, device: Any) -> str | None:
    """Return the reason against a small case in the first dtype of an implementation; None if one of them can run."""
    reasons = [implementation.reason_against(small_case(dtype, 64), device) for dtype in implementation.dtypes]
    return None if None in reasons else reasons[0]
