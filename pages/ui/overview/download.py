"""The filtered view as a report to take away."""

from __future__ import annotations

import streamlit as st

from pages.ui.shell.data import store
from results.query.pages import Filters
from results.render import slice
from results.render.html import html_page


def downloads(chosen: Filters) -> None:
    """The slice as Markdown and as one HTML file; the same as `python -m results render`."""
    made = {"Markdown": ("md", "text/markdown", lambda text: text), "HTML": ("html", "text/html", html_page)}
    for label, (ending, mime, form) in made.items():
        st.download_button(
            f"View as {label}",
            data=lambda form=form: form(slice.render(store(), chosen)),
            file_name=f"attention.{ending}",
            mime=mime,
            on_click="ignore",
            icon=":material/article:",
            key=f"view_{ending}",
            help="For reading: numbers are rounded and samples left out. CSV and JSON of whole runs are on Runs.",
        )
