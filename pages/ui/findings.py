"""The findings of the checks for every run, computed once for each state of a run.

Other pages use `badge` (counts for a run), `section` (all findings of some runs) and `voided` (the numbers that a
finding voids); `of_upload` checks an upload before it is stored.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pandas as pd
import streamlit as st

import results
from pages.ui.draw import messages, tables, text
from pages.ui.shell.data import ask, records_of, store
from results.checks import CHECKS, NOTE, Finding, check
from results.checks.finding import voided as voided_by
from results.files import durable, library
from results.files.journal import JournalError
from results.formats import bounded
from results.formats.upload import Understanding
from results.grouping import grouped as by_key
from results.metrics import METRICS
from results.query import pages
from results.records import CASE_FIELDS, Measurement, Run
from results.render.markdown import plain
from results.store.database import Store

TITLES = {rule.name: rule.title for rule in CHECKS}
WEIGHTS = text.WORDS["severities"]
_BADGES = text.WORDS["severity_badges"]
_COLUMNS = ("weight", "rule", "title", "place", "source", "run_id", "sentence", "origin", "measurement_ids")
_ROW = text.WORDS["column_orders"]["finding"]
_OWN = (text.SOURCE_WORDS["local"], text.SOURCE_WORDS["shipped"])
_RESULTS = Path(results.__file__).parent
_FIRST_S, _NEXT_S = 0.5, 1.5  # seconds of checking between two drawings
_CHECKED = "findings_checked"  # the number of checked groups at the last drawing
_GROUP = ["weight", "title", "place", "source"]
_ROW_PX, _WRAPPED_PX, _HEAD_PX, _MOST_PX = 35, 84, 40, 460  # 84: four lines of a wrapped sentence


@dataclass(frozen=True)
class FoundSoFar:
    """The findings of the groups of runs that are checked so far."""

    table: pd.DataFrame  # impossible ones first; `place` is the report or run
    places: list[str]  # all reports and runs, checked or not
    checked: int
    left: int


def so_far() -> FoundSoFar:
    """Check for half a second, later longer: published reports first, then small runs.

    The first call only reads what an earlier visit has found, if there is any. Each later one checks more than the one
    before, so a page that redraws until nothing is left ends.
    """
    groups, sizes = ask(_groups), ask(pages.runs).set_index("run_id")["numbers"]
    # A group of own runs has the name of the run.
    order = sorted(groups, key=lambda place: (place in groups[place], sizes.reindex(groups[place]).sum()))
    before = st.session_state.get(_CHECKED, 0)
    end = time.monotonic() + (_NEXT_S if before else _FIRST_S)
    ordered = {place: groups[place] for place in order}
    known = [] if before else list(_checked(ordered, kept_only=True))
    for each in _checked(ordered) if not known else ():
        known.append(each)
        if time.monotonic() > end and len(known) > before:
            break
    st.session_state[_CHECKED] = len(known)
    return FoundSoFar(_as_table(known), sorted(groups), len(known), len(groups) - len(known))


def voided(run_ids: Collection[str]) -> dict[str, str]:
    """Return the sentence against each number of some runs that a finding voids, by measurement id."""
    found = [finding for _, findings in _checked(_groups_of(run_ids)) for finding in findings]
    return {measurement_id: finding.sentence for measurement_id, finding in voided_by(found).items()}


def badge(run_ids: Collection[str]) -> str:
    """Return Markdown badges that count the findings of some runs; empty if there are none."""
    counts = of_runs(run_ids)["weight"].value_counts()
    return badges({weight: int(counts.get(weight, 0)) for weight in WEIGHTS})


def badges(counts: dict[str, int]) -> str:
    """Return numbers of findings by weight as Markdown badges."""
    shown = [(*_BADGES[weight], count, weight) for weight, count in counts.items() if count]
    words = {NOTE: "notes"}  # the others are adjectives
    return " ".join(
        f":{colour}-badge[{icon} {count} {words.get(weight, weight) if count > 1 else weight}]"
        for colour, icon, count, weight in shown
    )


def of_upload(found: Understanding) -> Callable[[], list[Finding]]:
    """Return the check of an upload that is not stored yet; it may be called in another thread."""
    rows = by_key(found.measurements, lambda measurement: measurement.run_id)
    runs = [(run, rows.get(run.run_id, [])) for run in found.runs]
    similar = pages.runs_like(store(), [run.run_id for run in found.runs], found.measurements)
    return partial(bounded.call, check, runs, list(_readable(similar)))


def section(run_ids: Collection[str], *, key: str) -> None:
    """Draw the findings of some runs: a line for each rule, and the selected findings below."""
    found = of_runs(run_ids)
    if found.empty:
        st.markdown("No finding against these numbers.")
        return
    by_rule(found, key=key, places=found["place"].nunique() > 1)


def by_rule(table: pd.DataFrame, *, key: str, places: bool = True) -> None:
    """Draw a line for each rule and run; a selected line shows its findings, a selected finding its rows."""
    lines = grouped(table)
    shown = lines[["weight", "title", *(["place", "source"] if places else []), "count", "sentence"]]
    alt = "Findings by rule and by run or report; select a line for each of its findings"
    picked = _picked(shown, alt, tables.declared("findings"), key=key)
    if picked is not None:
        _opened(table, lines.iloc[picked], key)


def _opened(table: pd.DataFrame, line: pd.Series, key: str) -> None:
    """Draw the findings of a line, and the numbers of the selected finding."""
    chosen = table[(table[_GROUP] == line[_GROUP]).all(axis="columns")].reset_index(drop=True)
    st.markdown(
        f"**{text.plain(line['title'])}**, {text.plain(line['place'])}: {messages.counted(len(chosen), 'finding')}"
    )
    one = _picked(
        chosen[["sentence", "origin"]].dropna(axis="columns", how="all"),
        "Each finding with its arithmetic; select one for its numbers",
        tables.declared("one_finding"),
        key=f"{key}_of_{line['weight']}_{line['title']}_{line['place']}",
        row_height=_WRAPPED_PX,
    )
    if one is None and len(chosen) > 1:
        return
    st.markdown("**Its numbers**")
    rows = rows_of(chosen["measurement_ids"].iloc[one or 0])
    renamed = rows.rename(columns=lambda name: name.replace("_", " ") if name != "head_dim" else name)
    tables.grid(renamed, "The numbers of the finding, its subject first", {"value": tables.number("value")})


def grouped(table: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each rule and run with `count` and an example: impossible first, own runs last."""
    lines = table.groupby(_GROUP, sort=False).agg(count=("sentence", "size"), sentence=("sentence", "first"))
    lines = lines.reset_index()
    rank = lines.assign(
        weight=lines["weight"].map([*WEIGHTS].index), own=lines["source"].isin(_OWN), count=-lines["count"]
    )
    order = rank.sort_values(["weight", "own", "count", "title"], kind="stable").index
    return lines.loc[order].reset_index(drop=True)


