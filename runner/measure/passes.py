"""The order in which a case is measured: reference, checks, memory, then interleaved rounds of timing."""

import contextlib
import gc
import math
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernels import registry
from results.files import cell_files
from results.records import Case, Status, case_to_json
from runner.cells import Cell
from runner.levels import Call, Pass, no_doubling
from runner.measure import triton_hooks
from runner.measure.case import Bench, CaseRun
from runner.measure.check import CheckedPass, check, make_oracle
from runner.measure.extrapolation import extrapolate
from runner.measure.timing import Rounds
from runner.overhead import COMPILING
from runner.plan import NOT_TIMED, interpreter_reason, is_interpreted, predicted_too_large, too_long_for_cpu

CACHED = "cached"  # flag of a compile time whose kernels were on disk already
MIB = 1024 * 1024
NO_MEMORY_ON_CPU = "torch counts allocations on GPUs only, so memory is not measured on a CPU."
_MOST_ENTRIES = 100_000  # size limit of the memory history
FAILS_THE_CHECK = "incorrect"  # flag of errors that fail the check; the note names the tensor


def run_case(bench: Bench, case: Case, cells: Iterable[Cell]) -> None:
    """Measure cells of a case and emit every number and status. Raises ContextBroken."""
    cells = list(cells)
    run = CaseRun(bench, case, list(cells))
    if bench.device_type == "cuda":
        with bench.costs.of("memory"):
            gc.collect()  # so that the collections of the memory passes skip all objects that exist now
            gc.freeze()
    _skip_what_takes_too_long(run)
    too_large = _skip_what_does_not_fit(run)
    _check_all(run)
    if run.level.doubled is no_doubling:
        run.oracle = None  # it is not needed again, and it can be as large as a model
    if not bench.timings:
        run.live.clear()  # only the errors are recorded
    with bench.costs.of("memory"):
        for cell in list(run.live):
            if cell.about_mode.measures_memory:
                run.attempt(cell, [cell], "memory", partial(_measure_memory, run, cell))
    for cell in list(run.live):
        for kind in bench.files:
            failed = run.attempt(cell, [], kind, partial(record, kind, partial(run.call, cell), bench.run_folder, cell))
            if failed:
                print(f"No {kind} of {cell.words}: {failed[1]}", file=sys.stderr)  # goes into the run's log
    if run.live:
        with bench.costs.of("timing"):
            Rounds(run).take()
    if bench.depths:
        measured = [cell for cell, _ in run.latencies]
        run.forget_inputs()  # two more models must fit
        with bench.costs.of("timing"):
            extrapolate(run, [cell for cell in cells if cell in measured or cell in too_large], measured)


def record(kind: str, make: Callable[[], Call], run_folder: Path, cell: Cell) -> None:
    """Record a warm call of a cell as a file of the run. Raises RuntimeError for memory without a GPU."""
    path = cell_files.path_of(run_folder, kind, case_to_json(cell.case), cell.implementation, cell.mode)
    path.parent.mkdir(exist_ok=True)
    call = make()
    call()
    _RECORDERS[kind](call, path)


def _skip_what_takes_too_long(run: CaseRun) -> None:
    if run.bench.device_type != "cpu":
        return
    if not run.bench.timings and (note := too_long_for_cpu(run.case)):
        run.fail(list(run.live), Status.SKIPPED, note)
    for cell in list(run.live):
        interpreted = is_interpreted(run.implementation(cell.implementation), "cpu")
        if interpreted and (reason := interpreter_reason(cell)):
            run.fail([cell], Status.SKIPPED, reason)


def _skip_what_does_not_fit(run: CaseRun) -> list[Cell]:
    """Skip the cells that are predicted to need more memory than the device has, and return them."""
    memory = registry.describe_device(run.bench.device).memory_bytes
    found = [(cell, reason) for cell in run.live if (reason := predicted_too_large(cell, memory))]
    for cell, reason in found:
        run.fail([cell], Status.SKIPPED, reason)
    return [cell for cell, _ in found]


def _check_all(run: CaseRun) -> None:
    """Check every implementation by one oracle; cells that contain a wrong pass are removed from the case."""
    if run.live:
        with run.bench.costs.of("reference"):
            run.attempt(None, run.live, "float64 reference", partial(_prepare, run))
    with run.bench.costs.of("checks"):
        for name in dict.fromkeys(cell.implementation for cell in run.live):
            _check(run, name)


def _prepare(run: CaseRun) -> None:
    live = run.live
    precisions = {run.implementation(cell.implementation).precision for cell in live}
    modes = {cell.mode for cell in live}
    fused = any(run.implementation(cell.implementation).fused for cell in live)
    run.oracle = make_oracle(run.inputs, run.bench.seed, precisions, modes=modes, fused=fused)


def _check(run: CaseRun, name: str) -> None:
    for each in run.level.passes(run.case):
        cells = [cell for cell in run.live if cell.implementation == name and cell.mode in each.modes]
        if not cells:
            continue
        at = next((cell for cell in cells if cell.mode == each.mode), cells[0])
        run.attempt(at, cells, f"check of the {each.words}", partial(_check_pass, run, name, each))
    if run.bench.timings and is_interpreted(run.implementation(name), run.bench.device_type):
        run.fail([cell for cell in run.live if cell.implementation == name], Status.SKIPPED, NOT_TIMED)


