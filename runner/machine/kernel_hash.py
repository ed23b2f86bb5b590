"""A hash of the kernels' code, which shows whether two runs have the same kernels.

It covers the modules of implementations and their imports from `kernels`, as syntax trees. Comments, docstrings,
formatting, developer tools and declarations (the registry, IMPLEMENTATIONS) do not count. The first runs hashed the
bytes of every file, so their hashes differ from all others.
"""

import ast
import hashlib
import importlib.util
from functools import cache
from pathlib import Path

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
    """Return the hashed parts of a module of a package, and dotted names: its imports and its strings.

    Docstrings and IMPLEMENTATIONS are left out of the parts. Cached, because a driver hashes repeatedly.
    """
    tree = ast.parse(source)
    declared = [node for node in tree.body if _declares(node)]
    tree.body = [node for node in tree.body if node not in declared]
    parts: list[str] = []
    names: set[str] = set()
    _add_parts(tree, parts, names, package)
    for node in declared:
        _add_parts(node, [], names, package)
    return "\0".join((*parts, "")).encode(), frozenset(names)


def _file(folder: Path, name: str) -> Path | None:
    """Return the file of a module by its dotted name; None for the registry, tools and names outside the package."""
    first, *rest = name.split(".")
    if first != folder.name or not rest or rest == [_DECLARATIONS] or rest[0] == _TOOLS:
        return None
    if not all(part.isidentifier() for part in rest):
        return None
    place = folder.joinpath(*rest)
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _declares(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == _DECLARED for target in targets)


def _add_parts(node: ast.AST, parts: list[str], names: set[str], package: str) -> None:
    """Append a syntax tree to `parts` in order, without empty fields, and add the dotted names in it to `names`.

    Relative imports become absolute and docstrings are dropped. `ast.dump` differs between versions of Python.
    """
    if isinstance(node, ast.ImportFrom):
        if node.level:
            node.module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            node.level = 0
        names.update(f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:]
    parts.append(type(node).__name__)
    for name in node._fields:
        value = getattr(node, name, None)
        for each in value if isinstance(value, list) else () if value is None else (value,):
            parts.append(name)
            if isinstance(each, ast.AST):
                _add_parts(each, parts, names, package)
                continue
            parts.append(repr(each))
            if isinstance(each, str) and "." in each:
                names.add(each)
    parts.append(")")