def rows_of(measurement_ids: Sequence[str]) -> pd.DataFrame:
    """Return the stored rows of a finding, its subject first."""
    found = store().query(
        f"SELECT measurement_id, {', '.join((*_ROW, *CASE_FIELDS))} FROM measurements WHERE measurement_id IN ?",
        [list(measurement_ids)],
    )
    place = {measurement_id: at for at, measurement_id in enumerate(measurement_ids)}
    ordered = found.sort_values("measurement_id", key=lambda ids: ids.map(place), ignore_index=True)
    known = ordered.drop(columns="measurement_id").dropna(axis="columns", how="all")
    written = {
        "metric": [METRICS[name].label for name in known["metric"]],
        "mode": [text.MODE_WORDS.get(mode, mode) for mode in ordered["mode"]],
        "printed": [None if text.missing(cell) else plain(cell) for cell in ordered["printed"]],
    }
    return known.assign(**{name: values for name, values in written.items() if name in known})


def rules_table() -> None:
    """Draw all rules."""
    said = {rule.name: (rule.look.__doc__ or "").strip().partition("\n")[0] for rule in CHECKS}
    rules = [{"severity": rule.weight, "rule": rule.title, "condition": said[rule.name]} for rule in CHECKS]
    tables.grid(pd.DataFrame(rules), "Every rule", {"condition": tables.words("condition", "large")})


def _picked(
    table: pd.DataFrame, alt: str, config: dict[str, object], *, key: str, row_height: int = _ROW_PX
) -> int | None:
    """Draw a table with selectable rows; return the place of the selected row."""
    height = min(_MOST_PX, _HEAD_PX + row_height * len(table))
    select = {"on_select": "rerun", "selection_mode": "single-row"}
    event = tables.grid(table, alt, config, key=key, height=height, row_height=row_height, **select)
    rows = [at for at in event.selection.rows if at < len(table)]
    return rows[0] if rows else None


