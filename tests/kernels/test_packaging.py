"""The folder `kernels` installs as `attnbench`, and shares its name in a checkout with Hugging Face's package."""

import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kernels
from kernels.tools import hub
from tests.forks import forks

ROOT = Path(__file__).parents[2]
SUPPORTED = "0.18.2"  # the oldest release of Hugging Face's package that transformers 5.23 uses
CALL = "import torch; q = torch.randn(1, 2, 8, 4); print(tuple(PACKAGE.attention(q, q, q, causal=True).shape))"
TRANSFORMERS = """
import kernels.layer
from transformers.integrations import hub_kernels
from transformers import LlamaConfig
from transformers.utils import is_kernels_available
assert is_kernels_available(), "transformers does not see Hugging Face's package"
assert hub_kernels.CUDAProperties is kernels.layer.CUDAProperties
from runner.levels import model
import kernels.transformers
kernels.transformers.register()
import kernels as PACKAGE
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, shipped: Path) -> Iterator[Callable[..., str]]:
    """Return a function that runs code with folders to import from, in a fork of a process that has imported torch."""
    folder = tmp_path_factory.mktemp("empty")
    shutil.copyfile(shipped, folder / shipped.name)
    environment = {"HF_HUB_OFFLINE": "1", "ATTNBENCH_HOME": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    with forks(folder, os.environ | environment) as answer:
        yield answer


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with Hugging Face's real package, its version raised to the least that transformers uses."""
    pytest.importorskip("transformers")
    try:
        files = importlib.metadata.distribution("kernels").files or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("Hugging Face's package is not installed: pip install kernels")
    site = tmp_path_factory.mktemp("site")
    for file in files:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.locate(), target)
    metadata = next(site.glob("kernels-*.dist-info")) / "METADATA"
    version = importlib.metadata.version("kernels")
    if tuple(map(int, version.split(".")[:3])) < tuple(map(int, SUPPORTED.split("."))):
        metadata.write_text(metadata.read_text().replace(f"\nVersion: {version}\n", f"\nVersion: {SUPPORTED}\n"))
    return site


def test_every_package_of_the_folder_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = [path.parent.relative_to(ROOT / "kernels").parts for path in (ROOT / "kernels").rglob("__init__.py")]
    assert sorted(listed) == sorted(".".join(("attnbench", *parts)) for parts in folders if parts != ("examples",))


@pytest.mark.slow
def test_the_wheel_needs_nothing_but_torch_and_triton(run, tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("kernels", "pyproject.toml", "LICENSE"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile)(ROOT / name, sources / name)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=sources, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    strange = {"kernels", "results", "runner", "pages", "transformers", "torch._dynamo"}  # the last one takes seconds
    seen = f"; import sys; print(sorted({strange} & set(sys.modules)))"
    tables = "from attnbench import lse, tables; assert len(tables.families()) == 4; "
    register = "; PACKAGE.transformers.register()" if importlib.util.find_spec("transformers") else ""
    code = f"import attnbench as PACKAGE; {tables}{CALL}{seen}{register}"
    assert run(code, tmp_path / "site") == "(1, 2, 8, 4)\n[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("behind", [False, True])
def test_a_checkout_next_to_hugging_faces_package_serves_both(run, hugging_face: Path, behind: bool) -> None:
    assert "(1, 2, 8, 4)" in run(TRANSFORMERS + CALL, *(hugging_face, ROOT)[:: 1 if behind else -1])


def test_the_two_packages_have_no_module_name_in_common(hugging_face: Path) -> None:
    ours = {module.name for module in pkgutil.iter_modules([str(ROOT / "kernels")])}
    theirs = {module.name for module in pkgutil.iter_modules([str(hugging_face / "kernels")])}
    assert theirs and not ours & theirs


def test_a_missing_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        kernels.no_such_name  # noqa: B018


@pytest.mark.slow
def test_hugging_faces_loader_takes_the_universal_kernel(run, hugging_face, tmp_path, monkeypatch, capsys) -> None:
    folder = str(tmp_path / "kernel")
    monkeypatch.setattr(sys, "argv", ["hub", folder])
    hub.main()
    load = f"import pathlib, kernels; PACKAGE = kernels.get_local_kernel(pathlib.Path({folder!r}))\n"
    assert "(1, 2, 8, 4)" in run(load + CALL, hugging_face)
    with pytest.raises(SystemExit, match="2"):
        hub.main()
    assert "exists already" in capsys.readouterr().err
    assert json.loads((tmp_path / "kernel/build/torch-universal/metadata.json").read_text())["python-depends"] == []


MOST_LINES = {"ring_attention": 120}  # of an example, otherwise 40
EXAMPLES = {path.stem: path for path in (ROOT / "kernels" / "examples").glob("[!_]*.py")}
IN_TURN = """
import contextlib, io, runpy
for name in NAMES:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_module(f"kernels.examples.{name}", run_name="__main__")
    assert said.getvalue(), name
"""
RING = """
import functools, runpy, torch._dynamo
torch.multiprocessing.spawn = functools.partial(torch.multiprocessing.start_processes, start_method="fork")
runpy.run_module("kernels.examples.ring_attention", run_name="__main__")
"""


def test_examples_are_short() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in EXAMPLES.items()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES.get(name, 40)} == {}


@pytest.mark.parametrize("name", ["compare_runs", "run_sweep"])
def test_an_example_that_needs_a_checkout_says_so_where_it_fails(tmp_path: Path, name: str) -> None:
    example = shutil.copy(EXAMPLES[name], tmp_path)
    said = subprocess.run([sys.executable, "-I", example], capture_output=True, text=True).stderr
    assert "  # a checkout has it, the package attnbench does not\n" in said and "No module named 'results'" in said


@pytest.mark.slow
def test_every_example_runs_on_a_cpu(run) -> None:
    """Run the example that starts processes by itself, with processes that have imported torch."""
    run(f"NAMES = {sorted(EXAMPLES.keys() - {'ring_attention'})}{IN_TURN}", ROOT)
    said = run(RING, ROOT)
    assert all(f"rank {rank}: largest errors of out, dq, dk, dv" in said for rank in (0, 1))
