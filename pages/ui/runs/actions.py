"""Actions on a run: download, run again, delete and restore, and compare environments."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui import rules
from pages.ui.draw import messages, text
from pages.ui.filters.select import widget
from pages.ui.run import plan_axes
from pages.ui.runs import listing
from pages.ui.shell import access
from pages.ui.shell.data import store
from results.compare.compare import FACTS
from results.files import journal, library
from results.files.journal import JournalError
from results.files.library import Deleted
from results.render import export, peers, slice
from runner import launch, sweeps

_OUTCOME = "runs_outcome"
_SUMMARY_HELP = "One page for an issue or a pull request: environment, winners, ranking, failures."


def downloads(run: Mapping[str, Any]) -> None:
    """Offer the run as one page to read, and every number of it with its environment."""
    run_id, icon = str(run["run_id"]), ":material/article:"
    summary = partial(slice.render_run, store(), run)
    with st.container(horizontal=True):
        messages.offer("Summary (Markdown)", f"{run_id}.md", summary, "run_md", icon=icon, help=_SUMMARY_HELP)
        for label, form in text.WORDS["forms"].items():
            _offer(run_id, label, f"{run_id}.{form}", form)
        with st.popover("For other tools", icon=":material/ios_share:"):
            for label, form in text.WORDS["peer_forms"].items():
                help = f"Holds {peers.TAKES[form]}, of one timing: kernel if the run has it, else eager."
                _offer(run_id, label, f"{run_id}-{form}.{peers.SUFFIXES[form]}", form, help=help)
    st.caption("CSV and JSON hold every number and can be uploaded to another attnbench. Parquet is for other tools.")


def _offer(run_id: str, label: str, name: str, form: str, **more: str) -> None:
    made = partial(export.export, store(), form, export.Selection(run=(run_id,)))
    messages.offer(label, name, made, f"run_{form}", **more)


def again(run: Mapping[str, Any]) -> None:
    """Link to Run sweep with the sweep of this run filled in, if that sweep exists here."""
    words_of = rerun_link(run)
    if words_of:
        messages.link("run_sweep", "Run this sweep again", "replay", **words_of)
    elif text.missing(run.get("command")):
        st.caption("It cannot be run again from here: its source gives no command.")
    else:
        st.caption("Its sweep or protocol cannot be started from here; its command is above.")


def rerun_link(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the parameters that fill in Run sweep with a run's sweep; None if it cannot be started from there."""
    protocol = str(run.get("protocol")).split("/")[0]
    if protocol not in launch.PROTOCOLS:
        return None
    try:
        record = json.loads(run.get("sweep") or "{}")
        usual, wanted = sweeps.get(record["name"]), sweeps.from_json(record)
        link: dict[str, Any] = {"sweep": usual.name, "protocol": protocol}
        if protocol == "sustained":
            cell = plan_axes.cell_link(usual, wanted)
            return cell and link | cell
        link |= plan_axes.axes_link(usual, wanted)
    except (TypeError, ValueError, LookupError, AttributeError):  # the sweep of a foreign record can be anything
        return None
    if wanted.implementations != usual.implementations:
        link[f"edit_implementations_{usual.name}"] = list(wanted.implementations)
    return link


def rule(run: Mapping[str, Any]) -> None:
    """Offer the rule of a run of `python -m runner tune`; other runs have none."""
    if listing.sweep_of(run).get("name") == "tune" and not text.missing(run["gpu_name"]):
        st.markdown("**Rule**")
        rules.of_run(listing.folder(run["run_id"], run["source"]), str(run["gpu_name"]))


def delete(run: Mapping[str, Any]) -> None:
    """Draw the button that deletes a run after confirmation; published and running runs have none."""
    if run["source"] in listing.WITH_THE_APP:
        st.caption("It ships with attnbench and cannot be deleted here.")
        return
    if run["state"] == "running":
        st.caption("It is running; cancel it on Run sweep before you delete it.")
        return
    may = access.here()
    with st.popover("Delete", icon=":material/delete:", disabled=not may):
        st.markdown(f"Move **{text.plain(run['run_id'])}** and its {int(run['numbers']):,} numbers to the trash?")
        widget("delete_run", on_click=_delete, args=(run["run_id"],), disabled=not may)
    if not may:
        st.caption(access.OFF)


