"""A comparison of an imported table with a run: the shared shapes, and differences in measuring."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.compare import gpus
from pages.ui.draw import charts, messages, tables, text
from pages.ui.draw.titles import ChartTitle, of_runs
from pages.ui.filters import select
from pages.ui.runs.listing import words_of
from pages.ui.shell.data import ask, records_of
from results.compare import beside
from results.compare.beside import BesideCell, BesideRow
from results.files import library
from results.query import pages
from results.records import Measurement, Run

_MEASURE = "run_sweep", "Measure these shapes on my GPU", "play_circle"
_MOST = 500  # shapes that are compared
RunRows = tuple[Run, Sequence[Measurement]]


def section() -> None:
    """Ask for an upload and a run; draw their shared shapes, then the differences in measuring."""
    table = ask(pages.runs)
    uploads = table[(table["source"] == "upload") & (table["numbers"] > 0)]["run_id"].tolist()
    if not uploads:
        st.info("No results of other tools are here yet.", icon=":material/inbox:")
        messages.link("upload", "Upload a file", "upload")
        return
    left, right = st.columns(2)
    with left:
        upload = select.named_choice("Imported", "upload", uploads, uploads[0], words_of(table))
    partners = _partners(upload, tuple(ask(pages.runs_beside, upload)), library.stamp(library.find(upload)))
    if not partners:
        st.info("No run here has a shape of this import.", icon=":material/inbox:")
        messages.link(*_MEASURE, cases_of=upload)
        return
    names = [name for name, _, _ in partners]
    with right:
        help = "Runs that share shapes, the closest first."
        run_id = select.named_choice("Compared with", "beside_of", names, names[0], words_of(table), help=help)
    theirs, ours, found = _side_by_side(upload, next(partner for partner in partners if partner[0] == run_id))
    modes = list(dict.fromkeys(row.mode or "not stated" for row in found))
    mode = select.segments("Mode", "beside_mode", modes)
    shown = pd.DataFrame([_row(row) for row in found if (row.mode or "not stated") == mode])
    tables.grid(shown, "Shapes of the import and the run")
    messages.say("imported")
    messages.download("Download", f"beside-{upload}", lambda: shown, "beside_csv")
    st.subheader("Differences in measuring")
    facts = pd.DataFrame(beside.differences(theirs, ours), columns=["fact", "imported", "other"])
    tables.grid(facts, "Differences in how the two were measured")
    messages.link(*_MEASURE, cases_of=upload)


def nearest(upload: str) -> None:
    """Draw an import next to the run that is closest to it, or say what it must state to be compared."""
    partners = _partners(upload, tuple(ask(pages.runs_beside, upload)), library.stamp(library.find(upload)))
    if partners:
        _side_by_side(upload, partners[0])
    else:
        rows = [vars(row.case) | {"mode": row.mode} for row in records_of(upload)[1]]
        kind = ("dtype", "head_dim", "causal", "mode")
        missing = [name for name in kind if all(row[name] is None for row in rows)]
        said = f"It does not state {', '.join(missing)}" if missing else f"No run here has its {', '.join(kind)}"
        st.info(f"{said}, so there is nothing to compare it with.", icon=":material/help:")


def _side_by_side(upload: str, partner: tuple[str, int, int]) -> tuple[RunRows, RunRows, list[BesideRow]]:
    """Draw the rates of an import relative to a run by shape; return both sides and their shared shapes."""
    run_id, same, like = partner
    theirs, ours = (records_of(name) for name in (upload, run_id))
    found = beside.rows(theirs[1], ours[1], _MOST)
    others = f" and {messages.counted(like, 'shape')} with another batch, heads or length, where only TFLOP/s compare"
    on = text.plain(ours[0].gpu_name or run_id)
    st.markdown(f"Next to {on}: **{messages.counted(same, 'shared shape')}**{others * bool(like)}.")
    if same + like > _MOST:
        st.caption(f"The first {_MOST} of them are shown.")
    ratios = [ratio for row in found if (ratio := _ratio(row))]
    if ratios:
        what = f"TFLOP/s of the import over those of {ours[0].gpu_name or run_id}, the fastest of each"
        title = ChartTitle(what, (), of_runs([upload, run_id]))
        charts.show(gpus.ratio_chart(ratios), title, key="beside_chart", alt=f"{what}, by shape, with a line at 1")
    return theirs, ours, found


def _ratio(row: BesideRow) -> dict[str, Any] | None:
    """Return the fastest rate of the import over the fastest of the run; None if one is not known."""
    theirs, ours = (
        max((cell.tflops for cell in row.cells if cell.ours == own and not cell.reduced and cell.tflops), default=None)
        for own in (False, True)
    )
    if not theirs or not ours:
        return None
    sizes = {"seqlen": row.case.seqlen_q, "batch": row.case.batch, "num_heads": row.case.num_heads}
    series = text.MODE_WORDS.get(row.mode or "", row.mode or "mode not stated")
    return sizes | {"gpu": f"{series}, head_dim {row.case.head_dim}", "ratio": theirs / ours}


@st.cache_data(max_entries=16, show_spinner="Looking for runs of the same shapes")
def _partners(upload: str, runs: tuple[str, ...], stamp: tuple) -> list[tuple[str, int, int]]:
    folders = [library.find(name) for name in runs]
    return beside.partners(records_of(upload), library.read_all(filter(None, folders), metrics=["latency_ms"]))


def _row(row: BesideRow) -> dict[str, str]:
    fastest = row.fastest
    found = {"shape": beside.words(row), "fastest": f"{fastest.implementation}" if fastest else "–"}
    for cell in row.cells:
        name = cell.implementation if cell.ours else f"{cell.implementation}, imported"
        found[name] = _cell(cell, row.case.seqlen_q)
    return found


def _cell(cell: BesideCell, seqlen: int | None = None) -> str:
    if cell.latency_ms is None:
        return text.status(str(cell.status))
    rate = f"{text.significant(cell.tflops)} TFLOP/s" if cell.tflops else ""
    if cell.same:
        return " · ".join(part for part in (rate, text.ms(cell.latency_ms)) if part)
    sizes = f"B{cell.case.batch or '?'} H{cell.case.num_heads or '?'}"
    sizes += f" seqlen {text.size(cell.case.seqlen_q)}" * (seqlen not in (None, cell.case.seqlen_q))
    return f"{rate} ({sizes})" if rate else "–"
