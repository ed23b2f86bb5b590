"""One uploaded file on the page: what was understood, what was rejected and why, and the import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import streamlit as st

from pages.ui import findings
from pages.ui.draw import messages, text
from pages.ui.shell.data import store
from results.checks import Finding
from results.files import journal
from results.formats import (
    Standing,
    Understanding,
    UploadError,
    import_understanding,
    left_alone,
    standing,
    understand,
)
from results.levels import level_of

ENDINGS = ("csv", "tsv", "txt", "log", "md", "json", "jsonl", "zip", "tar", "gz", "tgz")
LIMIT_MB = 50
EXAMPLE = """gpu,implementation,batch,num_heads,seqlen,head_dim,dtype,causal,mode,timing,latency_ms,peak_memory_mb
My GPU,torch_naive,1,8,1024,64,bfloat16,true,fwd,kernel,0.412,21.5
My GPU,mine,1,8,1024,64,bfloat16,true,fwd,kernel,0.103,4.5
My GPU,torch_naive,1,8,65536,64,bfloat16,true,fwd,kernel,OOM,OOM
"""
_SHOWN_ROWS = 200


@dataclass(frozen=True)
class Imported:
    """What came of importing a file."""

    filename: str
    runs: tuple[str, ...]  # that are new
    numbers: int  # in those
    left: tuple[str, ...]  # what was not added, and why
    problem: str | None


def show(filename: str, data: bytes) -> Understanding | None:
    """Draw what a file was understood as; None if it was not."""
    with st.container(border=True):
        st.markdown(f"**{text.plain(filename)}**")
        if len(data) > LIMIT_MB * 1024 * 1024:
            st.error(f"{len(data) / 2**20:.0f} MB is more than the {LIMIT_MB} MB that are taken. Split the file.")
            return None
        try:
            found = _understand(filename, data)
        except UploadError as error:
            st.error(text.plain(str(error)), icon=":material/error:")
            return None
        _summary(found)
        for sentence in left_alone(_standing(found)):
            st.info(text.plain(sentence), icon=":material/task_alt:")
        if found.measurements:
            _findings_of(found)
        return found


def overview(understood: list[Understanding | None]) -> None:
    """Draw several files in one table: whose numbers each holds, and what stands against them."""
    rows = [
        {
            "file": found.upload.filename,
            "machine": ", ".join(sorted({run.gpu_name or "not said" for run in found.runs})),
            "runs": len(found.runs),
            "numbers": len(found.measurements),
            "new": new_numbers(found),
            "rejected": len(found.rejected),
            "findings": len(_checked(found.sha256, found)),
        }
        for found in understood
        if found is not None
    ]
    if len(rows) > 1:
        st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Every file with its machine, numbers and findings")


def new_numbers(found: Understanding) -> int:
    """Count the numbers that an import would add."""
    return sum(run.numbers for run in _standing(found) if not run.here)


def ask_gpu(ready: list[Understanding]) -> None:
    """Ask for the GPU of the files that do not name one, if there are such."""
    nameless = [found.upload.filename for found in ready if any(run.gpu_name is None for run in found.runs)]
    if nameless:
        st.text_input(
            f"GPU of {text.plain(', '.join(nameless))}",
            key="upload_gpu",
            placeholder="such as NVIDIA H100 80GB HBM3; empty: it stays unknown",
            help="Only for files that do not name a GPU. A peak is known for names as NVIDIA's tools print them.",
        )


def import_all(ready: list[Understanding]) -> None:
    """Import each file, all but its rejected values, and remember for the next drawing what came of it."""
    outcome, gpu_name = [], st.session_state.get("upload_gpu", "").strip() or None
    for found in ready:
        left = left_alone(standing(journal.home(), found))
        try:
            names, problem = import_understanding(journal.home(), found, gpu_name=gpu_name, skip_rejected=True), None
        except (UploadError, journal.JournalError) as error:
            names, problem = [], str(error)
        numbers = sum(measurement.run_id in names for measurement in found.measurements)
        outcome.append(Imported(found.upload.filename, tuple(names), numbers, tuple(left), problem))
    store()
    st.session_state["imported"] = outcome


def show_outcome(outcome: list[Imported]) -> None:
    """Say what the import did, file by file."""
    for done in outcome:
        name = text.plain(done.filename)
        if done.problem:
            st.error(f"{name} was not imported: {text.plain(done.problem)}", icon=":material/error:")
            continue
        if done.runs:
            added = f"{messages.counted(done.numbers, 'number')} in {messages.counted(len(done.runs), 'run')}"
            st.success(f"{name}: {added} ({text.plain(', '.join(done.runs))}).", icon=":material/check_circle:")
        for sentence in done.left:
            st.info(f"{name}: {text.plain(sentence)}", icon=":material/task_alt:")
    with st.container(horizontal=True):
        st.page_link("pages/overview.py", label="Overview", icon=":material/leaderboard:")
        st.page_link("pages/runs.py", label="Runs", icon=":material/history:")


@st.cache_data(max_entries=16, show_spinner="Reading the file")
def _understand(filename: str, data: bytes) -> Understanding:
    return understand(filename, data)


def _standing(found: Understanding) -> list[Standing]:
    return _stood(found.sha256, str(journal.home()), str(store().version()), found)


@st.cache_data(max_entries=16, show_spinner=False)
def _stood(sha256: str, home: str, version: str, _found: Understanding) -> list[Standing]:
    return standing(Path(home), _found)


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
    for sentence in found.assumptions:
        st.caption(f":material/info: Assumed: {text.plain(sentence)}")
    for sentence in found.questions:
        st.caption(f":material/help: Not said: {text.plain(sentence)}")
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
            "seqlen": getattr(m.case, level_of(m.case).columns.field),
            "head_dim": m.case.head_dim,
            "dtype": m.case.dtype,
            "causal": m.case.causal,
            "batch": m.case.batch,
            "num_heads": m.case.num_heads,
        }
        for m in found.measurements[:_SHOWN_ROWS]
    ]
    return pd.DataFrame(rows).dropna(axis="columns", how="all")
