"""Uploaded tables: what is understood, what is refused and why."""

import pytest

from results import formats
from results.files.journal import published_folders
from results.formats import UploadError, understand
from results.formats.headers import ALIASES, fields_of, normalise
from results.formats.tables import MAX_ROWS
from results.records import Measurement
from results.reports.rendering import render_report
from tests.builders import LONG, ROW, WIDE
from tests.cases import cases


def _only(understanding: formats.Understanding) -> Measurement:
    (measurement,) = understanding.measurements
    return measurement


def _rejections(text: str, filename: str = "table.csv") -> list[tuple[int, str, str, str]]:
    found = understand(filename, text.encode())
    return [(r.line, r.column, r.value, r.reason) for r in found.rejected]


def test_every_format_is_found_by_listing_the_folders_those_of_other_tools_first() -> None:
    names = [format.name for format in formats.formats()]
    own = ["attnbench_report", "own_csv", "own_markdown", "own_json", "run_folder", "plain_table"]
    assert names[-len(own) :] == own and "cudnn_training" in names[: -len(own)]
    assert len(set(names)) == len(names)


def test_a_long_table_becomes_measurements_with_their_place_in_the_file() -> None:
    found = understand("mine.csv", (LONG + ROW).encode())
    measurement = _only(found)
    case = measurement.case
    assert found.format == "plain_table" and found.rejected == ()
    assert (case.dtype, case.seqlen_q, case.seqlen_k, case.head_dim, case.batch) == ("bfloat16", 128, 128, 64, 1)
    assert (case.causal, case.num_heads, case.window_size) == (True, None, None)
    assert (measurement.implementation, measurement.mode, measurement.metric) == ("torch", "fwd", "latency_ms")
    assert (measurement.value, measurement.mean, measurement.std, measurement.statistic) == (0.35, 0.35, 0.01, "mean")
    assert (measurement.timing, measurement.printed, measurement.origin) == (None, "0.35", "line 2, forward_ms_mean")


def test_a_wide_table_has_one_implementation_a_column_and_ratios_with_their_baseline() -> None:
    found = understand("mine.csv", (WIDE + "128,64,fp32,0.2,0.4,0.1,OOM,2.0x\n").encode())
    got = [(m.implementation, m.mode, m.metric, m.value, m.baseline, str(m.status)) for m in found.measurements]
    assert got == [
        ("torch", "fwd", "latency_ms", 0.2, None, "ok"),
        ("torch", "bwd", "latency_ms", 0.4, None, "ok"),
        ("triton_fa2", "fwd", "latency_ms", 0.1, None, "ok"),
        ("triton_fa2", "bwd", "latency_ms", None, None, "oom"),
        ("triton_fa2", "fwd", "speedup", 2.0, "torch", "ok"),
    ]
    assert "PT is torch." in found.assumptions and "Fwd Speedup is torch over triton_fa2." in found.assumptions


def test_other_systems_keep_their_names_and_three_have_no_ratio() -> None:
    header = "seqlen,head_dim,dtype,sdpa fwd (ms),mine_fwd_ms,PT fwd (ms),Fwd Speedup\n"
    found = understand("a.csv", (header + "128,64,fp16,1,2,3,0.5x\n").encode())
    assert [m.implementation for m in found.measurements] == ["sdpa", "mine", "torch"]
    assert found.ignored == ("Fwd Speedup",)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_comma_semicolon_and_tab_are_the_same_table(mark: str) -> None:
    found = understand("a.csv", (LONG + ROW).replace(",", mark).encode())
    assert _only(found).value == 0.35


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: b"# taken on a Tuesday\n\n" + text.encode(),
        lambda text: text.replace("torch", '"torch"').encode(),
        lambda text: (text + "\n ,,,,,,,\n").encode(),
    ],
    ids=["byte order mark", "CRLF", "comments", "quotes", "blank rows"],
)
def test_harmless_differences_make_no_difference(change) -> None:
    found = understand("a.csv", change(LONG + ROW))
    assert _only(found).value == 0.35 and found.rejected == ()


