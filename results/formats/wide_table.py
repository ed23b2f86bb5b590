"""One implementation a column, as in report fa2_rtx4060: seq_len, d, dtype, PT fwd (ms), TR fwd (ms), ..."""

from __future__ import annotations

from results.formats.headers import SYSTEMS, fields_of, lacking, normalise, wide_numbers
from results.formats.rows import understand_rows
from results.formats.tables import Sheet
from results.formats.upload import Understanding, Upload, reason_against_file, sheet_of

NAME = "wide_table"
DESCRIPTION = "a table with one case a row and times in columns such as PT fwd (ms) or triton_fa2 bwd (ms)"
REQUIRED = ("seqlen", "head_dim", "dtype")


def reason_against(upload: Upload) -> str | None:
    """Return why the file is not of this format; None if it is."""
    return reason_against_file(upload, _reason_against)


def understand(upload: Upload) -> Understanding:
    """Return the rows as runs and measurements."""
    sheet = sheet_of(upload, _reason_against)
    numbers = wide_numbers(sheet.header)
    starts = {normalise(name).partition("_")[0] for name in sheet.header}
    assumptions = [f"{short.upper()} is {long}." for short, long in SYSTEMS.items() if short in starts]
    for number in numbers:
        if number.baseline:
            assumptions.append(f"{number.header} is {number.baseline} over {number.implementation}.")
    return understand_rows(
        upload, sheet, format=NAME, fields=fields_of(sheet.header), numbers=numbers, assumptions=assumptions
    )


def _reason_against(sheet: Sheet) -> str | None:
    fields = fields_of(sheet.header)
    if "implementation" in fields:
        return "It has a column for the implementation."
    if not wide_numbers(sheet.header):
        return "It has no column of times such as PT fwd (ms), TR bwd (ms) or triton_fa2 e2e (ms)."
    return lacking(fields, REQUIRED)
