"""One uploaded file on the page: its content, and the omitted and rejected values with reasons."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.ui import findings
from pages.ui.compare import imported
from pages.ui.draw import messages, tables, text
from pages.ui.filters.select import widget
from pages.ui.run import background
from pages.ui.run.progress import link_to_results
from pages.ui.shell import access
from pages.ui.shell.data import store
from pages.ui.upload import columns
from results import formats
from results.files import journal
from results.formats import Arrival, RunStanding, TableMapping, Understanding, UploadError, bounded, mapping
from results.formats.archives import opened
from results.formats.importing import LEAVE, NEW, REPLACE
from results.formats.mapping import guess, key_of, remembered, to_json
from results.levels import level_of

Shown = tuple[Understanding, DeltaGenerator]
LIMIT_MB = 50
EXAMPLE = Path(__file__).with_name("example.csv").read_text(encoding="utf-8")
_SHOWN_ROWS = 200
_LONG = 256 * 1024  # bytes; a longer file takes seconds to read
_OF_CASE = ("head_dim", "dtype", "causal", "batch", "num_heads")  # columns of the first numbers
EXISTING = {LEAVE: "leave what is here", NEW: "import as a new run", REPLACE: "replace what is here"}


def each_once(given: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield files with new content; name the duplicates."""
    seen: dict[str, str] = {}
    for name, data in given:
        key = hashlib.sha256(data).hexdigest()
        if key in seen:
            st.info(f"{text.plain(name)} is the same file as {text.plain(seen[key])}.", icon=":material/task_alt:")
            continue
        seen[key] = name
        yield name, data


def show(filename: str, data: bytes) -> Shown | None:
    """Draw the content of a file; return it and the place for its findings, or None if it cannot be read."""
    with st.container(border=True):
        st.markdown(f"**{text.plain(filename)}**")
        if len(data) > LIMIT_MB * 1024 * 1024:
            st.error(f"{len(data) / 2**20:.0f} MB is more than the limit of {LIMIT_MB} MB. Split the file.")
            return None
        summary = st.container()
        try:
            found = _mapped(filename, data)
        except UploadError as error:
            summary.error(text.plain(str(error)), icon=":material/error:")
            return None
        if found is None:
            return None
        with summary:
            _summary(found)
            _ask_existing(found)
            return found, st.empty()


def _mapped(filename: str, data: bytes) -> Understanding | None:
    """Read a file with the chosen meanings of its columns; return None until they are complete."""
    known = remembered(journal.home())
    try:
        found = _understand(filename, data, known)
    except formats.UnknownTable as error:
        sheet, start = error.sheet, guess(error.sheet)
        st.markdown(f"This table is of no known format. {start.problem() or 'Say what its columns are.'}")
        chosen = columns.edit(sheet, start, hashlib.sha256(data).hexdigest()[:12], st.container())
        if problem := chosen.problem():
            st.warning(problem, icon=":material/help:")
            return None
        return _understand(filename, data, {**known, key_of(sheet.header): chosen})
    if found.sheet is None or found.mapping is None:
        return found
    facts = st.container()
    with st.expander("Columns: what each is read as", icon=":material/view_column:"):
        chosen = columns.edit(found.sheet, found.mapping, found.sha256[:12], facts)
        if problem := chosen.problem():
            st.warning(problem, icon=":material/help:")
            return None
        if chosen != guess(found.sheet):
            st.caption("Differs from the guess. An import keeps it for tables with the same header.")
    if chosen == found.mapping:
        return found
    return _understand(filename, data, {**known, key_of(found.sheet.header): chosen})


def _ask_existing(found: Understanding) -> None:
    """Name the runs of the file that already exist, and ask how to treat those that differ."""
    standings = _standing(found)
    for sentence in formats.left_alone(standings):
        st.info(text.plain(sentence), icon=":material/task_alt:")
    if differing := [run for run in standings if run.differs]:
        options = [option for option in EXISTING if option != REPLACE or not any(run.ships for run in differing)]
        look: dict[str, Any] = {"default": LEAVE, "format_func": EXISTING.__getitem__}
        widget("existing", options, key=f"existing_{found.sha256}", **look)


def check(shown: list[Shown]) -> None:
    """Draw what the checks say about each file, and several files in one table with their machines and numbers."""
    together = st.empty()
    rows = [
        {
            "file": found.upload.filename,
            "machine": ", ".join(sorted({run.gpu_name or "GPU not stated" for run in found.runs})),
            "runs": len(found.runs),
            "numbers": len(found.measurements),
            "new": new_numbers(found),
            "rejected": len(found.rejected),
            "findings": _findings(found, place) if found.measurements else 0,
        }
        for found, place in shown
    ]
    if len(rows) > 1:
        alt = "Every file with its machine, numbers and findings"
        together.dataframe(pd.DataFrame(rows), hide_index=True, alt=alt)


