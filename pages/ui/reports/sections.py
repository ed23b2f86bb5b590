"""A published report and own runs: tables, numbers, findings, and quotations."""

import re
from collections.abc import Sequence
from functools import partial

import pandas as pd
import streamlit as st

from pages.ui import findings as report_findings
from pages.ui.draw import messages, text
from pages.ui.draw import tables as grids
from pages.ui.reports.choose import Choice, own_runs
from pages.ui.shell.data import store
from results import reports
from results.checks import DOUBTFUL, IMPOSSIBLE, Finding
from results.metrics import METRICS
from results.render import export, svg
from results.render.html import html_page
from results.render.markdown import markdown_table
from results.reports import side_by_side
from results.reports.coverage import coverage as of_tables
from results.reports.coverage import total
from results.reports.layout import Note, Section, TableRow, shipped_notes
from results.store.database import Store

_MARKUP = re.compile(r"#{1,6} |[-=]+\s*$")  # lines that Markdown reads as a heading or a rule
_CODE = re.compile(r"(python|pip|git|import|from) |\w+ = \w+.*\)\s*$")
_USUAL = ("0", "normal", "attention")  # values of settings that are not written
_FIELDS = {"dtype": "{}", "subject": "{}", "num_kv_heads": "{} kv heads", "num_heads": "{} heads"}
_SETTINGS = text.WORDS["report_settings"]
_NAMED = 3  # at most so many names of the report and runs in a file name


def coverage(found: Sequence[Section], problems: Sequence[Finding], choice: Choice) -> None:
    """Count the rows of the report that the runs fill, and its impossible numbers."""
    whole = total(of_tables(found))
    impossible, doubtful = (sum(finding.weight == weight for finding in problems) for weight in (IMPOSSIBLE, DOUBTFUL))
    by_formula = f"{whole.by_formula} more by formula" if whole.by_formula else ""
    facts = {
        "tables": (str(len(of_tables(found))),),
        "rows": (f"{whole.filled} of {whole.rows}", by_formula),
        "cells": (f"{whole.filled_cells} of {whole.cells}",),
        "impossible": (str(impossible), f"{doubtful} doubtful"),
    }
    grids.show_facts(messages.fact(name, *said) for name, said in facts.items())
    if choice.runs and not whole.filled:
        wanted = ", ".join(sorted({own for _, own in choice.places}))
        messages.say("none_of_the_rows", runs=text.plain(", ".join(choice.runs)), wanted=text.plain(wanted))
        messages.link("run_sweep", "Run sweep", "play_circle")


def tables(found: Sequence[Section], choice: Choice) -> None:
    """Draw every table in the layout of the report, with published / ours in each cell, and what is not measured."""
    bold = any("**" in cell for section in found for row in section.rows for cell in row.own or ())
    ours = f"Each cell: published / ours.{' Bold: the best of ours in its row.' if bold else ''}"
    st.caption(ours if choice.runs else "Values as printed.")
    for section in found:
        if section.title:
            st.markdown(f"**{text.plain(section.title)}**")
        both = bool(choice.runs) or section.by_formula
        rows = [
            [*map(text.plain, row.labels), *(_cell(section, row, at, both=both) for at in range(len(section.columns)))]
            for row in section.rows
        ]
        header = [text.plain(name) for name in (*section.labels, *section.columns)]
        alt = f"{section.title or choice.report}, {'published and ours' if both else 'as printed'}"
        st.table(pd.DataFrame(rows, columns=header), hide_index=True, alt=alt)
        said = ", ".join(filter(None, [side_by_side.rows_by_run(section), setting_words(section.setting)]))
        if said and both:
            st.caption(f"{'By formula' if section.by_formula else 'Ours'}: {text.plain(said)}.")
        if section.gaps:
            with st.expander("Missing cells: reasons and commands", icon=":material/science:"):
                for gap in section.gaps:
                    st.markdown(f"{text.plain(gap.words)}.")
                    st.code(gap.command, language=None, wrap_lines=True)


def setting_words(setting: str) -> str:
    """Return a setting in words, without usual values and names of fields."""
    said = []
    for part in setting.split(", "):
        name, named, value = part.partition("=")
        if not named:
            said.append(part)
        elif value not in _USUAL:
            words = _FIELDS.get(name, f"{name.replace('_', ' ')} {{}}")
            one = words.removesuffix("s") if value == "1" else words
            said.append(_SETTINGS.get(part) or one.format(value))
    return ", ".join(said)


def numbers(found: Sequence[Section]) -> pd.DataFrame:
    """Return both numbers of every cell as data."""
    rows = [{"table": section.title, **pair} for section in found for pair in side_by_side.pairs(section)]
    return pd.DataFrame(rows).dropna(axis="columns", how="all")


