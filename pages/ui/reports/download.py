"""Downloads of a report and the compared runs in every format."""

import streamlit as st

from pages.ui.draw import messages
from pages.ui.reports import sections
from pages.ui.reports.choose import Choice, own_runs
from pages.ui.shell.data import store
from results import reports
from results.render import export, svg
from results.render.html import html_page
from results.reports import side_by_side

_NAMED = 3  # at most so many names of the report and runs in a file name
MIME = {"md": "text/markdown", "html": "text/html", "csv": "text/csv", "json": "application/json"}


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
    made = {
        "Markdown": ("md", lambda: as_markdown(choice)),
        "HTML": ("html", lambda: as_html(choice)),
        **{
            label: (form, lambda form=form: _data(form, choice))
            for label, form in (("CSV", "csv"), ("JSON", "json"), ("Parquet", "parquet"))
        },
    }
    with st.container(horizontal=True):
        for label, (form, data) in made.items():
            messages.offer(
                label, f"{name}.{form}", data, f"report_{form}", mime=MIME.get(form, "application/octet-stream")
            )
    st.caption(
        "Markdown and HTML are for reading. CSV, JSON and Parquet hold every number of the report and of the runs.",
        help="Markdown and HTML: this report with its findings, rounded as it prints; HTML is one file with its charts "
        "and works offline. CSV and JSON can be uploaded again. The camera above the chart saves a PNG.",
    )


def _data(form: str, choice: Choice) -> bytes:
    runs = [run.run_id for run, _ in side_by_side.published(choice.report)] + list(choice.runs)
    return export.export(store(), form, export.Selection(run=tuple(runs)))
