"""A hash of the kernels' code, which shows whether two runs have the same kernels.

It covers the modules of implementations and their imports from `kernels`, as syntax trees. Comments, docstrings,
formatting, developer tools and declarations (the registry, IMPLEMENTATIONS) do not count. The first runs hashed the
bytes of every file, so their hashes differ from all others.
"""

import ast
import hashlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from results.paths import REPOSITORY

KERNELS = REPOSITORY / "kernels"
_ROOTS = ("attention", "decode", "generation")  # folders with a module or package for each implementation
_DECLARATIONS, _TOOLS = "registry", "tools"
_DECLARED = "IMPLEMENTATIONS"
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def kernel_hash(folder: Path = KERNELS) -> str:
    """Return 16 hexadecimal digits that change with the code of any kernel in the package `folder`."""
    digest = hashlib.sha256()
    for path, code in sorted(modules(folder).items()):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + code)
    return digest.hexdigest()[:16]


def modules(folder: Path = KERNELS) -> dict[Path, bytes]:
    """Return the files of implementations and of their transitive imports from the package, with their hashed parts."""
    found: dict[Path, bytes] = {}
    left = [path for root in _ROOTS for path in (*(folder / root).glob("*.py"), *(folder / root).glob("*/__init__.py"))]
    while left:
        path = left.pop()
        if path not in found:
            package = ".".join((folder.name, *path.relative_to(folder).parent.parts))
            found[path], imports = _read(path.read_bytes(), package)
            left += (file for name in imports if (file := _file(folder, name)))
    return found


@cache
def _read(source: bytes, package: str) -> tuple[bytes, frozenset[str]]:
    """Return the hashed parts of a module of a package and its imports. Cached, because a driver hashes repeatedly."""
    tree = ast.parse(source)
    parts: list[Any] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            node.module, node.level = importlib.util.resolve_name("." * node.level + (node.module or ""), package), 0
    imports = frozenset(_imports(tree))
    _add_parts(_without_words(tree), parts)
    return "".join(f"{part}\0" for part in parts).encode(), imports


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield dotted names that a module imports, including imports in functions and names in strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _file(folder: Path, name: str) -> Path | None:
    """Return the file of a module by its dotted name; None for the registry, tools and names outside the package."""
    first, *rest = name.split(".")
    if first != folder.name or not rest or rest == [_DECLARATIONS] or rest[0] == _TOOLS:
        return None
    if not all(part.isidentifier() for part in rest):
        return None
    place = folder.joinpath(*rest)
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _without_words(tree: ast.Module) -> ast.Module:
    """Remove docstrings and IMPLEMENTATIONS from a syntax tree."""
    tree.body = [node for node in tree.body if not _declares(node)]
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return tree


def _declares(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == _DECLARED for target in targets)


def _add_parts(node: ast.AST, parts: list[str]) -> None:
    """Append a syntax tree in order, without empty fields; `ast.dump` differs between versions of Python."""
    parts.append(type(node).__name__)
    for name, value in ast.iter_fields(node):
        for each in value if isinstance(value, list) else [] if value is None else [value]:
            parts.append(name)
            if isinstance(each, ast.AST):
                _add_parts(each, parts)
            else:
                parts.append(repr(each))
    parts.append(")")
