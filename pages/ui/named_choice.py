"""A choice whose options are drawn in words while the address keeps their ids, so that links stay short and valid.

A widget that is bound to the address writes the words of its option there; here the id is written instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from pages.ui.shell import address


def named_choice(
    label: str,
    key: str,
    choices: Sequence[str],
    default: str,
    words: Callable[[str], str],
    *,
    draw: Callable[..., Any] = st.selectbox,
    **drawn: Any,
) -> str:
    """Ask for one of `choices`, each drawn as `words(choice)`; an unknown id in the address becomes the default.

    An address that changed since it was last written here, as by the Back button, wins over the widget.
    """
    written, said = f"{key}_written", st.query_params.get(key)
    if said in choices and said != st.session_state.get(written):
        st.session_state[key] = said
    if st.session_state.get(key) not in choices:
        st.session_state[key] = default
    chosen = draw(label, choices, key=key, format_func=words, **drawn)
    address.note(key, chosen)
    if written in st.session_state:  # a page may stop before its end, where it would be written else
        address.write()
    st.session_state[written] = chosen
    return chosen
