"""Answers that many tabs ask for, each worked out once. Cheaper to look up than Streamlit's own cache, which hashes
every argument field by field and copies every table.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd


@dataclass
class _Answer:
    lock: threading.Lock = field(default_factory=threading.Lock)
    made: bool = False
    value: Any = None


class Answers:
    """The latest answers by their question; whoever asks while one is worked out waits for it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, _Answer] = OrderedDict()

    def get(self, question: Hashable, work: Callable[[], Any]) -> Any:
        """What `work()` gave the first time, as a copy that may be changed."""
        with self._lock:
            answer = self._answers.setdefault(question, _Answer())
            self._answers.move_to_end(question)
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)
        with answer.lock:
            if not answer.made:
                answer.value, answer.made = _kept(work()), True
        return _copied(answer.value)


def _kept(value: Any) -> Any:
    return value if isinstance(value, pd.DataFrame) else pickle.dumps(value)


def _copied(kept: Any) -> Any:
    """A table is copied when it is first written to, which is pandas' own doing."""
    return kept.copy(deep=False) if isinstance(kept, pd.DataFrame) else pickle.loads(kept)
