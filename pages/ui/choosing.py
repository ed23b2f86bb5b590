"""A select box of exactly one value that always stands in the URL, so that a link keeps its meaning."""

from __future__ import annotations

import streamlit as st


def one(label: str, key: str, choices: list[str], default: str, help: str | None = None) -> str:
    """The chosen value; an unknown one in the URL becomes the default.

    The URL leaves out a widget's own default, so the widget is given another choice as its default: then the value is
    always in the URL. It is set by code in every run but the first, which also puts it there.
    """
    value = st.session_state.get(key, st.query_params.get(key))
    if key in st.session_state or value not in choices:
        value = st.session_state[key] = value if value in choices else default
    other = next((place for place, choice in enumerate(choices) if choice != value), 0)
    return st.selectbox(label, choices, index=other, key=key, bind="query-params", help=help)
