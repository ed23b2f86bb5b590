"""The shared filters: a row of chips above the answer, and the slice that they select.

The key of each widget is its name in the URL. Filters of one value are always in the URL, so that a link keeps its
meaning when new results would change a default; an absent filter of several values means all. Unknown values of the URL
are named in one sentence. A change redraws the chips and the body of the page. A page has one level, which determines
the offered workloads, sizes and modes, and each level keeps its own choices.
"""

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from pages.ui.draw.text import WORDS, plain
from pages.ui.filters import offers, words
from pages.ui.filters.offers import SIZES, Choices, Scope, Settings
from pages.ui.filters.words import ALL
from pages.ui.shell import address, page_body
from pages.ui.shell.data import ask
from results.levels import Level, level_of
from results.query import speedups
from results.slice import NOT_STATED, ORDER, Filters

MODES, TIMINGS = ORDER["mode"], ORDER["timing"]
SINGLE = ("gpu", "mode", "baseline", "timing", "workload", "mask", "shape")
MULTIPLE = ("dtype", *SIZES, "feature", "implementation", "source", "run")
LABELS = WORDS["filters"]
_HELP = WORDS["filters_help"]
_FRAGMENT = "filters"
_PRESET = "preset"
_KEPT = "filters_kept"  # by level, and by name
_LEVEL = "filters_level"
_OFFERED = "filters_offered"  # the choices of each drawn filter, by name
_SCOPE = "filters_scope"
_NEXT = "filters_next"  # values of a preset or reset, for when the widgets are drawn; else the old URL would win
_REPLACED = "filters_baseline"  # a baseline without numbers, and the one that replaced it
_UNKNOWN = "filters_unknown"  # unknown values of the link, as Markdown
# A filter of one value that is None gets its default when it is drawn.
_DEFAULTS: dict[str, Any] = {name: None for name in SINGLE} | {name: [] for name in MULTIPLE}
_PILLS = {"selection_mode": "multi", "wrap": True, "help": "None chosen: all."}
_BEFORE = {"not said": NOT_STATED}  # words of old links


def draw(level_name: str = "op", unused: Sequence[str] = ()) -> None:
    """Draw the filters of a level: the presets behind a chip, six chips, and the others behind one more.

    Filters in `unused` have no effect on the page; they are not drawn and keep their value for other pages.
    """
    _enter(level_name)
    st.fragment(_draw, key=_FRAGMENT)(level_name, unused)


def current() -> Filters:
    """Return the slice that the filters select, and remember it for other pages."""
    values = {name: st.session_state.get(name) for name in st.session_state[_OFFERED]}
    level = level_of(st.session_state[_LEVEL])
    st.session_state[_KEPT][level.name] = values
    chosen = values | {name: None for name in SINGLE if values.get(name) == ALL}
    for name in MULTIPLE:
        picked = values.get(name) or ()
        chosen[name] = tuple(c for c in st.session_state[_OFFERED].get(name, ()) if str(c) in picked)
    if features := chosen.pop("feature"):
        chosen["implementation"] = _declaring(features, chosen["implementation"], chosen["baseline"], level)
    if len(level.modes) == 1:
        (chosen["mode"],) = level.modes
    return Filters(**chosen, level=None if (level.rows == level_of("op").rows) else level.name)


def take(**values: Any) -> None:
    """Set these filters and the others to their defaults, and redraw the page; for the callback of a widget."""
    st.session_state[_NEXT] = _DEFAULTS | values
    st.rerun("app")


