"""The hash of the kernels changes with code that decides a kernel, and with nothing else."""

from pathlib import Path

import pytest

from runner.machine.kernel_hash import KERNELS, kernel_hash, modules
from tests.cases import cases


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    for name, text in cases(__file__, "FILES").items():
        path = tmp_path / "kernels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "kernels"


CHANGES = [(table, *row) for table in ("code counts", "words do not count") for row in cases(__file__, table)]


@pytest.mark.parametrize(("counts", "name", "old", "new"), CHANGES)
def test_code_counts_wherever_it_is_imported_and_words_declarations_and_tools_do_not(kernels, counts, name, old, new):
    before = kernel_hash(kernels)
    text = (kernels / name).read_text()
    assert old in text
    (kernels / name).write_text(text.replace(old, new))
    assert (kernel_hash(kernels) != before) == (counts == "code counts")


def test_the_name_of_a_module_counts(kernels: Path) -> None:
    before = kernel_hash(kernels)
    (kernels / "attention/plain.py").rename(kernels / "attention/simple.py")
    assert kernel_hash(kernels) != before


def test_every_kernel_of_this_checkout_is_covered_and_no_tool() -> None:
    covered = {path.relative_to(KERNELS).as_posix() for path in modules()}
    for package in (path for root in ("attention", "decode") for path in (KERNELS / root).iterdir() if path.is_dir()):
        for path in package.glob("*.py"):
            if "jit" in path.read_text() and path.stem not in ("bench", "offline"):
                assert path.relative_to(KERNELS).as_posix() in covered
    assert not {name for name in covered if name.startswith("tools/") or name.endswith(("bench.py", "offline.py"))}
    assert "registry.py" not in covered