def test_markdown_is_a_table_too_and_its_bold_is_not_part_of_a_number() -> None:
    text = "# Mine\n\nwords\n\n| seq_len | d | dtype | PT fwd (ms) | TR fwd (ms) |\n|--:|--:|---|--:|--:|\n"
    found = understand("mine.md", (text + "| 1,024 | 64 | bf16 | 2.0 | **1.0** |\n").encode())
    assert [(m.value, m.case.seqlen_q) for m in found.measurements] == [(2.0, 1024), (1.0, 1024)]
    assert found.measurements[1].printed == "**1.0**" and found.measurements[1].origin == "line 7, TR fwd (ms)"


def test_two_tables_that_could_be_meant_are_not_guessed_between() -> None:
    table = "| seq_len | d | dtype | PT fwd (ms) |\n|---|---|---|---|\n| 128 | 64 | bf16 | 2.0 |\n\n"
    with pytest.raises(UploadError, match="has 2 tables that could be meant"):
        understand("mine.md", (table + table).encode())


def test_the_layouts_of_published_reports_are_read_from_their_own_tables() -> None:
    for name, format, count in (("fa2_rtx4060", "plain_table", 504), ("torch_vs_triton", "plain_table", 144)):
        folders = [folder for folder in published_folders() if folder.run_id == f"published-{name}"]
        runs = [(folder.run(), folder.read()[0]) for folder in folders]
        text = render_report(name, runs)
        found = understand(f"{name}.md", text.encode())
        assert (found.format, len(found.measurements), found.rejected) == (format, count, ())
        printed = {m.measurement_id: m for _, measurements in runs for m in measurements}
        ours = sorted(m.value for m in found.measurements if m.value is not None)
        theirs = [m for m in printed.values() if not (m.origin or "").startswith("Key")]
        assert ours == sorted(m.value for m in theirs if m.value is not None)


@pytest.mark.parametrize("field", sorted(ALIASES))
def test_no_header_means_two_fields(field: str) -> None:
    for header in ALIASES[field]:
        alone = "head_dim" if header == "d_model" else field
        assert fields_of([header]) == {alone: 0} and normalise(header) == header


@pytest.mark.parametrize(("cell", "status"), cases(__file__, "test_words_in_place_of_numbers_become_statuses"))
def test_words_in_place_of_numbers_become_statuses(cell: str, status: str) -> None:
    measurement = _only(understand("a.csv", (LONG + ROW.replace("0.35", cell).replace("0.01", "")).encode()))
    assert (measurement.status, measurement.value, measurement.std) == (status, None, None)
    assert measurement.note == f"the file says {cell!r}" and measurement.printed == cell


@pytest.mark.parametrize(
    ("cell", "reason"), cases(__file__, "test_a_time_that_is_none_is_rejected_with_line_column_value_and_reason")
)
def test_a_time_that_is_none_is_rejected_with_line_column_value_and_reason(cell: str, reason: str) -> None:
    ((line, column, value, got),) = _rejections(LONG + ROW.replace("torch", "other") + ROW.replace("0.35", cell))
    assert (line, column, value) == (3, "forward_ms_mean", cell)
    assert got.startswith(reason)


def test_a_decimal_comma_is_rejected_with_what_to_write() -> None:
    text = (LONG + ROW.replace("0.35", "@")).replace(",", ";").replace("@", "0,35")
    assert _rejections(text) == [(2, "forward_ms_mean", "0,35", "has a decimal comma; write 0.35")]


@pytest.mark.parametrize(
    ("old", "new", "column", "reason"),
    [
        *cases(__file__, "test_a_bad_cell_rejects_its_row"),
        ("torch", "x" * 201, "impl", "has 201 characters; at most 200"),
    ],
)
def test_a_bad_cell_rejects_its_row(old: str, new: str, column: str, reason: str) -> None:
    ((line, got, _, why),) = _rejections(LONG + ROW.replace(old, new))
    assert (line, got) == (2, column) and why.startswith(reason)


def test_ragged_rows_are_rejected_by_line() -> None:
    assert _rejections(LONG + ROW + "torch,bf16\n" + ROW.replace("128", "256").strip() + ",9\n") == [
        (3, "", "torch, bf16", "has 2 cells where the header has 8"),
        (4, "", "torch, bf16, 256, 64, 1, True, 0.35, 0.01, 9", "has 9 cells where the header has 8"),
    ]