def rename(run: Mapping[str, Any]) -> None:
    """Draw the field that gives a run another title; runs that ship with attnbench have none."""
    if run["source"] in listing.WITH_THE_APP:
        return
    with st.popover("Rename", icon=":material/edit:", disabled=not access.here()):
        title = "" if text.missing(run["title"]) else str(run["title"])
        st.text_input("Title", title, max_chars=120, key=f"title_{run['run_id']}")
        st.button("Save", type="primary", key="rename_run", on_click=_rename, args=(run["run_id"],))


def trash_can() -> None:
    """Draw the result of the last click with its undo, and all deleted runs."""
    outcome = st.session_state.pop(_OUTCOME, None)
    if isinstance(outcome, Deleted):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.success(f"Deleted {text.plain(outcome.run_id)}.", icon=":material/delete:")
            st.button("Undo", key="undo", icon=":material/undo:", on_click=_restore, args=(outcome,))
    elif outcome:
        st.info(text.plain(outcome), icon=":material/info:")
    found = library.deleted_runs(journal.home())
    if not found:
        return
    with st.expander(f"Trash: {messages.counted(len(found), 'run')}", icon=":material/delete:"):
        for deleted in found:
            when = datetime.strptime(deleted.when[:13], "%Y%m%dT%H%M")
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(f"{text.plain(deleted.run_id)}, deleted {when:%Y-%m-%d %H:%M} UTC")
                key, off = f"restore_{deleted.when}", not access.here()
                st.button("Bring back", key=key, on_click=_restore, args=(deleted,), disabled=off)
        st.caption(f"Deleted runs are in `{journal.home() / 'trash'}`; remove them there to free the space.")


def broken_runs(listed: Collection[str]) -> None:
    """Draw each run folder whose record cannot be read, with the reason and a button that moves it to the trash."""
    for run_id, line, reason in store().problems:
        if line == 0 and run_id not in listed and listing.folder(run_id, "local").run_path.is_file():
            with st.container(horizontal=True, vertical_alignment="center"):
                st.warning(
                    f"{text.plain(run_id)} cannot be shown: {text.plain(reason)}", icon=":material/broken_image:"
                )
                key, off = f"delete_broken_{run_id}", not access.here()
                icon, label = ":material/delete:", "Move it to the trash"
                st.button(label, on_click=_delete, args=(run_id,), key=key, icon=icon, disabled=off)


def other_environment(run: Mapping[str, Any], runs: pd.DataFrame) -> None:
    """Ask for another run; draw the differences between the two environments."""
    names = [name for name in runs["run_id"] if name != run["run_id"]]
    if not names:
        return
    look: dict[str, Any] = {"index": None, "key": "beside_run", "bind": "query-params", "placeholder": "Choose a run"}
    other = st.selectbox("Compare environment with", names, **look)
    if other is None:
        return
    facts = [(fact, *(_said(row.get(fact)) for row in (run, runs[runs["run_id"] == other].iloc[0]))) for fact in FACTS]
    table = pd.DataFrame([fact for fact in facts if fact[1] != fact[2]], columns=["fact", "this run", "the other"])
    if table.empty:
        st.markdown("The two runs record the same environment.")
        return
    st.dataframe(table, hide_index=True, alt="What differs between the environments of the two runs")
    st.caption("Facts that can explain a difference in time come first. Compare has a verdict for each shape.")


def _delete(run_id: str) -> None:
    _remember(lambda: library.delete(journal.home(), run_id))


def _rename(run_id: str) -> None:
    def work() -> str:
        folder = journal.RunFolder.open(journal.home(), run_id)
        title = st.session_state[f"title_{run_id}"].strip()
        folder.write_run(replace(folder.run(), title=title or None))
        return f"Renamed {run_id} to {title}." if title else f"Removed the title of {run_id}."

    _remember(work)


def _restore(deleted: Deleted) -> None:
    _remember(lambda: f"Brought back {library.restore(journal.home(), deleted).run_id}.")


def _remember(work: Callable[[], Any]) -> None:
    """Call `work` if this session may delete, and keep the result for the next drawing."""
    _, st.session_state[_OUTCOME] = access.attempt(work, JournalError)
    store().refresh()


def _said(value: object) -> str:
    return "not stated" if text.missing(value) else str(value)
