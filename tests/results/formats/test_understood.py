"""Files as they are understood: every number, every refusal, and sentences about the file.

A row of the table has the name of a file, its text or the name of an excerpt, what is replaced once and by what, names
of fields, these fields of each number, the rejections, and sentences that the file is described by. Of a refused file
every occurrence is replaced, and the row ends with the message.
"""

import re
from collections.abc import Iterable
from typing import Any

import pytest

from results.formats import UploadError, understand
from results.records import measurement_to_json
from tests.cases import named
from tests.results.formats.peers.peer_files import excerpt


@pytest.mark.parametrize("file, text, changes, fields, numbers, rejected, said", named(__file__, "files"))
def test_a_file_is_understood(file, text, changes, fields, numbers, rejected, said) -> None:
    found = understand(file, _changed(text, changes, 1))
    records = map(measurement_to_json, found.measurements)
    assert [tuple(_near(record[name]) for name in fields) for record in records] == list(numbers)
    assert tuple((each.line, each.column, each.value, each.reason) for each in found.rejected) == rejected
    sentences = {*found.assumptions, *found.left_out, *found.questions, found.format, found.description}
    sentences |= {text for run in found.runs for text in (str(run.gpu_name), f"source {run.source}")}
    assert {*said} <= sentences | {f"{column.header}: {column.meaning}" for column in found.columns}


@pytest.mark.parametrize("file, text, changes, message", named(__file__, "refused"))
def test_a_file_is_refused(file, text, changes, message) -> None:
    with pytest.raises(UploadError, match=re.escape(message)):
        understand(file, _changed(text, changes, -1))


def _changed(text: str, changes: Iterable[tuple[str, str]], times: int) -> bytes:
    text = excerpt(text.removeprefix("excerpt ")).decode() if text.startswith("excerpt ") else text
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, times)
    return text.encode()


def _near(value: Any) -> Any:
    return pytest.approx(value) if isinstance(value, float) else value
