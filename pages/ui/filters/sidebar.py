"""The shared filters: sidebar widgets bound to the URL, and the slice they choose.

Each widget's key is its name in the URL. Filters of one value are always there, so that a link keeps its meaning when
new results would change a default; of the others an absent one means all. An unknown value in the URL is ignored.
GPU, workload and mask say what the others can be set to; a change of one of the others draws that one and the body of
the page, and leaves the rest as it is. A page shows one kind of map: its level says which workloads, sizes and modes
are offered, and each level keeps its own choices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.filters import presets
from pages.ui.filters.presets import Choices
from pages.ui.filters.select import one_value
from pages.ui.shell import page_body
from pages.ui.shell.data import ask
from results.levels import Level, level_of
from results.query import pages
from results.slice import ORDER, Filters, in_order, is_on_map, leading_shape
from results.store.database import Store

ALL_SHAPES = "all"
SHAPE_LABELS = {"decode": "Heads and cache", "layer": "Batch and widths"}  # by level, where it is not batch and heads
MODES, TIMINGS, DTYPES = (ORDER[name] for name in ("mode", "timing", "dtype"))
SINGLE = ("gpu", "mode", "baseline", "timing", "workload", "mask", "shape")
SIZES = ("seqlen", "head_dim", "batch", "num_heads")
MULTIPLE = ("dtype", *SIZES, "implementation", "source", "run")
_KEPT = "filters_kept"  # by level, and by name
_LEVEL = "filters_level"
_OFFERED = "filters_offered"  # by name the choices of each filter that is drawn
_SCOPE = "filters_scope"


def draw(level_name: str = "op") -> Filters:
    """Draw the filters of a level and return the slice; at most six are visible, the rest fold away."""
    level = level_of(level_name)
    _enter(level_name)
    st.session_state[_OFFERED] = {}
    with st.sidebar:
        gpus = ask(_gpus, level_name)
        if not gpus:
            return current()
        gpu = _select("GPU", "gpu", gpus, gpus[0], help="The name the driver reports.")
        # The browser makes what is in a popover once it is opened; the filters in it count, and are in the URL, before.
        visible, more = st.container(), st.popover("More filters", icon=":material/tune:", key="more_filters")
        with more:
            scope = _scope(gpu, level_name)
        found = ask(_offered, **scope)
        _follow(scope, found)
        with visible:
            if len(level.modes) > 1:
                _one("Mode", "mode", found)
            _many("dtype", "dtype", found)
            for axis in (level.columns, level.rows):
                _many(axis.label, axis.column, found)
            _one("Baseline", "baseline", found, help="Speedup is baseline over implementation.")
        with more:
            _folded(_of_dtypes(found, scope), level)
        with st.container(horizontal=True):
            _presets(_presets_of(ask, scope, level_name))
            st.button("Reset filters", icon=":material/restart_alt:", on_click=_reset, key="reset_filters")
    return current()


def at_first(ask: Callable[..., pd.DataFrame]) -> Filters:
    """Return the slice of a first visit: what the sidebar chooses where nothing was chosen yet."""
    gpus = ask(_gpus, "op")
    if not gpus:
        return Filters()
    scope: dict[str, str | None] = {"gpu": gpus[0]}
    scope["workload"] = next(iter(ask(_workloads, gpus[0], "op")), None)
    scope["mask"] = next(iter(ask(_options, "mask", **scope)), None)
    found = ask(_offered, **scope)
    _presets_of(ask, scope, "op")  # so that their answers are there too
    first = {name: next(iter(_choices(name, found)), None) for name in ("mode", "baseline", "timing")}
    _, shape = _shapes(found, level_of("op"))
    return Filters(**scope, **first, shape=None if shape == ALL_SHAPES else shape)


def current() -> Filters:
    """Return the slice as the filters stand now, and remember it for pages to come."""
    values = {name: st.session_state.get(name) for name in st.session_state[_OFFERED]}
    level = level_of(st.session_state[_LEVEL])
    st.session_state[_KEPT][level.name] = values
    chosen = values | {"shape": None if values.get("shape") == ALL_SHAPES else values.get("shape")}
    for name in MULTIPLE:
        picked = values.get(name) or ()
        chosen[name] = tuple(c for c in st.session_state[_OFFERED].get(name, ()) if str(c) in picked)
    if len(level.modes) == 1:
        chosen["mode"] = level.modes[0]
    return Filters(**chosen, level=None if _draws_as_op(level) else level.name)


def _draws_as_op(level: Level) -> bool:
    """Return whether a level has the operator's map, so that its workloads stand on the operator's pages."""
    return level.rows == level_of("op").rows


def _scope(gpu: str, level_name: str) -> dict[str, str | None]:
    workloads = ask(_workloads, gpu, level_name)
    help = "The operator alone, or a layer or model around it."
    workload = _select("Workload", "workload", workloads, workloads[0], help=help) if workloads else None
    masks = ask(_options, "mask", gpu=gpu, workload=workload)
    return {"gpu": gpu, "workload": workload, "mask": _select("Mask", "mask", masks, masks[0]) if masks else None}


def _follow(scope: dict[str, str | None], found: Choices) -> None:
    """Leave what has no number on another device, workload or mask; a link may name it all the same."""
    before, st.session_state[_SCOPE] = st.session_state.get(_SCOPE, scope), scope
    for name in ("mode", "baseline", "timing") if before != scope else ():
        numbers = dict(found.get(name, ()))
        if any(numbers.values()) and not numbers.get(st.session_state.get(name)):
            st.session_state[name] = None


def _gpus(store: Store, level_name: str) -> list[str]:
    """Return the devices that have a number of the level's map, most numbers of the operator first."""
    pairs = store.rows("SELECT DISTINCT gpu, workload FROM choices")
    there = {gpu for gpu, workload in pairs if is_on_map(workload, level_name)}
    return [gpu for gpu in pages.gpus(store)["gpu"] if gpu in there]


