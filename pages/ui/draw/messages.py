"""Empty states, captions and downloads of all views."""

import shlex
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.draw import tables, text
from pages.ui.draw.titles import ChartTitle, with_slice
from pages.ui.shell import terms
from pages.ui.shell.data import ask, store
from results.paths import toml_of
from results.query import pages, pairing
from results.render.export import Selection, export
from results.render.slice import outdated_words
from results.slice import AS_PUBLISHED, Filters

RUN_COLUMNS = ("source", "title", "run_id", "created", "numbers", "torch", "triton", "driver", "protocol", "command")
_OFFERED = 4
_SENTENCES = toml_of(__file__, "sentences.toml")
SAID, _NOTHING, _FACTS = (_SENTENCES[kind] for kind in ("said", "nothing", "facts"))
_MIMES = {"csv": "text/csv", "json": "application/json", "md": "text/markdown", "html": "text/html", "py": "text/plain"}


def say(name: str, /, **given: object) -> None:
    """Draw a sentence of sentences.toml: a caption, or a message if it has an icon; `given` are the names in braces."""
    said = {part: words.format(**given) for part, words in SAID[name].items()}
    if "icon" in said:
        getattr(st, said.get("draw", "info"))(said["text"], icon=said["icon"])
    else:
        st.caption(said["text"], help=said.get("help") or None)


def fact(name: str, value: str, below: str = "", /, **given: object) -> tables.Fact:
    """Return a number with its label and meaning in sentences.toml; `given` are the names in braces."""
    label, help = (words.format(**given) for words in _FACTS[name])
    return tables.Fact(label, value, below, help)


def terminal(command: str, above: str) -> None:
    """Draw a command below a caption."""
    st.caption(above)
    st.code(command, language=None, wrap_lines=True)


def command(words: str, label: str = "In a terminal") -> None:
    """Draw the command of a page, folded: the browser loads the element for code only when it is opened."""
    folded(label, "command", lambda: st.code(words, language=None, wrap_lines=True), ":material/terminal:")


def link(page: str, label: str, icon: str, **query: Any) -> None:
    """Link to a page, with these parameters of its address."""
    st.page_link(f"pages/{page}.py", label=label, icon=f":material/{icon}:", query_params=query or None)


def nothing_here(chosen: Filters, what: str = "latencies", metrics: tuple[str, ...] = ("latency_ms",)) -> None:
    """Say why a view is empty and what to do; offer devices that have such numbers."""
    others = [] if chosen.gpu is None else ask(pages.gpus_with, metrics)["gpu"].tolist()
    if chosen.gpu is None:
        sentence = "No results yet. Run a sweep on this machine, or upload results from another one."
    elif chosen.gpu not in others:
        sentence = f"No {what} {'were' if what.endswith('s') else 'was'} measured on the {text.plain(chosen.gpu)}."
    else:
        timing = f"{chosen.timing or 'any'} timing"
        narrowed = [name for name, value in vars(chosen).items() if isinstance(value, tuple) and value]
        clear = f"Clear {', '.join(narrowed)}" if narrowed else "Choose another mode or timing"
        sentence = f"No {what} for this selection: {text.slice_words(chosen)}, {timing}. {clear}."
    st.info(sentence, icon=":material/filter_alt_off:")
    with st.container(horizontal=True, vertical_alignment="center"):
        for name in [name for name in others if name != chosen.gpu][:_OFFERED]:
            st.button(text.plain(name), key=f"offer_{name}", on_click=_take_gpu, args=(name,))
        link("run_sweep", "Run sweep", "play_circle")
        link("upload", "Upload results", "upload")


def nothing_measured(name: str, /, **given: object) -> None:
    """Say that no run holds numbers for a page, and which sweep of sentences.toml measures them."""
    said = {part: words.format(**given) for part, words in _NOTHING[name].items()}
    st.info(said["text"], icon=said["icon"])
    st.code(f"python -m runner run {said['sweep']}", language=None)
    with st.container(horizontal=True):
        link("run_sweep", "Run sweep", "play_circle", sweep=said.get("first_look", said["sweep"]))
        link("upload", "Upload results", "upload")


def _take_gpu(name: str) -> None:
    st.session_state["gpu"] = name
    st.rerun()  # the whole page, because the other filters depend on the GPU


def slice_caption(
    chosen: Filters, *, rows: int, statistic: str, note: str = "", sources: Iterable[str] | None = None
) -> None:
    """Write the slice, the number of shapes, the statistic, and newer code that is not shown, below a map of speed.

    Without `sources` they are looked up.
    """
    timing = f"{text.TIMING_WORDS.get(chosen.timing or '', '')} {terms.link('timing')}"
    counts = f"{counted(rows, 'shape')} · {statistic} · speedup within one run {terms.link('speedup')}"
    about = f"{text.slice_words(chosen)} · {timing} · {counts}"
    found = ask(pages.provenance, chosen)["source"] if sources is None else sources
    badges = source_badges(sorted({part for names in found if not text.missing(names) for part in names.split(", ")}))
    st.caption(f"{badges} {about}. {note} Press a cell for its samples, run and environment.{_outdated(chosen)}")


