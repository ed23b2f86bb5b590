"""The other version: found by run, commit, folder or Python, laid out as a tree, and refused with a reason."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from results.files.journal import RunFolder
from results.records import Run
from runner.machine.kernel_hash import kernel_hash
from runner.supervise import other_version
from runner.supervise.job import Refused
from runner.supervise.other_version import OtherVersion, find, laid_out
from tests.cases import cases

RUN = Run("before", "local", git_dirty=False)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit whose kernels are a file, and the runner of this one."""
    place = tmp_path / "checkout"
    (place / "kernels").mkdir(parents=True)
    (place / "kernels" / "__init__.py").write_text("SCALE = 1\n")
    for name in ("runner", "results"):
        (place / name).mkdir()
        (place / name / "__init__.py").write_text("")
    git(place, "init", "-q")
    commit(place, "one")
    monkeypatch.setattr(other_version, "REPOSITORY", place)
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path / "home"))
    return place


def git(place: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", "-C", str(place), *identity, *words], check=True, capture_output=True, text=True
    ).stdout


def commit(place: Path, message: str) -> str:
    git(place, "add", "-A")
    git(place, "commit", "-qm", message)
    return git(place, "rev-parse", "HEAD").strip()


def test_the_tree_of_a_commit_has_its_kernels_and_the_runner_of_now(checkout: Path) -> None:
    before = commit_of(checkout)
    (checkout / "kernels" / "__init__.py").write_text("SCALE = 2\n")
    (checkout / "runner" / "__init__.py").write_text("NEW = True\n")
    with laid_out(find("HEAD", None)) as tree:
        assert (tree / "kernels" / "__init__.py").read_text() == "SCALE = 1\n"
        assert (tree / "runner" / "__init__.py").read_text() == "NEW = True\n"
        assert (tree / "results").is_dir()
    assert not tree.exists()
    assert find("HEAD", None) == OtherVersion(commit=before)


def commit_of(place: Path) -> str:
    return git(place, "rev-parse", "HEAD").strip()


def test_a_run_stands_for_its_commit_if_nothing_was_changed(checkout: Path, tmp_path: Path) -> None:
    known = kernel_hash(checkout / "kernels")
    RunFolder.create(tmp_path / "home", replace(RUN, git_commit=commit_of(checkout), kernel_hash=known))
    other = find("before", None)
    assert (other.commit, other.kernel_hash) == (commit_of(checkout), known)
    with laid_out(other) as tree:
        assert kernel_hash(tree / "kernels") == known
    assert other.words == ("--against", commit_of(checkout))


@pytest.mark.parametrize("record, words", cases(__file__, "test_a_run_whose_kernels_cannot_be_had_is_refused"))
def test_a_run_whose_kernels_cannot_be_had_is_refused(checkout: Path, tmp_path: Path, record, words: str) -> None:
    RunFolder.create(tmp_path / "home", replace(RUN, **record))
    with pytest.raises(Refused, match=words):
        find("before", None)


def test_a_run_of_another_kernel_hash_than_its_commits_and_a_commit_without_kernels_are_refused(checkout, tmp_path):
    RunFolder.create(tmp_path / "home", replace(RUN, git_commit=commit_of(checkout), kernel_hash="0" * 16))
    with pytest.raises(Refused, match="recorded the kernel hash 0000000000000000"), laid_out(find("before", None)):
        pass
    git(checkout, "rm", "-rqf", "kernels")
    bare = commit(checkout, "none")
    with pytest.raises(Refused, match=f"Commit {bare} has no folder `kernels`"), laid_out(find("HEAD", None)):
        pass


@pytest.mark.parametrize("text", ["no-such-run", "--help", "HEAD~1", ""])
def test_what_is_no_commit_is_refused(checkout: Path, text: str) -> None:
    with pytest.raises(Refused, match="is not a run, a folder with kernels, or a commit"):
        find(text, None)


def test_a_folder_with_kernels_needs_no_git(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "copy" / "kernels").mkdir(parents=True)
    (tmp_path / "copy" / "kernels" / "__init__.py").write_text("SCALE = 3\n")
    other = find(str(tmp_path / "copy"), None)
    with laid_out(other) as tree:
        assert (tree / "kernels" / "__init__.py").read_text() == "SCALE = 3\n"
    assert other.label("0123456789abcdef", "2.13.0") == "0123456"


def test_another_python_alone_measures_the_kernels_of_this_checkout_if_it_is_a_program(checkout: Path) -> None:
    other = find(None, sys.executable)
    with laid_out(other) as tree:
        assert tree == checkout
    assert other.label("0123456789abcdef", "2.13.0") == "torch2.13.0"
    assert other.words == ("--against-python", sys.executable)
    both = find("HEAD", sys.executable)
    assert both.label("0" * 16, "2.13.0") == f"{commit_of(checkout)[:7]}-torch2.13.0"
    with pytest.raises(Refused, match="is not executable"):
        find(None, "/no/such/python")
