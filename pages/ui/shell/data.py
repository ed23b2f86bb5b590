"""The store and cached queries of it.

All tabs share the answers. A lookup is cheaper than in Streamlit's cache, which hashes every argument by field and
copies every table.
"""

import math
import pickle
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import streamlit as st

from results.files import journal, library
from results.files.journal import RunFolder
from results.records import Measurement, Run
from results.store.database import Store, open_store


@dataclass
class _Answer:
    """An answer, or a lock while it is computed."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    made: bool = False
    value: Any = None


class Answers:
    """The latest answers by question; concurrent callers wait for one computation."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, _Answer] = OrderedDict()

    def get(self, question: Hashable, work: Callable[[], Any]) -> Any:
        """Return the first result of `work()`, as a copy that may be changed."""
        with self._lock:
            answer = self._answers.setdefault(question, _Answer())
            self._answers.move_to_end(question)
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)
        with answer.lock:
            if not answer.made:
                value = work()
                answer.value = value if isinstance(value, pd.DataFrame) else pickle.dumps(value)
                answer.made = True
        kept = answer.value  # pandas copies a table when it is first written to
        return kept.copy(deep=False) if isinstance(kept, pd.DataFrame) else pickle.loads(kept)


_FOUND = "data_found"  # the store, and the version of its data in this run of the script
_KEPT = 300  # answers


def store(*, not_older_than_s: float = 0.0) -> Store:
    """Return the store of this process and home, up to date with the files, or at most so many seconds old."""
    home = str(journal.home())
    opened, looked = _open(home), _looked()
    if time.monotonic() - looked.get(home, -math.inf) >= not_older_than_s:
        opened.refresh()
        looked[home] = time.monotonic()
    st.session_state[_FOUND] = opened, opened.version()
    return opened


def ask(question: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `question(store, ...)`, cached for each version of the data; it must not be large."""
    if _FOUND not in st.session_state:
        store()
    opened, version = st.session_state[_FOUND]
    return _asked(opened, version, question, args, kwargs)


def asked_ahead(question: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Answer a question outside a visit, so that the visit finds it in the cache."""
    opened = _open(str(journal.home()))
    return _asked(opened, opened.version(), question, args, kwargs)


def ask_slowly(question: Callable[..., Any], *args: Any) -> Any:
    """Answer a question that takes seconds, with a spinner."""
    with st.spinner("Working it out"):
        return ask(question, *args)


def records_of(run_id: str, *metrics: str) -> tuple[Run, list[Measurement]]:
    """Return a run with its measurements, which must not be changed; the latest runs are read once.

    `metrics` are those that are needed, or none for all. Raises JournalError if the run cannot be read.
    """
    folder = library.find(run_id)
    return _read(str(folder.path), library.stamp(folder), metrics, folder)


@st.cache_resource(max_entries=12, show_spinner=False)
def _read(path: str, stamp: tuple, metrics: tuple[str, ...], _folder: RunFolder) -> tuple[Run, list[Measurement]]:
    return library.read(_folder, metrics=metrics)


def _asked(opened: Store, version: str, question: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
    name = f"{question.__module__}.{question.__qualname__}"
    given = (tuple(value.items()) if isinstance(value, dict) else value for value in args)
    key = name, str(opened.home), version, *given, *kwargs.items()
    return _answers().get(key, lambda: question(opened, *args, **kwargs))


@st.cache_resource(show_spinner=False)
def _answers() -> Answers:
    return Answers(_KEPT)


@st.cache_resource(show_spinner=False)
def _looked() -> dict[str, float]:
    """Return the time of the last refresh of each home."""
    return {}


@st.cache_resource(show_spinner=False)
def _open(home: str) -> Store:
    return open_store()