def of_runs(run_ids: Collection[str]) -> pd.DataFrame:
    """Return the findings of some runs, without checking the others."""
    found = _as_table(_checked(_groups_of(run_ids)))
    return found[found["run_id"].isin(set(run_ids))]


def _groups_of(run_ids: Collection[str]) -> dict[str, tuple[str, ...]]:
    store()  # a run that was imported a moment ago is a group, too
    return {place: ids for place, ids in ask(_groups).items() if set(run_ids) & set(ids)}


def _groups(store: Store) -> dict[str, tuple[str, ...]]:
    """Group the runs of each published report; any other run is its own group."""
    groups: dict[str, list[str]] = {}
    for run in pages.runs(store).to_dict("records"):
        whole = run["source"] == "published" and isinstance(run["report"], str)
        groups.setdefault(run["report"] if whole else run["run_id"], []).append(run["run_id"])
    return {place: tuple(run_ids) for place, run_ids in groups.items()}


def _as_table(checked: Iterable[tuple[str, list[Finding]]]) -> pd.DataFrame:
    runs = ask(pages.runs)
    whose = {run: text.SOURCE_WORDS[source] for run, source in zip(runs["run_id"], runs["source"], strict=True)}
    records = [
        vars(finding) | {"title": TITLES[finding.rule], "place": place, "source": whose.get(finding.run_id, "")}
        for place, found in checked
        for finding in found
    ]
    table = pd.DataFrame(records, columns=[*_COLUMNS])
    order = list(WEIGHTS)  # impossible first
    return table.sort_values("weight", key=lambda weights: weights.map(order.index), kind="stable", ignore_index=True)


def _checked(groups: dict[str, tuple[str, ...]], *, kept_only: bool = False) -> Iterator[tuple[str, list[Finding]]]:
    """Yield each group of runs by name with its findings, or only those whose findings the home keeps."""
    home, folders = str(store().home), {folder.run_id: folder for folder in library.folders()}
    runs = ask(pages.runs)
    uploaded = set(runs.loc[runs["source"] == "upload", "run_id"])  # these may be copies of others
    for place, run_ids in groups.items():
        there = tuple(run_id for run_id in run_ids if run_id in folders)
        similar = tuple(ask(pages.runs_like, there)) if uploaded.intersection(there) else ()
        stamps = tuple(library.stamp(folders[name]) for name in there + similar)
        found = (_kept if kept_only else _of_group)(home, there, similar, stamps)
        if found is not None:
            yield place, found


@st.cache_data(max_entries=5000, show_spinner=False)
def _of_group(home: str, run_ids: tuple[str, ...], similar: tuple[str, ...], stamps: tuple) -> list[Finding]:
    """Check runs against those that are similar; a file of the home keeps the findings for the next server."""
    if (kept := _kept(home, run_ids, similar, stamps)) is not None:
        return kept
    key, path = _place(home, run_ids, similar, stamps)
    runs, known = list(_readable(run_ids)), list(_readable(similar))
    found = check(runs, known)
    with suppress(OSError):  # a home that cannot be written checks again
        if len(runs) + len(known) == len(stamps):  # what cannot be read now may be readable later
            path.parent.mkdir(exist_ok=True)
            durable.replace_file(path, json.dumps({"key": key, "found": [vars(each) for each in found]}))
    return found


def _kept(home: str, run_ids: tuple[str, ...], similar: tuple[str, ...], stamps: tuple) -> list[Finding] | None:
    """Return the findings that the home keeps of runs in this state, if there are any."""
    key, path = _place(home, run_ids, similar, stamps)
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(path.read_bytes())
        if kept["key"] == key:
            return [Finding(**each | {"measurement_ids": tuple(each["measurement_ids"])}) for each in kept["found"]]
    return None


def _place(home: str, run_ids: tuple[str, ...], similar: tuple[str, ...], stamps: tuple) -> tuple[str, Path]:
    """Return the state of runs as a key, and the file of the home for their findings."""
    name = hashlib.sha256(repr(run_ids).encode()).hexdigest()
    return repr((similar, stamps, _code())), Path(home) / "findings" / f"{name}.json"


@cache
def _code() -> str:
    """Return a digest of the code and the declarations that the findings follow from."""
    files = sorted(path for part in (".", "checks", "compare", "levels") for path in (_RESULTS / part).glob("*.[pt]*"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _readable(run_ids: Sequence[str]) -> Iterator[tuple[Run, list[Measurement]]]:
    """Yield the readable runs; the page Runs gives the reasons for others."""
    for run_id in run_ids:
        with suppress(JournalError):
            yield records_of(run_id)