def _draw(level_name: str, unused: Sequence[str]) -> None:
    st.session_state.update(st.session_state.pop(_NEXT, {}))
    st.session_state[_OFFERED] = {}
    level, devices = level_of(level_name), ask(offers.gpus, level_name)
    if not devices:
        return
    scope = _scope(devices, level_name)
    found = ask(offers.choices, **scope)
    found = {**found, "feature": ask(offers.features, tuple(name for name, _ in found["implementation"]), level_name)}
    _follow(scope, found)
    offered = offers.presets_of(ask, scope, level_name)
    with st.container(horizontal=True, key="chips", gap="small"):
        first = st.container(width="content")
        captions = [words.gpu_caption(*facts) for facts in devices.values()]
        _chip("gpu", list(devices), _settle("gpu", list(devices)), level, captions)
        _one(level.first_filter, found, level)
        with st.popover(words.several("dtype", LABELS["dtype"], _picked("dtype", found)), key="chip_dtype"):
            _several("dtype", level)
        if len(level.modes) > 1:
            _one("mode", found, level, drawn="mode" not in unused)
        _shape_chip(_of_dtypes(found, scope), level)
        _one("baseline", found, level)
        _more(found, level, unused)
    with first:
        _presets(offered)
    address.write()
    if not unused:
        _mend_baseline()
    if st.session_state.get(_UNKNOWN):
        unknown = "; ".join(st.session_state[_UNKNOWN])
        st.caption(f":material/link_off: The link names unknown values: {unknown}. The filters show known ones.")


def _mend_baseline() -> None:
    """Replace a baseline that nothing in the slice can be compared with, and say so until a filter changes."""
    chosen = current()
    usable = ask(speedups.usable_baseline, chosen)
    if usable != chosen.baseline:
        st.session_state[_NEXT] = {"baseline": usable}
        st.session_state[_REPLACED] = chosen.baseline, usable
        st.rerun()
    before, now = st.session_state.get(_REPLACED, (None, None))
    if now == chosen.baseline:
        st.caption(
            f":material/swap_horiz: Nothing here can be compared with {plain(before)}. Speedups are over {plain(now)}."
        )


def _scope(devices: offers.Devices, level_name: str) -> Scope:
    """Set the device, workload and mask, which determine the choices of the other filters."""
    gpu = _settle("gpu", list(devices), ask(offers.first_gpu, level_name) or next(iter(devices)))
    workload = _settle("workload", _with_all("workload", ask(offers.workloads, gpu, level_name), level_name))
    of_workload = {"level": level_name} if workload == ALL else {"workload": workload}
    masks = ask(offers.options, "mask", gpu=gpu, **of_workload)
    return {"gpu": gpu, **of_workload, "mask": _settle("mask", masks)}


def _with_all(name: str, choices: list[str], level_name: str) -> list[str]:
    """Return the choices of a filter of one value, with `all` first if its level allows that."""
    return [ALL, *choices] if choices and name in level_of(level_name).open_filters else choices


def _settle(name: str, choices: Sequence[str], default: str | None = None) -> str | None:
    """Return the value of a filter: chosen, from the link, or the default, which is the first choice.

    Code sets it in every run but the first of a valid link, so that it is always in the URL.
    """
    if not choices:
        return None
    st.session_state[_OFFERED][name] = list(choices)
    linked = address.named(name)
    value = linked if linked is not None else st.session_state.get(name)
    value = _BEFORE.get(value, value)
    if value in choices and value == linked:
        return value
    if linked is not None and value not in choices:
        _unknown(LABELS.get(name, name), [linked])
    st.session_state[name] = value if value in choices else default or choices[0]
    return st.session_state[name]


def _unknown(label: str, values: Sequence[str]) -> None:
    st.session_state.setdefault(_UNKNOWN, []).append(f"{label} {', '.join(plain(value[:60]) for value in values)}")


def _one(name: str, found: Choices, level: Level, *, drawn: bool = True) -> None:
    """Draw the chip of a filter of one value; set its value even if it is not drawn."""
    choices = st.session_state[_OFFERED].get(name) or _with_all(name, offers.ordered(name, found), level.name)
    if choices and drawn:
        _chip(name, choices, _settle(name, choices), level)
    elif choices:
        st.session_state[name] = _settle(name, choices)


