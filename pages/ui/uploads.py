"""One uploaded file on the page: what was understood, what was rejected and why, and the import."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.ui import findings, messages, words
from pages.ui.data import store
from results import journal
from results.checks import Finding
from results.formats import Understanding, UploadError, import_understanding, understand

ENDINGS = ("csv", "tsv", "txt", "md", "json", "jsonl")
LIMIT_MB = 50
EXAMPLE = """gpu,implementation,batch,num_heads,seqlen,head_dim,dtype,causal,mode,timing,latency_ms,peak_memory_mb
My GPU,torch_naive,1,8,1024,64,bfloat16,true,fwd,kernel,0.412,21.5
My GPU,mine,1,8,1024,64,bfloat16,true,fwd,kernel,0.103,4.5
My GPU,torch_naive,1,8,65536,64,bfloat16,true,fwd,kernel,OOM,OOM
"""
_SHOWN_ROWS = 200


def show(filename: str, data: bytes) -> Understanding | None:
    """Draw what a file was understood as; None if it was not."""
    with st.container(border=True):
        st.markdown(f"**{words.plain(filename)}**")
        if len(data) > LIMIT_MB * 1024 * 1024:
            st.error(f"{len(data) / 2**20:.0f} MB is more than the {LIMIT_MB} MB that are taken. Split the file.")
            return None
        try:
            found = _understand(filename, data)
        except UploadError as error:
            st.error(words.plain(str(error)), icon=":material/error:")
            return None
        _summary(found)
        if found.measurements:
            _findings_of(found)
        return found


def overview(understood: list[Understanding | None]) -> None:
    """Several files in one table: whose numbers each holds, and what stands against them."""
    rows = [
        {
            "file": found.upload.filename,
            "machine": ", ".join(sorted({run.gpu_name or "not said" for run in found.runs})),
            "runs": len(found.runs),
            "numbers": len(found.measurements),
            "rejected": len(found.rejected),
            "findings": len(_checked(found.sha256, found)),
        }
        for found in understood
        if found is not None
    ]
    if len(rows) > 1:
        st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Every file with its machine, numbers and findings")


def import_all(ready: list[Understanding]) -> None:
    """Import each file, whole or not at all, and remember for the next drawing what came of it."""
    outcome = []
    for found in ready:
        try:
            names, problem = import_understanding(journal.home(), found), None
        except (UploadError, journal.JournalError) as error:
            names, problem = [], str(error)
        outcome.append((found.upload.filename, list(names), len(found.measurements), problem))
    store()
    st.session_state["imported"] = outcome


def show_outcome(outcome: list[tuple[str, list[str], int, str | None]]) -> None:
    """What the import did, file by file."""
    for filename, runs, numbers, problem in outcome:
        if problem:
            st.error(f"{words.plain(filename)} was not imported: {words.plain(problem)}", icon=":material/error:")
        else:
            text = f"{messages.counted(numbers, 'number')} in {messages.counted(len(runs), 'run')}"
            st.success(f"{words.plain(filename)}: {text} ({', '.join(runs)}).", icon=":material/check_circle:")
    with st.container(horizontal=True):
        st.page_link("pages/overview.py", label="Overview", icon=":material/leaderboard:")
        st.page_link("pages/runs.py", label="Runs", icon=":material/history:")


@st.cache_data(max_entries=16, show_spinner="Reading the file")
def _understand(filename: str, data: bytes) -> Understanding:
    return understand(filename, data)


@st.cache_data(max_entries=16, show_spinner="Checking every number")
def _checked(sha256: str, _found: Understanding) -> list[Finding]:
    return findings.of_upload(_found)


def _findings_of(found: Understanding) -> None:
    problems = _checked(found.sha256, found)
    if not problems:
        st.caption(":material/check_circle: No number contradicts arithmetic, its device or the other rows.")
        return
    counts = {weight: sum(problem.weight == weight for problem in problems) for weight in findings.WEIGHTS}
    with st.expander(f"What the checks say: {findings.badges(counts)}", icon=":material/fact_check:"):
        rows = [
            {"weight": problem.weight, "finding": problem.sentence, "where": problem.origin}
            for problem in sorted(problems, key=lambda problem: list(findings.WEIGHTS).index(problem.weight))
        ]
        config = {"finding": st.column_config.TextColumn("finding", width="large")}
        alt = "What the checks say about this file"
        st.dataframe(pd.DataFrame(rows[:_SHOWN_ROWS]), hide_index=True, alt=alt, column_config=config, row_height=84)
        st.caption("A finding keeps no number from being imported.")


def _summary(found: Understanding) -> None:
    st.markdown(
        f"{found.description} :gray-badge[{found.format}] "
        f":green-badge[{messages.counted(len(found.measurements), 'number')}] "
        f":blue-badge[{messages.counted(len(found.runs), 'run')}] "
        + (f":red-badge[{messages.counted(len(found.rejected), 'rejected value')}]" if found.rejected else "")
    )
    for text in found.assumptions:
        st.caption(f":material/info: Assumed: {words.plain(text)}")
    for text in found.questions:
        st.caption(f":material/help: Not said: {words.plain(text)}")
    if found.columns:
        with st.expander("Columns and what they are read as", icon=":material/view_column:"):
            rows = [{"column": c.header, "read as": c.meaning or "ignored"} for c in found.columns]
            st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Column mapping")
    if found.rejected:
        _rejections(found)
    if found.measurements:
        with st.expander("First numbers", icon=":material/table_rows:"):
            st.dataframe(_preview(found), hide_index=True, alt="First numbers of the file")


def _rejections(found: Understanding) -> None:
    table = pd.DataFrame([vars(r) for r in found.rejected], columns=["line", "column", "value", "reason"])
    st.dataframe(table.head(_SHOWN_ROWS), hide_index=True, alt="Rejected values with line, column and reason")
    name = f"rejected-{found.sha256[:8]}"
    messages.download("Download rejected values", name, lambda: table, f"rejected_{found.sha256}")


def _preview(found: Understanding) -> pd.DataFrame:
    rows = [
        {
            "implementation": m.implementation,
            "metric": m.metric,
            "value": m.value,
            "status": str(m.status),
            "mode": m.mode,
            "timing": m.timing,
            "seqlen": m.case.seqlen_q,
            "head_dim": m.case.head_dim,
            "dtype": m.case.dtype,
            "causal": m.case.causal,
            "batch": m.case.batch,
            "num_heads": m.case.num_heads,
        }
        for m in found.measurements[:_SHOWN_ROWS]
    ]
    return pd.DataFrame(rows).dropna(axis="columns", how="all")
