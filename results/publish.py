"""Ships a run of one's own with the repository, as data that every checkout shows."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from results.journal import PUBLISHED, JournalError, RunFolder


def publish(folder: RunFolder, *, git_commit: str | None = None, target: Path = PUBLISHED) -> RunFolder:
    """A copy of the run under results/published, marked as such; the numbers are not touched.

    `git_commit` fills a commit that the measuring machine could not know; a run that was cut off says so in its notes.
    Raises JournalError if the run still runs, is not one's own, says another commit or is published already.
    """
    run, condition = folder.run(), folder.condition()
    if condition == "running" or run.source != "local":
        raise JournalError(
            f"Run {run.run_id!r} is {condition} ({run.source}); only a local run that ended is published."
        )
    if git_commit and run.git_commit not in (None, git_commit):
        raise JournalError(f"Run {run.run_id!r} was measured at commit {run.git_commit}, not at {git_commit}.")
    shipped = RunFolder(target / run.run_id)
    if shipped.path.exists():
        raise JournalError(f"{shipped.path} exists; remove it first to publish run {run.run_id!r} anew.")
    shipped.path.mkdir(parents=True)
    shutil.copyfile(folder.journal_path, shipped.journal_path)
    if state := folder.read_state():
        shipped.write_state(state)
    notes = run.notes if condition == "finished" else _cut_off(folder, condition)
    shipped.write_run(replace(run, source="shipped", git_commit=git_commit or run.git_commit, notes=notes))
    return shipped


def _cut_off(folder: RunFolder, condition: str) -> str:
    state = folder.read_state()
    done = f" after {state.done} of {state.total} cells" if state else ""
    return f"Not a whole sweep: {condition}{done}."
