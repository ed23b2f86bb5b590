"""The terms of the pages: the page "Units and terms" explains them, and captions link to it."""

from results.paths import toml_of

# The title of each term and what it means, as Markdown.
TERMS: dict[str, dict[str, str]] = toml_of(__file__)


def link(anchor: str) -> str:
    """Return a «?» for a caption, as Markdown, that opens the explanation of a term in a new tab."""
    return f"[?](units#{anchor} {TERMS[anchor]['title']!r})".replace("'", '"')
