"""The other version of our kernels that a sweep measures beside this one: found, and laid out as a tree of its own.

Its tree holds the kernels of a commit and the runner of this checkout, so that the same code measures both versions.
Standard library and records only.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from results.files import library
from results.paths import REPOSITORY
from runner.machine.kernel_hash import kernel_hash
from runner.supervise.job import Refused

_GIT_LIMIT_S = 60
_SHORT = 7  # digits of a commit or hash in names
_MEASURES = ("runner", "results")  # what a worker needs besides kernels
_LEFT_OUT = shutil.ignore_patterns("published", "runs", "__pycache__", "*.duckdb*")


@dataclass(frozen=True)
class OtherVersion:
    """What to measure beside the kernels of this checkout: other kernels, another Python environment, or both."""

    commit: str | None = None  # whole hash; None without other kernels, or where they come from a folder
    folder: Path | None = None  # that holds `kernels`, where they come from no commit
    python: str | None = None  # the interpreter; None: this one
    run: str | None = None  # the run whose commit it is
    kernel_hash: str | None = None  # as that run recorded it

    @property
    def words(self) -> tuple[str, ...]:
        """Return the options that ask for it again, whatever HEAD is by then."""
        kernels = self.commit or self.folder
        options = ("--against", str(kernels)) if kernels else ()
        return options + (("--against-python", self.python) if self.python else ())

    def label(self, kernels: str, torch: str | None) -> str:
        """Return what follows the @ in names of its implementations, from its kernel hash and its torch."""
        parts = [self.commit[:_SHORT]] if self.commit else [kernels[:_SHORT]] if self.folder else []
        return "-".join(parts + ([f"torch{torch}" if torch else "python"] if self.python else []))


def find(text: str | None, python: str | None) -> OtherVersion:
    """Return the version that a run, a commit or a folder names, and the interpreter for it.

    Raises Refused, saying what is possible, for a run whose commit is not known or had changes that no commit holds.
    """
    if python and not os.access(python, os.X_OK):
        raise Refused(f"--against-python {python!r} is no program; give the path of a Python interpreter with torch.")
    if text is None:
        return OtherVersion(python=python)
    if recorded := library.find(text):
        run = recorded.run()
        if not run.git_commit:
            raise Refused(f"Run {text!r} does not say which commit its kernels are of; name a commit.")
        if run.git_dirty:
            raise Refused(
                f"Run {text!r} was taken from a checkout with changes that no commit holds, so its kernels cannot be "
                f"had again. The commit before those changes is {run.git_commit}."
            )
        return OtherVersion(_commit(run.git_commit), python=python, run=text, kernel_hash=run.kernel_hash)
    if text and (Path(text) / "kernels" / "__init__.py").is_file():
        return OtherVersion(folder=Path(text).resolve(), python=python)
    return OtherVersion(_commit(text), python=python)


@contextlib.contextmanager
def laid_out(other: OtherVersion) -> Iterator[Path]:
    """Lay the other version out in a temporary folder; this checkout itself where only Python is another.

    Raises Refused if the kernels of a run's commit are not those that the run recorded.
    """
    if not other.commit and not other.folder:
        yield REPOSITORY
        return
    with tempfile.TemporaryDirectory(prefix="attnbench-against-") as place:
        tree = Path(place)
        for name in _MEASURES:
            shutil.copytree(REPOSITORY / name, tree / name, ignore=_LEFT_OUT)
        if other.folder:
            shutil.copytree(other.folder / "kernels", tree / "kernels", ignore=_LEFT_OUT)
        else:
            _extract(other.commit, tree)
        found = kernel_hash(tree / "kernels")
        if other.kernel_hash and found != other.kernel_hash:
            raise Refused(
                f"Run {other.run!r} recorded the kernel hash {other.kernel_hash}; commit {other.commit} has {found}. "
                f"Its kernels changed without a commit, or an earlier version made the hash. --against {other.commit} "
                "measures the commit as it is."
            )
        yield tree


def _commit(text: str) -> str:
    answer = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
    if answer is None:
        raise Refused(
            f"--against {text!r} is no run, no folder with kernels, and no commit that git knows in {REPOSITORY}."
        )
    return answer.decode().strip()


def _extract(commit: str, tree: Path) -> None:
    archive = _git("archive", "--format=tar", commit, "kernels")
    if archive is None:
        raise Refused(f"Commit {commit} holds no folder `kernels`.")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(tree, filter="data")


def _git(*arguments: str) -> bytes | None:
    """Return what git prints, None if it fails or is not installed."""
    command = ["git", "-c", f"safe.directory={REPOSITORY}", "-C", str(REPOSITORY), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=_GIT_LIMIT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None
