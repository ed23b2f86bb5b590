"""Finds another version of our kernels to compare with, and prepares a source tree for it.

The tree has the kernels of a commit and the runner of this checkout, so that the same code measures both versions.
No torch.
"""

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
_MEASURES = ("runner", "results")  # packages that a worker needs in addition to kernels
_LEFT_OUT = shutil.ignore_patterns("published", "runs", "*.duckdb*")  # bytecode is copied with its source's time


@dataclass(frozen=True)
class OtherVersion:
    """The version to compare with: other kernels, another Python environment, or both."""

    commit: str | None = None  # full hash; None if the kernels are the same or come from a folder
    folder: Path | None = None  # folder with `kernels`, if they do not come from a commit
    python: str | None = None  # path of the interpreter; None: this one
    run: str | None = None  # name of the run that has this commit
    kernel_hash: str | None = None  # hash that the run recorded

    @property
    def words(self) -> tuple[str, ...]:
        """Return the options that select this version again, independent of HEAD."""
        kernels = self.commit or self.folder
        options = ("--against", str(kernels)) if kernels else ()
        return options + (("--against-python", self.python) if self.python else ())

    def label(self, kernels: str, torch: str | None) -> str:
        """Return the label after the @ in names of its implementations, from its kernel hash and its torch."""
        parts = [self.commit[:_SHORT]] if self.commit else [kernels[:_SHORT]] if self.folder else []
        return "-".join(parts + ([f"torch{torch}" if torch else "python"] if self.python else []))


def find(text: str | None, python: str | None) -> OtherVersion:
    """Return the version of a run, a commit or a folder, with the interpreter for it.

    Raises Refused for a run whose commit is not known, or whose checkout had uncommitted changes.
    """
    if python and not os.access(python, os.X_OK):
        raise Refused(
            f"--against-python {python!r} is not executable; give the path of a Python interpreter with torch."
        )
    if text is None:
        return OtherVersion(python=python)
    if recorded := library.find(text):
        run = recorded.run()
        if not run.git_commit:
            raise Refused(f"Run {text!r} does not record the commit of its kernels; name a commit.")
        if run.git_dirty:
            raise Refused(
                f"Run {text!r} was measured in a checkout with uncommitted changes, so its kernels cannot be "
                f"restored. The commit before those changes is {run.git_commit}."
            )
        return OtherVersion(_commit(run.git_commit), python=python, run=text, kernel_hash=run.kernel_hash)
    if text and (Path(text) / "kernels" / "__init__.py").is_file():
        return OtherVersion(folder=Path(text).resolve(), python=python)
    return OtherVersion(_commit(text), python=python)


@contextlib.contextmanager
def laid_out(other: OtherVersion) -> Iterator[Path]:
    """Prepare the other version in a temporary folder, or yield this checkout if only Python differs.

    Raises Refused if the kernels of a run's commit differ from those that the run recorded.
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
            archive = git("archive", "--format=tar", other.commit, "kernels")
            if archive is None:
                raise Refused(f"Commit {other.commit} has no folder `kernels`.")
            with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                files.extractall(tree, filter="data")
        if other.kernel_hash and (found := kernel_hash(tree / "kernels")) != other.kernel_hash:
            raise Refused(
                f"Run {other.run!r} recorded the kernel hash {other.kernel_hash}; commit {other.commit} has {found}. "
                "Its kernels had uncommitted changes, or an earlier version computed the hash. "
                f"--against {other.commit} measures the commit as it is."
            )
        yield tree


def _commit(text: str) -> str:
    answer = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
    if answer is None:
        raise Refused(
            f"--against {text!r} is not a run, a folder with kernels, or a commit that git knows in {REPOSITORY}."
        )
    return answer.decode().strip()


def git(*arguments: str) -> bytes | None:
    """Return the output of git in this checkout; None if it fails or is not installed."""
    command = ["git", "-c", f"safe.directory={REPOSITORY}", "-C", str(REPOSITORY), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=_GIT_LIMIT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None
