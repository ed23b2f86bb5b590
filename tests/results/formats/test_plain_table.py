"""Tables as people keep them in a spreadsheet: units, decimal commas, merged headers, rates without times, Excel."""

import io
import re
import time
import zipfile

import pytest

from results.formats import UnknownTable, UploadError, understand, workbook
from results.formats.headers import number_header
from results.formats.mapping import Role, TableMapping, guess, key_of, remember, remembered
from results.formats.values import localised
from tests.builders import LONG, ROW
from tests.cases import cases
from tests.results.formats import spreadsheets


@pytest.mark.parametrize(
    ("header", "metric", "scale", "mode", "statistic", "name"),
    cases(__file__, "test_a_header_says_metric_unit_mode_and_implementation"),
)
def test_a_header_says_metric_unit_mode_and_implementation(header, metric, scale, mode, statistic, name) -> None:
    said = number_header(header)
    assert (said.metric, said.scale, said.mode, said.statistic, said.name) == (metric, scale, mode, statistic, name)


@pytest.mark.parametrize("header", ["latency", "s", "p99 (ms)", "min ms", "notes", "mood"])
def test_a_header_without_a_unit_or_of_another_statistic_is_no_number(header: str) -> None:
    assert number_header(header) is None


@pytest.mark.parametrize(("text", "decimal", "read"), cases(__file__, "test_numbers_are_read_as_the_file_writes_them"))
def test_numbers_are_read_as_the_file_writes_them(text: str, decimal: str, read: str) -> None:
    assert localised(text, decimal) == read


def test_a_german_spreadsheet_is_read_with_its_units_commas_and_percent_signs() -> None:
    found = understand("a.csv", spreadsheets.GERMAN.encode())
    got = {(m.implementation, m.metric): (m.value, m.case.seqlen_q, m.mode) for m in found.measurements}
    assert found.rejected == () and found.ignored == ("Speicher",)
    assert got == {
        ("torch_naive", "latency_ms"): (pytest.approx(1.4125), 1024, "fwd"),
        ("torch_naive", "peak_memory_mb"): (21.5, 1024, None),
        ("torch_naive", "peak_percent"): (12.5, 1024, None),
        ("mine", "latency_ms"): (pytest.approx(0.1032), 1024, "fwd"),
        ("mine", "peak_memory_mb"): (4.5, 1024, None),
        ("mine", "peak_percent"): (85.0, 1024, None),
    }
    assert "Numbers are written as 1.024,5, with a decimal comma." in found.assumptions


@pytest.mark.parametrize(("own", "read", "unsaid"), [("1", 1, 0), ("1.1", 0, 2)])
def test_a_speedup_and_a_std_are_those_of_the_one_column_of_times(own: str, read: int, unsaid: int) -> None:
    rows = f"torch,1024,64,bfloat16,4,0.1,{own}\nmine,1024,64,bfloat16,2,0,3\n"
    table = f"implementation,seqlen,head_dim,dtype,fwd_ms,std,Speedup\n{rows}"
    found = understand("a.csv", table.encode())
    ratios = [(m.implementation, m.mode, m.value, m.baseline) for m in found.measurements if m.metric == "speedup"]
    assert ratios == [("mine", "fwd", 3.0, "torch")] * read
    assert [m.std for m in found.measurements if m.metric == "latency_ms"] == [0.1, 0.0]
    assert any(said.startswith(f"{unsaid} speedups over") for said in found.left_out) is bool(unsaid)


def test_a_header_of_two_rows_with_merged_cells_is_one_name_a_column() -> None:
    found = understand("a.csv", spreadsheets.MERGED.encode())
    got = [(m.implementation, m.mode, m.value, str(m.status), m.case.seqlen_q) for m in found.measurements]
    assert got == [
        ("PyTorch", "fwd", 0.4, "ok", 1024),
        ("Triton", "fwd", 0.1, "ok", 1024),
        ("PyTorch", "bwd", 1204.5, "ok", 1024),
        ("Triton", "bwd", None, "oom", 1024),
    ]


def test_tflops_alone_are_kept_as_printed_and_give_the_time_by_their_operations() -> None:
    found = understand("a.csv", spreadsheets.RATES.encode())
    rate, latency, failed = found.measurements
    assert (rate.metric, rate.value, rate.printed) == ("tflops", 500.0, "500")
    assert latency.value == pytest.approx(4 * 4096**2 * 128 * 16 / 500e9) and "from the printed 500" in latency.note
    assert (failed.metric, str(failed.status), failed.value) == ("tflops", "oom", None)


def test_a_unit_in_a_cell_wins_over_that_of_its_column() -> None:
    found = understand("a.csv", spreadsheets.IN_CELLS.encode())
    assert [m.value for m in found.measurements] == [pytest.approx(0.35), 1.5]


