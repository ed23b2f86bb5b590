"""Empty states, captions, downloads: what every view says about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pandas as pd
import streamlit as st

from pages.ui.draw import text
from pages.ui.draw.titles import ChartTitle, with_slice
from pages.ui.shell import terms
from pages.ui.shell.data import ask, store
from results.query import pages, pairing
from results.render.export import Selection, export
from results.render.slice import outdated_words
from results.slice import AS_PUBLISHED, Filters

RUN_COLUMNS = ("source", "title", "run_id", "created", "numbers", "torch", "triton", "driver", "protocol", "command")

COUNTING_RUN = (
    "Every shape shows one run: a run with the baseline before one without. Of those, the code that was measured last "
    "counts (kernels, PyTorch, Triton and protocol), of its runs the one with a time of most implementations, and of "
    "equals the newest."
)
_OFFERED = 4


def nothing_here(chosen: Filters, what: str = "latencies", metrics: tuple[str, ...] = ("latency_ms",)) -> None:
    """Say why a view is empty and what to do about it; offer the devices that have something."""
    others = [] if chosen.gpu is None else ask(pages.gpus_with, metrics)["gpu"].tolist()
    if chosen.gpu is None:
        sentence = "No results yet. Run a sweep on this machine, or upload results from another one."
    elif chosen.gpu not in others:
        sentence = f"No {what} {'were' if what.endswith('s') else 'was'} measured on the {text.plain(chosen.gpu)}."
    else:
        timing = f"{chosen.timing or 'any'} timing"
        sentence = f"No {what} for this selection: {text.slice_words(chosen)}, {timing}. {_what_to_clear(chosen)}."
    st.info(sentence, icon=":material/filter_alt_off:")
    with st.container(horizontal=True, vertical_alignment="center"):
        for name in [name for name in others if name != chosen.gpu][:_OFFERED]:
            st.button(text.plain(name), key=f"offer_{name}", on_click=_take_gpu, args=(name,))
        st.page_link("pages/run_sweep.py", label="Run sweep", icon=":material/play_circle:")
        st.page_link("pages/upload.py", label="Upload results", icon=":material/upload:")


def nothing_measured(sentence: str, icon: str, sweep: str, *, first_look: str | None = None) -> None:
    """Say that no run holds what the page is about, and which sweep measures it.

    The form opens at `first_look`, a sweep that any machine can run, if there is one.
    """
    st.info(sentence, icon=icon)
    st.code(f"python -m runner run {sweep}", language=None)
    with st.container(horizontal=True):
        link = {"sweep": first_look or sweep}
        st.page_link("pages/run_sweep.py", label="Run sweep", icon=":material/play_circle:", query_params=link)
        st.page_link("pages/upload.py", label="Upload results", icon=":material/upload:")


def _take_gpu(name: str) -> None:
    st.session_state["gpu"] = name
    st.rerun()  # all of it: the other filters offer what this GPU has


def slice_caption(
    chosen: Filters, *, rows: int, statistic: str, note: str = "", sources: Iterable[str] | None = None
) -> None:
    """Say under a chart of speed whose numbers it shows: the slice, how many cells, which statistic.

    Sources are asked for where the page does not have them.
    """
    timing = f"{text.TIMING_WORDS.get(chosen.timing or '', '')} {terms.link('timing')}"
    counts = f"{counted(rows, 'shape')} · {statistic} · speedup within one run {terms.link('speedup')}"
    about = f"{text.slice_words(chosen)} · {timing} · {counts}"
    found = ask(pages.provenance, chosen)["source"] if sources is None else sources
    badges = source_badges(sorted({part for names in found if not text.missing(names) for part in names.split(", ")}))
    st.caption(f"{badges} {about}. {note}")


def provenance(chosen: Filters, *, of_times: bool = True) -> None:
    """Draw which runs the numbers come from, by source, once it is opened; of times say where newer code is not."""
    if of_times:
        _outdated(chosen)
    label, icon = "Where these numbers come from", ":material/verified:"
    with st.expander(label, icon=icon, key="provenance", on_change="rerun") as where:
        if not where.open:
            return
        runs = ask(pages.provenance, chosen)
        shown = runs.assign(source=[text.SOURCE_WORDS[source] for source in runs["source"]])
        st.dataframe(
            shown[[*RUN_COLUMNS]],
            hide_index=True,
            alt="Runs behind this view",
            column_config={
                "created": st.column_config.DatetimeColumn("created (UTC)", format="YYYY-MM-DD HH:mm"),
                "command": st.column_config.TextColumn("command", width="large"),
            },
        )
        st.caption(COUNTING_RUN)


def _outdated(chosen: Filters) -> None:
    """Say in how many shapes newer code was measured that cannot be compared."""
    if words := outdated_words(ask(pairing.outdated, chosen), chosen.baseline, text.plain):
        st.caption(f":material/history: {words}.")


def source_badges(parts: list[str]) -> str:
    """Return Markdown badges that tell published, uploaded and own numbers apart."""
    colours = {"local": "green", "published": "blue", "upload": "violet", "shipped": "orange"}
    return " ".join(f":{colours[p]}-badge[{text.SOURCE_ICONS[p]} {text.SOURCE_WORDS[p]}]" for p in parts)


def download(label: str, name: str, table: Callable[[], pd.DataFrame], key: str) -> None:
    """Offer a CSV of the view, made only when it is asked for."""
    st.download_button(
        label,
        data=lambda: safe_csv(table()),
        file_name=f"{name}.csv",
        mime="text/csv",
        on_click="ignore",
        icon=":material/download:",
        key=key,
    )


def download_slice(label: str, title: ChartTitle, chosen: Filters, table: Callable[[], pd.DataFrame], key: str) -> None:
    """Offer a CSV whose file name and first columns say of which slice it is, made only when it is asked for."""
    download(label, title.file_name, lambda: with_slice(chosen, table()), key)


def download_latencies(chosen: Filters) -> None:
    """Offer the latencies of the slice's runs in the CSV that another attnbench takes in as those very runs."""

    def made() -> bytes:
        runs = tuple(ask(pages.provenance, chosen)["run_id"])
        timings = () if chosen.timing in (None, AS_PUBLISHED) else (chosen.timing,)
        modes = (chosen.mode,) if chosen.mode else ()
        return export(store(), "csv", Selection(run=runs, mode=modes, timing=timings, metric=("latency_ms",)))

    st.download_button(
        "Download latencies with their runs",
        data=made,
        file_name="latencies.csv",
        mime="text/csv",
        on_click="ignore",
        icon=":material/download:",
        key="latencies_csv",
        help="Upload the file to another attnbench, and it shows the same numbers.",
    )


def download_text(label: str, name: str, content: str) -> None:
    """Offer a small file as it is."""
    st.download_button(label, content, file_name=name, mime="text/csv", on_click="ignore", icon=":material/download:")


def safe_csv(table: pd.DataFrame) -> bytes:
    """Write CSV whose text cells no spreadsheet takes for a formula."""
    safe = table.copy()
    for column in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[column]) and not pd.api.types.is_datetime64_any_dtype(safe[column]):
            safe[column] = [_plain(value) for value in safe[column]]
    return safe.to_csv(index=False).encode()


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: 1 run, 2 runs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _plain(value: object) -> object:
    if hasattr(value, "tolist"):
        value = " ".join(str(item) for item in value.tolist())
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value


def _what_to_clear(chosen: Filters) -> str:
    narrowed = [name for name, value in vars(chosen).items() if isinstance(value, tuple) and value]
    return f"Clear {', '.join(narrowed)}" if narrowed else "Choose another mode or timing"
