"""Answers of `python -m runner`, which imports torch for seconds: asked in the background, so that a page never waits.

All tabs share them. A page draws what it has, and again once an answer is there.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError, wait
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

PATIENCE_S = 0.2  # an answer that comes within it is drawn at once
_LOOK_S = 1
_KEPT = 32


@dataclass
class Answering:
    """The answers asked for: each question with when it was asked, oldest first."""

    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "asking"))
    asked: OrderedDict[Hashable, tuple[float, Future]] = field(default_factory=OrderedDict)


def ask(question: Hashable, work: Callable[[], Any], *, keep_s: float) -> Future:
    """Return the answer to a question as a future, of `work()` in a thread; after `keep_s` it is asked anew.

    While it is asked anew the older answer is returned.
    """
    answering, now = _answering(), time.monotonic()
    begun, found = answering.asked.get(question, (0.0, None))
    newer = answering.asked.get(("newer", question))
    if newer and newer[1].done():
        begun, found = answering.asked[question] = answering.asked.pop(("newer", question))
    if found is None:
        begun, found = answering.asked[question] = now, answering.pool.submit(work)
    elif found.done() and now - begun > keep_s and not newer:
        answering.asked["newer", question] = now, answering.pool.submit(work)
    while len(answering.asked) > _KEPT:
        answering.asked.popitem(last=False)[1][1].cancel()
    return found


def begin(work: Callable[[], Any]) -> Future:
    """Let a thread of its own do something that waits for a process."""
    future: Future = Future()

    def do() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # whatever it is, whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=do, name="beginning", daemon=True).start()
    return future


def is_done(future: Future) -> bool:
    """Tell whether something has come to its end, or does within a moment."""
    return bool(wait([future], PATIENCE_S).done)


def forget(question: Hashable) -> None:
    """Ask a question anew the next time, such as one that had no answer."""
    _answering().asked.pop(question, None)


def answer(future: Future) -> Any | None:
    """Return the answer, None if it is not there yet. Raises what the work raised."""
    try:
        return future.result(PATIENCE_S)
    except TimeoutError:
        return None


def draw_again_once(*futures: Future) -> None:
    """Draw the whole page again when all of these are answered."""
    st.fragment(_look, run_every=_LOOK_S)(futures)


def _look(futures: tuple[Future, ...]) -> None:
    if all(future.done() for future in futures):
        st.rerun()


@st.cache_resource(show_spinner=False)
def _answering() -> Answering:
    return Answering()