def new_numbers(found: Understanding) -> int:
    """Return how many numbers an import would add."""
    takes = (st.session_state.get(f"existing_{found.sha256}") or LEAVE) != LEAVE
    return sum(run.numbers for run in _standing(found) if not run.here or (takes and run.differs))


def ask_gpu(ready: list[Understanding]) -> None:
    """Ask for the GPU of files that do not name one."""
    nameless = [found.upload.filename for found in ready if any(run.gpu_name is None for run in found.runs)]
    if nameless:
        widget("upload_gpu", words={"files": text.plain(", ".join(nameless))})


@st.cache_data(max_entries=4, show_spinner="Opening the files")
def taken(given: tuple[tuple[str, bytes], ...]) -> list[tuple[str, bytes]]:
    """Return the files to read: those inside of archives, and each run as one file. Raises UploadError."""
    return bounded.call(opened, given)


def _understand(filename: str, data: bytes, mappings: dict[str, TableMapping]) -> Understanding:
    """Read a file; the first numbers of a long one are drawn meanwhile."""
    key = filename, hashlib.sha256(data).hexdigest(), repr(mappings)
    read = partial(bounded.call, formats.understand, filename, mappings=mappings)
    beginning = data[: data.rfind(b"\n", 0, _LONG) + 1] if len(data) > _LONG else b""
    return _awaited(key, lambda: partial(read, data), "Reading the file", lambda: _draw_first(read, beginning))


def _draw_first(read: Callable[[bytes], Understanding], beginning: bytes) -> None:
    with suppress(UploadError):
        st.dataframe(_preview(read(beginning)), hide_index=True, alt="First numbers of the file")


def _awaited(
    key: tuple, begin: Callable[[], Callable[[], Any]], said: str, meanwhile: Callable[[], None] = lambda: None
) -> Any:
    """Return the answer of long work, which goes on in a thread; a press of a button is heard meanwhile.

    `begin` returns the work; it is called once for a key, unless the work fails.
    """
    future, place = _begun(key, begin), st.empty()
    if not background.is_done(future):
        with place.container():
            now = st.empty()
            now.caption(f":material/hourglass: {said}")
            meanwhile()
            while not background.is_done(future):
                now.caption(f":material/hourglass: {said}")  # here Streamlit leaves the script after a press
        place.empty()
    if future.exception():
        _begun.clear(key, begin)
    return future.result()


@st.cache_resource(max_entries=16, ttl=1800, show_spinner=False)  # they are not copied
def _begun(key: tuple, _begin: Callable[[], Callable[[], Any]]) -> Future:
    return background.begin(_begin())


def _key(found: Understanding) -> str:
    """Return the cache key of a file: its content and the meanings of its columns."""
    return found.sha256 + (json.dumps(to_json(found.mapping)) if found.mapping else "")


def _standing(found: Understanding) -> list[RunStanding]:
    home = journal.home()
    key = "standing", _key(found), str(home), str(store().version())
    return _awaited(key, lambda: partial(formats.standing, home, found), "Looking for its runs")


def _findings(found: Understanding, place: DeltaGenerator) -> int | None:
    """Check a file and draw its findings; return their number, or None if the checks reach a limit."""
    with place.container():
        try:
            problems = _awaited(("checks", _key(found)), lambda: findings.of_upload(found), "Checking every number")
        except UploadError:
            messages.say("not_checked")
            return None
        if not problems:
            st.caption(":material/check_circle: No number contradicts arithmetic, its device or the other rows.")
            return 0
        counts = {weight: sum(problem.weight == weight for problem in problems) for weight in findings.WEIGHTS}
        with st.expander(f"What the checks say: {findings.badges(counts)}", icon=":material/fact_check:"):
            rows = [
                {"severity": problem.weight, "finding": problem.sentence, "where": problem.origin}
                for problem in sorted(problems, key=lambda problem: list(findings.WEIGHTS).index(problem.weight))
            ]
            config = {"finding": tables.words("finding", "large")}
            tables.grid(pd.DataFrame(rows[:_SHOWN_ROWS]), "What the checks say about this file", config, row_height=84)
            st.caption("A finding keeps no number from being imported.")
    return len(problems)


