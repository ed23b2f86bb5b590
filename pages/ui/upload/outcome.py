"""The import of files, its result, and its undo."""

from dataclasses import dataclass

import streamlit as st

from pages.ui.compare import imported
from pages.ui.draw import messages, text
from pages.ui.run.outcome import link_to_results
from pages.ui.shell import access
from pages.ui.shell.data import store
from results.files import journal
from results.formats import (
    AlreadyHere,
    Arrival,
    Understanding,
    UploadError,
    bounded,
    import_for_undo,
    left_alone,
    mapping,
    standing,
    take_back,
)
from results.formats.importing import LEAVE, NEW, REPLACE

EXISTING = {LEAVE: "leave what is here", NEW: "import as a new run", REPLACE: "replace what is here"}


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
        left = left_alone(standing(home, found)) if existing == LEAVE else []
        arrived, problem = Arrival(()), None
        try:
            how = {"gpu_name": gpu_name, "skip_rejected": True, "existing": existing}
            arrived = bounded.call(import_for_undo, home, found, **how)
            if found.sheet and found.mapping and found.mapping != mapping.guess(found.sheet):
                mapping.remember(home, found.sheet.header, found.mapping)
        except AlreadyHere as error:
            left = [str(error)]
        except (UploadError, journal.JournalError) as error:
            problem = str(error)
        numbers = len(found.measurements) if existing != LEAVE and arrived.run_ids else _of(found, arrived)
        outcome.append(Imported(found.upload.filename, arrived, numbers, tuple(left), problem))
    store()
    st.session_state["imported"] = outcome


def show() -> None:
    """Draw the result of the last import for each file, with its undo."""
    outcome: list[Imported] = st.session_state.pop("imported", None) or []
    if taken := st.session_state.pop("taken_back", None):
        st.info(taken, icon=":material/undo:")
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
                link_to_results(arrivals[-1].run_ids[0])
                run_id = arrivals[-1].run_ids[0]
                where = {"of": "Import beside a run", "upload": run_id}
                messages.link("compare", "Compare with our run", "compare_arrows", **where)
                messages.link("run_sweep", "Measure these on my GPU", "play_circle", cases_of=run_id)
            messages.link("overview", "Start", "leaderboard")
            messages.link("runs", "Runs", "history")
    if arrivals:
        imported.nearest(arrivals[-1].run_ids[0])


def _undo(arrivals: list[Arrival]) -> None:
    if not access.here():
        st.session_state["taken_back"] = access.OFF
        return
    taken = 0
    try:
        for arrived in arrivals:
            take_back(journal.home(), arrived)
            taken += len(arrived.run_ids)
        said = f"The import is taken back: {messages.counted(taken, 'run')} moved to the trash of Runs."
    except journal.JournalError as error:
        said = text.plain(str(error))
    store()
    st.session_state["taken_back"] = said


def _of(found: Understanding, arrived: Arrival) -> int:
    return sum(measurement.run_id in arrived.run_ids for measurement in found.measurements)