def _workloads(store: Store, gpu: str, level_name: str) -> list[str]:
    """Return the workloads of a device that have the level's map, most numbers first."""
    return [workload for workload in _options(store, "workload", gpu=gpu) if is_on_map(workload, level_name)]


def _options(store: Store, name: str, **scope: str | None) -> list[str]:
    return pages.options(store, name, **scope)["choice"].tolist()


def _offered(store: Store, **scope: str | None) -> Choices:
    """Return by filter what it can be set to within a device, workload and mask, most numbers first."""
    found: dict[str, list[tuple[str, int]]] = {}
    for name, choice, numbers in pages.choices(store, **scope).itertuples(index=False):
        found.setdefault(name, []).append((choice, numbers))
    return found | {"baseline": found.get("implementation", [])}


def _of_dtypes(found: Choices, scope: dict[str, str | None]) -> Choices:
    """Return the choices with the shapes that have a number of the chosen dtypes alone, so that no page is empty."""
    dtypes = tuple(st.session_state.get("dtype") or ())
    if not dtypes:
        return found
    there = ask(_shapes_of_dtypes, dtypes, **scope)
    return {**found, "shape": [(shape, numbers) for shape, numbers in found.get("shape", []) if shape in there]}


def _shapes_of_dtypes(store: Store, dtypes: tuple[str, ...], **scope: str | None) -> set[str]:
    """Return the shapes within a device, workload and mask that have a number of one of the dtypes."""
    rows = store.rows(
        """SELECT DISTINCT shape FROM slices JOIN numbers USING (slice_id)
           WHERE status = 'ok' AND gpu = ? AND workload = ? AND mask = ? AND dtype IN ?""",
        [scope["gpu"], scope["workload"], scope["mask"], list(dtypes)],
    )
    return {shape for (shape,) in rows}


def _folded(found: Choices, level: Level) -> None:
    _one("Timing", "timing", found, help="Kernel and eager times are never compared with each other.")
    choices, default = _shapes(found, level)
    label = SHAPE_LABELS.get(level.name, "Batch and heads")
    _alone(label, "shape", choices, default, "With several in a cell, the cell shows their geometric mean.")
    _many("Implementations", "implementation", found)
    _many("Source", "source", found)
    _many("Run", "run", found)


