"""A home with nothing published, and stores over it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from results.files import journal
from results.files.journal import RunFolder
from results.records import Measurement, Run
from results.store.database import Store, open_store


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, which the commands take too."""
    monkeypatch.setattr(journal, "PUBLISHED", tmp_path / "none")
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def opened(home: Path) -> Iterator[Callable[[], Store]]:
    """Opens a store over the home as it is then."""
    stores: list[Store] = []

    def now() -> Store:
        stores.append(open_store(home))
        return stores[-1]

    yield now
    for store in stores:
        store.close()


@pytest.fixture
def store_of(home: Path, opened: Callable[[], Store]) -> Callable[..., Store]:
    """Writes runs with their rows into the home and opens a store over it."""

    def made(*runs: tuple[Run, Iterable[Measurement]]) -> Store:
        for run, rows in runs:
            RunFolder.create(home, run, [replace(row, run_id=run.run_id) for row in rows])
        store = opened()
        assert store.problems == []
        return store

    return made
