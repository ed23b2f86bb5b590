"""Tables of tests, in the JSON file next to a test's module: inputs and what is expected of them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HANG_S = 600.0  # deadline of every wait: only a hang takes so long, however busy the machine is


def cases(test_file: str, name: str) -> Any:
    """Return a table's rows, or its values by their names, for pytest.mark.parametrize; lists are tuples."""
    return _frozen(_read(Path(test_file).with_suffix(".json"))[name])


def named(test_file: str, name: str) -> list[Any]:
    """Return the rows of a table that has a name for each, which becomes the id of its test."""
    return [pytest.param(*row, id=words) for words, row in cases(test_file, name).items()]


@cache
def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(inner) for key, inner in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
