"""`python -m results.reports TEXTS`: write the published runs from the reports' texts, into results/published.

They are written as they ship: run.json, measurements.parquet and notes.json, with the same content every time.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from results import reports
from results.files.journal import RunFolder
from results.paths import PUBLISHED
from results.records import Measurement, Run, run_to_json
from results.reports.layout import ReportError


def ship(texts: Path, published: Path) -> list[Path]:
    """Write every report found among the .txt and .md files of `texts` as run folders; returns the folders.

    Raises ReportError if a file is none of the reports or a report is missing.
    """
    folders: list[Path] = []
    missing = set(reports.names())
    for path in sorted([*texts.glob("*.txt"), *texts.glob("*.md")]):
        text = path.read_text(encoding="utf-8")
        name, runs = _recognise(path.name, text)
        missing.discard(name)
        for number, (run, measurements) in enumerate(runs):
            folder = published / run.run_id
            _write(folder, run, measurements)
            if number == 0:
                notes = [asdict(note) for note in reports.get(name).notes(text)]
                (folder / "notes.json").write_text(_pretty(notes), encoding="utf-8")
            folders.append(folder)
    if missing:
        raise ReportError(f"No file in {texts} is report {', '.join(sorted(missing))}.")
    return folders


def _recognise(filename: str, text: str) -> tuple[str, list[tuple[Run, list[Measurement]]]]:
    """Return the report that the text is: the only one whose parser accepts it."""
    reasons = []
    for name in reports.names():
        try:
            return name, reports.get(name).parse(text)
        except ReportError as error:
            reasons.append(f"{name}: {error}")
    raise ReportError(f"{filename} is none of the reports. " + " ".join(reasons))


def _write(folder: Path, run: Run, measurements: list[Measurement]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(_pretty(run_to_json(run)), encoding="utf-8")
    RunFolder(folder).write_columns(measurements)


def _pretty(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, indent=2, sort_keys=True) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Ship the reports; return 0 if every report was found and written, 2 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m results.reports", description=__doc__)
    parser.add_argument("texts", type=Path, help="folder with the reports as .txt or .md files")
    parser.add_argument("--out", type=Path, default=PUBLISHED, help="folder to write to")
    options = parser.parse_args(arguments)
    try:
        folders = ship(options.texts, options.out)
    except ReportError as error:
        print(error, file=sys.stderr)
        return 2
    for folder in folders:
        print(folder.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
