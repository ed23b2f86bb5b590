"""The README is kept true: its commands, files, sweeps and pages exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from runner.sweeps import SWEEPS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = sorted(
    {
        line.strip()
        for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
        for line in block.splitlines()
        if re.search(r"python3? -m (runner|results|kernels)", line)
    }
)


def _help_of(words: list[str]) -> str:
    answer = subprocess.run([sys.executable, *words, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, f"{shlex.join(words)} --help failed: {answer.stderr}"
    return answer.stdout


def test_the_two_commands_stand_alone_on_a_line() -> None:
    lines = [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    assert len(lines) == 2
    assert "requirements.txt" in lines[0]
    assert lines[0].endswith("streamlit run app.py")
    assert "tests/requirements.txt" in lines[1]
    assert "pytest" in lines[1]


def test_ci_runs_the_printed_test_command() -> None:
    assert "grep -m 1 -E '^python3 -m venv .*pytest' README.md" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_printed_command_is_understood(command: str) -> None:
    words = shlex.split(command, comments=True)
    module = words.index("-m") + 1
    has_subcommand = words[module] in ("runner", "results")
    text = _help_of(["-m", *words[module : module + 1 + has_subcommand]])
    options = {word.split("=")[0] for word in words[module:] if word.startswith("--")}
    assert all(option in text for option in options), f"{options} not all in:\n{text}"


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_sweep_and_every_page_is_named() -> None:
    pages = [path.stem for path in (ROOT / "pages").glob("*.py") if path.stem != "__init__"]
    assert pages
    named = README.lower()
    assert [name for name in SWEEPS if f"`{name}`" not in README] == []
    assert [name for name in pages if name.replace("_", " ") not in named] == []


def test_every_implementation_is_named() -> None:
    code = "from kernels.registry import implementations; print(*implementations())"
    names = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [name for name in names.stdout.split() if f"`{name}`" not in README] == []