def _presets_of(ask: Callable[..., Any], scope: dict[str, str | None], level_name: str) -> dict[str, presets.Settings]:
    """Return the presets that have numbers on this device, in this mask or another."""
    masks = ask(_options, "mask", gpu=scope["gpu"], workload=scope["workload"])
    shown_first = sorted(masks, key=lambda mask: mask != scope["mask"])
    return presets.offered(level_name, shown_first, lambda mask: ask(_offered, **scope | {"mask": mask}))


def _presets(offered: dict[str, presets.Settings]) -> None:
    if offered:
        help = "Sets of filters that have numbers here; the GPU stays, and the baseline within a mask."
        st.menu_button(
            "Presets",
            list(offered),
            icon=":material/bookmarks:",
            key="preset",
            help=help,
            on_click=_take,
            args=(offered,),
        )


def _take(offered: dict[str, presets.Settings]) -> None:
    """Set what the chosen preset says, and the other filters to their defaults.

    GPU and workload stay, and the baseline within a mask.
    """
    settings = offered.get(st.session_state["preset"] or "")
    if settings:
        same = st.session_state.get("mask") == settings["mask"]
        kept = {name: st.session_state.get(name) for name in ("gpu", "workload", *["baseline"] * same)}
        _reset()
        st.session_state.update(kept | settings)


def _one(label: str, name: str, found: Choices, help: str | None = None) -> None:
    choices = _choices(name, found)
    if choices:
        _alone(label, name, choices, choices[0], help)


def _alone(label: str, name: str, choices: list[str], default: str, help: str | None) -> None:
    """Draw a filter of one value on which no other depends, and which is therefore drawn again by itself."""
    key = f"filter_{name}"
    st.fragment(_select, key=key)(label, name, choices, default, help, on_change=page_body.again, args=(key,))


def _select(label: str, name: str, choices: list[str], default: str, help: str | None = None, **reaction: Any) -> str:
    """Draw a filter of exactly one value, and remember what it offers."""
    st.session_state[_OFFERED][name] = choices
    return one_value(label, name, choices, default, help, **reaction)


def _many(label: str, name: str, found: Choices) -> None:
    choices = st.session_state[_OFFERED][name] = _choices(name, found)
    st.multiselect(
        label,
        [str(choice) for choice in choices],
        key=name,
        bind="query-params",
        placeholder="All",
        select_all=False,
        on_change=page_body.again,
    )


def _shapes(found: Choices, level: Level) -> tuple[list[str], str]:
    """Return the shapes, all of them together being the last choice, and the default."""
    shapes = found.get("shape", [])
    return [*(shape for shape, _ in shapes), ALL_SHAPES], leading_shape(level, shapes) or ALL_SHAPES


def _choices(name: str, found: Choices) -> list:
    """Return what is there in the given order, then most numbers first; sizes by size. Without a number: last."""
    numbers = dict(found.get(name, ()))
    if name in SIZES:
        return sorted(int(choice) for choice in numbers)
    if name in ("implementation", "run"):
        return sorted(numbers, reverse=name == "run")
    return in_order(name, numbers)


def _enter(level_name: str) -> None:
    """Bring the filters back after a page that does not show them, or that shows those of another level."""
    kept = st.session_state.setdefault(_KEPT, {}).get(level_name, {})
    before, st.session_state[_LEVEL] = st.session_state.get(_LEVEL, level_name), level_name
    if before != level_name:
        gpu = st.session_state.get("gpu")
        _reset()
        st.session_state.update(kept | {"gpu": gpu})
    for name, value in kept.items():
        if name not in st.session_state and name not in st.query_params:
            st.session_state[name] = value


def _reset() -> None:
    """Set the defaults; a single value that is no choice becomes the default when its widget is drawn."""
    st.session_state.update({name: None for name in SINGLE} | {name: [] for name in MULTIPLE})
