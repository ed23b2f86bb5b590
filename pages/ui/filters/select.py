"""Choosing one value: select boxes, pills and segments whose value is always in the URL, and one shape of a table."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.shell import address
from results.paths import toml_of

_MOST_PILLS = 5
_TEXTS = {"label", "help"}  # may hold names in braces
_WIDGETS = toml_of(__file__, "widgets.toml")


def widget(name: str, *given: Any, place: Any = st, words: Mapping[str, object] | None = None, **more: Any) -> Any:
    """Draw a widget of widgets.toml and return its value; its key is its name unless `more` holds another.

    `words` are the names in braces in its texts; `given` and `more` are its other arguments.
    """
    said = _WIDGETS[name] | {
        part: _WIDGETS[name][part].format(**words or {}) for part in _WIDGETS[name].keys() & _TEXTS
    }
    draw, label = getattr(place, said.pop("draw")), said.pop("label")
    return draw(label, *given, **{"key": name, **said, **more})


def named_choice(
    label: str,
    key: str,
    choices: Sequence[str],
    default: str | None = None,
    words: Callable[[str], str] = str,
    *,
    draw: Callable[..., Any] = st.selectbox,
    **drawn: Any,
) -> str:
    """Ask for one of `choices`, each drawn as `words(choice)`; the default is the first.

    A widget that is bound to the address writes the words of its option there; this one writes the id, so that links
    stay short and valid. An address that changed since it was last written, as by the Back button, wins.
    """
    written, said = f"{key}_written", st.query_params.get(key)
    if said in choices and said != st.session_state.get(written):
        st.session_state[key] = said
    elif said is not None:
        address.check(label, key, choices)
    if st.session_state.get(key) not in choices:
        st.session_state[key] = default or choices[0]
    chosen = draw(label, choices, key=key, format_func=words, **drawn)
    address.note(key, chosen)
    if written in st.session_state:  # write now, because a page may stop before its end
        address.write()
    st.session_state[written] = chosen
    return chosen


def pills(label: str, key: str, choices: Sequence[Any], default: Any = None, **more: Any) -> Any:
    """Ask for exactly one of `choices` as pills, or in a select box if they are many; the default is the first."""
    if len(choices) > _MOST_PILLS:
        return named_choice(label, key, choices, default, more.pop("format_func", str), width=240, **more)
    return _one(st.pills, label, key, choices, default, wrap=True, **more)


def segments(label: str, key: str, choices: Sequence[Any], default: Any = None, **more: Any) -> Any:
    """Ask for exactly one of `choices` as a segmented control; the default is the first."""
    return _one(st.segmented_control, label, key, choices, default, wrap=True, **more)


def bound(draw: Callable[..., Any], label: str, key: str, choices: Sequence[Any], *given: Any, **more: Any) -> Any:
    """Draw a widget whose value is in the address, and say which values of a link are none of its choices."""
    address.check(label, key, choices)
    return draw(label, choices, *given, key=key, bind="query-params", **more)


def _one(draw: Callable[..., Any], label: str, key: str, choices: Sequence, default: Any, **more: Any) -> Any:
    return bound(draw, label, key, choices, default=choices[0] if default is None else default, required=True, **more)


def one_of_several(label: str, key: str, choices: Sequence[Any], default: Any = None, **more: Any) -> Any:
    """Return the only choice, or ask for one as pills."""
    return pills(label, key, choices, default, **more) if len(choices) > 1 else choices[0]


def rows_of_one(
    table: pd.DataFrame, column: str, counted: str, key: str, label: str, *, first: str | None = None
) -> tuple[pd.DataFrame, str]:
    """Return the rows of one value of a text column, and that value; ask for it if there are several.

    The default is `first` if it has a number in the column `counted`, else the value with most numbers; of several with
    equally many, the last.
    """
    counts = table.groupby(column)[counted].count()
    names = sorted(counts.index, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
    most = max(names, key=lambda name: (counts[name], names.index(name)))
    chosen = one_of_several(label, key, names, first if first in names and counts[first] else most)
    return table[table[column] == chosen], chosen
