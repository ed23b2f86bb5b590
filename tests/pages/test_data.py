"""Answers of the store: computed once for each version of the data."""

import threading

import pandas as pd
import pytest

from pages.ui.shell.data import Answers


def test_an_answer_is_worked_out_once_or_again_if_it_failed_and_the_oldest_is_forgotten():
    asked, answers = [], Answers(2)
    for question in ("a", "a", "b", "a", "c", "a", "b"):
        answers.get(question, lambda question=question: asked.append(question))
    assert asked == ["a", "b", "c", "b"]
    answers = Answers(2)
    with pytest.raises(ZeroDivisionError):
        answers.get("a", lambda: 1 / 0)
    assert answers.get("a", lambda: 5) == 5


@pytest.mark.parametrize("made", [pd.DataFrame({"n": [1, 2]}), [{"n": 1}]], ids=["table", "rows"])
def test_whoever_changes_an_answer_changes_it_for_nobody_else(made):
    answers = Answers(2)
    first = answers.get("a", lambda: made)
    if isinstance(first, pd.DataFrame):
        first.loc[0, "n"] = 7
        first["m"] = 8
    else:
        first[0]["n"] = 7
    again = answers.get("a", lambda: None)
    assert pd.DataFrame(again).iloc[0].to_dict() == {"n": 1}


def test_two_who_ask_at_once_share_one_answer():
    answers, started, go_on, asked, given = Answers(2), threading.Event(), threading.Event(), [], []

    def work():
        asked.append(1)
        started.set()
        assert go_on.wait(30)
        return 5

    threads = [threading.Thread(target=lambda: given.append(answers.get("a", work))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert started.wait(30)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert (given, asked) == ([5, 5], [1])
