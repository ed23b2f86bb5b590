"""Tables of a report: found between lines of text, read by the unit of their cells, written so that they read back."""

import pytest

from results.records import Status
from results.render.markdown import markdown_table, read, tables
from results.reports import ReportError
from results.reports.layout import read_cell, read_seqlen


def test_a_header_glued_to_code_is_still_a_table() -> None:
    (table,) = tables("model = f(8)| Block Size | SRAM |\n|---|---|\n| 32 | ~32KB per block |\n")
    assert (table.header, table.rows, table.line) == (("Block Size", "SRAM"), (("32", "~32KB per block"),), 1)


def test_a_table_that_follows_another_without_a_blank_line_is_its_own() -> None:
    first, second = tables("| a | b |\n|---|---|\n| 1 | 2 |\n| c |\n|---|\n| 3 |\n")
    assert (first.rows, second.header, second.rows) == ((("1", "2"),), ("c",), (("3",),))


def test_a_written_table_reads_back() -> None:
    text = markdown_table(("a", "b"), [("x | y", "—")])
    (table,) = read(f"# Title\n\n{text}\n")
    assert (table.headings, table.header, table.rows) == (("Title",), ("a", "b"), (("x | y", "—"),))


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [("2 GB", "", 2048.0), ("18.2", "GB", 18636.8), ("**3.20x**", "", 3.2), ("1,024", "", 1024.0), ("94%", "", 94.0)],
)
def test_a_cell_is_read_in_the_unit_of_its_metric(text: str, unit: str, value: float) -> None:
    assert read_cell(text, unit).value == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "inf", "nan", "1.2.3", "12 34", "-"])
def test_what_is_no_number_has_no_value(text: str) -> None:
    if text == "-":
        assert read_cell(text).status is Status.SKIPPED
    else:
        with pytest.raises(ReportError, match="neither a number"):
            read_cell(text)


def test_sequence_lengths_are_read_with_k_and_commas() -> None:
    assert [read_seqlen(text) for text in ("512", "1,024", "16K")] == [512, 1024, 16384]
    with pytest.raises(ReportError, match="Sequence length 'long'"):
        read_seqlen("long")
