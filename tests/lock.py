"""The exact versions of the app's and the tests' packages, with the hash of each file.

    python -m tests.lock           shows what an update would change; exit status 1 if it would change anything
    python -m tests.lock --write   makes the lock files again

The ranges are in requirements.txt and tests/requirements.txt; nothing else reads the locks. They are for Linux on
x86-64 and the minor version of Python that they name. To install exactly these files:

    pip install --require-hashes -r tests/app.lock
"""

import argparse
import difflib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCKS = {ROOT / "tests" / "app.lock": "requirements.txt", ROOT / "tests" / "tests.lock": "tests/requirements.txt"}


def main() -> int:
    """Compare the locks with what pip would install now, or write them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="make the lock files again")
    write, changed = parser.parse_args().write, False
    for path, ranges in LOCKS.items():
        lock = lock_of(_resolved(ROOT / ranges), ranges, shown=not write)
        if write:
            path.write_text(lock)
            continue
        before = path.read_text() if path.exists() else ""
        lines = difflib.unified_diff(_versions(before), _versions(lock), str(path.relative_to(ROOT)), "today", n=0)
        for line in lines:
            print(line.rstrip())
        changed |= before != lock
    return int(changed)


def lock_of(report: dict[str, Any], ranges: str, *, shown: bool = False) -> str:
    """Return a lock for pip's report of an installation. Raises SystemExit for a local file that is not only shown."""
    python = ".".join(report["environment"]["python_version"].split(".")[:2])
    lines = [f"# Made by python -m tests.lock from {ranges}; Linux on x86-64, Python {python}."]
    for package in sorted(report["install"], key=lambda found: found["metadata"]["name"].lower()):
        name, version, source = *map(package["metadata"].get, ("name", "version")), package["download_info"]
        if not shown and not source["url"].startswith("https://"):
            raise SystemExit(f"{name} would come from {source['url']}; make the lock without local indexes.")
        lines.append(f"{name.lower()}=={version} --hash=sha256:{source['archive_info']['hashes']['sha256']}")
    return "\n".join(lines) + "\n"


def _versions(lock: str) -> list[str]:
    return [line.partition(" --hash")[0] for line in lock.splitlines()]


def _resolved(requirements: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    answer = subprocess.run([*command, "-r", str(requirements)], stdout=subprocess.PIPE, check=True)
    return json.loads(answer.stdout)


if __name__ == "__main__":
    sys.exit(main())
