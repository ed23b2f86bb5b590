"""Which numbers are implausible, and why?"""

import pandas as pd
import streamlit as st

from pages.ui import findings
from pages.ui.draw import messages
from pages.ui.filters import select
from pages.ui.shell import layout


def show(table: pd.DataFrame) -> None:
    """Draw how many findings there are, and a line a rule and run that opens into them."""
    headline(table)
    findings.by_rule(table, key="findings")
    st.caption("One line per rule and run. Select a line to list its findings, and a finding to see its numbers.")
    saved = table.drop(columns="measurement_ids").rename(columns={"weight": "severity", "place": "run_or_report"})
    messages.download("Download findings", "findings", lambda: saved, "findings_csv")


def choose(found: findings.FoundSoFar) -> pd.DataFrame:
    """Ask for severity, run or report, and rule; return the findings that match all of them."""
    left, middle, right = st.columns([3, 4, 4])
    weights, titles = [*findings.WEIGHTS], sorted(findings.TITLES.values())
    wanted = select.bound(left.pills, "Severity", "weight", weights, selection_mode="multi", wrap=True)
    places = select.bound(middle.multiselect, "Run or report", "place", found.places, placeholder="All")
    rules = select.bound(right.multiselect, "Rule", "rule", titles, placeholder="All")
    table = found.table
    for column, chosen in (("weight", wanted), ("place", places), ("title", rules)):
        table = table[table[column].isin(chosen)] if chosen else table
    return table


def headline(table: pd.DataFrame) -> None:
    """Say how many findings there are, of which severity."""
    counts = {weight: int((table["weight"] == weight).sum()) for weight in findings.WEIGHTS}
    reach = table["place"].nunique()
    where = "one run or report" if reach == 1 else f"{reach} runs and reports"
    st.markdown(
        f"## {messages.counted(len(table), 'finding')} in {where}\n\n{findings.badges(counts)}",
        help=" · ".join(f"{weight}: {meaning}" for weight, meaning in findings.WEIGHTS.items())
        + ". A finding never hides or changes a number.",
    )


layout.header("findings")
progress = st.empty()
found = findings.so_far()
if found.left:
    groups = found.checked + found.left
    progress.progress(found.checked / groups, text=f"Checked {found.checked} of {groups} runs and reports")
chosen = choose(found) if found.left or len(found.table) else found.table
if len(chosen):
    show(chosen)
elif len(found.table) and not found.left:
    st.info("No finding matches all of these filters. Clear one of them.", icon=":material/filter_alt_off:")
elif not found.left:
    messages.say("no_finding")
messages.folded("What is looked for", "rules", findings.rules_table, ":material/rule:")
messages.command("python -m results check --all", "In a terminal, with every sentence")
if found.left:
    st.rerun()
