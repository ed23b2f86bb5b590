"""Progress on stderr, a bar on a terminal and plain lines otherwise, and in the state of a run."""

import math
import shutil
import sys
import time
from typing import Any, TextIO

from results.files.journal import RunFolder, State
from results.render.text import time_left
from runner.cells import utc_now

_BAR_WIDTH = 24
_LINE_EVERY_S = 5.0
_STATE_EVERY_S = 0.5


class Progress:
    """Prints the progress of a sweep."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._bar = self._stream.isatty()
        self._last_line = 0.0
        self._shown: tuple[int, str] | None = None  # what the last line said

    def say(self, text: str) -> None:
        """Print a sentence on a separate line."""
        self._write(f"\r\x1b[K{text}\n" if self._bar else f"{text}\n")

    def show(self, done: int, total: int, current: str, eta_s: float | None, bound: bool = False) -> None:
        """Show finished cells, step and remaining time, at least that if `bound`; called again while a step lasts."""
        left = f", {time_left(eta_s, bound=bound)}" if done < total else ""
        if self._bar:
            filled = _BAR_WIDTH * done // max(total, 1)
            text = f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {done}/{total}{left}  {current}"
            self._write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
        elif self._shown != (done, current) and (done == total or time.monotonic() - self._last_line >= _LINE_EVERY_S):
            self._shown, self._last_line = (done, current), time.monotonic()
            self._write(f"{done}/{total} cells{left}: {current}\n")

    def finish(self) -> None:
        """End the line of the bar."""
        if self._bar:
            self._write("\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (BrokenPipeError, OSError):  # the reader has closed the stream; the sweep goes on
            self._bar = False


class StateWriter:
    """Writes the state of a run, that of a running one at most twice a second."""

    def __init__(self) -> None:
        self._started, self._written_at = utc_now(), -math.inf

    def write(self, folder: RunFolder, state: str, **fields: Any) -> None:
        """Write the state with other fields of `State`; an ended run has no current step. Raises JournalError."""
        if state != "running":
            fields |= {"current": None, "eta_s": None, "eta_bound": False}
        elif time.monotonic() - self._written_at < _STATE_EVERY_S:
            return
        self._written_at = time.monotonic()
        folder.write_state(State(state, started=self._started, updated=utc_now(), **fields))
