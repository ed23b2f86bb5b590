"""A short table as plain HTML: read by screen readers as what it is, and there before a data grid could be loaded."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import streamlit as st

from pages.ui import words

_STYLE = """<style>
.plain { overflow-x: auto; }
.plain table { width: 100%; border-collapse: collapse; font-size: 0.875rem; }
.plain th, .plain td { padding: 0.4rem 0.75rem; text-align: right; white-space: nowrap; font-weight: 400;
  border-bottom: 1px solid color-mix(in srgb, currentcolor 18%, transparent); }
.plain thead th { font-weight: 600; }
.plain tr > :first-child, .plain .text { text-align: left; }
.plain .text { white-space: normal; min-width: 8rem; }
</style>"""


@dataclass(frozen=True)
class Column:
    """What stands above a column, how its values are written, and whether they are words."""

    label: str
    write: Callable[[object], str] = str
    help: str = ""
    text: bool = False


def show(rows: Sequence[dict], columns: Mapping[str, Column], alt: str) -> None:
    """The columns that have a value in any row; the first names the rows."""
    shown = {name: c for name, c in columns.items() if not all(words.missing(row[name]) for row in rows)}
    head = "".join(f'<th scope="col"{_kind(c)} title="{html.escape(c.help)}">{c.label}</th>' for c in shown.values())
    body = "".join(f"<tr>{_line(row, shown)}</tr>" for row in rows)
    name = html.escape(alt)
    whole = f'<table aria-label="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    # With the Tab key a keyboard reaches what has to be scrolled.
    st.html(f'{_STYLE}<div class="plain" role="region" tabindex="0" aria-label="{name}">{whole}</div>')


def _line(row: dict, columns: Mapping[str, Column]) -> str:
    texts = {name: "" if words.missing(row[name]) else html.escape(c.write(row[name])) for name, c in columns.items()}
    (first, name), *others = texts.items()
    cells = "".join(f"<td{_kind(columns[other])}>{text}</td>" for other, text in others)
    return f'<th scope="row"{_kind(columns[first])}>{name}</th>{cells}'


def _kind(column: Column) -> str:
    return ' class="text"' if column.text else ""
