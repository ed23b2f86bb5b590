"""The store and cached questions to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from results import journal, queries
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


def ask(question: Callable[..., pd.DataFrame], *args: Any, **kwargs: Any) -> pd.DataFrame:
    """The answer of a function of results.queries, computed once for each version of the data."""
    opened = _open(str(journal.home()))
    version = st.session_state.get(_VERSION) or opened.version()
    return _answer(question.__name__, (str(journal.home()), str(version)), args, kwargs, opened)


@st.cache_resource(show_spinner=False)
def _looked() -> dict[str, float]:
    """When the files of a home were last looked at, by any tab."""
    return {}


@st.cache_resource(show_spinner=False)
def _open(home: str) -> Store:
    return open_store()


@st.cache_data(max_entries=300, show_spinner=False)
def _answer(name: str, version: tuple[str, str], args: tuple, kwargs: dict, _store: Store) -> pd.DataFrame:
    return getattr(queries, name)(_store, *args, **kwargs)
