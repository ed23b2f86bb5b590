"""Permission to change anything from the page: a user of this machine, or anyone with the token.

Starting sweeps, imports, deletions and connections to a cluster ask here. Without permission a session can only read.
"""

import hmac
import os
from collections.abc import Callable, Iterable
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN = "ATTNBENCH_RUN_TOKEN"
OFF = "Running sweeps, uploading and deleting are off on this server."
_GIVEN = "token_given"  # the right token, once it was typed on any page
_SESSIONS: set[str] = set()  # the ids of the sessions in which it was typed; a browser knows only its own


def may_run() -> bool:
    """Return whether this session may change anything; ask for the token, or give the reason."""
    if here():
        return True
    if not os.environ.get(TOKEN):
        st.warning(
            "Running sweeps, uploading and deleting are off: this server can be reached from other machines and no "
            "token is set. Start it on 127.0.0.1 and use `ssh -L 8501:localhost:8501 host`, or set "
            f"{TOKEN} before it starts.",
            icon=":material/lock:",
        )
        return False
    typed = st.text_input("Token of this server", type="password", key="run_token", help=f"The value of {TOKEN}.")
    if allowed(typed):
        st.session_state[_GIVEN] = typed
        if context := get_script_run_ctx():
            _SESSIONS.add(context.session_id)
        return True
    if typed:
        st.error("That is not the token this server was started with.", icon=":material/lock:")
    return False


def here() -> bool:
    """Return whether this session may change anything; checked again before every action."""
    return allowed(st.session_state.get(_GIVEN))


def attempt(work: Callable[[], Any], *refused: type[Exception]) -> tuple[str, Any]:
    """Call `work` if this session may change anything; return its result, or a warning or an error in words.

    The first part of the answer names the function of Streamlit that draws the second.
    """
    if not here():
        return "warning", OFF
    try:
        return "success", work()
    except refused as error:
        return "error", str(error)


def may_send(words: Iterable[str]) -> bool:
    """Return whether the session that one of the words of an address names may send bytes to the server."""
    return allowed(None) or not _SESSIONS.isdisjoint(words)


def allowed(typed: str | None) -> bool:
    """Return whether a typed token allows changes. If a token is set, every address needs it."""
    if token := os.environ.get(TOKEN):
        return hmac.compare_digest((typed or "").encode(), token.encode())
    return st.get_option("server.address") in LOOPBACK
