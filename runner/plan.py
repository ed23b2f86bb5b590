"""The cells of a sweep: reasons against those that cannot run here, and estimates for the others."""

import dataclasses
import itertools
from functools import cache
from typing import Any, cast

from kernels import forms, registry
from results import levels
from results.levels.tensors import MIB
from results.records import Case, Status
from runner.cells import Cell, estimated_memory_mb, estimated_seconds, ordered_cells
from runner.levels import level_of
from runner.machine.devices import DeviceInfo, current
from runner.protocol import Protocol
from runner.supervise.job import Refused
from runner.sweeps import Sweep

_MOST_FLOPS_ON_CPU = 2e10  # limit in float64 if only errors are recorded: seconds
INTERPRETER_LIMIT_S = 3.0  # longest check of one case by one implementation
# Seconds of a forward with 1024 x 1024 scores of one head of 64, and the factor of forward and backward over it.
# Measured with triton_fa2 in float32, whose tiles are small (Triton 3.9, one of two busy cores, 2026-11); float16 takes
# a fifth of that.
_INTERPRETER_FORWARD_S = 5.0
_INTERPRETER_BOTH = 9.0
_NO_TIME = "cpu", ("kernel",)
NOT_TIMED = "Triton runs in the interpreter on a CPU: checked, not timed."
_NOT_TRACED = "Triton runs in the interpreter on a CPU, whose speed is not traced."


def plan(sweep: Sweep, device: DeviceInfo, protocol: Protocol, seed: int) -> list[Cell]:
    """Return every cell in the order of measurement."""
    target = registry.describe_device(device.id)
    listed = cache(lambda case, mode: forms.of_case(_able(sweep), cast(Any, case), mode, target))

    def takes_part(case: Case, name: str, mode: str) -> bool:
        of_its_case = forms.base_of(name) == name or name in listed(case, mode)
        return of_its_case and sweep.takes_part(case, name, mode)

    cells = ordered_cells(sweep.cases(), sweep.implementations, sweep.modes, seed, takes_part)
    pairs = dict.fromkeys((cell.case, cell.implementation) for cell in cells)
    with current(device):  # PyTorch answers for tensors on the current GPU
        reasons = {(case, name): _reason_against(case, name, target) for case, name in pairs}
    return [_judged(cell, reasons, target, protocol, sweep) for cell in cells]


def chosen(
    sweep: Sweep, named: tuple[str, ...] | None, capabilities: tuple[str, ...] = (), device: str = "cpu"
) -> Sweep:
    """Return the sweep with the named implementations, or with its own without peers that are not installed.

    A sweep that names none has every one that a rule may name. "tiles" among the names adds the forms that the others
    have on the device. Implementations that do not declare all of the capabilities are left out. Raises
    Refused with the implementations or capabilities that exist.
    """
    names = tuple(name for name in named or sweep.implementations if name != forms.TILES)
    with_tiles = forms.TILES in (*(named or ()), *sweep.implementations)
    found = _named(dataclasses.replace(sweep, implementations=names), names if named else None)
    found = _declaring(found, capabilities) if capabilities else found
    if not with_tiles:
        return found
    able, target, pairs = _able(found), registry.describe_device(device), itertools.product(found.cases(), found.modes)
    every = (name for case, mode in pairs for name in forms.of_case(able, cast(Any, case), mode, target))
    return dataclasses.replace(found, implementations=tuple(dict.fromkeys((*found.implementations, *every))))


def _able(sweep: Sweep) -> tuple[str, ...]:
    """Return the implementations of a sweep that have forms."""
    return tuple(name for name in sweep.implementations if forms.LEVELS.get(name) == sweep.level)


def timed_on(sweep: Sweep, device_type: str) -> Sweep:
    """Return the sweep with eager timing if it asks for kernel timing only and the device is a CPU, which has none."""
    return dataclasses.replace(sweep, timings=("eager",)) if (device_type, sweep.timings) == _NO_TIME else sweep


def _declaring(sweep: Sweep, capabilities: tuple[str, ...]) -> Sweep:
    existing = level_of(sweep.level).implementations()
    if unknown := [name for name in capabilities if name not in registry.CAPABILITIES]:
        raise Refused(f"Unknown feature {', '.join(unknown)}. Possible: {', '.join(registry.CAPABILITIES)}.")
    able = [name for name, each in existing.items() if all(each.declares(wanted) for wanted in capabilities)]
    kept = tuple(name for name in sweep.implementations if name in able)
    if not kept:
        raise Refused(
            f"No implementation of sweep {sweep.name} declares {' and '.join(capabilities)}. "
            f"Of level {sweep.level} these do: {', '.join(able) or 'none'}."
        )
    return dataclasses.replace(sweep, implementations=kept)


def _named(sweep: Sweep, named: tuple[str, ...] | None) -> Sweep:
    existing = level_of(sweep.level).implementations()
    if not named and not sweep.implementations:  # what a rule may name: no readable reference, no other precision
        able = (i for i in existing.values() if not i.precision and not i.unavailable)
        served = tuple(i.name for i in able if i.family != "own" or i.compiled == "ahead")
        return dataclasses.replace(sweep, implementations=served)
    if not named:
        missing = {i.name for i in existing.values() if i.family == "peer" and i.unavailable}
        kept = tuple(name for name in sweep.implementations if name not in missing)
        return dataclasses.replace(sweep, implementations=kept)
    for name in named:
        if existing.get(name) is None:
            raise Refused(f"Unknown implementation {name!r}. Available: {', '.join(existing)}.")
    return dataclasses.replace(sweep, implementations=tuple(dict.fromkeys(named)))


