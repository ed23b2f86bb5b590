"""The shared filters: sidebar widgets bound to the URL, and the slice they choose.

Each widget's key is its name in the URL. Filters of one value are always there, so that a link keeps its meaning when
new results would change a default; of the others an absent one means all. An unknown value in the URL is ignored.
"""

from __future__ import annotations

import streamlit as st

from pages.ui import words
from pages.ui.data import ask
from results import queries
from results.queries import Filters

ALL_SHAPES = "all"
BASELINES = ("torch_naive", "torch", "standard", "naive", "naive_attention", "torch_sdpa_math")
MODES = ("fwd", "bwd", "fwd_bwd", "prefill", "decode", "train")
TIMINGS = ("kernel", "eager", queries.AS_PUBLISHED)
DTYPES = ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn")
SINGLE = ("gpu", "mode", "baseline", "timing", "workload", "mask", "shape")
MULTIPLE = ("dtype", "seqlen", "head_dim", "implementation", "source", "run")
_KEPT = "filters_kept"


def sidebar() -> Filters:
    """Draw the filters and return the slice; at most six are visible, the rest fold away."""
    _restore()
    with st.sidebar:
        gpus = ask(queries.gpus)["gpu"].tolist()
        if not gpus:
            return _remember(Filters())
        gpu = _select("GPU", "gpu", gpus, gpus[0], help="The name the driver reports.")
        visible, more = st.container(), st.expander("More filters", icon=":material/tune:", key="more_filters")
        with more:
            scope = _scope(gpu)
        with visible:
            chosen = {
                "mode": _one("Mode", "mode", scope, MODES),
                "dtype": _many("dtype", "dtype", scope, DTYPES),
                "seqlen": _many("seqlen", "seqlen", scope),
                "head_dim": _many("head_dim", "head_dim", scope),
                "baseline": _one(
                    "Baseline", "baseline", scope, BASELINES, help="Speedup is baseline over implementation."
                ),
            }
        with more:
            chosen |= _folded(scope)
        st.button("Reset filters", icon=":material/restart_alt:", on_click=_reset, width="stretch", key="reset_filters")
    return _remember(Filters(**scope, **chosen))


def current() -> Filters:
    """The slice that the sidebar chose in this run of the script."""
    return st.session_state["filters"]


def _scope(gpu: str) -> dict[str, str | None]:
    scope: dict[str, str | None] = {"gpu": gpu}
    scope["workload"] = _one("Workload", "workload", scope, help="The operator alone, or a layer or model around it.")
    scope["mask"] = _one("Mask", "mask", scope)
    return scope


def _folded(scope: dict[str, str | None]) -> dict[str, object]:
    timing = _one("Timing", "timing", scope, TIMINGS, help="Kernel and eager times are never compared with each other.")
    shape = _shape(scope)
    return {
        "timing": timing,
        "shape": None if shape == ALL_SHAPES else shape,
        "implementation": _many("Implementations", "implementation", scope),
        "source": _many("Source", "source", scope),
        "run": _many("Run", "run", scope),
    }


def _one(label: str, name: str, scope: dict, order: tuple[str, ...] = (), help: str | None = None) -> str | None:
    choices = _choices(name, scope, order)
    return _select(label, name, choices, choices[0], help=help) if choices else None


def _select(label: str, name: str, choices: list[str], default: str, help: str | None = None) -> str:
    """A filter of exactly one value.

    The URL leaves out a widget's own default, so the widget is given another choice as its default: then the value is
    always in the URL. It is set by code in every run but the first, which also puts it there.
    """
    value = st.session_state.get(name, st.query_params.get(name))
    if name in st.session_state or value not in choices:
        value = st.session_state[name] = value if value in choices else default
    other = next((place for place, choice in enumerate(choices) if choice != value), 0)
    return st.selectbox(label, choices, index=other, key=name, bind="query-params", help=help)


def _many(label: str, name: str, scope: dict, order: tuple[str, ...] = ()) -> tuple:
    choices = _choices(name, scope, order)
    picked = st.multiselect(
        label, [str(c) for c in choices], key=name, bind="query-params", placeholder="All", select_all=False
    )
    return tuple(choice for choice in choices if str(choice) in picked)


def _shape(scope: dict) -> str | None:
    """One batch and number of heads if most numbers are of it, else all of them."""
    found = ask(queries.options, "shape", **scope)
    choices = [*found["choice"], ALL_SHAPES]
    one_leads = len(found) > 0 and found["numbers"].iloc[0] > 0.6 * found["numbers"].sum()
    help = "Batch and heads. With several in a cell, the cell shows their geometric mean."
    return _select("Batch and heads", "shape", choices, choices[0] if one_leads else ALL_SHAPES, help=help)


def _choices(name: str, scope: dict, order: tuple[str, ...]) -> list:
    """What is there, in the given order, then most numbers first; sizes by size. Without a number: last."""
    found = ask(queries.options, name, **scope)
    choices = found["choice"].tolist()
    if name in ("seqlen", "head_dim"):
        return sorted(int(choice) for choice in choices)
    if name in ("implementation", "run"):
        return sorted(choices, reverse=name == "run")
    empty = set(found.loc[found["numbers"] == 0, "choice"])
    rank = {choice: place for place, choice in enumerate(order)}
    return sorted(choices, key=lambda choice: (choice in empty, rank.get(choice, len(rank))))


def _remember(filters: Filters) -> Filters:
    st.session_state["filters"] = filters
    kept = {name: st.session_state[name] for name in SINGLE + MULTIPLE if name in st.session_state}
    st.session_state[_KEPT] = kept
    return filters


def _restore() -> None:
    """Bring the filters back after a page that does not show them."""
    for name, value in st.session_state.get(_KEPT, {}).items():
        if name not in st.session_state and name not in st.query_params:
            st.session_state[name] = value


def _reset() -> None:
    """Back to the defaults; a single value that is no choice becomes the default when its widget is drawn."""
    st.session_state.update({name: None for name in SINGLE} | {name: [] for name in MULTIPLE})


def words_of(filters: Filters) -> str:
    """The slice in words, as Markdown for captions."""
    parts = [
        filters.gpu,
        filters.workload,
        "mask not said" if filters.mask == queries.NOT_SAID else f"{filters.mask} mask" if filters.mask else None,
        words.MODE_WORDS.get(filters.mode or "", filters.mode),
        filters.shape or "all batch and head counts",
        ", ".join(filters.dtype),
        "seqlen " + ", ".join(words.size(n) for n in filters.seqlen) if filters.seqlen else None,
        "head_dim " + ", ".join(str(n) for n in filters.head_dim) if filters.head_dim else None,
        ", ".join(words.SOURCE_WORDS[source] for source in filters.source),
        "run " + ", ".join(filters.run) if filters.run else None,
    ]
    return " · ".join(words.plain(part) for part in parts if part)
