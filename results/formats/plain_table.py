"""Tables as people keep them: one case a row, and times in a column of numbers or in one for each implementation.

The meaning of a column is guessed from its header (`mapping.guess`), unless the user has corrected it before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from results.formats import mapping, values
from results.formats.errors import UploadError
from results.formats.headers import fields_of, lacking, normalise
from results.formats.mapping import DECIMALS, TableMapping
from results.formats.rows import understand_rows
from results.formats.tables import Sheet
from results.formats.upload import Format, Understanding, Upload, reason_against_file, sheet_of

NAME = "plain_table"
DESCRIPTION = "a table with one implementation a row or a column, and numbers with their unit such as latency_ms"
REQUIRED = ("seqlen", "head_dim", "dtype")  # fields of a table without a user's assignment


class UnknownTable(UploadError):
    """A table with columns of unknown meaning, which the user can assign."""

    def __init__(self, message: str, sheet: Sheet) -> None:
        super().__init__(message)
        self.sheet = sheet

    def __reduce__(self) -> "tuple[type[UnknownTable], tuple[str, Sheet]]":
        """Keep the table when the exception comes from another process."""
        return UnknownTable, (str(self), self.sheet)


def reason_against(upload: Upload) -> str | None:
    """Return why the file is not of this format; None if it is."""
    return reason_against_file(upload, lambda sheet: _reason_against(upload, sheet))


def understand(upload: Upload) -> Understanding:
    """Return the rows as runs and measurements."""
    sheet = sheet_of(upload, lambda sheet: _reason_against(upload, sheet))
    chosen = upload.mapping_of(sheet)
    found = understand_rows(upload, sheet, format=NAME, mapping=chosen or mapping.guess(sheet))
    return replace(found, assumptions=(*_assumptions(sheet, chosen or mapping.guess(sheet)), *found.assumptions))


def unknown(upload: Upload, near: Sequence[str], possible: str) -> UploadError:
    """Return the refusal of a file that no format reads: an UnknownTable if it has a table.

    `near` has a sentence for each format that nearly fits.
    """
    what = " ".join((f"{upload.filename} is of no known format.", *near))
    sheets = upload.sheets if upload.kind in ("text", "a workbook") else []
    tables = [sheet for sheet in sheets if len(sheet.header) > 1 and sheet.rows]
    if not tables:
        return UploadError(f"{what} {possible}")
    sheet = max(tables, key=lambda sheet: len(sheet.rows))
    if said := _other_operation(sheet):
        return UploadError(f"{upload.filename} {said}")
    missing = mapping.guess(sheet).problem() or _reason_against(upload, sheet) or ""
    how = "The page Upload lets you choose what each column is, as does --column of `results import`."
    return UnknownTable(f"{what} {missing} {how}", sheet)


def _reason_against(upload: Upload, sheet: Sheet) -> str | None:
    if said := _other_operation(sheet):
        return said
    chosen = upload.mapping_of(sheet)
    if chosen:
        return chosen.problem()
    fields = set(fields_of(sheet.header))
    guessed = mapping.guess(sheet)
    if not guessed.numbers(sheet.header):
        return "No column of times or other numbers with a unit was found, such as latency_ms, fwd (µs) or TFLOP/s."
    if not any(role.implementation for role in guessed.roles) and "implementation" not in fields:
        return lacking(fields, ("implementation",))
    fields |= {"seqlen"} if "seqlen_q" in fields else set()
    fields |= {"head_dim"} if {"embed_dim", "num_heads"} <= fields else set()
    return lacking(fields, REQUIRED)


def _other_operation(sheet: Sheet) -> str | None:
    """Return that a table without heads times another operation, such as a normalization; None if it may not."""
    if {"head_dim", "num_heads"} & set(fields_of(sheet.header)):
        return None
    for operation, starts in values.WORDS["other_operations"].items():
        if column := next((name for name in sheet.header if normalise(name).startswith(tuple(starts))), None):
            return f"has times of {operation} (column {column}), not of attention. A table of attention has head_dim."
    return None


def _assumptions(sheet: Sheet, chosen: TableMapping) -> Iterator[str]:
    starts = {normalise(name).partition("_")[0] for name in sheet.header}
    if any(role.implementation for role in chosen.roles):
        yield from (f"{short.upper()} is {long}." for short, long in values.WORDS["systems"].items() if short in starts)
    for number in chosen.numbers(sheet.header):
        if number.baseline:
            yield f"{number.header} is {number.baseline} over {number.implementation}."
    if chosen.decimal == ",":
        yield f"Numbers are written as {DECIMALS[',']}, with a decimal comma."
    yield from (f"{name} is {text} in every row." for name, text in chosen.constants.items())


FORMAT = Format(NAME, DESCRIPTION, reason_against, understand)
