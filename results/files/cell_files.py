"""Files of a cell that a run keeps in addition to its numbers: a profiler's trace, the history of its memory.

Standard library only: the runner writes them where the pages look for them.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from results.records import CASE_FIELDS

FOLDER = "files"  # within the run's
ENDINGS = {"profile": "trace.json", "snapshot": "memory.pickle"}  # by kind
OPENED_BY = {"profile": "https://ui.perfetto.dev or chrome://tracing", "snapshot": "https://pytorch.org/memory_viz"}


def path_of(run_folder: Path, kind: str, case: Mapping[str, Any], implementation: str, mode: str) -> Path:
    """Return where the file of a kind lies; `case` is the fields of a Case, or a row of a table that holds them."""
    fields = {name: _plain(case.get(name)) for name in CASE_FIELDS}
    if fields["features"] is None:
        del fields["features"]  # files of earlier runs keep their names
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]
    return run_folder / FOLDER / f"{implementation}-{mode}-{digest}.{ENDINGS[kind]}"


def _plain(value: Any) -> Any:
    """Return a value as records hold it: a table makes floats of whole numbers, and NaN of what is missing."""
    if value is None or str(value) in ("nan", "<NA>", "None", "NaT"):
        return None
    if isinstance(value, str):
        return value
    return int(value) if float(value).is_integer() else float(value)
