"""Cached answers of functions that take the store: each computed once for every version of the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from pages.ui.data import store
from results import journal
from results.store import Store


def answer(question: Callable[..., Any], *args: Any) -> Any:
    """`question(store, *args)`; what it returns is kept as a copy, so it must not be large."""
    opened = store()
    name = f"{question.__module__}.{question.__qualname__}"
    return _answer(name, (str(journal.home()), str(opened.version())), args, question, opened)


@st.cache_data(max_entries=100, show_spinner="Working it out")
def _answer(name: str, version: tuple[str, str], args: tuple, _question: Callable[..., Any], _store: Store) -> Any:
    return _question(_store, *args)
