"""Choosing one value: select boxes whose value always stands in the URL, and one shape of a table."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.shell import address


def one_value(label: str, key: str, choices: list[str], default: str, help: str | None = None, **reaction: Any) -> str:
    """Ask for exactly one of `choices`; an unknown value in the URL becomes the default.

    The URL leaves out a widget's own default, so the widget is given another choice as its default: then the value is
    always in the URL, and a link keeps its meaning. It is set by code in every run but the first, which also puts it
    there. `reaction` holds the select box's `on_change` and its arguments.
    """
    linked = address.named(key)
    value = linked if linked is not None else st.session_state.get(key)
    if value not in choices or value != linked:
        value = st.session_state[key] = value if value in choices else default
    address.note(key, value)
    other = next((place for place, choice in enumerate(choices) if choice != value), 0)
    first = choices.index(value) if address.takes_default(key) else other
    return st.selectbox(label, choices, index=first, key=key, bind="query-params", help=help, **reaction)


def rows_of_one(
    table: pd.DataFrame, column: str, counted: str, key: str, label: str, *, first: str | None = None
) -> tuple[pd.DataFrame, str]:
    """Return the rows of one value of a text column, and that value; ask for it where there are several.

    The default is `first` where it has a number in the column `counted`, else the value with most; of equals the last.
    """
    counts = table.groupby(column)[counted].count()
    names = sorted(counts.index, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
    most = max(names, key=lambda name: (counts[name], names.index(name)))
    chosen = first if first in names and counts[first] else most
    if len(names) > 1:
        chosen = st.pills(label, names, default=chosen, required=True, key=key, bind="query-params", wrap=True)
    return table[table[column] == chosen], chosen
