"""The terms of the pages: the page "Units and terms" explains them, and captions link to it."""

import tomllib
from pathlib import Path

# The title of each term and what it means, as Markdown.
TERMS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def link(anchor: str) -> str:
    """Return a «?» for a caption, as Markdown, that opens the explanation of a term in a new tab."""
    return f"[?](units#{anchor} {TERMS[anchor]['title']!r})".replace("'", '"')
