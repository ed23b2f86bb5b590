"""The terms of the pages: the page "Units and terms" explains them, and captions link to it."""

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Term:
    """An entry of the page: a title and what it means, as Markdown."""

    title: str
    text: str


_FOUND = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TERMS = {anchor: Term(**fields) for anchor, fields in _FOUND.items()}


def link(anchor: str) -> str:
    """Return a «?» for a caption, as Markdown, that opens the explanation of a term in a new tab."""
    return f"[?](units#{anchor} {TERMS[anchor].title!r})".replace("'", '"')
