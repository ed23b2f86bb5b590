"""The sweep that measures the cases of a run here, such as an upload. Standard library only, like `runner.launch`."""

from __future__ import annotations

from pathlib import Path

from results.files.journal import JournalError, RunFolder
from results.paths import PUBLISHED
from runner.sweeps import SweepError
from runner.sweeps.given import GivenSweep, sweep_of


def cases_of(run_id: str, home: Path) -> tuple[GivenSweep, list[str]]:
    """Return the sweep over a run's cases, and what of them cannot be measured. Raises SweepError."""
    try:
        folder = RunFolder.open(home, run_id)
    except JournalError as error:
        folder = RunFolder(PUBLISHED / Path(run_id).name)
        if not folder.run_path.is_file():
            raise SweepError(str(error)) from error
    try:
        return sweep_of(folder.run_id, folder.read()[0])
    except JournalError as error:
        raise SweepError(str(error)) from error
