"""A hash of what decides the kernels' code, so that two runs of unchanged kernels are known as such.

It covers the modules of implementations and whatever they import from `kernels`, as syntax trees: comments, docstrings,
layout, developer tools and what implementations declare of themselves (the registry, IMPLEMENTATIONS) do not count.
Runs from before this hashed the bytes of every file; their hashes equal none of these, as if the kernels had changed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from results.paths import REPOSITORY

KERNELS = REPOSITORY / "kernels"
_ROOTS = ("attention", "decode", "generation")  # folders with a module or package for each implementation
_DECLARATIONS = "registry"
_DECLARED = "IMPLEMENTATIONS"
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def kernel_hash(folder: Path = KERNELS) -> str:
    """Return 16 hexadecimal digits that change with the code of any kernel under `folder`, a package."""
    digest = hashlib.sha256()
    for path, code in sorted(modules(folder).items()):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + code)
    return digest.hexdigest()[:16]


def modules(folder: Path = KERNELS) -> dict[Path, bytes]:
    """Return the implementations' files and, transitively, what they import from the package, with what counts."""
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
    """Return the hashed parts of a module of a package and the names it imports; cached: drivers ask for every card."""
    tree, parts = ast.parse(source), []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            node.module, node.level = importlib.util.resolve_name("." * node.level + (node.module or ""), package), 0
    imports = frozenset(_imports(tree))
    _add_parts(_without_words(tree), parts)
    return "".join(f"{part}\0" for part in parts).encode(), imports


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield dotted names that a module imports, within functions and by a name in a string too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _file(folder: Path, name: str) -> Path | None:
    """Return the file of a module of the package by its dotted name; None for anything else and for declarations."""
    first, *rest = name.split(".")
    if first != folder.name or not rest or rest == [_DECLARATIONS] or not all(part.isidentifier() for part in rest):
        return None
    place = folder.joinpath(*rest)
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _without_words(tree: ast.Module) -> ast.Module:
    """Take docstrings, and what the module declares of its implementations, out of a syntax tree."""
    tree.body = [node for node in tree.body if not _declares(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return tree


def _declares(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == _DECLARED for target in targets)


def _add_parts(node: ast.AST, parts: list[str]) -> None:
    """Add a syntax tree in order, fields that are empty left out: `ast.dump` differs between versions of Python."""
    parts.append(type(node).__name__)
    for name, value in ast.iter_fields(node):
        for each in value if isinstance(value, list) else [] if value is None else [value]:
            parts.append(name)
            if isinstance(each, ast.AST):
                _add_parts(each, parts)
            else:
                parts.append(repr(each))
    parts.append(")")