def _summary(found: Understanding) -> None:
    st.markdown(
        f"{found.description} :gray-badge[{found.format}] "
        f":green-badge[{messages.counted(len(found.measurements), 'number')}] "
        f":blue-badge[{messages.counted(len(found.runs), 'run')}] "
        + (f":red-badge[{messages.counted(len(found.rejected), 'rejected value')}]" if found.rejected else "")
    )
    said = [f":material/do_not_disturb_on: Left out: {text.plain(each)}" for each in found.left_out]
    said += [f":material/info: Assumed: {text.plain(each)}" for each in found.assumptions]
    said += [f":material/help: Not stated: {text.plain(each)}" for each in found.questions]
    if said:
        st.caption("\n\n".join(said))
    if found.columns and found.sheet is None:
        with st.expander("Columns and what they are read as", icon=":material/view_column:"):
            rows = [{"column": c.header, "read as": c.meaning or "ignored"} for c in found.columns]
            st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Column mapping")
    if found.rejected:
        table = pd.DataFrame([vars(r) for r in found.rejected], columns=["line", "column", "value", "reason"])
        st.dataframe(table.head(_SHOWN_ROWS), hide_index=True, alt="Rejected values with line, column and reason")
        name = f"rejected-{found.sha256[:8]}"
        messages.download("Download rejected values", name, lambda: table, f"rejected_{found.sha256}")
    if found.measurements:
        with st.expander("First numbers", icon=":material/table_rows:"):
            st.dataframe(_preview(found), hide_index=True, alt="First numbers of the file")


def _preview(found: Understanding) -> pd.DataFrame:
    rows = []
    for m in found.measurements[:_SHOWN_ROWS]:
        row = {name: getattr(m, name) for name in ("implementation", "metric", "value", "status", "mode", "timing")}
        row |= {"status": str(m.status), "seqlen": getattr(m.case, level_of(m.case).columns.field)}
        rows.append(row | {name: getattr(m.case, name) for name in _OF_CASE})
    return pd.DataFrame(rows).dropna(axis="columns", how="all")


@dataclass(frozen=True)
class Imported:
    """The result of importing a file."""

    filename: str
    arrived: Arrival
    numbers: int  # in its new runs
    left: tuple[str, ...]  # parts that were not added, with reasons
    problem: str | None


def import_all(ready: list[Understanding]) -> None:
    """Import each file without its rejected values, and remember the result for the next drawing."""
    if not access.here():
        st.session_state["taken_back"] = access.OFF
        return
    home, outcome = journal.home(), []
    gpu_name = st.session_state.get("upload_gpu", "").strip() or None
    for found in ready:
        existing = st.session_state.get(f"existing_{found.sha256}") or LEAVE
        left = formats.left_alone(formats.standing(home, found)) if existing == LEAVE else []
        arrived, problem = Arrival(()), None
        try:
            how = {"gpu_name": gpu_name, "skip_rejected": True, "existing": existing}
            arrived = bounded.call(formats.import_for_undo, home, found, **how)
            if found.sheet and found.mapping and found.mapping != mapping.guess(found.sheet):
                mapping.remember(home, found.sheet.header, found.mapping)
        except formats.AlreadyHere as error:
            left = [str(error)]
        except (UploadError, journal.JournalError) as error:
            problem = str(error)
        new = [each for each in found.measurements if each.run_id in arrived.run_ids]
        numbers = len(found.measurements if existing != LEAVE and arrived.run_ids else new)
        outcome.append(Imported(found.upload.filename, arrived, numbers, tuple(left), problem))
    store()
    st.session_state["imported"] = outcome


def show_imports() -> None:
    """Draw the result of the last import for each file, with its undo."""
    outcome: list[Imported] = st.session_state.pop("imported", None) or []
    if taken := st.session_state.pop("taken_back", None):
        st.info(text.plain(taken), icon=":material/undo:")
    for done in outcome:
        name = text.plain(done.filename)
        if done.problem:
            st.error(f"{name} was not imported: {text.plain(done.problem)}", icon=":material/error:")
            continue
        if names := done.arrived.run_ids:
            added = f"{messages.counted(done.numbers, 'number')} in {messages.counted(len(names), 'run')}"
            st.success(f"{name}: {added} ({text.plain(', '.join(names))}).", icon=":material/check_circle:")
        for sentence in done.left:
            st.info(f"{name}: {text.plain(sentence)}", icon=":material/task_alt:")
    arrivals = [done.arrived for done in outcome if done.arrived.run_ids]
    if outcome:
        with st.container(horizontal=True, vertical_alignment="center"):
            if arrivals:
                st.button("Undo", icon=":material/undo:", on_click=_undo, args=(arrivals,), key="undo_import")
                run_id = arrivals[-1].run_ids[0]
                link_to_results(run_id)
                where = {"of": "Import beside a run", "upload": run_id}
                messages.link("compare", "Compare with our run", "compare_arrows", **where)
                messages.link("run_sweep", "Measure these on my GPU", "play_circle", cases_of=run_id)
            messages.link("overview", "Start", "leaderboard")
            messages.link("runs", "Runs", "history")
    if arrivals:
        imported.nearest(arrivals[-1].run_ids[0])


def _undo(arrivals: list[Arrival]) -> None:
    def work() -> str:
        for arrived in arrivals:
            formats.take_back(journal.home(), arrived)
        taken = sum(len(arrived.run_ids) for arrived in arrivals)
        return f"The import is taken back: {messages.counted(taken, 'run')} moved to the trash of Runs."

    _, st.session_state["taken_back"] = access.attempt(work, journal.JournalError)
    store()
