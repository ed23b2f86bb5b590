"""One implementation a row, as in report torch_vs_triton: impl, dtype, seq_len, d_model, forward_ms_mean, ..."""

from __future__ import annotations

from results.formats.headers import fields_of, lacking, long_numbers
from results.formats.rows import understand_rows
from results.formats.tables import Sheet
from results.formats.upload import Understanding, Upload, reason_against_file, sheet_of

NAME = "long_table"
DESCRIPTION = "a table with one implementation a row and times in columns such as forward_ms_mean or fwd_ms"
REQUIRED = ("implementation", "seqlen", "head_dim", "dtype")


def reason_against(upload: Upload) -> str | None:
    """Return why the file is not of this format; None if it is."""
    return reason_against_file(upload, _reason_against)


def understand(upload: Upload) -> Understanding:
    """Return the rows as runs and measurements."""
    sheet = sheet_of(upload, _reason_against)
    fields = fields_of(sheet.header)
    return understand_rows(upload, sheet, format=NAME, fields=fields, numbers=long_numbers(sheet.header))


def _reason_against(sheet: Sheet) -> str | None:
    if not long_numbers(sheet.header):
        return "It has no column of times such as forward_ms_mean, fwd_ms or latency_ms."
    return lacking(_known(sheet), REQUIRED)


def _known(sheet: Sheet) -> set[str]:
    fields = set(fields_of(sheet.header))
    return fields | ({"seqlen"} if "seqlen_q" in fields else set())