def facts(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Return the declarations of the sweep's implementations by name, for the run's record."""
    existing = level_of(sweep.level).implementations()
    return {name: found.facts for name in sweep.implementations if (found := existing.get(name))}


def compiled_ahead(sweep: Sweep) -> list[str]:
    """Return the names of the sweep's implementations whose kernels can be compiled before the first call."""
    existing = level_of(sweep.level).implementations()
    return [name for name in sweep.implementations if (each := existing.get(name)) and each.compiled == "ahead"]


def interpreter_reason(cell: Cell) -> str | None:
    """Return why the interpreter does not check this case; None if it is small enough."""
    case = cell.case
    share = case.batch * case.num_heads * case.seqlen_q * case.seqlen_k * max(case.head_dim, 16) / (1024 * 1024 * 64)
    seconds = share * _INTERPRETER_FORWARD_S * _INTERPRETER_BOTH
    if seconds <= INTERPRETER_LIMIT_S:
        return None
    return (
        f"Triton runs in the interpreter on a CPU, where the check of this case would take about {seconds:.0f} s "
        f"(limit {INTERPRETER_LIMIT_S:.0f} s); shorter sequences are checked."
    )


def too_long_for_cpu(case: Case) -> str | None:
    """Return why a CPU does not compute the errors of this case; None if it does."""
    if max(levels.flops(case, mode) or 0.0 for mode in levels.level_of(case).modes) <= _MOST_FLOPS_ON_CPU:
        return None
    return "Errors against float64 would take minutes here; run this case on a GPU, or shorter sequences here."


def _reason_against(case: Case, name: str, target: registry.Device) -> str | None:
    level = level_of(case)
    implementation = level.implementations().get(name)
    if implementation is None:
        return f"{name} is not part of this checkout."
    return level.reason_against(case, implementation) or implementation.reason_against(cast(Any, case), target)


def _judged(
    cell: Cell, reasons: dict[tuple[Case, str], str | None], target: registry.Device, protocol: Protocol, sweep: Sweep
) -> Cell:
    reason, timings, level = reasons[cell.case, cell.implementation], len(sweep.timings), level_of(cell.case)
    implementation = level.implementations().get(cell.implementation)
    if implementation is None:
        return dataclasses.replace(cell, reason=reason)
    if reason is None and cell.about_mode.backward and not implementation.backward:
        reason = f"{cell.implementation} has no backward pass."
    if reason is None and protocol.trace_s and is_interpreted(implementation, target.type):
        reason = _NOT_TRACED
    memory = estimated_memory_mb(cell.case, cell.mode, implementation.memory)
    cell = dataclasses.replace(cell, memory_mb=memory)
    if reason is None and not sweep.extrapolates and (reason := predicted_too_large(cell, target.memory_bytes)):
        return dataclasses.replace(cell, reason=reason, reason_status=Status.SKIPPED)
    if reason is None and (reason := _too_large(cell, target)):
        return dataclasses.replace(cell, reason=reason, reason_status=Status.OOM)
    if reason:
        return dataclasses.replace(cell, reason=reason)
    matrix, share = implementation.materialises_scores, level.peak_share
    seconds = estimated_seconds(cell.case, cell.mode, protocol, timings, target, matrix, share)
    if is_interpreted(implementation, target.type):
        seconds = 0.0 if interpreter_reason(cell) else INTERPRETER_LIMIT_S / 3
    if target.type == "cpu" and not timings and too_long_for_cpu(cell.case):
        seconds = 0.0
    return dataclasses.replace(cell, seconds=seconds)


def predicted_too_large(cell: Cell, memory_bytes: int | None) -> str | None:
    """Return why a cell does not fit the device's memory by the prediction of its level; None if it may fit."""
    decides = level_of(cell.case).fits_by_prediction and cell.memory_mb is not None and memory_bytes
    if not decides or cell.memory_mb <= memory_bytes / MIB:
        return None
    return f"Needs {cell.memory_mb / 1024:.1f} GiB of {memory_bytes / MIB / 1024:.1f}."


def _too_large(cell: Cell, target: registry.Device) -> str | None:
    """Return why inputs and results do not fit the device's memory; None if they do or their size is not known."""
    moved = levels.bytes_moved(cell.case, cell.mode)
    more_than_tensors = level_of(cell.case).fits_by_prediction or cell.about_mode.backward
    if moved is None or target.memory_bytes is None or more_than_tensors or moved <= target.memory_bytes:
        return None
    needed, there = (f"{size / 1024 / MIB:.1f} GiB" for size in (moved, target.memory_bytes))
    return f"Out of device memory: inputs and results need {needed}, the device has {there}."


def is_interpreted(implementation: registry.Implementation, device_type: str) -> bool:
    """Return whether the implementation runs there only for its check."""
    return device_type == "cpu" and implementation.interpreted_on_cpu
