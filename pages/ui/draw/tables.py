"""Tables of a page: short ones as plain HTML with bars in their cells, data grids, and numbers as tiles.

Plain HTML is read correctly by screen readers and is drawn before a data grid could load; four of Streamlit's metrics
cost the browser as much as a map.
"""

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.draw import text
from results.paths import toml_of

_COLUMNS = toml_of(__file__, "columns.toml")
_STYLES = {
    name: f"<style>{(Path(__file__).parent / f'{name}.css').read_text(encoding='utf-8')}</style>"
    for name in ("facts", "tables")
}


def number(label: str, format: str | None = "%.3g", help: str | None = None, **more: Any) -> Any:
    """Return a column of numbers of a data grid."""
    return st.column_config.NumberColumn(label, format=format, help=help, **more)


def words(label: str, width: Any = None, help: str | None = None, *, pinned: bool | None = None) -> Any:
    """Return a column of text of a data grid."""
    return st.column_config.TextColumn(label, width=width, help=help, pinned=pinned)


def declared(name: str, axes: "Mapping[str, BarAxis] | None" = None, **given: object) -> dict[str, Any]:
    """Return the columns of a table of columns.toml, for `grid` or `show_table`.

    `given` are the names in braces in labels and helps; `axes` are the axes of columns of bars.
    """
    found = {}
    for column, said in _COLUMNS[name].items():
        texts = {key: said[key].format(**given) for key in ("cell", "number", "words", "help") if key in said}
        axis = {"axis": axes[column]} if axes and column in axes else {}
        found[column] = _column(**said | texts | axis)
    return found


def _column(cell: str = "", write: str = "", format: str = "%.3g", **more: Any) -> Any:
    if cell:
        written: Callable[[Any], str] = write.format if "{" in write else getattr(text, write, str)
        return TableColumn(cell, written, **more)
    if "number" in more:
        return number(more.pop("number"), format or None, **more)
    return words(more.pop("words"), **more)


