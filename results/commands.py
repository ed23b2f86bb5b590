"""Command lines as data: a TOML file has the commands of a program, with their help and their arguments.

An argument has the parameters of argparse, its names as `flags` and its `type` by name. A `hidden` one has no help.
`use` stands for the arguments of a group, of the file or of the caller. Those of an `exclusive` group exclude each
other. "@NAME" as `choices` or as `help` stands for texts of the caller. `defaults` are options that a command has
without an argument, and those named as `absent` are None.
"""

import argparse
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Argument = Mapping[str, Any]
_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "path": Path}


def parser_of(
    file: Path,
    functions: Mapping[str, Callable[[argparse.Namespace], int]],
    texts: Mapping[str, Iterable[str]] | None = None,
    groups: Mapping[str, Sequence[Argument]] | None = None,
    **about: str,
) -> argparse.ArgumentParser:
    """Return the parser of a program. Options have the function of their command as `do`."""
    read = tomllib.loads(file.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(**about)  # type: ignore[arg-type]
    commands = parser.add_subparsers(required=True, **read["shown"])
    for name, said in read["commands"].items():
        command = commands.add_parser(name, help=said["help"])
        _add(command, said.get("arguments", ()), {**read.get("groups", {}), **(groups or {})}, texts or {})
        absent = dict.fromkeys(said.get("absent", ()))
        command.set_defaults(do=functions[name], **absent, **said.get("defaults", {}))
    return parser


def _add(
    command: argparse._ActionsContainer,
    arguments: Sequence[Argument],
    groups: Mapping[str, Sequence[Argument]],
    texts: Mapping[str, Iterable[str]],
) -> None:
    for argument in arguments:
        if "use" in argument:
            to = command.add_mutually_exclusive_group() if argument.get("exclusive") else command
            _add(to, groups[argument["use"]], groups, texts)
            continue
        said = {name: value for name, value in argument.items() if name not in ("flags", "hidden")}
        if argument.get("hidden"):
            said["help"] = argparse.SUPPRESS
        if "type" in said:
            said["type"] = _TYPES[said["type"]]
        for name in ("choices", "help"):
            if str(said.get(name, "")).startswith("@"):
                found = list(texts[said[name][1:]])
                said[name] = ", ".join(found) if name == "help" else found
        command.add_argument(*argument["flags"], **said)
