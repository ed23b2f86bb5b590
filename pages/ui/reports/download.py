"""Downloads of a report and the compared runs in every format."""

from functools import partial

import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.reports import sections
from pages.ui.reports.choose import Choice, own_runs
from pages.ui.shell.data import store
from results import reports
from results.render import export, svg
from results.render.html import html_page
from results.reports import side_by_side

_NAMED = 3  # at most so many names of the report and runs in a file name


def as_markdown(choice: Choice) -> str:
    """Return the page as Markdown; without the runs if they hold nothing of the report."""
    printed = side_by_side.published(choice.report)
    try:
        return side_by_side.render(choice.report, printed, own_runs(choice), dict(choice.places) or None)
    except reports.ReportError:
        return side_by_side.render(choice.report, printed)


def as_html(choice: Choice) -> str:
    """Return the page as one HTML file that needs no network, as `python -m results render --report` writes it."""
    return html_page(as_markdown(choice), svg.own_against_printed(sections.sections(store(), choice)))


def downloads(choice: Choice) -> None:
    """Offer the report and its numbers in every format."""
    name = "-".join([choice.report, *choice.runs][:_NAMED])
    with st.container(horizontal=True):
        messages.offer("Markdown", f"{name}.md", partial(as_markdown, choice), "report_md", mime="text/markdown")
        messages.offer("HTML", f"{name}.html", partial(as_html, choice), "report_html", mime="text/html")
        for label, (form, mime) in text.WORDS["forms"].items():
            messages.offer(label, f"{name}.{form}", partial(_data, form, choice), f"report_{form}", mime=mime)
    messages.say("report_files")


def _data(form: str, choice: Choice) -> bytes:
    runs = [run.run_id for run, _ in side_by_side.published(choice.report)] + list(choice.runs)
    return export.export(store(), form, export.Selection(run=tuple(runs)))
