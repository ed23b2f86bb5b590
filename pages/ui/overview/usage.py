"""The lines of Python that use the winner, with its source."""

import streamlit as st

from pages.ui.draw import messages, text
from results.recommend.usage import ROOT, Usage, usage_of


def show(name: str, level: str, *, causal: bool = True, window_size: int = 0) -> None:
    """Draw how to use an implementation, folded; nothing for one that this checkout does not have."""
    usage = usage_of(name, level, causal=causal, window_size=window_size)
    if usage is not None:
        messages.folded(f"Use {text.plain(name)} in Python", "usage", lambda: _lines(usage), ":material/code:")


def _lines(usage: Usage) -> None:
    if usage.code:
        st.code(usage.code, language="python", wrap_lines=True)
    project = f" Project: [{usage.project.removeprefix('https://')}]({usage.project})." if usage.project else ""
    st.caption(f"Needs {usage.needs}.{project}")
    if usage.file:
        place = usage.file.relative_to(ROOT).as_posix()
        messages.offer(f"Source: {place}", usage.file.name, usage.file.read_bytes, "usage_source")