def _shape_chip(found: Choices, level: Level) -> None:
    choices, default = offers.shapes(found, level)
    numbers = dict(found.get("shape", ()))
    captions = [f"{numbers[choice]:,} numbers" if choice in numbers else "" for choice in choices]
    _chip("shape", choices, _settle("shape", choices, default), level, captions)


def _chip(name: str, choices: list[str], value: str, level: Level, captions: Sequence[str] | None = None) -> None:
    with st.popover(words.chip(name, value, level), key=f"chip_{name}"):
        _radio(name, choices, value, level, captions)


def _radio(name: str, choices: list[str], value: str, level: Level, captions: Sequence[str] | None = None) -> None:
    """Draw the choices of a filter of one value.

    The URL leaves out the default of a widget, so the widget has none.
    """
    address.note(name, value)
    captions = captions or [words.caption(name, choice) for choice in choices]
    st.radio(
        words.shape_label(level) if name == "shape" else LABELS[name],
        choices,
        index=choices.index(value) if address.takes_default(name) else None,
        key=name,
        bind="query-params",
        help=_HELP.get(name),
        captions=captions if any(captions) else None,
        on_change=_changed,
    )
    address.note(name, value)  # again, because Streamlit drops a value of the link that is no choice


def _picked(name: str, found: Choices) -> list[str]:
    """Return the chosen values of a filter of several values, and remember unknown ones of the link."""
    choices = st.session_state[_OFFERED][name] = offers.ordered(name, found)
    there = [str(choice) for choice in choices]
    linked = [] if address.named(name) is None else st.query_params.get_all(name)
    if missing := [value for value in linked if value not in there]:
        _unknown(LABELS.get(name, name), missing)
    values = linked or st.session_state.get(name) or []
    return [value for value in there if value in values]


def _several(name: str, level: Level, draw: Callable[..., Any] = st.pills, **look: Any) -> None:
    """Draw the choices of a filter of several values, as pills or in a list."""
    choices = [str(choice) for choice in st.session_state[_OFFERED][name]]
    default, given = _noted(name), _PILLS if draw is st.pills else look
    draw(_label(name, level), choices, default=default, key=name, bind="query-params", on_change=_changed, **given)


def _label(name: str, level: Level) -> str:
    axes = {axis.column: axis.label for axis in (level.columns, level.rows)}
    return axes.get(name) or LABELS[name]


def _more(found: Choices, level: Level, unused: Sequence[str]) -> None:
    """Draw the less important filters; their chip names their values."""
    axes = [axis.column for axis in (level.columns, level.rows)]
    lists = ("feature", "implementation", "source", "run")
    picked = {name: _picked(name, found) for name in (*axes, *lists)}
    timings = offers.ordered("timing", found)
    timing = _settle("timing", timings)
    told = [words.several(name, _label(name, level), values) for name, values in picked.items() if values]
    if "timing" in unused:
        st.session_state["timing"] = timing
    elif timing and timing != timings[0]:
        told.insert(0, words.chip("timing", timing, level))
    with st.popover(f"More: {', '.join(told)}" if told else "More filters", key="more_filters"):
        for name in axes:
            _several(name, level)
        for name, choices in (("timing", timings), ("workload", st.session_state[_OFFERED].get("workload", []))):
            if choices and name not in (*unused, level.first_filter):
                _radio(name, choices, _settle(name, choices), level)
        if level.first_filter == "workload":
            masks = st.session_state[_OFFERED]["mask"]
            _radio("mask", masks, _settle("mask", masks), level)
        for name in lists:
            if st.session_state[_OFFERED][name]:
                placeholder = "Any" if name == "feature" else "All"
                look = {"placeholder": placeholder, "select_all": False, "help": _HELP.get(name)}
                _several(name, level, st.multiselect, **look)
        st.button("Reset all filters", on_click=_changed, args=(_DEFAULTS,), key="reset_filters")


def _declaring(
    features: Sequence[str], picked: Sequence[str], baseline: str | None, level: Level
) -> tuple[str | None, ...]:
    """Return the picked implementations, or all, that declare all the features; if none does, the baseline."""
    able = ask(offers.declaring, tuple(features), level.name)
    names = picked or st.session_state[_OFFERED]["implementation"]
    return tuple(name for name in names if name in able) or (baseline,)


