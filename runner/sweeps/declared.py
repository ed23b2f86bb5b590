"""The TOML file of a level: `[groups]` of implementations, `axes`, `[defaults]` of the sweeps, and `[sweeps.NAME]`."""

import dataclasses
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.sweeps.grid import STANDARD_AXES, TORCH, GridAxis, Sweep


class SweepFile:
    """The declarations of one level, read from the TOML file next to its module."""

    def __init__(self, module_file: str) -> None:
        self._read = tomllib.loads(Path(module_file).with_suffix(".toml").read_text(encoding="utf-8"))
        self._groups: dict[str, list[str]] = {"torch": list(TORCH), **self._read.get("groups", {})}

    def names(self, *names: str) -> tuple[str, ...]:
        """Return implementations, with each name of a group replaced by its members."""
        return tuple(member for name in names for member in self._groups.get(name, [name]))

    def axes(self, **choices: Sequence[str]) -> tuple[GridAxis, ...]:
        """Return the axes in the order of the form; `choices` has the possible texts of an axis by its name."""
        texts: dict[str, dict[str, Any]] = {
            name: {"kind": "text", "choices": tuple(possible)} for name, possible in choices.items()
        }
        return tuple(
            dataclasses.replace(STANDARD_AXES.get(each["name"], GridAxis("")), **texts.get(each["name"], {}), **each)
            for each in self._read["axes"]
        )

    def sweeps(self, kind: type[Sweep]) -> tuple[Any, ...]:
        """Return the sweeps of a level. A sweep overrides the defaults, which override the defaults of its class."""
        found = []
        for name, own in self._read["sweeps"].items():
            said = {"name": name, **self._read.get("defaults", {}), **own}
            values: dict[str, Any] = {
                field: tuple(value) if isinstance(value, list) else value for field, value in said.items()
            }
            if "implementations" in values:
                values["implementations"] = self.names(*values["implementations"])
            found.append(kind(**values))
        return tuple(found)
