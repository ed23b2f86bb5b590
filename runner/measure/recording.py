"""Files for other viewers, recorded in separate steps: a profiler trace and the history of GPU memory."""

from collections.abc import Callable
from pathlib import Path

import torch

from results.files import cell_files
from results.records import case_to_json
from runner.cells import Cell
from runner.levels import Call

_MOST_ENTRIES = 100_000  # size limit of the memory history


def record(kind: str, call: Call, run_folder: Path, cell: Cell) -> None:
    """Record a warm call of a cell as a file of the run. Raises RuntimeError for memory without a GPU."""
    path = cell_files.path_of(run_folder, kind, case_to_json(cell.case), cell.implementation, cell.mode)
    path.parent.mkdir(exist_ok=True)
    call()
    _RECORDERS[kind](call, path)


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
