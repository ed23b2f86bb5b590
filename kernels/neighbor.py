"""Shares the import name `kernels` with Hugging Face's package of that name, which transformers and diffusers import.

Only a checkout needs this: installed, the folder is named `attnbench`. With the checkout first on the path, submodules
that exist only in Hugging Face's package are found through `__path__`, and its top-level names through `__getattr__`.
The two packages have no submodule name in common; a test checks that against the real package.
"""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_SHARED_NAME = "kernels"
_ONLY_THEIRS = "hf_hub.py"  # a file that tells Hugging Face's package from another checkout of this one


def folders(name: str, ours: Iterable[str]) -> list[str]:
    """Return the folder of Hugging Face's package on `sys.path` if a package named `name` hides it, otherwise []."""
    if name != _SHARED_NAME:
        return []
    found = (Path(entry or ".") / _SHARED_NAME for entry in sys.path)
    theirs = (str(folder) for folder in found if (folder / _ONLY_THEIRS).is_file() and str(folder) not in ours)
    return list(theirs)[:1]


def attribute(package: str, folder: str, name: str) -> Any:
    """Return a top-level name of Hugging Face's package in `folder`, which is executed on the first request.

    Raises AttributeError if that package has no such name, or if it is a submodule of ours that is imported later.
    """
    if any((Path(__file__).parent / file).exists() for file in (name, f"{name}.py")):
        raise AttributeError(f"The submodule {package}.{name} is not imported yet.")
    inner = f"{package}._hugging_face"
    if inner not in sys.modules:
        spec = importlib.util.spec_from_file_location(inner, Path(folder) / "__init__.py")
        assert spec is not None and spec.loader is not None
        sys.modules[inner] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[inner])
        except BaseException:
            del sys.modules[inner]
            raise
    try:
        return getattr(sys.modules[inner], name)
    except AttributeError:
        raise AttributeError(
            f"Neither this package nor Hugging Face's {package!r} has an attribute {name!r}."
        ) from None
