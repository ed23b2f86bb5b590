"""The project's own Markdown table, as `python -m results export --format md` writes it: an export without samples."""

from __future__ import annotations

from results.formats.own_csv import PARSERS, lacking_own, understand_own
from results.formats.tables import MARKDOWN, Sheet
from results.formats.upload import Format, Understanding, Upload, reason_against_file, sheet_of
from results.render.markdown import unescape

NAME = "own_markdown"
DESCRIPTION = "the Markdown table that attnbench exports, with any number of runs"
LEFT_OUT = (
    "A Markdown export leaves out samples, the sizes of rounds and the definition of the sweep: such cells are judged "
    "by their intervals and cannot be run again from Runs. CSV and JSON keep them."
)

_PARSERS = {
    **PARSERS,
    **dict.fromkeys(("text", "status"), unescape),
    "texts": lambda cell: unescape(cell).split(", "),
}


def reason_against(upload: Upload) -> str | None:
    """Return why the file is not of this format; None if it is."""
    return reason_against_file(upload, _reason_against)


def understand(upload: Upload) -> Understanding:
    """Return the rows as the runs and measurements they were, without what the table leaves out."""
    sheet = sheet_of(upload, _reason_against)
    return understand_own(upload, sheet, format=NAME, parsers=_PARSERS, assumptions=(LEFT_OUT,))


def _reason_against(sheet: Sheet) -> str | None:
    return lacking_own(sheet) if sheet.description == MARKDOWN else "It is no Markdown table."


FORMAT = Format(NAME, DESCRIPTION, reason_against, understand)
