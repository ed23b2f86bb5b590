"""Every run and number of every excerpt is read as recorded: cases, names, units, statuses, spreads and notes."""

import json

import pytest

from tests.results.formats.peers.peer_files import NAMES, RECORDED, record, understood


@pytest.mark.parametrize("name", NAMES)
def test_an_excerpt_is_read_as_recorded(name: str) -> None:
    expected = json.loads(RECORDED.read_text())[name]
    assert record(name) == expected
    assert understood(name).rejected == ()


def test_each_excerpt_is_recorded_with_numbers() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert sorted(recorded) == sorted(NAMES) and all(found["numbers"] for found in recorded.values())