def grid(table: pd.DataFrame, alt: str, columns: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """Draw a data grid without an index, with a dash for missing values."""
    return st.dataframe(table, hide_index=True, placeholder="–", alt=alt, column_config=columns, **more)


def in_words(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its statuses and sources in words."""
    return table.assign(
        status=[text.status(name) for name in table["status"]], source=[text.sources(name) for name in table["source"]]
    )


@dataclass(frozen=True)
class Fact:
    """A number with its name, its meaning, and an optional remark below it."""

    label: str
    value: str
    below: str
    help: str


def show_facts(facts: Iterable[Fact]) -> None:
    """Draw numbers side by side where there is room; the pointer and the Tab key show their meaning."""
    st.html(f'{_STYLES["facts"]}<dl class="facts">{"".join(map(_tile, facts))}</dl>')


def _tile(fact: Fact) -> str:
    label, value, below, help = (html.escape(part) for part in (fact.label, fact.value, fact.below, fact.help))
    more = f'<button type="button" aria-label="{help}">?</button><span class="note" aria-hidden="true">{help}</span>'
    shown = f'<dd class="below">{below}</dd>' if below else ""
    return f"<div><dt>{label} {more}</dt><dd>{value}</dd>{shown}</div>"


_TICK_SHARE = 0.12  # share of the axis; closer labels overlap
_MARKS = (1, 2, 5)


@dataclass(frozen=True)
class Bar:
    """A number as a bar with its words next to it."""

    value: float
    words: str
    colour: str = "currentcolor"
    span: tuple[float, float] | None = None  # on the axis of the value
    hatched: bool = False  # not comparable with the others
    hover: str = ""


@dataclass(frozen=True)
class BarAxis:
    """The axis of a column of bars: logarithmic if `low` is above 0, else linear from 0."""

    low: float
    high: float
    ticks: tuple[float, ...] = ()
    line: float | None = None  # bars begin at this value, and a line through all rows marks it

    def percent(self, value: float) -> float:
        """Return the place of a value in percent of the column's width."""
        if self.low > 0:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = value / self.high if self.high else 0.0
        return 100 * min(1.0, max(0.0, share))

    def head(self, label: str) -> str:
        """Return the head of the column: its name and the ticks of the axis."""
        ticks = "".join(f'<span style="left:{self.percent(tick):.1f}%">{tick:g}</span>' for tick in self.ticks)
        under = f'<div class="ticks">{ticks}</div><span></span>' if ticks else ""
        return f"{html.escape(label)}<div class='reach'>{under}</div>" if under else html.escape(label)

    def draw(self, bar: Bar) -> str:
        """Return a bar as HTML."""
        kind = "fill hatched" if bar.hatched else "fill"
        start, end = sorted((0.0 if self.line is None else self.percent(self.line), self.percent(bar.value)))
        style = f"left:{start:.1f}%;width:{end - start:.1f}%;background-color:{bar.colour}"
        drawn = f'<span class="{kind}" style="{style}"></span>'
        if bar.span:
            left, right = map(self.percent, bar.span)
            drawn += f'<span class="span" style="left:{left:.1f}%;width:{max(0.0, right - left):.1f}%"></span>'
        if self.line is not None:
            drawn += f'<span class="line" style="left:{self.percent(self.line):.1f}%"></span>'
        track = f'<div class="track" title="{html.escape(bar.hover)}">{drawn}</div>'
        return f'<div class="reach">{track}<span>{html.escape(bar.words)}</span></div>'


def log_axis(values: Iterable[float], apart: float = _TICK_SHARE) -> BarAxis:
    """Return a logarithmic axis that begins at 1, 2 or 5 times a power of ten below all values.

    Its ticks are at least the share `apart` of the axis from each other.
    """
    known = [value for value in values if not text.missing(value) and value > 0]
    low, high = min(known, default=1.0), max(known, default=1.0)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    marks = [step * 10.0**decade for decade in decades for step in _MARKS]
    first = max(mark for mark in marks if mark <= low / 1.15)
    ticks = [mark for mark in marks if first <= mark <= high]
    few = [tick for tick in ticks if tick in (first, *(10.0**decade for decade in decades))]
    shown = ticks if len(ticks) <= 5 else few
    last = max(high, first * 1.5)
    least = apart * math.log(last / first)
    readable = [
        tick for tick, after in zip(shown, [*shown[1:], math.inf], strict=True) if math.log(after / tick) >= least
    ]
    return BarAxis(first, last, tuple(readable))


def linear_axis(values: Iterable[float]) -> BarAxis:
    """Return an axis from 0 to the largest value."""
    return BarAxis(0.0, max((value for value in values if not text.missing(value)), default=1.0))


@dataclass(frozen=True)
class TableColumn:
    """A column: its label, how its values are written, and whether they are text.

    If the column has an axis, its values may be bars; other values are written as text.
    """

    label: str
    write: Callable[[Any], str] = str
    help: str = ""
    text: bool = False
    axis: BarAxis | None = None


def show_table(rows: Sequence[dict], columns: Mapping[str, TableColumn], alt: str, note: str = "") -> None:
    """Draw the columns that have a value in any row, and a note below them; the first column names the rows.

    The optional field `marked` of a row is a word behind the name of the row.
    """
    shown = {name: c for name, c in columns.items() if not all(text.missing(row[name]) for row in rows)}
    labels = {name: c.axis.head(c.label) if c.axis else html.escape(c.label) for name, c in shown.items()}
    head = "".join(
        f'<th scope="col"{_kind(c)} title="{html.escape(c.help)}">{labels[name]}</th>' for name, c in shown.items()
    )
    body = "".join(f"<tr>{_line(row, shown)}</tr>" for row in rows)
    name = html.escape(alt)
    below = f"<p>{html.escape(note)}</p>" if note else ""
    kind = ' class="one"' if sum(column.axis is not None for column in shown.values()) == 1 else ""
    whole = f'<table{kind} aria-label="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}'
    # The Tab key reaches the table, so that a keyboard can scroll it.
    st.html(f'{_STYLES["tables"]}<div class="plain" role="region" tabindex="0" aria-label="{name}">{whole}</div>')


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
