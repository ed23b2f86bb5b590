from contextlib import closing
from dataclasses import replace

import pytest

from results.files.journal import RunFolder
from results.query.declared import colours
from results.records import Run
from results.store.database import open_store

RUN = Run("old", "local", created="2026-01-01T00:00:00")


def found(home, *sweeps) -> dict[str, str]:
    for day, facts in enumerate(sweeps, start=1):
        run = replace(RUN, run_id=f"run-{day}", created=f"2026-01-{day:02}T00:00:00", implementations=facts)
        RunFolder.create(home, run, [])
    with closing(open_store(home)) as store:
        return colours(store)


def test_the_newest_run_says_the_colour_of_an_implementation(tmp_path):
    declared = found(tmp_path, {"mine": {"colour": "#111111"}}, {"mine": {"colour": "#222222"}, "other": {}})
    assert declared["mine"] == "#222222"
    assert "other" not in declared


def test_runs_from_before_declarations_keep_their_colours(tmp_path):
    assert found(tmp_path)["triton_fa2"] == "#e69f00"


@pytest.mark.parametrize("colour", ["red;background:url(//x)", "#12345", 7, None])
def test_what_is_no_colour_is_left_out(tmp_path, colour):
    assert "mine" not in found(tmp_path, {"mine": {"colour": colour}})
