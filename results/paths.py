"""Where the repository's folders are, and what the TOML file next to a module says. Standard library only."""

import tomllib
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PUBLISHED = REPOSITORY / "results" / "published"  # run folders and reports that ship with the repository


def toml_of(module_file: str, name: str = "") -> dict[str, Any]:
    """Return what the TOML file of that name says, or else the one that is named as the module, as `frozen`."""
    path = Path(module_file).with_name(name) if name else Path(module_file).with_suffix(".toml")
    return frozen(tomllib.loads(path.read_text(encoding="utf-8")))


def frozen(value: Any) -> Any:
    """Return a value with tuples in place of lists, also in its tables, as fields of records hold them."""
    if isinstance(value, dict):
        return {name: frozen(inner) for name, inner in value.items()}
    return tuple(map(frozen, value)) if isinstance(value, list) else value
