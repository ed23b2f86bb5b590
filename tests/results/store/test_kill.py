"""kill -9 at any moment, of the writer, of the reader and of both: every acknowledged number is there, exactly once.

A small server with everything imported forks one child a round, so that a round costs milliseconds and not a start of
Python; the children are real processes and die by SIGKILL at a random moment.
"""

import json
import os
import random
import select
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from results.files.journal import RunFolder
from results.records import Run, measurement_to_json, run_to_json
from results.store.database import open_store
from tests.builders import random_runs
from tests.cases import HANG_S
from tests.results.store.conftest import in_python

KILLS = int(os.environ.get("ATTNBENCH_KILLS", "30"))  # of each kind

SERVER = """
import os, sys
from pathlib import Path
from results.files import journal
from results.store.database import open_store
from results.files.journal import RunFolder
from results.formats import import_for_undo, understand
from results.records import Case, Measurement

home = Path(sys.argv[1])
journal.PUBLISHED = home / "published"

def write(run_id):
    folder = RunFolder.open(home, run_id)
    with folder.lock(), open(home / f"{run_id}.acknowledged", "ab", buffering=0) as acknowledged:
        done = folder.measurement_ids()
        for number in range(100_000):
            measurement = Measurement(
                run_id, Case(batch=1 + number), "x", "latency_ms", "ok", value=1.0 + number,
                samples=tuple(float(sample) for sample in range(1, 201)),
            )
            if measurement.measurement_id not in done:
                folder.append(measurement)
                acknowledged.write(measurement.measurement_id.encode() + b"\\n")

def load(name):
    data = (home / "eight.json").read_bytes()
    import_for_undo(home / name, understand("eight.json", data))

def ingest(_):
    while True:
        opened = open_store(home)
        for _ in range(10):
            opened.refresh()
        opened.close()

for line in sys.stdin:
    what, argument = line.split()
    if what == "wait":
        os.waitpid(int(argument), 0)
        print("gone", flush=True)
        continue
    child = os.fork()
    if not child:
        try:
            {"write": write, "ingest": ingest, "load": load}[what](argument)
        finally:
            os._exit(1)
    print(child, flush=True)
"""


class Server:
    """Forks children on request and buries those that were killed."""

    def __init__(self, home: Path) -> None:
        self.process = in_python(SERVER, str(home), stdin=subprocess.PIPE)

    def ask(self, what: str, argument: object = "-") -> str:
        print(what, argument, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def kill(self, child: str) -> None:
        os.kill(int(child), signal.SIGKILL)
        assert self.ask("wait", child) == "gone"


@pytest.fixture
def server(home: Path):
    made = Server(home)
    yield made
    made.process.communicate()


def acknowledged(home: Path, run_id: str = "r1") -> list[str]:
    path = home / f"{run_id}.acknowledged"
    return path.read_text().splitlines() if path.exists() else []


def wait_for_acknowledgement(home: Path, before: int) -> None:
    """Until the writer has acknowledged a number, so that each kill hits one that is at work."""
    deadline = time.monotonic() + HANG_S
    while len(acknowledged(home)) <= before:
        assert time.monotonic() < deadline, "no number was acknowledged"
        select.select([], [], [], 0.001)


def a_moment(dice: random.Random, longest: float) -> None:
    """Let the child come to a point that nobody chose."""
    select.select([], [], [], dice.uniform(0, longest))


def expect_every_number_once(home: Path, folder: RunFolder) -> None:
    told = acknowledged(home, folder.run_id)
    lines = folder.journal_path.read_bytes().split(b"\n")
    written = []
    for line in lines:
        try:
            written.append(json.loads(line)["measurement_id"])
        except ValueError:
            continue  # what a kill cut, or the empty end
    assert len(told) == len(set(told))
    assert set(told) <= set(written)
    assert len(written) == len(set(written))
    with closing(open_store(home)) as opened:
        rows = opened.rows("SELECT measurement_id FROM measurements WHERE run_id = ?", [folder.run_id])
        assert opened.notice is None
        assert len(rows) == len(set(rows))
        assert {row for (row,) in rows} == set(written)


def test_a_writer_cut_in_the_middle_of_a_line_goes_on_after_it(home: Path, server: Server, folder: RunFolder) -> None:
    dice = random.Random(2)
    for _ in range(25):
        with open(folder.journal_path, "ab") as file:  # what a kill inside write() leaves
            file.write(b'{"run_id":"r1","implementation":"x","metric"'[: dice.randrange(1, 44)])
        before = len(acknowledged(home))
        child = server.ask("write", "r1")
        wait_for_acknowledgement(home, before)
        server.kill(child)
    expect_every_number_once(home, folder)
    assert len(folder.read()[2]) == 25


@pytest.mark.slow
def test_kills_of_the_reader_lose_and_double_nothing(home: Path, server: Server) -> None:
    dice = random.Random(3)
    folders = [RunFolder.create(home, Run(f"r{number}", "local")) for number in range(KILLS)]
    for folder in folders:
        child = server.ask("ingest")
        start = f'{{"run_id":"{folder.run_id}","implementation":"x","metric":"m","status":"ok"'
        with open(folder.journal_path, "a") as file:
            file.writelines(f'{start},"value":{number + 1},"origin":"{number}"}}\n' for number in range(300))
        a_moment(dice, 0.15)
        server.kill(child)
    with closing(open_store(home)) as opened:
        assert opened.notice is None
        counts = opened.rows(
            "SELECT run_id, count(*), count(DISTINCT measurement_id), sum(value) FROM results GROUP BY 1"
        )
        assert sorted(counts) == sorted((folder.run_id, 300, 300, 45150.0) for folder in folders)
        assert opened.problems == []


@pytest.mark.slow
def test_kills_of_both_lose_and_double_nothing(home: Path, server: Server, folder: RunFolder) -> None:
    dice = random.Random(4)
    for _ in range(KILLS):
        before = len(acknowledged(home))
        children = [server.ask("ingest"), server.ask("write", "r1")]
        wait_for_acknowledgement(home, before)
        assert folder.is_alive()
        a_moment(dice, 0.1)
        dice.shuffle(children)
        for child in children:
            server.kill(child)
        assert not folder.is_alive()
    assert len(acknowledged(home)) >= KILLS
    expect_every_number_once(home, folder)


@pytest.mark.slow
def test_kills_of_an_import_leave_all_of_its_runs_or_none(home: Path, server: Server) -> None:
    dice, runs = random.Random(5), random_runs(5, 8)
    lines = [measurement_to_json(measurement) for _, measurements in runs for measurement in measurements]
    home.mkdir()
    (home / "eight.json").write_text(json.dumps({"runs": [run_to_json(run) for run, _ in runs], "measurements": lines}))
    whole, count = 0, KILLS if "ATTNBENCH_KILLS" in os.environ else 5  # a round takes a second
    for number in range(count):
        child = server.ask("load", number)
        a_moment(dice, 1.0)
        server.kill(child)
        for draft in (home / str(number)).glob("runs/.*"):
            os.utime(draft, (0, 0))
        with closing(open_store(home / str(number))):  # a start long after
            found = [path.name for path in (home / str(number)).glob("runs/*")]
        assert len(found) in (0, 8) and not any(name.startswith(".") for name in found), found
        whole += len(found) == 8
    assert count < 30 or 0 < whole < count