def numbers_table(table: pd.DataFrame) -> None:
    """Draw both numbers of every cell as columns that sort."""
    names = {name: metric.label for name, metric in METRICS.items()}
    shown = table.assign(metric=[names.get(name, name) for name in table["metric"]])
    grids.grid(shown, "Published number and ours of every cell", grids.declared("report_numbers"))
    st.caption("Statistic: as the report printed it; ours is the median, in a column with deviations the mean.")


def findings_of(choice: Choice) -> None:
    """Draw the findings against the numbers of the report."""
    runs = [run.run_id for run, _ in side_by_side.published(choice.report)]
    report_findings.section(runs, key="report_findings")
    st.caption("A finding never hides or changes a number. In a terminal: `python -m results check`.")
    messages.link("findings", "Findings in all runs", "fact_check")


def in_words(report: str, found: Sequence[Section]) -> None:
    """Quote the text of the report, and below each part the answers of our runs to its claims."""
    notes = shipped_notes(report)
    claims = [row for section in found if section.title == "Claims" for row in section.rows]
    places = [_note_of(row.labels[0], notes) for row in claims]
    for at, note in enumerate([*notes, None]):
        answers = [_answered(row) for row, place in zip(claims, places, strict=True) if place == at]
        if note or answers:
            st.markdown(quote(note) if note else "**Claims elsewhere in the report**")
            st.markdown("\n".join(answers))
    messages.say("report_words", badges=messages.source_badges(["published"]))


def _note_of(where: str, notes: Sequence[Note]) -> int:
    """Return the index of the quote that has most words of the place of a claim, or one more than the last."""
    first, *more = where.split(" / ")
    said = [f"text {note.section} {note.lines} {note.header} {note.rows}" for note in notes]
    found = [(first in words) * (1 + sum(part in words for part in more)) for words in said]
    return found.index(max(found)) if any(found) else len(notes)


def _answered(row: TableRow) -> str:
    own = f"**{text.plain(row.own[0])}**" if row.own and row.own[0] else "not measured"
    claimed = text.plain(row.printed[0].replace("**", ""))
    return f"- :material/fact_check: {text.plain(row.labels[0])}: {claimed} · ours: {own}"


def quote(note: Note) -> str:
    """Return text of a report as a quote block, with code as code and without headings or rules."""
    heading = [f"**{text.plain(note.section)}**", ""] if note.section else []
    if not note.lines:
        lines = markdown_table(note.header, note.rows).splitlines()
    elif any(line.startswith("# ") for line in note.lines) and any(_CODE.match(line) for line in note.lines):
        lines = ["```", *note.lines, "```"]
    else:
        lines = [f"\\{line}" if _MARKUP.match(line) else line for line in note.lines]
    return "\n".join(f"> {line}" for line in [*heading, *lines])


def sections(store: Store, choice: Choice) -> list[Section]:
    """Return the tables of the choice; a question for `ask`."""
    return side_by_side.sections(
        choice.report, side_by_side.published(choice.report), own_runs(choice), dict(choice.places) or None
    )


def findings(store: Store, report: str) -> list[Finding]:
    """Return the findings of a report; a question for `ask`."""
    return side_by_side.findings(side_by_side.published(report))


def _cell(section: Section, row: TableRow, at: int, *, both: bool) -> str:
    """Write a cell as plain text with the best value in bold: ours, or the report's if there are no runs."""
    said = row.printed[at]
    if both:
        said = side_by_side.cell(section, row, at).replace(" / ", "\u00a0/ ")  # two lines at most
    return "**".join(text.plain(part) for part in said.split("**"))


def as_markdown(choice: Choice) -> str:
    """Return the page as Markdown; without the runs if they hold nothing of the report."""
    printed = side_by_side.published(choice.report)
    try:
        return side_by_side.render(choice.report, printed, own_runs(choice), dict(choice.places) or None)
    except reports.ReportError:
        return side_by_side.render(choice.report, printed)


def as_html(choice: Choice) -> str:
    """Return the page as one HTML file that needs no network, as `python -m results render --report` writes it."""
    return html_page(as_markdown(choice), svg.own_against_printed(sections(store(), choice)))


def downloads(choice: Choice) -> None:
    """Offer the report and its numbers in every format."""
    name = "-".join([choice.report, *choice.runs][:_NAMED])
    with st.container(horizontal=True):
        messages.offer("Markdown", f"{name}.md", partial(as_markdown, choice), "report_md")
        messages.offer("HTML", f"{name}.html", partial(as_html, choice), "report_html")
        for label, form in text.WORDS["forms"].items():
            messages.offer(label, f"{name}.{form}", partial(_data, form, choice), f"report_{form}")
    messages.say("report_files")


def _data(form: str, choice: Choice) -> bytes:
    runs = [run.run_id for run, _ in side_by_side.published(choice.report)] + list(choice.runs)
    return export.export(store(), form, export.Selection(run=tuple(runs)))
