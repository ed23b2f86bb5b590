"""A comparison of an imported table with a run: the shared shapes, and differences in measuring."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.ui.compare.choose import words_of
from pages.ui.draw import messages, tables, text
from pages.ui.filters import select
from pages.ui.shell.data import ask
from results.compare import beside
from results.compare.beside import BesideCell, BesideRow
from results.files import library
from results.query import pages


def section() -> None:
    """Ask for an upload and a run; draw their shared shapes, then the differences in measuring."""
    table = ask(pages.runs)
    uploads = table[(table["source"] == "upload") & (table["numbers"] > 0)]["run_id"].tolist()
    if not uploads:
        st.info("No results of other tools are here yet.", icon=":material/inbox:")
        st.page_link("pages/upload.py", label="Upload a file", icon=":material/upload:")
        return
    left, right = st.columns(2)
    with left:
        upload = select.named_choice("Imported", "upload", uploads, uploads[0], words_of(table))
    partners = _partners(upload, tuple(ask(pages.runs_beside, upload)), library.stamp(library.find(upload)))
    if not partners:
        st.info("No run here has a shape of this import.", icon=":material/inbox:")
        _measure(upload)
        return
    names = [name for name, _, _ in partners]
    with right:
        help = "Runs that share shapes, the closest first."
        run_id = select.named_choice("Compared with", "beside_of", names, names[0], words_of(table), help=help)
    same, like = next((same, like) for name, same, like in partners if name == run_id)
    others = f", and {messages.counted(like, 'shape')} with another batch or other heads, where only TFLOP/s compare"
    st.markdown(f"**{messages.counted(same, 'shared shape')}**{others * bool(like)}.")
    theirs, ours = (library.read(library.find(name)) for name in (upload, run_id))
    found = beside.rows(theirs[1], ours[1])
    modes = list(dict.fromkeys(row.mode or "not stated" for row in found))
    mode = select.segments("Mode", "beside_mode", modes)
    shown = pd.DataFrame([_row(row) for row in found if (row.mode or "not stated") == mode])
    tables.grid(shown, "Shapes of the import and the run")
    st.caption(
        "TFLOP/s counts the unmasked pairs of each row. Times are given if the shape is the same. "
        "No verdicts, because different tools measured the two."
    )
    messages.download("Download", f"beside-{upload}", lambda: shown, "beside_csv")
    st.subheader("Differences in measuring")
    facts = pd.DataFrame(beside.differences(theirs, ours), columns=["fact", "imported", "other"])
    tables.grid(facts, "Differences in how the two were measured")
    if same < len({(row.case, row.mode) for row in found}) or like:
        _measure(upload)


def _measure(upload: str) -> None:
    st.page_link(
        "pages/run_sweep.py",
        label="Measure these shapes on my GPU",
        icon=":material/play_circle:",
        query_params={"cases_of": upload},
    )


@st.cache_data(max_entries=16, show_spinner="Looking for runs of the same shapes")
def _partners(upload: str, runs: tuple[str, ...], stamp: tuple) -> list[tuple[str, int, int]]:
    folders = [library.find(name) for name in runs]
    theirs = library.read(library.find(upload))
    return beside.partners(theirs, library.read_all(folder for folder in folders if folder))


def _row(row: BesideRow) -> dict[str, str]:
    fastest = row.fastest
    found = {"shape": beside.words(row), "fastest": f"{fastest.implementation}" if fastest else "–"}
    for cell in row.cells:
        name = cell.implementation if cell.ours else f"{cell.implementation}, imported"
        found[name] = _cell(cell)
    return found


def _cell(cell: BesideCell) -> str:
    if cell.latency_ms is None:
        return text.status(str(cell.status))
    rate = f"{text.significant(cell.tflops)} TFLOP/s" if cell.tflops else ""
    if cell.same:
        return " · ".join(part for part in (rate, text.ms(cell.latency_ms)) if part)
    return f"{rate} (B{cell.case.batch or '?'} H{cell.case.num_heads or '?'})" if rate else "–"
