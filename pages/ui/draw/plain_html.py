"""Numbers that head a page, as plain HTML: for the browser four of Streamlit's metrics are as much as the map below.

A short table as plain HTML: read by screen readers as what it is, and there before a data grid could be loaded.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import streamlit as st

from pages.ui.draw import bars, text
from pages.ui.draw.bars import Bar, BarAxis

_FACTS_STYLE = """<style>
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 1rem; }
dl.facts.facts { margin: 0; padding: 0; }
.facts > div { position: relative; padding: 0.9rem 1rem; border-radius: 0.5rem;
  border: 1px solid color-mix(in srgb, currentcolor 20%, transparent); }
.facts dt { display: flex; align-items: center; gap: 0.4rem; font-size: 0.875rem; font-weight: 400; margin: 0; }
.facts dd { margin: 0.1rem 0 0; font-size: 1.6rem; line-height: 1.4; }
.facts dd.below { display: inline-block; margin-top: 0.3rem; padding: 0.1rem 0.5rem; border-radius: 1rem;
  font-size: 0.875rem; background: color-mix(in srgb, currentcolor 7%, transparent); }
.facts button { width: 1.1rem; height: 1.1rem; padding: 0; border: 1px solid currentcolor; border-radius: 50%;
  background: none; color: inherit; font-size: 0.75rem; line-height: 1; cursor: help; opacity: 0.75; }
.facts .note { display: none; position: absolute; z-index: 10; top: 2.4rem; left: 0; min-width: 100%; max-width: 80vw;
  width: 16rem; padding: 0.5rem 0.75rem; border-radius: 0.5rem; font-size: 0.875rem; color: CanvasText;
  background: Canvas; border: 1px solid color-mix(in srgb, currentcolor 20%, transparent);
  box-shadow: 0 2px 8px rgb(0 0 0 / 20%); }
.facts > div:last-child:not(:first-child) .note { left: auto; right: 0; }
.facts button:hover + .note, .facts button:focus + .note { display: block; }
</style>"""


@dataclass(frozen=True)
class Fact:
    """A number with its name, what it means, and a word on it where there is one."""

    label: str
    value: str
    below: str
    help: str


def show_facts(facts: Iterable[Fact]) -> None:
    """Draw numbers side by side where there is room; the pointer and the Tab key show what they mean."""
    st.html(f'{_FACTS_STYLE}<dl class="facts">{"".join(map(_tile, facts))}</dl>')


def _tile(fact: Fact) -> str:
    label, value, below, help = (html.escape(part) for part in (fact.label, fact.value, fact.below, fact.help))
    more = f'<button type="button" aria-label="{help}">?</button><span class="note" aria-hidden="true">{help}</span>'
    shown = f'<dd class="below">{below}</dd>' if below else ""
    return f"<div><dt>{label} {more}</dt><dd>{value}</dd>{shown}</div>"


_TABLE_STYLE = (
    """<style>
.plain { overflow-x: auto; }
.plain table { width: 100%; border-collapse: collapse; font-size: 0.875rem; }
.plain th, .plain td { padding: 0.4rem 0.5rem; text-align: right; white-space: nowrap; font-weight: 400;
  border-bottom: 1px solid color-mix(in srgb, currentcolor 18%, transparent); }
.plain thead th { font-weight: 600; }
.plain tr > :first-child, .plain .text { text-align: left; }
.plain .text { white-space: normal; min-width: 8rem; }
.plain th.text { min-width: 14rem; }
.plain thead th.text { min-width: 0; }
.plain .bar { min-width: 9rem; text-align: left; }
.plain .one .bar { width: 55%; }
.plain mark { padding: 0 0.35rem; border-radius: 0.6rem; font-size: 0.75rem; color: inherit;
  background: color-mix(in srgb, currentcolor 12%, transparent); }
"""
    + bars.STYLE
    + "</style>"
)


@dataclass(frozen=True)
class TableColumn:
    """What stands above a column, how its values are written, and whether they are words.

    Where it has an axis, its values may be bars on it; other values stand there as words.
    """

    label: str
    write: Callable[[object], str] = str
    help: str = ""
    text: bool = False
    axis: BarAxis | None = None


def show_table(rows: Sequence[dict], columns: Mapping[str, TableColumn], alt: str) -> None:
    """Draw the columns that have a value in any row; the first names the rows.

    The field `marked` of a row, where it is there, is a word on the row behind its name.
    """
    shown = {name: c for name, c in columns.items() if not all(text.missing(row[name]) for row in rows)}
    head = "".join(f'<th scope="col"{_kind(c)} title="{html.escape(c.help)}">{_head(c)}</th>' for c in shown.values())
    body = "".join(f"<tr>{_line(row, shown)}</tr>" for row in rows)
    name = html.escape(alt)
    kind = ' class="one"' if sum(column.axis is not None for column in shown.values()) == 1 else ""
    whole = f'<table{kind} aria-label="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    # With the Tab key a keyboard reaches what has to be scrolled.
    st.html(f'{_TABLE_STYLE}<div class="plain" role="region" tabindex="0" aria-label="{name}">{whole}</div>')


def _head(column: TableColumn) -> str:
    return column.axis.head(column.label) if column.axis else html.escape(column.label)


def _line(row: dict, columns: Mapping[str, TableColumn]) -> str:
    (first, name), *others = ((at, _value(row[at], column)) for at, column in columns.items())
    word = f" <mark>{html.escape(row['marked'])}</mark>" if row.get("marked") else ""
    cells = "".join(f"<td{_kind(columns[other])}>{value}</td>" for other, value in others)
    return f'<th scope="row"{_kind(columns[first])}>{name}{word}</th>{cells}'


def _value(value: object, column: TableColumn) -> str:
    if isinstance(value, Bar):
        return column.axis.draw(value)
    return "–" if text.missing(value) else html.escape(column.write(value))


def _kind(column: TableColumn) -> str:
    return ' class="bar"' if column.axis else ' class="text"' if column.text else ""
