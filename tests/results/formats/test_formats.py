"""Uploaded tables: what is understood, what is refused and why."""

import pytest

from results import formats
from results.files.journal import published_folders
from results.formats import UploadError, understand
from results.formats.mapping import ALIASES, fields_of, normalise
from results.formats.tables import MAX_TEXT_ROWS
from results.records import Measurement
from results.reports.rendering import render_report
from tests.builders import LONG, ROW
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


@pytest.mark.parametrize("name", ["![x](http://a/y.png)", "<script>alert(1)</script>", "[x](y)", "&#60;b", "https://a"])
def test_markup_in_a_name_is_refused_in_words(name: str) -> None:
    found = understand("a.csv", (LONG + ROW.replace("torch", name)).encode())
    assert found.measurements == () and "markup; write the name in plain text" in found.rejected[0].reason


def test_a_file_of_more_rows_or_bytes_than_the_limit_is_refused_with_the_number(monkeypatch) -> None:
    text = "a,b\n" + "1,2\n" * (MAX_TEXT_ROWS + 1)
    with pytest.raises(UploadError, match="has more than the 400,000 rows that are taken"):
        understand("a.csv", text.encode())
    monkeypatch.setattr("results.formats.tables.MAX_BYTES", 10)
    with pytest.raises(UploadError, match="The file has 77 bytes; at most 10"):
        understand("a.csv", b"x" * 77)
