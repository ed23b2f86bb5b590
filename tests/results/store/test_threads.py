"""The store in several threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from results.files.journal import RunFolder
from results.store.database import Store, StoreError, open_store, rebuild
from tests.results.store.conftest import count, latency


def test_two_stores_of_one_process_agree(home: Path, folder: RunFolder) -> None:
    with closing(open_store(home)) as first, closing(open_store(home)) as second, ThreadPoolExecutor(2) as pool:
        for number in range(20):
            folder.append(latency(number))
            assert sum(pool.map(Store.refresh, (first, second))) == 1
        assert (count(first), count(second), first.notice, second.notice) == (20, 20, None, None)
        assert first.version() == second.version()
        with pytest.raises(StoreError, match="close the store first"):
            rebuild(home)


def test_eight_threads_ask_while_one_refreshes_and_every_answer_is_right(opened: Store, folder: RunFolder) -> None:
    stop, right = threading.Event(), [(n, n * (n + 1) / 2, n) for n in range(6)]

    def ask() -> list[tuple]:
        answers = []
        while not stop.is_set():
            found = opened.query("SELECT count(*), sum(value), max(value) FROM results").fillna(0)
            answers.append(tuple(found.iloc[0]))
        return answers

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask) for _ in range(8)]
        for number in range(5):
            folder.append(latency(number))
            opened.refresh()
        stop.set()
    of_threads = [each.result() for each in asked]
    assert all(answers == sorted(answers) and set(answers) <= set(right) for answers in of_threads)
    assert sum(map(len, of_threads)) > 25
    assert count(opened) == 5


def test_threads_that_meet_a_damaged_file_all_get_the_right_answer(home: Path, folder: RunFolder) -> None:
    folder.append(latency(1))
    opened = open_store(home)
    real = opened._connection

    class Broken:
        """A connection whose every cursor finds the file damaged."""

        def cursor(self):
            raise duckdb.IOException("Corrupt database file: computed checksum")

        def close(self):
            real.close()

    opened._connection = Broken()
    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(opened.rows, ["SELECT count(*) FROM results"] * 8)]
    assert answers == [[(1,)]] * 8
    assert "it is damaged" in opened.notice
    folder.append(latency(2))
    assert (opened.refresh(), count(opened)) == (1, 2)
    opened.close()
    assert rebuild(home) == 2
