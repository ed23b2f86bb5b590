"""Broken files of every format are refused in words or understood; `fuzz.py` does the same at length."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results.files.journal import RunFolder
from results.formats import understand
from tests.builders import import_understanding
from tests.results.formats.mutants import corpus, mutant, read

FILES = sorted(corpus())
_BOUNDED = settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("name", FILES)
def test_a_broken_file_is_refused_in_words_or_understood(name: str) -> None:
    @_BOUNDED
    @given(st.randoms(use_true_random=False))
    def broken(chance: random.Random) -> None:
        read(name, mutant(name, chance))

    broken()


@pytest.mark.parametrize("name", FILES)
def test_what_is_understood_is_written_and_read_again(name: str, tmp_path) -> None:
    found = understand(name, corpus()[name])
    assert found.rejected == () and found.measurements
    ids = import_understanding(tmp_path, found, gpu_name="NVIDIA H200")
    written = [m for run_id in ids for m in RunFolder(tmp_path / "runs" / run_id).read()[0]]
    assert {m.measurement_id for m in written} == {m.measurement_id for m in found.measurements}
    assert import_understanding(tmp_path, found) == []
