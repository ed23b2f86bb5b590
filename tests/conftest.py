"""What tests of several packages begin with."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a home without runs: what ships takes two seconds to read, so it is read once for all homes."""
    from results.store.database import open_store  # tests of kernels run where no database is installed

    home = tmp_path_factory.mktemp("shipped")
    open_store(home).close()
    return home / "store.duckdb"