def _noted(name: str) -> list[str] | None:
    """Note the values of a filter in the address; return them if the widget will use its default."""
    picked = [str(value) for value in st.session_state.get(name) or ()]
    if picked:
        address.note(name, picked)
    return picked if address.takes_default(name) else None


def _presets(offered: dict[str, Settings]) -> None:
    """Draw the presets behind a chip, which names the active one."""
    if offered:
        active = st.session_state[_PRESET] = next((title for title, each in offered.items() if _is_active(each)), None)
        with st.popover(active or "Presets", key="presets"):
            st.pills("Presets", list(offered), key=_PRESET, on_change=_on_preset, args=(offered,), wrap=True)


def _is_active(settings: Settings) -> bool:
    """Return whether the filters have the values of a preset, and the other filters select all."""
    wanted = {"timing": next(iter(st.session_state[_OFFERED].get("timing", ())), None)} | settings
    return all((st.session_state.get(name) or []) == wanted.get(name, []) for name in MULTIPLE) and all(
        st.session_state.get(name) == value for name, value in wanted.items() if name in SINGLE
    )


def _on_preset(offered: dict[str, Settings]) -> None:
    """Set the values of the chosen preset, and the other filters to their defaults.

    GPU and workload are kept, and the baseline if the mask does not change.
    """
    settings = offered.get(st.session_state[_PRESET] or "")
    if settings:
        same = st.session_state.get("mask") == settings["mask"]
        kept = {name: st.session_state.get(name) for name in ("gpu", "workload", *["baseline"] * same)}
        settings = _DEFAULTS | kept | settings
    _changed(settings)


def _changed(following: Settings | None = None) -> None:
    """Redraw the chips and the body of the page, with the `following` values; the callback of each filter."""
    if following:
        st.session_state[_NEXT] = following
    st.session_state[_UNKNOWN] = []
    st.session_state.pop(_REPLACED, None)
    page_body.again(_FRAGMENT)


def _follow(scope: Scope, found: Choices) -> None:
    """Reset filters without numbers after a change of device, workload or mask; a link may still name them."""
    before, st.session_state[_SCOPE] = st.session_state.get(_SCOPE, scope), scope
    for name in ("mode", "baseline", "timing") if before != scope else ():
        numbers = dict(found.get(name, ()))
        if any(numbers.values()) and not numbers.get(st.session_state.get(name)):
            st.session_state[name] = None


def _of_dtypes(found: Choices, scope: Scope) -> Choices:
    """Return the choices with only the shapes that have numbers of the chosen dtypes, so that no page is empty."""
    dtypes = tuple(
        str(c) for c in st.session_state[_OFFERED]["dtype"] if str(c) in (st.session_state.get("dtype") or ())
    )
    if not dtypes:
        return found
    there = ask(offers.shapes_of_dtypes, dtypes, **scope)
    return {**found, "shape": [(shape, numbers) for shape, numbers in found.get("shape", []) if shape in there]}


def _enter(level_name: str) -> None:
    """Restore the filters after a page without them, or with those of another level.

    A first visit without parameters starts with a preset of a realistic shape.
    """
    everything = st.session_state.setdefault(_KEPT, {})
    kept = everything.get(level_name, {})
    before, st.session_state[_LEVEL] = st.session_state.get(_LEVEL, level_name), level_name
    if before != level_name:
        gpu = st.session_state.get("gpu")
        st.session_state.update(_DEFAULTS | kept | {"gpu": gpu})
    named = [name for name in (*SINGLE, *MULTIPLE) if name in st.query_params or name in st.session_state]
    if not kept and not named:
        kept = offers.first_settings(ask, level_name)
    for name, value in kept.items():
        if name not in st.session_state and name not in st.query_params:
            st.session_state[name] = value
