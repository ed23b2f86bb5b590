"""A slice that attnbench rendered as Markdown. Its numbers are rounded, so the upload says what to take instead.

Formats are tried in alphabetical order, and this one has to come before `plain_table`, which would take its last table.
"""

from __future__ import annotations

import re

from results.formats.errors import UploadError
from results.formats.tables import decode
from results.formats.upload import Format, Understanding, Upload
from results.render.markdown import NOT_FOR_IMPORT

NAME = "attnbench_report"
DESCRIPTION = "a report that attnbench rendered as Markdown, which cannot be taken"
_RUN = re.compile(r"^- \*\*(\S+)\*\*, [\d,]+ numbers? of this slice$", re.MULTILINE)
_SHOWN = 5


def reason_against(upload: Upload) -> str | None:
    """Return None for such a report; "" for any other file, because nobody would want it to be one."""
    return None if upload.kind == "text" and NOT_FOR_IMPORT.encode() in upload.data[:4096] else ""


def understand(upload: Upload) -> Understanding:
    """Raise UploadError that names the runs to export."""
    runs = _RUN.findall(decode(upload.data))
    named = " ".join(f"--run {run}" for run in runs[:_SHOWN])
    more = f" and {len(runs) - _SHOWN} more runs" if len(runs) > _SHOWN else ""
    raise UploadError(
        f"{upload.filename} is a view that attnbench rendered for reading: its numbers are rounded, and what holds for "
        f"all of them is not in its tables. Upload what Runs or this command gives where it was made: "
        f"python -m results export --format csv {named}{more}".rstrip()
    )


FORMAT = Format(NAME, DESCRIPTION, reason_against, understand)
