"""Background calls of `python -m runner`, which takes seconds to import torch, so that a page never waits.

All tabs share the answers. A page draws what it has, and redraws when an answer arrives.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError, wait
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

PATIENCE_S = 0.2  # an answer within this time is drawn immediately
_LOOK_S = 1
_KEPT = 32


@dataclass
class Answering:
    """The futures of all questions with the times of the calls, oldest first."""

    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "asking"))
    asked: OrderedDict[Hashable, tuple[float, Future]] = field(default_factory=OrderedDict)


def ask(question: Hashable, work: Callable[[], Any], *, keep_s: float) -> Future:
    """Return a future of `work()`, which runs in a thread; after `keep_s` it runs again.

    Meanwhile the older answer is returned.
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
    """Run `work()`, which waits for a process, in a separate thread."""
    future: Future = Future()

    def do() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # raised again when the result is read
            future.set_exception(error)

    threading.Thread(target=do, name="beginning", daemon=True).start()
    return future


def is_done(future: Future) -> bool:
    """Return whether a future is done, or is done within a moment."""
    return bool(wait([future], PATIENCE_S).done)


def forget(question: Hashable) -> None:
    """Forget the answer to a question, so that the next call runs again."""
    _answering().asked.pop(question, None)


def answer(future: Future) -> Any | None:
    """Return the answer, or None if it is not there yet. Raise the exception of the work."""
    try:
        return future.result(PATIENCE_S)
    except TimeoutError:
        return None


def draw_again_once(*futures: Future) -> None:
    """Redraw the page when all of these are done."""
    st.fragment(_look, run_every=_LOOK_S)(futures)


def _look(futures: tuple[Future, ...]) -> None:
    if all(future.done() for future in futures):
        st.rerun()


@st.cache_resource(show_spinner=False)
def _answering() -> Answering:
    return Answering()
