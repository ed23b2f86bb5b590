"""Permission to start GPU jobs from the page: a user of this machine, or anyone with the token."""

from __future__ import annotations

import hmac
import os

import streamlit as st

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN = "ATTNBENCH_RUN_TOKEN"


def may_run() -> bool:
    """Return whether this session may start and cancel sweeps; ask for the token, or give the reason."""
    if st.get_option("server.address") in LOOPBACK:
        return True
    if not os.environ.get(TOKEN):
        st.warning(
            "Running sweeps is off: this server can be reached from other machines and no token is set. "
            f"Start it on 127.0.0.1 and use `ssh -L 8501:localhost:8501 host`, or set {TOKEN} before it starts.",
            icon=":material/lock:",
        )
        return False
    typed = st.text_input("Token for running sweeps", type="password", key="run_token", help=f"The value of {TOKEN}.")
    if allowed(typed):
        return True
    if typed:
        st.error("That is not the token this server was started with.", icon=":material/lock:")
    return False


def allowed(typed: str | None) -> bool:
    """Return whether a typed token allows sweeps; checked again before every start."""
    if st.get_option("server.address") in LOOPBACK:
        return True
    token = os.environ.get(TOKEN)
    return bool(token) and hmac.compare_digest((typed or "").encode(), token.encode())
