"""Files that were made to break a reader: each is refused in words, with nothing taken."""

import json
import os
import random
from typing import Any
from unittest.mock import Mock

import pytest

from results import formats
from results.formats import ReaderFault, UnknownTable, UploadError, bounded, errors, plain_table, understand
from results.records import measurement_to_json, run_to_json
from tests.builders import LONG, ROW, import_understanding, odd_rows, random_runs
from tests.results.formats.mutants import zipped


def _own(run: dict[str, Any] | None = None, **changes: Any) -> bytes:
    """Our own JSON with one measurement, with fields of the run and of the measurement changed."""
    record, measurements = random_runs(1, 1)[0]
    line = measurement_to_json(next(m for m in measurements if m.status == "ok")) | changes
    line.pop("measurement_id")
    return json.dumps({"runs": [run_to_json(record) | (run or {})], "measurements": [line]}).encode()


def _crafted(field: int, value: int) -> bytes:
    data = bytearray(zipped({"run.json": b"{}", "measurements.jsonl": b"{}\n"}))
    at = data.rfind(b"PK\x05\x06") + field
    data[at : at + 4] = value.to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 2])
@pytest.mark.parametrize("field", [12, 16])  # the size and the place of the central directory
def test_a_crafted_archive_is_refused(field: int, value: int) -> None:
    with pytest.raises(UploadError) as refused:
        understand("runs.zip", _crafted(field, value))
    assert not isinstance(refused.value, ReaderFault)


def test_a_header_cell_a_number_or_nesting_beyond_its_limit_is_refused() -> None:
    with pytest.raises(UploadError, match="Line 1 is not well-formed CSV: field larger than field limit"):
        understand("a.csv", b"implementation," + b"x" * 140_000 + b"\n1,2\n")
    with pytest.raises(UploadError, match="is not valid JSON"):
        understand("a.json", _own(n=50).replace(b'"n": 50', b'"n": ' + b"9" * 5000))
    found = understand("a.csv", (LONG + ROW.replace("128", "9" * 5000)).encode())
    assert found.measurements == () and found.rejected[0].line == 2
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"a": deep}
    with pytest.raises(UploadError, match="sweep holds more than 20 lists and objects in one another"):
        understand("a.json", _own({"sweep": deep}))


@pytest.mark.parametrize("field", ["created", "time"])
@pytest.mark.parametrize("text", ["10000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "yesterday"])
def test_a_time_that_no_reader_can_hold_is_refused(field: str, text: str) -> None:
    data = _own({"created": text}) if field == "created" else _own(time=text)
    try:
        assert understand("a.json", data).measurements == ()
    except UploadError as error:
        assert text in str(error)


def test_too_many_lines_and_a_text_beyond_the_limit_are_refused_before_any_format_reads_them(monkeypatch) -> None:
    record, _ = random_runs(1, 1)[0]
    data = zipped({"r/run.json": json.dumps(run_to_json(record)).encode(), "r/measurements.jsonl": b"\n" * 250_000_000})
    with pytest.raises(UploadError, match="250,000,000 lines; at most 200,000"):
        understand("run.zip", data)
    with pytest.raises(UploadError, match="more than 1,000,000 lines"):
        understand("a.csv", b"a,b\n" + b"\x0c" * 2_000_000)
    monkeypatch.setattr(formats, "_understood", None)
    with pytest.raises(UploadError, match="70,000,004 bytes; at most 67,108,864 are taken. Split it."):
        understand("a.csv", b"a,b\n" + b"\n" * 70_000_000)


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "..", "a/b", ".hidden", "x" * 300, ""])
def test_no_run_id_leaves_the_home(tmp_path, name: str) -> None:
    with pytest.raises(UploadError, match="run_id"):
        understand("a.json", _own({"run_id": name}, run_id=name))
    assert list(tmp_path.iterdir()) == []


def test_the_wall_lets_a_refusal_pass_and_names_file_and_row_of_whatever_a_reader_raises(monkeypatch) -> None:
    with pytest.raises(UploadError, match="^no$") as refused, errors.wall("a.csv"):
        raise UploadError("no")
    assert not isinstance(refused.value, ReaderFault)
    monkeypatch.setattr(plain_table.ReadRows, "_case", Mock(side_effect=OverflowError("too\nlarge")))
    with pytest.raises(ReaderFault, match=r"^a.csv, line 2, cannot be read \(OverflowError: too large\)"):
        understand("a.csv", (LONG + ROW).encode())


def test_sizes_at_their_limit_are_taken_and_break_no_formula(tmp_path) -> None:
    sizes = dict.fromkeys(("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim"), 999_999_999)
    found = understand("a.json", _own(**sizes))
    assert import_understanding(tmp_path, found) == [found.runs[0].run_id]
    assert found.measurements[0].case.batch == 999_999_999


def test_work_on_a_file_ends_in_words_at_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bounded.call(understand, "a.csv", (LONG + ROW).encode()).measurements
    with pytest.raises(UnknownTable) as unknown:
        bounded.call(understand, "a.csv", b"a,b,c\n1,2,3\n")
    assert unknown.value.sheet.header == ("a", "b", "c")
    with pytest.raises(UploadError, match="needs more than 2 GiB of memory"):
        bounded.call(bytearray, 3 << 30)
    with pytest.raises(UploadError, match="ended at its limits"):
        bounded.call(os._exit, 1)
    monkeypatch.setattr(bounded, "SECONDS", 1)
    with pytest.raises(UploadError, match="takes more than 1 s"):
        bounded.call(odd_rows, random.Random(1), 10**9)
    assert bounded.call(str, "the server goes on") == "the server goes on"
