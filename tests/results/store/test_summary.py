"""What is read while no run is chosen gives the same tables as all numbers do; naming every source looks at all."""

import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from results.files import journal
from results.files.journal import RunFolder
from results.query import pages, pairing, speedups
from results.records import Measurement, Run, Status, attention_case
from results.slice import Filters, where
from results.sql import SqlFile
from results.store.database import Store, open_store
from tests.builders import latency, small_case

NAMES = ("slow", "fast", "other")
COUNTING_RUNS = partial(SqlFile(__file__), "counting_runs")
SLICE = Filters(gpu="A GPU", mode="fwd", timing="kernel")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(journal, "PUBLISHED", tmp_path / "none")
    dice = random.Random(1)
    for number in range(6):
        created = None if number == 3 else f"2026-01-{1 + number % 3:02d}"
        _run(tmp_path, f"run-{number}", dice, created=created, kernel_hash=(None, "one", "two")[number % 3])
    whole = [row for row in _rows("whole", dice, whole=True) if row.case.seqlen_q == 128]
    RunFolder.create(tmp_path, Run("whole", "local", gpu_name="A GPU", created="2026-01-03"), whole)
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def _run(home: Path, run_id: str, dice: random.Random, **facts: object) -> None:
    run = Run(run_id=run_id, source="local", **({"gpu_name": "A GPU"} | facts))
    RunFolder.create(home, run, list(_rows(run_id, dice)))


def _rows(run_id: str, dice: random.Random, *, whole: bool = False) -> Iterator[Measurement]:
    """Of each case some implementations in some modes, many of them failed; all of a whole run."""
    for seqlen, name, mode in product((128, 256), NAMES, ("fwd", "bwd")):
        case = attention_case(batch=1, num_heads=2, seqlen=seqlen, head_dim=64, dtype="float16", causal=True)
        for metric, timing in (("latency_ms", "kernel"), ("peak_memory_mb", None)):
            status = Status.OK if whole else dice.choice((Status.OK, Status.OOM, None))
            if status:
                value = dice.uniform(1, 9) if status is Status.OK else None
                yield Measurement(run_id, case, name, metric, status, value=value, mode=mode, timing=timing)


def _assert_same_either_way(store: Store) -> None:
    choices = product(NAMES, ("fwd", "bwd"), ((), ("fast",), ("other", "slow")))
    for baseline, mode, implementation in choices:
        some = replace(SLICE, baseline=baseline, mode=mode, implementation=implementation)
        every = replace(some, source=("local",))
        for question in (speedups.grid, speedups.ranking, pages.provenance):
            pd.testing.assert_frame_equal(question(store, some), question(store, every))
        pd.testing.assert_frame_equal(*(pages.memory(store, f, "peak_memory_mb") for f in (some, every)))


def test_the_runs_that_count_are_chosen_as_by_python_and_give_what_all_of_them_would(store):
    _assert_same_either_way(store)
    assert store.rows("SELECT count(*) FROM counting")[0][0] < store.rows("SELECT count(*) FROM numbers")[0][0]
    chosen = set()
    for baseline, mode in product((*NAMES, "nobody"), ("fwd", "bwd")):
        some = replace(SLICE, baseline=baseline, mode=mode, source=("local",))
        condition, params = where(some)
        by_sql = set(store.rows(COUNTING_RUNS(condition=condition), [baseline, *params]))
        assert by_sql == {(row.seqlen, row.run_id) for row in pairing.same_run(store, some, "latency_ms")}
        chosen |= by_sql
    assert len(chosen) > 2
    assert store.kept("SELECT 1") is store.kept("SELECT 1")
    before = store.kept("SELECT count(*) FROM numbers")
    _run(store.home, "newer", random.Random(2), created="2026-02-01")
    store.refresh()
    assert store.kept("SELECT count(*) FROM numbers") != before


def test_a_run_that_grows_or_goes_or_says_another_time_leaves_them_right(store):
    runs, dice = store.home / "runs", random.Random(2)
    _run(store.home, "newer", dice, created="2026-02-01")
    store.refresh()
    _assert_same_either_way(store)
    _run(store.home, "again", dice, created="2026-02-02", kernel_hash="one")
    store.refresh()
    _assert_same_either_way(store)
    shutil.rmtree(runs / "newer")
    record = runs / "run-0" / "run.json"
    record.write_text(record.read_text().replace("2026-01-01", "2026-03-01"))
    RunFolder(runs / "run-1").append(latency("slow", 1.0, small_case(), run_id="run-1", origin="x"))
    store.refresh()
    _assert_same_either_way(store)


def test_the_other_version_of_a_run_is_stored_and_no_choice_of_any_page(tmp_path: Path) -> None:
    against = Run("two", "local", gpu_name="H200", against={"label": "abc1234"})
    other = Run("names", "upload", gpu_name="H200")
    names = ("triton_fa2", "triton_fa2@abc1234")
    number = latency(names[0], 1.0, small_case())
    for run in (against, other):
        rows = [replace(number, run_id=run.run_id, implementation=name) for name in names]
        RunFolder.create(tmp_path, run, rows)
    with closing(open_store(tmp_path)) as store:
        stored = store.rows("SELECT implementation FROM measurements WHERE run_id = 'two'")
        assert {name for (name,) in stored} == set(names)
        for table in ("results", "numbers JOIN slices USING (slice_id)"):
            found = set(store.rows(f"SELECT run_id, implementation FROM {table} WHERE run_id IN ('two', 'names')"))
            assert found == {("two", names[0]), ("names", names[0]), ("names", names[1])}
