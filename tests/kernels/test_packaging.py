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
from pathlib import Path

import pytest

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


def _run(code: str, path: list[Path], cwd: Path) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "HF_HUB_OFFLINE": "1"}
    answer = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


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
def test_the_wheel_needs_nothing_but_torch_and_triton(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("kernels", "pyproject.toml", "LICENSE"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile)(ROOT / name, sources / name)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "site", sources]
    subprocess.run(command, check=True, capture_output=True)
    seen = "; import sys; print(sorted({'kernels', 'results', 'runner', 'pages', 'transformers'} & set(sys.modules)))"
    tables = "from attnbench import tables; assert len(tables.families()) == 4; "
    register = "; PACKAGE.transformers.register()" if importlib.util.find_spec("transformers") else ""
    code = f"import attnbench as PACKAGE; {tables}{CALL}{seen}{register}"
    assert _run(code, [tmp_path / "site"], tmp_path) == "(1, 2, 8, 4)\n[]\n"


@pytest.mark.slow
def test_a_checkout_before_hugging_faces_package_serves_both(hugging_face: Path, tmp_path: Path) -> None:
    assert "(1, 2, 8, 4)" in _run(TRANSFORMERS + CALL, [ROOT, hugging_face], tmp_path)


@pytest.mark.slow
def test_a_checkout_behind_hugging_faces_package_serves_both(hugging_face: Path, tmp_path: Path) -> None:
    assert "(1, 2, 8, 4)" in _run(TRANSFORMERS + CALL, [hugging_face, ROOT], tmp_path)


def test_the_two_packages_have_no_module_name_in_common(hugging_face: Path) -> None:
    ours = {module.name for module in pkgutil.iter_modules([str(ROOT / "kernels")])}
    theirs = {module.name for module in pkgutil.iter_modules([str(hugging_face / "kernels")])}
    assert theirs and not ours & theirs


def test_a_missing_name_is_an_attribute_error() -> None:
    import kernels

    with pytest.raises(AttributeError, match="no_such_name"):
        kernels.no_such_name  # noqa: B018


@pytest.mark.slow
def test_hugging_faces_loader_takes_the_universal_kernel(hugging_face: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kernels.tools.hub", tmp_path / "kernel"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    folder = str(tmp_path / "kernel")
    load = f"import pathlib, kernels; PACKAGE = kernels.get_local_kernel(pathlib.Path({folder!r}))\n"
    assert "(1, 2, 8, 4)" in _run(load + CALL, [hugging_face], tmp_path)
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 2 and "exists already" in again.stderr
    assert json.loads((tmp_path / "kernel/build/torch-universal/metadata.json").read_text())["python-depends"] == []


MOST_LINES = {"ring_attention": 60}  # of an example, otherwise 40
EXAMPLES = {path.stem: path for path in (ROOT / "kernels" / "examples").glob("[!_]*.py")}
IN_TURN = """
import contextlib, io, runpy, sys
names, sys.argv = sys.argv[1:], ["example"]
for name in names:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_module(f"kernels.examples.{name}", run_name="__main__")
    assert said.getvalue(), name
    print(name)
"""


def test_examples_are_short() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in EXAMPLES.items()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES.get(name, 40)} == {}


@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, False])
def test_every_example_runs_on_a_cpu(alone: bool, tmp_path: Path) -> None:
    """Run the example that starts processes by itself, and all others in one process."""
    environment = os.environ | {"ATTNBENCH_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    others = sorted(EXAMPLES.keys() - {"ring_attention"})
    words = ["-m", "kernels.examples.ring_attention"] if alone else ["-c", IN_TURN, *others]
    answer = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout if alone else answer.stdout.splitlines()[-len(others) :] == others
