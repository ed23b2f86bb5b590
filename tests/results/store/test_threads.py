"""The store in several threads."""

import threading
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from results.files.journal import RunFolder
from results.store.database import Store, StoreError, open_store, rebuild
from tests.results.store.conftest import count, latency


def test_two_stores_of_one_process_agree(home: Path, folder: RunFolder) -> None:
    with closing(open_store(home)) as first, closing(open_store(home)) as second:
        for number in range(20):
            folder.append(latency(number))
            new = [0, 0]
            threads = [
                threading.Thread(target=lambda at=at, one=one, new=new: new.__setitem__(at, one.refresh()))
                for at, one in enumerate((first, second))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sum(new) == 1
        assert (count(first), count(second), first.notice, second.notice) == (20, 20, None, None)
        assert first.version() == second.version()
        with pytest.raises(StoreError, match="close the store first"):
            rebuild(home)


def test_eight_threads_ask_while_one_refreshes_and_every_answer_is_right(opened: Store, folder: RunFolder) -> None:
    stop, wrong, answers = threading.Event(), [], []

    def ask() -> None:
        last = 0
        while not stop.is_set():
            found = opened.query("SELECT count(*) AS n, sum(value) AS total, max(value) AS top FROM results").iloc[0]
            n = int(found.n)
            if n < last or (n and (found.total != n * (n + 1) / 2 or found.top != n)):
                wrong.append(tuple(found))
            last = n
            answers.append(n)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for number in range(5):
        folder.append(latency(number))
        opened.refresh()
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(answers) > 25
    assert count(opened) == 5


def test_threads_that_meet_a_damaged_file_all_get_the_right_answer(home: Path, folder: RunFolder) -> None:
    folder.append(latency(1))
    opened = open_store(home)
    answers = []

    def ask() -> None:
        answers.append(opened.rows("SELECT count(*) FROM results"))

    real = opened._connection

    class Broken:
        """A connection whose every cursor finds the file damaged."""

        def cursor(self):
            raise duckdb.IOException("Corrupt database file: computed checksum")

        def close(self):
            real.close()

    opened._connection = Broken()
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[(1,)]] * 8
    assert "it is damaged" in opened.notice
    folder.append(latency(2))
    assert (opened.refresh(), count(opened)) == (1, 2)
    opened.close()
    assert rebuild(home) == 2