def provenance(chosen: Filters, *, newer: bool = False) -> None:
    """Draw the runs behind the numbers once it is opened; for times without a map, say what `slice_caption` says."""
    if newer and (words := _outdated(chosen)):
        st.caption(words)
    label = "Where these numbers come from, and their commands"
    folded(label, "provenance", lambda: _runs(chosen), ":material/verified:")


def _runs(chosen: Filters) -> None:
    runs = ask(pages.provenance, chosen)
    shown = runs.assign(source=[text.SOURCE_WORDS[source] for source in runs["source"]])
    created = st.column_config.DatetimeColumn("created (UTC)", format="YYYY-MM-DD HH:mm")
    config = {"created": created, "command": tables.words("command", "large")}
    tables.grid(shown[[*RUN_COLUMNS]], "Runs behind this view", config)
    terminal(command_of(chosen), SAID["runs_behind"]["text"])


def command_of(chosen: Filters) -> str:
    """Return the command that prints a selection as tables."""
    given = {name: value if isinstance(value, tuple) else (value,) for name, value in vars(chosen).items() if value}
    given["feature"] = given.pop("features", ())
    flags = [(f"--{name}", str(each)) for name, values in given.items() if name != "level" for each in values]
    return shlex.join(["python", "-m", "results", "render", *(word for flag in flags for word in flag)])


def _outdated(chosen: Filters) -> str:
    """Return a paragraph that says in how many shapes newer code was measured but cannot be compared, or nothing."""
    words = outdated_words(ask(pairing.outdated, chosen), chosen.baseline, text.plain)
    return f"\n\n:material/history: {words}." if words else ""


def source_badges(parts: list[str]) -> str:
    """Return Markdown badges for the sources of numbers."""
    colours = {"local": "green", "published": "blue", "upload": "violet", "shipped": "orange"}
    return " ".join(f":{colours[p]}-badge[{text.SOURCE_ICONS[p]} {text.SOURCE_WORDS[p]}]" for p in parts)


def folded(label: str, key: str, draw: Callable[[], Any], icon: str = ":material/table_rows:") -> None:
    """Draw a part of the page in an expander, made only once the expander is opened."""
    with st.expander(label, icon=icon, key=key, on_change="rerun") as expander:
        if expander.open:
            draw()


def offer(label: str, name: str, data: Any, key: str, *, icon: str = ":material/download:", **more: Any) -> None:
    """Offer a file; `data` may be a function that makes it on demand."""
    mime = _MIMES.get(name.rpartition(".")[2], "application/octet-stream")
    st.download_button(label, data, file_name=name, mime=mime, on_click="ignore", icon=icon, key=key, **more)


def download(label: str, name: str, table: Callable[[], pd.DataFrame], key: str) -> None:
    """Offer a CSV of the view, made on demand."""
    offer(label, f"{name}.csv", lambda: safe_csv(table()), key)


def download_slice(label: str, title: ChartTitle, chosen: Filters, table: Callable[[], pd.DataFrame], key: str) -> None:
    """Offer a CSV, made on demand, whose file name and first columns name its slice."""
    download(label, title.file_name, lambda: with_slice(chosen, table()), key)


def download_latencies(chosen: Filters) -> None:
    """Offer the latencies of the slice's runs in a CSV that another attnbench imports as the same runs."""

    def made() -> bytes:
        runs = tuple(ask(pages.provenance, chosen)["run_id"])
        timings = () if chosen.timing in (None, AS_PUBLISHED) else (chosen.timing,)
        modes = (chosen.mode,) if chosen.mode else ()
        return export(store(), "csv", Selection(run=runs, mode=modes, timing=timings, metric=("latency_ms",)))

    help = "Upload the file to another attnbench to see the same numbers there."
    offer("Download latencies with their runs", "latencies.csv", made, "latencies_csv", help=help)


def safe_csv(table: pd.DataFrame) -> bytes:
    """Write CSV with text cells that no spreadsheet reads as formulas."""
    safe = table.copy()
    for column in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[column]) and not pd.api.types.is_datetime64_any_dtype(safe[column]):
            safe[column] = [_plain(value) for value in safe[column]]
    return safe.to_csv(index=False).encode()


def counted(number: float, noun: str) -> str:
    """Write a number with its noun, such as 1 run and 2 runs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _plain(value: object) -> object:
    if hasattr(value, "tolist"):
        value = " ".join(str(item) for item in value.tolist())
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value
