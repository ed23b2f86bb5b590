"""Tables of a report: found between lines of text, read by the unit of their cells, written so that they read back."""

import pytest

from results.render.markdown import markdown_table, tables
from results.reports import ReportError
from results.reports.layout import number_of, read_seqlen
from tests.cases import cases


def test_tables_are_found_between_lines_of_text_and_read_back() -> None:
    (table,) = tables("model = f(8)| Block Size | SRAM |\n|---|---|\n| 32 | ~32KB per block |\n")
    assert (table.header, table.rows, table.line) == (("Block Size", "SRAM"), (("32", "~32KB per block"),), 1)
    first, second = tables("| a | b |\n|---|---|\n| 1 | 2 |\n| c |\n|---|\n| 3 |\n")
    assert (first.rows, second.header, second.rows) == ((("1", "2"),), ("c",), (("3",),))
    (table,) = tables("# Title\n\n" + markdown_table(("a", "b"), [("x | y", "—")]))
    assert (table.header, table.rows, table.line) == (("a", "b"), (("x | y", "—"),), 3)


@pytest.mark.parametrize(("text", "value"), cases(__file__, "test_a_cell_is_read_in_the_unit_of_its_metric"))
def test_a_cell_is_read_in_the_unit_of_its_metric(text: str, value: float) -> None:
    assert number_of(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text", [None, "", "inf", "nan", "1.2.3", "12 34", "-", "OOM (>40GB)", "26.3 GB (OOM)"])
def test_what_is_no_number_has_no_value(text: str | None) -> None:
    assert number_of(text) is None


def test_sequence_lengths_are_read_with_k_and_commas() -> None:
    assert [read_seqlen(text) for text in ("512", "1,024", "16K")] == [512, 1024, 16384]
    with pytest.raises(ReportError, match="Sequence length 'long'"):
        read_seqlen("long")
