"""The store and cached questions to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from typing import Any

import streamlit as st

from pages.ui.answers import Answers
from results import journal
from results.store import Store, open_store

_FOUND = "data_found"  # the store, and the version of its data that this run of the script found
_KEPT = 300  # answers


def store(*, not_older_than_s: float = 0.0) -> Store:
    """The one store of this process and home, up to date with the files; a page that polls may take it older."""
    home = str(journal.home())
    opened, looked = _open(home), _looked()
    if time.monotonic() - looked.get(home, -math.inf) >= not_older_than_s:
        opened.refresh()
        looked[home] = time.monotonic()
    st.session_state[_FOUND] = opened, opened.version()
    return opened


def ask(question: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`question(store, ...)`, computed once for each version of the data; kept, so it must not be large."""
    if _FOUND not in st.session_state:
        store()
    return _asked(*st.session_state[_FOUND], question, args, kwargs)


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
    key = name, str(opened.home), version, *map(_hashable, args), *kwargs.items()
    return _answers().get(key, lambda: question(opened, *args, **kwargs))


def _hashable(value: Any) -> Hashable:
    return tuple(value.items()) if isinstance(value, dict) else value


@st.cache_resource(show_spinner=False)
def _answers() -> Answers:
    return Answers(_KEPT)


@st.cache_resource(show_spinner=False)
def _looked() -> dict[str, float]:
    """When the files of a home were last looked at, by any tab."""
    return {}


@st.cache_resource(show_spinner=False)
def _open(home: str) -> Store:
    return open_store()
