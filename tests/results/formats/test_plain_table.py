"""Tables as people keep them in a spreadsheet: units, decimal commas, merged headers, rates without times, Excel."""

import io
import re
import time
import zipfile

import pytest

from results.formats import UnknownTable, UploadError, understand, workbook
from results.formats.mapping import UNITS, Role, TableMapping, guess, key_of, number_role, remember, remembered
from results.formats.values import localised
from tests.cases import cases
from tests.results.formats import spreadsheets


@pytest.mark.parametrize(
    ("header", "metric", "scale", "mode", "statistic", "name"),
    cases(__file__, "test_a_header_says_metric_unit_mode_and_implementation"),
)
def test_a_header_says_metric_unit_mode_and_implementation(header, metric, scale, mode, statistic, name) -> None:
    said = number_role(header)
    assert UNITS[said.meaning.split("/")[1]] == (metric, scale)
    assert (said.mode or None, said.statistic, said.implementation) == (mode, statistic, name)


@pytest.mark.parametrize("header", ["latency", "s", "p99 (ms)", "min ms", "notes", "mood"])
def test_a_header_without_a_unit_or_of_another_statistic_is_no_number(header: str) -> None:
    assert number_role(header) is None


@pytest.mark.parametrize(("text", "decimal", "read"), cases(__file__, "test_numbers_are_read_as_the_file_writes_them"))
def test_numbers_are_read_as_the_file_writes_them(text: str, decimal: str, read: str) -> None:
    assert localised(text, decimal) == read


def test_a_table_whose_columns_cannot_be_told_is_mapped_by_its_reader_and_remembered(tmp_path) -> None:
    with pytest.raises(UnknownTable, match="of no known format") as refused:
        understand("report.csv", spreadsheets.PERF_REPORT.encode())
    sheet = refused.value.sheet
    assert [role.meaning for role in guess(sheet).roles] == ["seqlen", "", ""]
    roles = (Role("seqlen"), Role("tflops/tflops", "triton", "fwd"), Role("tflops/tflops", "flash-2", "fwd"))
    chosen = TableMapping(
        roles, constants={"dtype": "fp16", "head_dim": "64", "batch": "4", "num_heads": "8", "causal": "yes"}
    )
    remember(tmp_path, sheet.header, chosen)
    assert remembered(tmp_path) == {key_of(sheet.header): chosen}
    found = understand("report.csv", spreadsheets.PERF_REPORT.encode(), remembered(tmp_path))
    rates = [(m.implementation, m.case.seqlen_q, m.value) for m in found.measurements if m.metric == "tflops"]
    assert tuple(rates) == cases(__file__, "rates of a report")
    assert len(found.measurements) == 8 and found.measurements[0].case.dtype == "float16"


def test_a_benchmark_of_norms_is_refused_and_not_offered_for_mapping() -> None:
    text = "gpu_name,norm_name,norm_type,N,dtype,fwd_time_ms\nNVIDIA H200,torch,rms,4096,bfloat16,0.1\n"
    with pytest.raises(UploadError, match=r"norms.csv has times of a normalization \(column norm_name\)") as refused:
        understand("norms.csv", text.encode())
    assert not isinstance(refused.value, UnknownTable)


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": {"roles": [{"meaning": "evil"}]}}', "[" * 5000])
def test_a_damaged_file_of_mappings_is_forgotten(tmp_path, text: str) -> None:
    (tmp_path / "mappings.json").write_text(text)
    assert remembered(tmp_path) == {}


@pytest.mark.parametrize("roles, problem", cases(__file__, "test_a_mapping_says_what_it_lacks"))
def test_a_mapping_says_what_it_lacks(roles: tuple[tuple[str, ...], ...], problem: str | None) -> None:
    said = TableMapping(tuple(Role(*role) for role in roles)).problem()
    assert said is None if problem is None else said.startswith(problem)


def test_a_workbook_is_read_as_its_sheet_and_a_formula_as_what_excel_saved() -> None:
    found = understand("a.xlsx", spreadsheets.workbook(spreadsheets.SHEET, percent="G2"))
    got = [(m.metric, m.value, str(m.status), m.case.seqlen_q, m.case.causal) for m in found.measurements]
    assert tuple(got) == cases(__file__, "numbers of a workbook")
    assert found.description == "Excel sheet 'Sheet', 2 rows" and found.measurements[2].origin == "line 3, fwd (ms)"
    rows = [*spreadsheets.SHEET[:1], ["mine", 1024, 64, "bf16", True, "=1/0", None]]
    with pytest.raises(UploadError, match="no numbers"):  # openpyxl saves no value with a formula
        understand("a.xlsx", spreadsheets.workbook(rows))


SPARSE = b'<row r="199000"><c r="A199000"><v>1</v></c></row>'
SHEET_XML = (
    b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
    b'<row r="1"><c r="A1"><v>7</v></c></row>%s</sheetData></worksheet>'
)


def _changed(part: str, content: bytes, sheets: int = 1) -> bytes:
    """A workbook with the parts replaced whose names begin so."""
    packed = io.BytesIO()
    source = zipfile.ZipFile(io.BytesIO(spreadsheets.workbook(*[spreadsheets.SHEET] * sheets)))
    with source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in source.namelist():
            archive.writestr(name, content if name.startswith(part) else source.read(name))
    return packed.getvalue()


@pytest.mark.parametrize(
    ("row", "sheets", "message"),
    [
        (b'<row r="1048576"><c r="A1048576"><v>1</v></c></row>', 1, "more than 200,000 rows"),
        (b'<row><c r="XFD2"><v>1</v></c></row>' * 500, 1, "cells. Split it"),
        (SPARSE, 50, "cells. Split it"),
    ],
)
def test_the_time_for_a_workbook_does_not_follow_from_numbers_in_it(row: bytes, sheets: int, message: str) -> None:
    sheet = _changed("xl/worksheets/", SHEET_XML % row, sheets)
    began = time.process_time()
    with pytest.raises(UploadError, match=message):
        understand("a.xlsx", sheet)
    assert time.process_time() - began < 2


def test_rows_that_a_workbook_leaves_out_or_only_claims_cost_nothing() -> None:
    began = time.process_time()
    sheets = workbook.read_workbook("a.xlsx", _changed("xl/worksheets/sheet1.xml", SHEET_XML % SPARSE))
    assert time.process_time() - began < 2
    assert [number for number, _ in sheets[0].rows] == [199_000]
    sheet = zipfile.ZipFile(io.BytesIO(spreadsheets.workbook(spreadsheets.SHEET))).read("xl/worksheets/sheet1.xml")
    claims = re.sub(rb'<dimension ref="[^"]*"', b'<dimension ref="A1:XFD1048576"', sheet)
    found = understand("a.xlsx", _changed("xl/worksheets/sheet1.xml", claims))
    assert len(found.measurements) == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: _changed("xl/worksheets/sheet1.xml", b" " * (workbook.MAX_UNPACKED + 1)), "unpacks to more than"),
        (
            lambda: _changed("xl/workbook.xml", b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a/>'),
            "document type",
        ),
        (lambda: _changed("xl/workbook.xml", b"<broken"), "is not a workbook that can be read (ParseError: "),
        (lambda: spreadsheets.workbook([[]]), "has no sheet with a header and rows"),
    ],
)
def test_a_hostile_workbook_is_refused(data, message: str) -> None:
    with pytest.raises(UploadError, match=re.escape(message)):
        understand("a.xlsx", data())
