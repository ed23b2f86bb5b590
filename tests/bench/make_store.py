"""`python tests/bench/make_store.py HOME [N]`: a home with N measurements as run folders, and how long the store takes.

The runs look like sweeps: of each case and implementation two latencies with 30 samples, two memories and five errors,
every twentieth cell out of memory. Prints seconds of wall clock and of the processors.

With `--copied` only one run a GPU is written and taken in from its journal. The others are a record with an empty
journal, and their rows are made inside the store from those of the first run of their GPU: the columns as taken in,
under new names and ids, all times of a row multiplied by one factor between 0.9 and 1.1. Ten million rows take minutes.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).parents[2]))

from results.files.journal import RunFolder
from results.records import Case, Measurement, Run, Status, attention_case
from results.sql import SqlFile
from results.store import summary
from results.store.database import Store, open_store

GPUS = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4060 Laptop GPU")
IMPLEMENTATIONS = ("torch_naive", "torch_sdpa_flash", "torch_sdpa_cudnn", "torch_sdpa_efficient", "triton_fa2")
ERRORS = ("error_out", "error_dq", "error_dk", "error_dv", "max_error_out")
QUESTIONS = SqlFile(__file__).filled()

_TIMES = ("value", "mean", "std", "p20", "p80", "ci_low", "ci_high")
_COPY = f"""
    INSERT INTO measurements BY NAME
    SELECT * EXCLUDE factor REPLACE (
        {", ".join(f"{name} * factor AS {name}" for name in _TIMES)},
        list_transform(samples, lambda sample: sample * factor) AS samples,
        run_id AS run_id, sha256(run_id || measurement_id)[:20] AS measurement_id)
    FROM (SELECT * REPLACE (? AS run_id), 0.9 + hash(?, measurement_id) % 1000 / 5000 AS factor
          FROM measurements WHERE run_id = ?)
"""


def measurements(run_id: str, seed: int) -> Iterator[Measurement]:
    """The numbers of one sweep, without end: the batch grows when the grid is through."""
    dice = random.Random(seed)
    grid = list(product((128, 512, 2048, 8192), (64, 128), ("bfloat16", "float32"), (True, False)))
    batch = 0
    while True:
        batch += 1
        for seqlen, head_dim, dtype, causal in grid:
            case = attention_case(
                batch=batch, num_heads=16, seqlen=seqlen, head_dim=head_dim, dtype=dtype, causal=causal
            )
            for implementation, mode in product(IMPLEMENTATIONS, ("fwd", "bwd", "fwd_bwd")):
                yield from _cell(run_id, case, implementation, mode, dice)


def _cell(run_id: str, case: Case, implementation: str, mode: str, dice: random.Random) -> Iterator[Measurement]:
    failed = dice.random() < 0.05
    common = {"run_id": run_id, "case": case, "implementation": implementation, "mode": mode}
    common |= {"time": "2026-11-21T08:30:00+00:00"}
    for timing in ("kernel", "eager"):
        if failed:
            note = "needs 96.0 GiB, 79.1 GiB are there"
            yield Measurement(**common, metric="latency_ms", timing=timing, status=Status.OOM, note=note)
            continue
        samples = tuple(round(dice.lognormvariate(0, 0.1), 6) for _ in range(30))
        middle = sorted(samples)[15]
        yield Measurement(
            **common,
            metric="latency_ms",
            timing=timing,
            status=Status.OK,
            value=middle,
            statistic="median",
            mean=sum(samples) / 30,
            std=0.1,
            p20=min(samples),
            p80=max(samples),
            ci_low=min(samples),
            ci_high=max(samples),
            n=30,
            samples=samples,
        )
    for metric in () if failed else ("peak_memory_mb", "extra_memory_mb", *ERRORS):
        yield Measurement(**common, metric=metric, status=Status.OK, value=dice.random(), statistic="max")


def make(home: Path, total: int, per_run: int) -> None:
    """Write the run folders."""
    for number in range(-(-total // per_run)):
        run_id, gpu = f"bench-{number:04d}", GPUS[number % len(GPUS)]
        run = Run(run_id, "local", created=f"2026-11-{1 + number % 28:02d}T08:00:00Z", gpu_name=gpu, device_type="cuda")
        source = measurements(run_id, number)
        RunFolder.create(home, run, (next(source) for _ in range(min(per_run, total - number * per_run))))


def make_copied(home: Path, total: int, per_run: int) -> None:
    """The same home with journals for one run a GPU alone; the rows of the others are copies made in the store."""
    make(home, len(GPUS) * per_run, per_run)
    copies = {f"bench-{number:04d}": number % len(GPUS) for number in range(len(GPUS), -(-total // per_run))}
    for run_id, gpu in copies.items():
        day = 1 + int(run_id[-4:]) % 28
        created = f"2026-11-{day:02d}T08:00:00Z"
        RunFolder.create(home, Run(run_id, "local", created=created, gpu_name=GPUS[gpu], device_type="cuda"))
    open_store(home).close()
    with duckdb.connect(str(home / "store.duckdb")) as connection:
        for run_id, gpu in copies.items():
            connection.execute(_COPY, [run_id, run_id, f"bench-{gpu:04d}"])
        connection.begin()
        summary.bring_up_to_date(connection, list(copies))
        connection.execute("UPDATE store SET data_version = data_version + 1")
        connection.commit()


def _make_unless_there(home: Path, number: int, per_run: int, copied: bool) -> None:
    if not (home / "runs").exists():
        how = make_copied if copied else make
        _timed("make the home", lambda: how(home, number, per_run))
    if not copied:
        (home / "store.duckdb").unlink(missing_ok=True)  # it is the taking in that is timed


def _timed(what: str, work: Callable[[], object]) -> float:
    start, busy = time.perf_counter(), time.process_time()
    work()
    seconds = time.perf_counter() - start
    print(f"{what:40s} {seconds:9.4f} s, of the processors {time.process_time() - busy:.4f} s", flush=True)
    return seconds


def _best_of_five(store: Store, name: str, sql: str) -> None:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        store.query(sql)
        times.append(time.perf_counter() - start)
    print(f"{name:40s} {min(times):9.4f} s best, {max(times):.4f} s worst of 5", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("number", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--per-run", type=int, default=20_000)
    parser.add_argument("--copied", action="store_true", help="make the rows inside the store; see above")
    options = parser.parse_args()
    _make_unless_there(options.home, options.number, options.per_run, options.copied)
    size = sum(path.stat().st_size for path in options.home.glob("runs/*/measurements.jsonl"))
    seconds = _timed("open, and take in what is new", lambda: open_store(options.home).close())
    with closing(open_store(options.home)) as store:
        rows = store.rows("SELECT count(*) FROM measurements")[0][0]
        speed = "" if options.copied else f": {rows / seconds:.0f} rows/s, {size / 1e6 / seconds:.0f} MB/s"
        print(f"{rows} rows, journals of {size / 1e6:.0f} MB{speed}")
        print(f"file: {(options.home / 'store.duckdb').stat().st_size / 1e6:.0f} MB; notice: {store.notice}")
        _timed("refresh, nothing new", store.refresh)
        _timed("refresh, nothing new, again", store.refresh)
        folder = RunFolder(next(iter(sorted((options.home / "runs").iterdir()))))
        folder.append(
            Measurement(folder.run_id, Case(), "x", "latency_ms", Status.OK, value=1.0, origin=str(time.time()))
        )
        _timed("refresh, one new line", store.refresh)
        for name, sql in QUESTIONS.items():
            _best_of_five(store, name, sql)
    _timed("open again", lambda: open_store(options.home).close())


if __name__ == "__main__":
    main()
