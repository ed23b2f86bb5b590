"""`python -m results.reports TEXTS`: write the published runs from the reports' texts, into results/published."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from results.reports.cells import ReportError
from results.reports.shipping import ship


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 if every report was found and written, 2 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m results.reports", description=__doc__)
    parser.add_argument("texts", type=Path, help="folder with the reports as .txt or .md files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "published", help="folder to write to")
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
