"""The button that installs a rule on this machine, and the command that does the same."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.shell import access
from pages.ui.shell.data import store
from results.files.journal import JournalError, RunFolder
from results.recommend import rule_file
from results.render import slice
from results.slice import Filters, SliceError

_OUTCOME = "rule_outcome"
Make = Callable[[], Mapping[str, Any]]


def of_gpu(gpu: str) -> None:
    """Offer the rule that follows from all numbers of a GPU."""

    def make() -> Mapping[str, Any]:
        whole = slice.complete(store(), Filters(gpu=gpu))
        return rule_file.rule_file(store(), replace(whole, mask=None, mode=None, timing=None, shape=None))

    _offer(make, gpu, f'python -m results rule --install --gpu "{gpu}"')


def of_run(folder: RunFolder, gpu: str) -> None:
    """Offer the rule that follows from one run."""

    def make() -> Mapping[str, Any]:
        return rule_file.rule_of_run(folder.run(), folder.read()[0])

    _offer(make, gpu, f'python -m results rule --install --gpu "{gpu}" --run {folder.run_id}')


def _offer(make: Make, gpu: str, command: str) -> None:
    may, icon = access.here(), ":material/rule:"
    st.button("Install this rule", key="install_rule", icon=icon, on_click=_install, args=(make,), disabled=not may)
    if outcome := st.session_state.pop(_OUTCOME, None):
        kind, said = outcome
        getattr(st, kind)(text.plain(said))
    obeyed = f"Programs of this machine obey it on {text.plain(gpu)}. {'' if may else access.OFF} In a terminal:"
    messages.terminal(command, obeyed)


def _install(make: Make) -> None:
    """Install a rule if this session may, and keep the result for the next drawing."""

    def work() -> str:
        rule = make()
        return f"{rule_file.install(rule)}: {rule_file.summary(rule)}"

    st.session_state[_OUTCOME] = access.attempt(work, SliceError, JournalError)
