"""Who may import what, read from the imports themselves."""

import ast
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.conftest import LONGEST

ROOT = Path(__file__).parents[1]
OURS = {"app", "kernels", "pages", "results", "runner", "tests"}
STDLIB = set(sys.stdlib_module_names)

READ = tomllib.loads(Path(__file__).with_name("architecture.toml").read_text(encoding="utf-8"))
# path prefix -> (packages or modules of ours, third party); the longest matching prefix decides
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    path: ({*said["ours"], *(READ["ground"] if said.get("ground") else ())}, set(said["others"]))
    for path, said in READ["allowed"].items()
}


def _sources() -> list[Path]:
    tops = ("kernels", "results", "runner", "pages")
    return [ROOT / "app.py", *(path for top in tops for path in sorted((ROOT / top).rglob("*.py")))]


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if node.level:
                assert path.is_relative_to(ROOT / "kernels"), (
                    f"{path.relative_to(ROOT)}:{node.lineno} imports relatively"
                )
                module = importlib.util.resolve_name(module, ".".join(path.relative_to(ROOT).parent.parts))
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def _within(name: str, allowed: set[str]) -> bool:
    return any(name == entry or name.startswith(f"{entry}.") for entry in allowed)


def _odd_imports(path: Path) -> list[str]:
    """What a file imports although it may not, in words."""
    relative = path.relative_to(ROOT).as_posix()
    prefix = max((p for p in ALLOWED if relative == p or relative.startswith(f"{p}/")), key=len)
    ours, third_party = ALLOWED[prefix]
    allowed = {True: ours, False: third_party | STDLIB}
    odd = [name for name in _imports(path) if not _within(name, allowed[name.split(".")[0] in OURS])]
    return [f"{relative} imports {name}; {prefix} may import {sorted(ours | third_party)}" for name in odd]


def test_imports_follow_the_direction() -> None:
    assert [words for path in _sources() for words in _odd_imports(path)] == []


def test_the_app_never_imports_torch() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "pages" / "ui").rglob("*.py"))
        if path.stem != "__init__"
    ]
    modules += ["results.store.database", "results.query.pages", "runner.sweeps", "runner.launch"]
    code = f"import {', '.join(modules)}, sys; print(sorted({{'torch', 'triton', 'kernels'}} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert answer.stdout.strip() == "[]", answer.stdout + answer.stderr


def test_the_longest_test_files_are_where_their_order_says() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []
