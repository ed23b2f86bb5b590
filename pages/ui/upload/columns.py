"""The meanings of the columns of an uploaded table, which the reader can correct before the import."""

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.ui.draw import text
from results.formats import TableMapping
from results.formats.errors import UploadError
from results.formats.mapping import CHOICES, CONSTANTS, DECIMALS, NUMBERS, Role, check_constants, guess
from results.formats.tables import Sheet
from results.records import MODES

MAX_COLUMNS = 40  # columns with a choice; further columns keep the guess
_STATISTICS = ("printed", "mean", "median", "std")
_COMPARED = ("dtype", "head_dim", "batch", "num_heads", "causal", "mode")  # what a comparison needs
_HELP = text.WORDS["constants_help"]


def edit(sheet: Sheet, start: TableMapping, key: str, facts: DeltaGenerator) -> TableMapping:
    """Draw a select box for each column, with its guess as default; return the choices.

    `key` identifies the file. The facts that no column holds are asked for in the container `facts`.
    """
    decimal = st.segmented_control(
        "Numbers are written as",
        list(DECIMALS),
        default=start.decimal,
        format_func=DECIMALS.__getitem__,
        required=True,
        key=f"decimal_{key}",
    )
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


def is_guess(sheet: Sheet, mapping: TableMapping) -> bool:
    """Return whether the guess is unchanged."""
    return mapping == guess(sheet)


def _column(sheet: Sheet, at: int, role: Role, key: str, usual: str) -> Role:
    """Draw one column: its name, its first cells and its meaning; `usual` is the likely implementation."""
    name, *parts = st.columns([3, 3, 3, 2, 2], vertical_alignment="bottom")
    cells = [row[at] for _, row in sheet.rows[:3] if at < len(row)]
    name.markdown(f"**{text.plain(sheet.header[at] or '(no name)')}**  \n{text.plain(', '.join(cells)[:60])}")
    label = f"Column {at + 1} is"
    options = list(CHOICES)
    meaning = parts[0].selectbox(
        label, options, index=options.index(role.meaning), format_func=CHOICES.__getitem__, key=f"meaning_{key}"
    )
    if meaning not in NUMBERS:
        return Role(meaning)
    implementation = parts[1].text_input(
        "of implementation",
        role.implementation or ("" if role.meaning in NUMBERS else usual),
        key=f"implementation_{key}",
        placeholder="as the row says",
    )
    modes = ("", *MODES)
    mode = parts[2].selectbox(
        "mode",
        modes,
        index=modes.index(role.mode),
        format_func=lambda mode: mode or "as the row says",
        key=f"mode_{key}",
    )
    statistic = parts[3].selectbox(
        "statistic", _STATISTICS, index=_STATISTICS.index(role.statistic), key=f"statistic_{key}"
    )
    return Role(meaning, implementation.strip(), mode, statistic)


def _constants(key: str, start: TableMapping, said: set[str]) -> dict[str, str]:
    """Ask for values of all rows that no column holds."""
    missing = [name for name in CONSTANTS if name not in said]
    found: dict[str, str] = {}
    place = st.container()
    with st.container(horizontal=True):
        for name in missing:
            typed = st.text_input(
                f"{name} of all rows",
                start.constants.get(name, ""),
                key=f"constant_{key}_{name}",
                help=_HELP.get(name, "a whole number"),
                width=170,
            ).strip()
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