def test_a_repeated_cell_is_rejected_and_names_the_first() -> None:
    ((line, _, value, reason),) = _rejections(LONG + ROW + ROW.replace("0.35", "0.36"))
    assert (line, value) == (3, "0.36") and reason.startswith("repeats line 2")


def test_a_line_number_counts_lines_within_quotes() -> None:
    text = LONG + ROW.replace("torch", '"a\nb"') + ROW.replace("0.35", "nan")
    assert [(line, column) for line, column, _, _ in _rejections(text)] == [(2, "impl"), (4, "forward_ms_mean")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *cases(__file__, "test_a_file_that_cannot_be_meant_is_refused_with_the_reason"),
        ("a,b\n1,2\n".encode("utf-16"), "Byte 0 .0xff. is not UTF-8. It looks like UTF-16"),
        ((LONG + 'torch,"bf16,128\n').encode(), "Line 2 is not well-formed CSV"),
        (LONG.encode(), "has a header and no numbers"),
        ((LONG.strip() + ",impl\n" + ROW).encode(), "both mean implementation"),
        (b"PK\x03\x04" + b"\xff" * 90, "begins like a zip archive but cannot be opened"),
        (b"[" * 100_000, "is JSON nested too deeply"),
        (b'{"a":' * 100_000, "is JSON nested too deeply"),
        (b"\0\1\2" * 90, "is neither text nor an archive"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_the_reason(data: bytes | str, message: str) -> None:
    with pytest.raises(UploadError, match=message):
        understand("file.csv", data.encode("latin-1") if isinstance(data, str) else data)


def test_missing_columns_are_named_with_the_headers_that_would_do() -> None:
    with pytest.raises(UploadError, match=r"It lacks a column for dtype \(dtype, data_type, precision, torch_dtype\)"):
        understand("a.csv", b"impl,seq_len,d,fwd_ms\ntorch,1,2,3\n")


def test_columns_are_shown_with_what_they_are_read_as_and_unknown_ones_as_ignored() -> None:
    found = understand("a.csv", (LONG.strip() + ",mood\n" + ROW.strip() + ",good\n").encode())
    shown = {column.header: column.meaning for column in found.columns}
    assert shown["d_model"] == "head_dim" and shown["forward_ms_mean"] == "latency_ms fwd mean"
    assert shown["forward_ms_std"] == "standard deviation of forward_ms_mean"
    assert found.ignored == ("mood",)


def test_what_a_file_does_not_say_is_asked_and_stays_unknown() -> None:
    found = understand("a.csv", (LONG + ROW).encode())
    assert found.questions[0] == "The file does not name a GPU. Which one was it?"
    assert found.runs[0].gpu_name is None


def test_formulas_in_names_are_just_text() -> None:
    text = LONG.replace("impl,", "impl,gpu,") + ROW.replace("torch,", "=cmd(),+1,")
    found = understand("a.csv", text.encode())
    assert found.runs[0].gpu_name == "+1" and _only(found).implementation == "=cmd()"


@pytest.mark.parametrize("name", ["![x](http://a/y.png)", "<script>alert(1)</script>", "[x](y)", "&#60;b", "https://a"])
def test_markup_in_a_name_is_refused_in_words(name: str) -> None:
    found = understand("a.csv", (LONG + ROW.replace("torch", name)).encode())
    assert found.measurements == () and "markup; write the name in plain text" in found.rejected[0].reason


def test_each_gpu_of_a_file_is_a_run() -> None:
    header = LONG.replace("impl,", "impl,gpu,")
    rows = "".join(ROW.replace("torch,", f"torch,{gpu},") for gpu in ("A100", "H100"))
    found = understand("a.csv", (header + rows).encode())
    assert [(run.gpu_name, run.run_id[-2:]) for run in found.runs] == [("A100", "-1"), ("H100", "-2")]
    assert [m.run_id for m in found.measurements] == [run.run_id for run in found.runs]


def test_more_rows_than_the_limit_are_refused_with_the_number() -> None:
    text = "a,b\n" + "1,2\n" * (MAX_ROWS + 1)
    with pytest.raises(UploadError, match="has more than the 200,000 rows that are taken"):
        understand("a.csv", text.encode())


def test_a_file_that_is_too_large_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.formats.tables.MAX_BYTES", 10)
    with pytest.raises(UploadError, match="The file has 77 bytes; at most 10"):
        understand("a.csv", b"x" * 77)
