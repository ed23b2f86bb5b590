"""The documents are kept true: their commands, files, links, names and tables exist and say what the code says."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from results.__main__ import main as results
from results.reports import headline
from runner.__main__ import main as runner
from runner.sweeps import SWEEPS
from tests.lock import LOCKS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, *(ROOT / name / "README.md" for name in ("kernels", "runner", "results", "pages", "tests"))]
DOCUMENTS += [headline.DOCUMENT, ROOT / "kernels" / "DESIGN.md"]
MOST_LINES = 120
MAINS = {"runner": runner, "results": results}
TORCH_SIDE = """
import contextlib, io, json, runpy, sys
from kernels.registry import implementations
helps = {}
for module in sys.argv[1:]:
    sys.argv, text = [module, "--help"], io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(text):
        runpy.run_module(module, run_name="__main__")
    helps[module] = text.getvalue()
print(json.dumps({"implementations": list(implementations()), "helps": helps}))
"""


def _commands() -> list[list[str]]:
    """Every `python -m` command of a code block: the module and what follows it."""
    blocks = (block for path in DOCUMENTS for block in re.findall(r"```bash\n(.*?)```", path.read_text(), re.DOTALL))
    lines = (shlex.split(line, comments=True) for block in blocks for line in block.splitlines())
    return [words[2:] for words in lines if words[:2] == ["python", "-m"]]


def _options(words: list[str]) -> set[str]:
    return {word.split("=")[0] for word in words if word.startswith("--")}


def _anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def torch_side() -> dict:
    """What needs torch, from one process: the implementations' names, and the help of the commands with torch."""
    modules = sorted({words[0] for words in _commands() if re.match(r"kernels\.|runner\.", words[0])})
    command = [sys.executable, "-c", TORCH_SIDE, *modules]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= MOST_LINES


def test_the_two_commands_stand_alone_on_a_line() -> None:
    lines = [line for line in README.read_text().splitlines() if line.startswith("python3 -m venv")]
    assert len(lines) == 2
    assert "requirements.txt" in lines[0]
    assert lines[0].endswith("streamlit run app.py")
    assert "tests/requirements.txt" in lines[1]
    assert "pytest" in lines[1]


def test_ci_runs_the_printed_test_command() -> None:
    assert "grep -m 1 -E '^python3 -m venv .*pytest' README.md" in (ROOT / ".ci" / "run").read_text()


def test_every_printed_command_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [words for words in _commands() if words[0] in MAINS]
    assert commands
    for module, subcommand, *rest in commands:
        with pytest.raises(SystemExit) as end:
            MAINS[module]([subcommand, "--help"])
        text = capsys.readouterr().out
        assert end.value.code == 0
        assert [option for option in _options(rest) if option not in text] == [], subcommand


def test_every_printed_command_with_torch_is_understood(torch_side: dict) -> None:
    for module, *rest in _commands():
        if module in torch_side["helps"]:
            text = torch_side["helps"][module]
            assert text.startswith("usage:"), module
            assert [option for option in _options(rest) if option not in text] == [], module


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_file_folder_and_module_that_is_named_exists(path: Path) -> None:
    """A file is named relative to the repository, to the document, or anywhere below the document's folder."""
    text = path.read_text()
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link
    for name in re.findall(r"`([\w./-]+\.(?:py|md|sql|js|css))`", text):
        places = (ROOT / name, path.parent / name)
        assert any(place.exists() for place in places) or any(path.parent.rglob(name)), name
    folders = re.findall(r"`((?:kernels|runner|results|pages|tests)/[\w/]+)/?`", text)
    assert [name for name in folders if not (ROOT / name).exists() and not name.startswith("results/runs")] == []
    modules = re.findall(r"python -m ((?:kernels|runner|results|tests)[\w.]*)", text)
    files = {name: ROOT / name.replace(".", "/") for name in modules}
    assert [n for n, f in files.items() if not (f.with_suffix(".py").exists() or (f / "__main__.py").exists())] == []


def test_every_sweep_page_and_implementation_is_named(torch_side: dict) -> None:
    pages = [path.stem.replace("_", " ") for path in (ROOT / "pages").glob("*.py") if path.stem != "__init__"]
    assert pages
    expected = {"runner": SWEEPS, "kernels": torch_side["implementations"]}
    for folder, names in expected.items():
        text = (ROOT / folder / "README.md").read_text()
        assert [name for name in names if f"`{name}`" not in text] == []
    named = (ROOT / "pages" / "README.md").read_text().lower()
    assert [name for name in pages if f"| {name} |" not in named] == []


@pytest.mark.slow
def test_every_table_is_what_its_command_prints() -> None:
    printed = headline.blocks(headline.render())
    found = {}
    for path in DOCUMENTS:
        for name, table in headline.blocks(path.read_text()).items():
            assert table == printed[name], f"{name} in {path}: python -m results headline --update {path}"
            found[name] = table
    assert found.keys() == printed.keys()


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_names_a_file_of_each_package_within_its_range(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9._-]+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    locked = dict(line.partition(" ")[0].split("==") for line in lines)
    ranges = [line.partition("  #")[0] for line in (ROOT / LOCKS[path]).read_text().splitlines()]
    for wanted in (Requirement(line) for line in ranges if not line.startswith("-r")):
        assert wanted.specifier.contains(locked[wanted.name]), f"{wanted}: make the locks again, see tests/README.md"
