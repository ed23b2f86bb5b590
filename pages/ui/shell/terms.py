"""The terms of the pages: the page "Units and terms" explains them, and captions link to it."""

from dataclasses import dataclass

from results.paths import toml_of


@dataclass(frozen=True)
class Term:
    """An entry of the page: a title and what it means, as Markdown."""

    title: str
    text: str


TERMS = {anchor: Term(**fields) for anchor, fields in toml_of(__file__).items()}


def link(anchor: str) -> str:
    """Return a «?» for a caption, as Markdown, that opens the explanation of a term in a new tab."""
    return f"[?](units#{anchor} {TERMS[anchor].title!r})".replace("'", '"')
