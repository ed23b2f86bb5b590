"""A view that attnbench rendered as Markdown: it is for reading, so the upload says what to take instead."""

from __future__ import annotations

import re

from results.formats.errors import UploadError
from results.formats.tables import decode
from results.formats.upload import Understanding, Upload

NAME = "for_reading"
DESCRIPTION = "a view that attnbench rendered as Markdown, which cannot be taken"
SENTENCE = (
    "For reading: numbers are rounded and samples left out. To take the numbers to another attnbench, export the runs "
    "named below as CSV or JSON."
)

_RUN = re.compile(r"^- \*\*(\S+)\*\*, [\d,]+ numbers? of this slice$", re.MULTILINE)
_SHOWN = 5


def misfit(upload: Upload) -> str | None:
    """None if it is such a view; nothing to say if it is not, for nobody would want it to be."""
    return None if upload.kind == "text" and SENTENCE.encode() in upload.data[:4096] else ""


def understand(upload: Upload) -> Understanding:
    """Raises UploadError that names the runs to export."""
    runs = _RUN.findall(decode(upload.data))
    named = " ".join(f"--run {run}" for run in runs[:_SHOWN])
    more = f" and {len(runs) - _SHOWN} more runs" if len(runs) > _SHOWN else ""
    raise UploadError(
        f"{upload.filename} is a view that attnbench rendered for reading: its numbers are rounded, and what holds for "
        f"all of them is not in its tables. Upload what Runs or this command gives where it was made: "
        f"python -m results export --format csv {named}{more}".rstrip()
    )
