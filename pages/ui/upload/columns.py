"""The meanings of the columns of an uploaded table, which the reader can correct before the import."""

from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.ui.draw import text
from pages.ui.filters.select import widget
from results.formats import TableMapping
from results.formats.errors import UploadError
from results.formats.mapping import CHOICES, CONSTANTS, DECIMALS, NUMBERS, Role, check_constants
from results.formats.tables import Sheet
from results.records import MODES

MAX_COLUMNS = 40  # columns with a choice; further columns keep the guess
_STATISTICS = ("printed", "mean", "median", "std")
_COMPARED = ("dtype", "head_dim", "batch", "num_heads", "causal", "mode")  # needed for a comparison
_HELP = text.WORDS["constants_help"]


def edit(sheet: Sheet, start: TableMapping, key: str, facts: DeltaGenerator) -> TableMapping:
    """Draw a select box for each column, with its guess as default; return the choices.

    `key` identifies the file. The container `facts` gets the fields for facts that no column holds.
    """
    look: dict[str, Any] = {"default": start.decimal, "format_func": DECIMALS.__getitem__}
    decimal = widget("decimal", list(DECIMALS), key=f"decimal_{key}", **look)
    named = "implementation" in start.fields  # a column names it; otherwise the header of a number does
    roles = [
        _column(sheet, at, role, f"{key}_{at}", "" if named else sheet.header[at]) if at < MAX_COLUMNS else role
        for at, role in enumerate(start.roles)
    ]
    if len(sheet.header) > MAX_COLUMNS:
        st.caption(f"The first {MAX_COLUMNS} of {len(sheet.header)} columns are shown.")
    chosen = TableMapping(tuple(roles), decimal or "")
    said = {*chosen.fields} | ({"implementation"} if any(role.implementation for role in roles) else set())
    with facts:
        return TableMapping(chosen.roles, chosen.decimal, _constants(key, start, said))


def _column(sheet: Sheet, at: int, role: Role, key: str, usual: str) -> Role:
    """Draw one column: its name, its first cells and its meaning; `usual` is the likely implementation."""
    name, *parts = st.columns([3, 3, 3, 2, 2], vertical_alignment="bottom")
    cells = [row[at] for _, row in sheet.rows[:3] if at < len(row)]
    name.markdown(f"**{text.plain(sheet.header[at] or '(no name)')}**  \n{text.plain(', '.join(cells)[:60])}")
    options, modes = list(CHOICES), ("", *MODES)
    look: dict[str, Any] = {"index": options.index(role.meaning), "format_func": CHOICES.__getitem__}
    meaning = widget("meaning", options, place=parts[0], words={"number": at + 1}, key=f"meaning_{key}", **look)
    if meaning not in NUMBERS:
        return Role(meaning)
    likely = role.implementation or ("" if role.meaning in NUMBERS else usual)
    implementation = widget("implementation", likely, place=parts[1], key=f"implementation_{key}")
    look = {"index": modes.index(role.mode), "format_func": lambda mode: mode or "as the row says"}
    mode = widget("mode", modes, place=parts[2], key=f"mode_{key}", **look)
    at_first = _STATISTICS.index(role.statistic)
    statistic = widget("statistic", _STATISTICS, place=parts[3], key=f"statistic_{key}", index=at_first)
    return Role(meaning, implementation.strip(), mode, statistic)


def _constants(key: str, start: TableMapping, said: set[str]) -> dict[str, str]:
    """Ask for values of all rows that no column holds."""
    missing = [name for name in CONSTANTS if name not in said]
    found: dict[str, str] = {}
    place = st.container()
    with st.container(horizontal=True):
        for name in missing:
            about, value = _HELP.get(name, "a whole number"), start.constants.get(name, "")
            key_of = f"constant_{key}_{name}"
            typed = widget("constant", value, words={"name": name}, key=key_of, help=about).strip()
            if not typed:
                continue
            try:
                check_constants({name: typed})
            except UploadError as error:
                st.error(text.plain(str(error)))
                continue
            found[name] = typed
    if lacking := [name for name in missing if name in _COMPARED and name not in found]:
        place.warning(f"To compare these numbers with other runs and GPUs, say {', '.join(lacking)}.")
    return found
