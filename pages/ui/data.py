"""The store and cached questions to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import streamlit as st

from results import journal
from results.store import Store, open_store

_VERSION = "data_version"  # as this run of the script found it


def store(*, not_older_than_s: float = 0.0) -> Store:
    """The one store of this process and home, up to date with the files; a page that polls may take it older."""
    home = str(journal.home())
    opened, looked = _open(home), _looked()
    if time.monotonic() - looked.get(home, -math.inf) >= not_older_than_s:
        opened.refresh()
        looked[home] = time.monotonic()
    st.session_state[_VERSION] = opened.version()
    return opened


def ask(question: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`question(store, ...)`, computed once for each version of the data; kept as a copy, so it must not be large."""
    opened = _open(str(journal.home()))
    return _asked(opened, st.session_state.get(_VERSION) or opened.version(), question, args, kwargs)


def asked_ahead(question: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The same outside any visit, so that the visit finds the answer there."""
    opened = _open(str(journal.home()))
    return _asked(opened, opened.version(), question, args, kwargs)


def ask_slowly(question: Callable[..., Any], *args: Any) -> Any:
    """The same for what takes seconds: says that it is being worked out."""
    with st.spinner("Working it out"):
        return ask(question, *args)


def _asked(opened: Store, version: str, question: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
    name = f"{question.__module__}.{question.__qualname__}"
    return _answer(name, (str(journal.home()), version), args, kwargs, question, opened)


@st.cache_resource(show_spinner=False)
def _looked() -> dict[str, float]:
    """When the files of a home were last looked at, by any tab."""
    return {}


@st.cache_resource(show_spinner=False)
def _open(home: str) -> Store:
    return open_store()


@st.cache_data(max_entries=300, show_spinner=False)
def _answer(
    name: str, version: tuple[str, str], args: tuple, kwargs: dict, _question: Callable[..., Any], _store: Store
) -> Any:
    return _question(_store, *args, **kwargs)