def test_a_number_that_can_be_read_either_way_is_rejected() -> None:
    text = LONG.replace(",", ";") + ROW.replace("0.35", "1,050").replace(",0.01", ";").replace("1,050", "@")
    found = understand("a.csv", text.replace(",", ";").replace("@", "1,050").encode())
    assert found.measurements == () and "decimal comma" in found.rejected[0].reason


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
    assert rates == [
        ("triton", 1024, 98.2),
        ("flash-2", 1024, 110.1),
        ("triton", 2048, 130.5),
        ("flash-2", 2048, 140.7),
    ]
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


@pytest.mark.parametrize(
    ("roles", "problem"),
    [
        ((Role("seqlen"), Role("implementation")), "No column of times or other numbers"),
        ((Role("seqlen"), Role("latency_ms/ms")), "No column for the implementation"),
        ((Role("implementation"), Role("latency_ms/ms")), "No column for the sequence length"),
        ((Role("seqlen"), Role("latency_ms/ms", "mine")), None),
    ],
)
def test_a_mapping_says_what_it_lacks(roles: tuple[Role, ...], problem: str | None) -> None:
    said = TableMapping(roles).problem()
    assert said is None if problem is None else said.startswith(problem)


def test_a_workbook_is_read_as_its_sheet() -> None:
    found = understand("a.xlsx", spreadsheets.workbook(spreadsheets.SHEET, percent="G2"))
    got = [(m.metric, m.value, str(m.status), m.case.seqlen_q, m.case.causal) for m in found.measurements]
    assert got == [
        ("latency_ms", 0.25, "ok", 1024, True),
        ("peak_percent", 85.5, "ok", 1024, True),
        ("latency_ms", None, "oom", 2048, True),
    ]
    assert found.description == "Excel sheet 'Sheet', 2 rows" and found.measurements[2].origin == "line 3, fwd (ms)"


def test_a_formula_reads_as_what_excel_saved_and_is_never_run() -> None:
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


def test_rows_that_a_workbook_leaves_out_cost_nothing() -> None:
    began = time.process_time()
    sheets = workbook.read_workbook("a.xlsx", _changed("xl/worksheets/sheet1.xml", SHEET_XML % SPARSE))
    assert time.process_time() - began < 2
    assert [number for number, _ in sheets[0].rows] == [199_000]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: _changed("xl/worksheets/sheet1.xml", b" " * (workbook.MAX_UNPACKED + 1)), "unpacks to more than"),
        (
            lambda: _changed("xl/workbook.xml", b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a/>'),
            "document type",
        ),
        (lambda: _changed("xl/workbook.xml", b"<broken"), "is not a workbook that can be read"),
        (lambda: spreadsheets.workbook([[]]), "has no sheet with a header and rows"),
    ],
)
def test_a_hostile_workbook_is_refused(data, message: str) -> None:
    with pytest.raises(UploadError, match=re.escape(message)):
        understand("a.xlsx", data())


def test_a_sheet_that_claims_a_million_rows_costs_what_it_has() -> None:
    sheet = zipfile.ZipFile(io.BytesIO(spreadsheets.workbook(spreadsheets.SHEET))).read("xl/worksheets/sheet1.xml")
    claims = re.sub(rb'<dimension ref="[^"]*"', b'<dimension ref="A1:XFD1048576"', sheet)
    found = understand("a.xlsx", _changed("xl/worksheets/sheet1.xml", claims))
    assert len(found.measurements) == 3


def test_d_model_beside_heads_is_head_dim_times_heads() -> None:
    head = "implementation,seqlen,d_model,heads,dtype,latency_ms\n"
    found = understand("a.csv", (head + "x,1024,2048,16,bf16,1.5\nx,1024,100,16,bf16,1.5\n").encode())
    (measurement,) = found.measurements
    assert (measurement.case.head_dim, measurement.case.head_dim_v, measurement.case.num_heads) == (128, 128, 16)
    assert [(rejected.column, rejected.value) for rejected in found.rejected] == [("d_model", "100")]
    assert "d_model is head_dim x num_heads, of queries, keys and values." in found.assumptions
    both = understand("a.csv", (head.replace("heads", "heads,head_dim") + "x,1024,2048,16,64,bf16,1.5\n").encode())
    assert both.measurements[0].case.head_dim == 64, "projections may widen"


@pytest.mark.parametrize("title", ["Messung vom Montag", "Messung;;;;"])
def test_a_title_above_the_header_is_left_out_and_said(title) -> None:
    text = f"{title}\nimpl;seqlen;head_dim;dtype;Zeit (ms)\nflash;1.024;64;bf16;0,31\nnaive;2.048;64;bf16;1.050,2\n"
    found = understand("a.csv", text.encode())
    assert [m.value for m in found.measurements] == [0.31, 1050.2]
    assert "below the title 'Messung" in found.description