def _check_pass(run: CaseRun, name: str, each: Pass) -> None:
    implementation = run.implementation(name)
    warm = not is_interpreted(implementation, run.bench.device_type)
    on_gpu = run.bench.device_type == "cuda"
    with triton_hooks.watch() if on_gpu else contextlib.nullcontext(triton_hooks.SeenKernels()) as seen:
        plain = implementation.family == "own" and implementation.compiled is None
        options: dict[str, Any] = {"warm": warm, "compiles": not plain, "fused": implementation.fused}
        found = check(implementation.attention, each, run.oracle, implementation.precision, **options)
    if seen.config:
        run.note_config(name, each.mode, seen.config)
    _emit_errors(run, name, each.mode, found)
    _emit_compile_time(run, name, each.mode, found, seen)
    if found.reason and run.bench.timings:
        wrong = [cell for cell in run.live if cell.implementation == name and cell.mode in each.modes]
        run.fail(wrong, Status.INCORRECT, found.reason)


def _emit_errors(run: CaseRun, name: str, mode: str, found: CheckedPass) -> None:
    flags = (FAILS_THE_CHECK,) if found.reason else ()
    for tensor, error in found.errors.items():
        for metric, value in ((f"error_{tensor}", error.relative), (f"max_error_{tensor}", error.largest)):
            if math.isfinite(value):
                fields: dict[str, Any] = {"statistic": "single", "n": 1, "note": found.reason, "flags": flags}
                run.emit_pass(name, mode, metric, value=value, **fields)
            else:
                run.emit_pass(name, mode, metric, status=Status.INCORRECT, note=found.reason)


def _emit_compile_time(run: CaseRun, name: str, mode: str, found: CheckedPass, seen: triton_hooks.SeenKernels) -> None:
    if found.first_ms is None or found.reason:
        return
    cost = max(0.0, found.first_ms - found.warm_ms)
    run.bench.costs.move(cost / 1e3, "checks", COMPILING)
    fields: dict[str, Any] = {}
    if seen.loaded:
        fields["flags"] = (CACHED,)
        fields["note"] = f"{seen.loaded} of {seen.loaded + seen.compiled} kernels came from Triton's cache on disk."
    run.emit_pass(name, mode, "compile_ms", value=cost, statistic="single", n=1, **fields)


def _measure_memory(run: CaseRun, cell: Cell) -> None:
    if run.bench.device_type != "cuda":
        for metric in ("peak_memory_mb", "extra_memory_mb"):
            run.emit(cell, metric, status=Status.SKIPPED, note=NO_MEMORY_ON_CPU)
        return
    kept = run.level.kept_for_backward(*run.arguments(cell))
    found = memory_of_call(run.call(cell), run.inputs.bytes_of(cell.mode), kept)
    for metric, value in found.items():
        run.emit(cell, metric, value=value, statistic="single", n=1)


def memory_of_call(call: Call, given: int, kept_for_backward: Call | None = None) -> dict[str, float]:
    """Return the memory of a warm call on a GPU by metric, in MiB; persistent workspaces of libraries exist before it.

    `given` are the bytes of its inputs; `kept_for_backward` is a forward that keeps the tensors for a backward. torch's
    allocator counts, whose blocks are multiples of 512 bytes.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    reserved = given + torch.cuda.max_memory_reserved() - before
    del result
    found = {
        "inputs_memory_mb": given,
        "peak_memory_mb": given + extra,  # without other tensors of the runner
        "extra_memory_mb": extra,
        "reserved_memory_mb": reserved,  # inputs, and what the allocator reserved beyond the memory in use before
    }
    if kept_for_backward:
        found["activation_memory_mb"] = _saved(kept_for_backward)
    return {metric: size / MIB for metric, size in found.items()}


def _saved(forward: Call) -> int:
    """Return the bytes kept between forward and backward, out included."""
    gc.collect()  # memory freed during the forward would hide what it keeps
    before = torch.cuda.memory_allocated()
    out = forward()
    kept = torch.cuda.memory_allocated() - before
    del out
    return kept


def _profile(call: Call, path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    on_gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    with profile(activities=[ProfilerActivity.CPU, *on_gpu], record_shapes=True) as trace:
        call()
        if on_gpu:
            torch.cuda.synchronize()
    trace.export_chrome_trace(str(path))


def _snapshot(call: Call, path: Path) -> None:
    if not torch.cuda.is_available():
        raise RuntimeError("torch keeps a history of memory on GPUs only.")
    torch.cuda.memory._record_memory_history(max_entries=_MOST_ENTRIES)
    try:
        call()
        torch.cuda.synchronize()
        torch.cuda.memory._dump_snapshot(str(path))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


_RECORDERS: dict[str, Callable[[Call, Path], None]] = {"profile": _profile, "snapshot": _snapshot}
