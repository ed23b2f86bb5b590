"""Estimate the driver's load in a sweep over very many GPUs: `python -m runner.launchers.scale`. No Ray, no GPU.

It replays the rows of a finished run through the driver's bookkeeping and through the store, as if many cards sent
them, and extrapolates the measured rates.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from results.files.journal import RunFolder, line_of, published_folders
from results.records import Case, Measurement, measurement_to_json
from results.store.database import open_store
from runner import sweeps
from runner.cells import Cell
from runner.launchers.share import Share
from runner.supervise.job import Job

CELLS, CARDS = 100_000, 1_000
_COPIES = 40  # number of copies of the run in the store


@dataclass(frozen=True)
class Rates:
    """Rates measured on this machine."""

    rows_per_cell: float
    bytes_per_row: float
    seconds_per_cell: float  # time of a cell on the run's card
    driver_rows_per_s: float  # includes two fsynced writes, to the card's file and to the journal
    store_rows_per_s: float
    store_bytes_per_row: float


def measure(run_id: str) -> Rates:
    """Replay the shipped run of that id. Raises StopIteration if there is none."""
    folder = next(folder for folder in published_folders() if folder.run_id == run_id)
    rows = folder.read()[0]
    size = sum(len(line_of(row)) for row in rows)
    by_case: dict[Case, list[Measurement]] = {}
    for row in rows:
        by_case.setdefault(row.case, []).append(row)
    cells = {(row.case, row.implementation, row.mode): None for row in rows}
    times = sorted(row.time for row in rows if row.time)
    spent = _seconds(times[-1]) - _seconds(times[0])
    with _scratch() as home:
        driver = _through_driver(home, folder, by_case)
    with _scratch() as home:
        store, stored = _through_store(home, folder, rows)
    return Rates(len(rows) / len(cells), size / len(rows), spent / len(cells), driver, store, stored)


def report(rates: Rates, cells: int = CELLS, cards: int = CARDS) -> str:
    """Return the costs of a sweep with these numbers of cells and cards, one per line."""
    rows = cells * rates.rows_per_cell
    wall = cells * rates.seconds_per_cell / cards
    arriving = rows / wall
    lines = (
        f"{cells:,} cells over {cards:,} cards: {rows:,.0f} rows, {wall / 60:.0f} min on the cards",
        f"arriving: {arriving:,.0f} rows/s; the driver takes {rates.driver_rows_per_s:,.0f} rows/s, so it keeps up "
        f"with {cards * rates.driver_rows_per_s / arriving:,.0f} cards",
        f"journal: {rates.bytes_per_row:,.0f} bytes a row, {rows * rates.bytes_per_row / 1e9:.1f} GB",
        f"DuckDB: {rates.store_rows_per_s:,.0f} rows/s, {rows / rates.store_rows_per_s:,.0f} s for the sweep, "
        f"{rates.store_bytes_per_row:,.0f} bytes a row",
        f"10^8 rows: {1e8 / rates.store_rows_per_s / 60:,.0f} min to load, {1e8 * rates.store_bytes_per_row / 1e9:,.0f}"
        f" GB of database, {1e8 * rates.bytes_per_row / 1e9:,.0f} GB of journals",
    )
    return "\n".join(lines)


def main() -> None:
    """Print the costs, estimated from the rows of a shipped run."""
    parser = argparse.ArgumentParser(prog="python -m runner.launchers.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="h200-fa_paper-causal", help="shipped run whose rows are replayed")
    parser.add_argument("--cells", type=int, default=CELLS)
    parser.add_argument("--cards", type=int, default=CARDS)
    options = parser.parse_args()
    print(report(measure(options.run), options.cells, options.cards))


def _through_driver(home: Path, folder: RunFolder, by_case: dict[Case, list[Measurement]]) -> float:
    """Return the rows per second that a share writes, with one card sending at a time."""
    run = replace(folder.run(), source="local", run_id="scale")
    sweep = sweeps.from_json(run.sweep)
    cells = [
        Cell(case, name, mode)
        for case, rows in by_case.items()
        for name, mode in {(row.implementation, row.mode): None for row in rows if row.metric == "latency_ms"}
    ]
    share = Share(Job(sweep, protocol="quick"), home, "scale", several=False, one_per_host=False)
    share.admit("card", "host", run, cells)
    said = [[measurement_to_json(replace(row, run_id="scale")) for row in rows] for rows in by_case.values()]
    begun = time.monotonic()
    while (taken := share.take("card"))[0] == "case":
        share.lines("card", said[taken[1]])
        share.done("card")
    spent = time.monotonic() - begun
    share.close()
    return sum(map(len, said)) / spent


def _through_store(home: Path, folder: RunFolder, rows: list[Measurement]) -> tuple[float, float]:
    """Return the rows per second that the store loads, and its bytes per row."""
    for number in range(_COPIES):
        name = f"copy-{number}"
        run = replace(folder.run(), run_id=name, source="local")
        RunFolder.create(home, run, [replace(row, run_id=name) for row in rows])
    begun = time.monotonic()
    with contextlib.closing(open_store(home)) as store:
        store.refresh()
        spent = time.monotonic() - begun
    total = _COPIES * len(rows)
    return total / spent, sum(path.stat().st_size for path in home.glob("*.duckdb")) / total


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="attnbench-scale-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
