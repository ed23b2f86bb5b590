"""What changed between two runs, implementations or GPUs, and is it significant?"""

from collections.abc import Sequence
from functools import partial

import pandas as pd
import streamlit as st

from pages.ui import findings
from pages.ui.compare import choose, gpus, history, imported, verdicts, versions
from pages.ui.draw import messages
from pages.ui.filters import select
from pages.ui.shell import layout
from results.files.journal import JournalError

RUNS, IMPLEMENTATIONS, VERSIONS = "Two runs", "Two implementations", "Two versions"
HISTORY, GPUS, IMPORTED = "History", "GPUs", "Import beside a run"
SECTIONS = {HISTORY: history.section, VERSIONS: versions.section, GPUS: gpus.section, IMPORTED: imported.section}


def with_findings(timing: str | None = None, outcomes: Sequence[str] = ()) -> pd.DataFrame:
    """Return the cells of a timing with these verdicts or all, with the findings against them, which take long."""
    table = verdicts.cells_table(found, findings.voided(sides[:2]))
    return table[(table["timing"] == (timing or table["timing"])) & (table["verdict"].isin(outcomes) | (not outcomes))]


layout.header("compare")
kind = select.segments("Compare", "of", (RUNS, IMPLEMENTATIONS, *SECTIONS))
if kind in SECTIONS:
    SECTIONS[kind]()
    st.stop()

chosen = choose.two_runs() if kind == RUNS else choose.two_implementations()
if chosen is None:
    st.stop()
sides = chosen if kind == RUNS else (chosen[0], chosen[0], chosen[1:])
if len(set(chosen)) < len(chosen):
    st.info("Both sides are the same. Choose another one.", icon=":material/compare_arrows:")
    st.stop()

try:
    found = choose.judged(*sides)
except JournalError as error:
    st.error(str(error), icon=":material/error:")
    st.stop()
if found.cells:
    picture = partial(verdicts.draw_map, chosen[1], chosen[-1]) if kind == IMPLEMENTATIONS else None
    of_timing = verdicts.answer(found, {}, "of_timing", picture)
    timing = of_timing["timing"].iloc[0]
verdicts.remarks(found)
if found.cells:
    there = [outcome for outcome in verdicts.MEANINGS if outcome in set(of_timing["verdict"])]
    wanted = select.bound(st.pills, "Which shapes changed", "verdict", there, selection_mode="multi")
    names = ("before", "after") if kind == RUNS else chosen[1:]
    if wanted:
        verdicts.show_cells(with_findings(timing, wanted), names)
    else:
        messages.folded("Every shape", "changed_shapes", lambda: verdicts.show_cells(with_findings(timing), names))
    messages.folded("Mean speedups", "mean_speedups", lambda: verdicts.means_table(found.means))
messages.folded("Differences in environment", "environment", lambda: verdicts.what_changed(found))
if found.cells:
    messages.download("Download shapes", choose.file_name(*sides), with_findings, "comparison_csv")
messages.command(choose.command(*sides))
