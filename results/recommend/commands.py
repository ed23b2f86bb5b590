"""The commands `rule`, `render` and `advise` of `python -m results`: a slice as a rule, a report, and advice."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import BinaryIO

from results import reports
from results.files import journal
from results.recommend import guide, rule
from results.render import slice, svg
from results.render.html import html_page
from results.reports import side_by_side
from results.slice import Filters
from results.store.database import Store

Stores = Callable[[], AbstractContextManager[Store]]
Outputs = Callable[[str | None], AbstractContextManager[BinaryIO]]
_ONE = ("gpu", "workload", "mask", "mode", "timing", "baseline", "shape")
_MANY = {"dtype": str, "implementation": str, "source": str, "run": str, "seqlen": int, "head_dim": int}
_RULES = {"python": rule.as_python, "json": rule.as_json}


def add(commands: argparse._SubParsersAction, stores: Stores, outputs: Outputs) -> None:
    """The commands, working on what these two open."""
    command = commands.add_parser("rule", help="which implementation and SDPA backend to use by shape, as a file")
    command.add_argument("--format", choices=sorted(_RULES), default="python")
    _add_filters(command)
    command.set_defaults(command=lambda options: _rule(options, stores, outputs))

    command = commands.add_parser("render", help="a filtered view as a Markdown or HTML report")
    command.add_argument("--format", choices=("html", "md"), default="md")
    command.add_argument("--report", help="a published report, beside --run if one is given, instead of a view")
    _add_filters(command)
    command.set_defaults(command=lambda options: _render(options, stores, outputs))

    command = commands.add_parser("advise", help="what to use when on a GPU, and what ran there, as Markdown or HTML")
    command.add_argument("--format", choices=("html", "md"), default="md")
    _add_filters(command)
    command.set_defaults(command=lambda options: _advise(options, stores, outputs))


def _add_filters(command: argparse.ArgumentParser) -> None:
    command.add_argument("--output", metavar="FILE", help="instead of stdout")
    for name in _ONE:
        command.add_argument(f"--{name}", help="as the pages choose it if left out")
    for name, kind in _MANY.items():
        command.add_argument(f"--{name}", type=kind, action="append", default=[], help="may be given several times")


def _filters(options: argparse.Namespace) -> Filters:
    one = {name: getattr(options, name) for name in _ONE}
    return Filters(**one, **{name: tuple(getattr(options, name)) for name in _MANY})


def _rule(options: argparse.Namespace, stores: Stores, outputs: Outputs) -> int:
    """Of every mask and mode that is not chosen, unlike a view."""
    asked = _filters(options)
    with stores() as store:
        whole = slice.complete(store, asked)
        wanted = Filters(**(vars(whole) | {name: getattr(asked, name) for name in ("mask", "mode", "shape")}))
        text = _RULES[options.format](rule.rule_of(store, wanted))
    return _write(text, options, outputs)


def _render(options: argparse.Namespace, stores: Stores, outputs: Outputs) -> int:
    drawn: list[str] = []
    if options.report:
        text, drawn = _report(options.report, options.run)
    else:
        with stores() as store:
            text = slice.render(store, slice.complete(store, _filters(options)))
    return _write(html_page(text, drawn) if options.format == "html" else text, options, outputs)


def _advise(options: argparse.Namespace, stores: Stores, outputs: Outputs) -> int:
    with stores() as store:
        text = guide.render(store, slice.complete(store, _filters(options)))
    return _write(html_page(text) if options.format == "html" else text, options, outputs)


def _report(name: str, runs: list[str]) -> tuple[str, list[str]]:
    """The text and its figures, as the page Reports gives them."""
    if len(runs) > 1:
        raise slice.ViewError("A report stands beside one run; give --run once.")
    folders = {folder.run_id: folder for folder in (*journal.published_folders(), *journal.run_folders(journal.home()))}
    if runs and runs[0] not in folders:
        raise slice.ViewError(f"There is no run {runs[0]!r}; `python -m results runs` lists them.")
    own = side_by_side.read(folders[runs[0]]) if runs else None
    reports.get(name)
    printed = side_by_side.published(name)
    found = side_by_side.sections(name, printed, own[1] if own else ())
    return side_by_side.render(name, printed, own), svg.own_against_printed(found)


def _write(text: str, options: argparse.Namespace, outputs: Outputs) -> int:
    with outputs(options.output) as file:
        file.write(text.encode())
    return 0
