"""Which of a file's tables a format can read."""

from __future__ import annotations

from collections.abc import Callable

from results.formats.errors import UploadError
from results.formats.headers import refuse_duplicates
from results.formats.sheet import Sheet
from results.formats.upload import Upload

Misfit = Callable[[Sheet], str | None]  # why a sheet is not of a format; None if it is


def misfit_of(upload: Upload, misfit: Misfit) -> str | None:
    """Why none of the file's tables fits; None if one does. Raises UploadError if the file cannot be read."""
    if upload.kind != "text":
        return f"It is {upload.kind}, not a table."
    reasons = [misfit(sheet) for sheet in upload.sheets]
    if None in reasons:
        return None
    widest = max(range(len(reasons)), key=lambda at: len(upload.sheets[at].header))
    return reasons[widest]


def sheet_of(upload: Upload, misfit: Misfit) -> Sheet:
    """The one table that fits. Raises UploadError if several do or two of its columns have one name."""
    fitting = [sheet for sheet in upload.sheets if misfit(sheet) is None]
    if len(fitting) != 1:
        raise UploadError(f"{upload.filename} has {len(fitting)} tables that could be meant; upload them one by one.")
    refuse_duplicates(fitting[0].header)
    return fitting[0]
