"""What cards that were killed leave on their host."""

import os
from pathlib import Path

from runner.launchers.on_card import clear_leftovers


def test_the_next_card_removes_what_killed_ones_left(tmp_path: Path) -> None:
    host = os.uname().nodename
    kept = [f"attnbench-card-{host}-{os.getpid()}-a", "attnbench-card-elsewhere-0-b", "attnbench-claims-new"]
    left = [f"attnbench-card-{host}-0-c", "attnbench-claims-old"]
    for name in (*kept, *left):
        (tmp_path / name / "runs").mkdir(parents=True)
    os.utime(tmp_path / "attnbench-claims-old", (0, 0))
    clear_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
