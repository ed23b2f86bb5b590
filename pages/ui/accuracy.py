"""Errors against float64: which error, the frontier with speed, errors by seqlen, other inputs than unit normal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import cells, charts, messages, text, titles
from pages.ui.runs import listing
from pages.ui.shell.data import store
from results.derive import geometric_mean
from results.query import accuracy
from results.query.accuracy import NAIVE, NORMAL
from results.slice import Filters

_WIDTH = 0.8  # of the room of a kind of inputs that its marks take
_INPUTS_HELP = (
    "normal: q, k, v and dout are standard normal. outliers: a few channels of k are 30 times as large, as in trained "
    "models. large: q, k and v are 8 times as large, so that every softmax has one winner. "
    "heavy_tails: q, k and v are normal numbers over uniform ones of at least a thousandth (float16: a hundredth)."
)
_ERROR_AXIS = "error"  # which one the title says
_HEIGHT = 380
_TWOS = [2.0**power for power in range(-8, 9)]
_ERROR = {"format": "%.2e"}
_TIMES = {"format": "%.3g×"}
COLUMNS = {
    "implementation": st.column_config.TextColumn("implementation", width="medium", pinned=True),
    "cases": st.column_config.NumberColumn("shapes"),
    "error": st.column_config.NumberColumn("error", help="Geometric mean over the shapes", **_ERROR),
    "worst": st.column_config.NumberColumn("worst", help="Largest of the shapes", **_ERROR),
    "naive_error": st.column_config.NumberColumn("torch_naive's error", **_ERROR),
    "over_naive": st.column_config.NumberColumn(
        "× torch_naive's", help="Error over that of torch_naive in the same dtype and shape", **_TIMES
    ),
    "worst_over_naive": st.column_config.NumberColumn("at worst", **_TIMES),
    "speedup": st.column_config.NumberColumn("speedup", help="Geometric mean over the baseline", **_TIMES),
    "lowest": st.column_config.NumberColumn("lowest", **_TIMES),
    "highest": st.column_config.NumberColumn("highest", **_TIMES),
    "compared": st.column_config.NumberColumn("timed shapes"),
    "frontier": st.column_config.CheckboxColumn("on the frontier"),
    "fails": st.column_config.TextColumn("fails the check", help="Fails the check, so it has no speed", width="medium"),
    "latency_ms": st.column_config.NumberColumn("latency (ms)", format="%.3g"),
    "inputs": st.column_config.TextColumn("inputs"),
    "outcome": st.column_config.TextColumn("timing status"),
    "run_id": st.column_config.TextColumn("run"),
}


@dataclass(frozen=True)
class ErrorView:
    """What the page draws: an error of one tensor, over a slice."""

    chosen: Filters
    tensor: str
    measure: str
    what: str = ""  # a chart shows

    @property
    def label(self) -> str:
        """Return the name of the error."""
        return f"{accuracy.MEASURES[self.measure]} of {self.tensor}"

    @property
    def passes(self) -> str:
        """Return the pass whose time stands beside the error."""
        return "forward" if self.tensor == "out" else "backward"

    def title(self, table: pd.DataFrame, dtype: str | None = None) -> titles.ChartTitle:
        """Return the title of a chart, or of the file, of these rows."""
        sliced = replace(self.chosen, mode="fwd" if self.tensor == "out" else "bwd")
        what = (self.what or self.label) + (f", {dtype}" if dtype else "")
        what = what[0].upper() + what[1:]
        versus = "speedup" in what
        return titles.of_slice(what, sliced, table["run_id"].unique(), versus=versus)


def choose() -> tuple[str, str]:
    """Ask for the tensor and the kind of error; return both."""
    left, right = st.columns(2)
    with left:
        tensor = st.pills("Error of", accuracy.TENSORS, default="out", required=True, key="tensor", bind="query-params")
    with right:
        measure = st.segmented_control(
            "Measure",
            list(accuracy.MEASURES),
            default="error",
            required=True,
            key="error",
            bind="query-params",
            format_func=lambda name: accuracy.MEASURES[name],
        )
    return tensor, measure


def errors(chosen: Filters, tensor: str, measure: str, *, by_inputs: bool = False) -> pd.DataFrame:
    """Return the errors of the slice, computed once for each version of the data."""
    return _errors(str(store().home), store().version(), chosen, tensor, measure, by_inputs)


def nothing(chosen: Filters) -> None:
    """Say why there is no error here, and what would make some."""
    st.info(
        f"No error against float64 in this slice of {text.plain(chosen.gpu or 'any GPU')}. Published reports rarely "
        "hold errors; every sweep of this repository does. Choose another GPU, dtype or mask, or run a sweep:",
        icon=":material/filter_alt_off:",
    )
    st.code("python -m runner run accuracy", language=None)
    st.page_link("pages/run_sweep.py", label="Run sweep", icon=":material/play_circle:")


def headline(table: pd.DataFrame, chosen: Filters) -> None:
    """Name for each dtype the closest, and the fastest of those that are on the frontier."""
    for dtype, rows in table.groupby("dtype", sort=True):
        found = accuracy.summary(rows)
        closest, frontier = found.iloc[0], found[found["frontier"]]
        sentence = (
            f"**{dtype}**: {text.plain(closest['implementation'])} is the most accurate (error {closest['error']:.2g})"
        )
        fastest = frontier.loc[frontier["speedup"].idxmax()] if len(frontier) else closest
        if len(frontier) and fastest["implementation"] != chosen.baseline:
            sentence += (
                f"; {text.plain(fastest['implementation'])} is the fastest: "
                f"{text.ratio(fastest['speedup'])} {text.plain(chosen.baseline)} at error {fastest['error']:.2g}"
            )
            if not text.missing(fastest["over_naive"]):
                sentence += f" ({text.ratio(fastest['over_naive'])} that of {text.plain(accuracy.NAIVE)})"
        st.markdown(f"{sentence}.")


def frontier(table: pd.DataFrame, palette: dict[str, str], view: ErrorView) -> None:
    """Draw error against speedup, a mark an implementation, a chart a dtype, and what is not on it."""
    timed = table.groupby("dtype")["speedup"].transform(lambda speedups: speedups.notna().any())
    drawn = table[timed]
    means = pd.concat([accuracy.summary(rows) for _, rows in drawn.groupby("dtype")])
    limits = means.loc[means["error"] > 0, "error"].agg(["min", "max"]).tolist()

    def draw(rows: pd.DataFrame) -> go.Figure:
        return frontier_chart(accuracy.summary(rows), palette, limits)

    view = replace(view, what=f"{view.label} against speedup")
    _facets(drawn, draw, "frontier", view)
    untimed = sorted(set(table.loc[~timed, "dtype"]))
    names = sorted(set(table["implementation"]) - set(table.loc[table["speedup"].notna(), "implementation"]))
    left_out = [*untimed, *names]
    if left_out:
        st.caption(f"No time, so not drawn: {', '.join(map(text.plain, left_out))}.")


def caption(view: ErrorView, table: pd.DataFrame) -> None:
    """Say what the frontier shows."""
    st.caption(
        f"{listing.badges_of(set(table['run_id']))} Further right is faster, lower is more accurate. Filled marks: no "
        "other is both as accurate and as fast. Dashed: torch\\_naive's error.",
        help=f"Geometric means of {messages.counted(len(table), 'number')} of "
        f"{messages.counted(table['run_id'].nunique(), 'run')} on unit normal inputs. Errors are against float64. "
        f"The speedup is of the {view.passes}. Two numbers within 2 % count as equal.",
    )


def summaries(table: pd.DataFrame) -> None:
    """Draw the numbers of the frontier charts, a row an implementation and dtype."""
    found = [accuracy.summary(rows).assign(dtype=dtype) for dtype, rows in table.groupby("dtype", sort=True)]
    whole = pd.concat(found, ignore_index=True)
    whole = whole if whole["compared"].any() else whole.drop(columns=["compared", "frontier"])
    first = ["implementation", "dtype"]
    st.dataframe(
        whole[[*first, *(name for name in whole if name not in first)]].dropna(axis="columns", how="all"),
        placeholder="–",
        hide_index=True,
        alt="Error and speedup of every implementation by dtype",
        column_config=COLUMNS,
    )


def by_seqlen(table: pd.DataFrame, palette: dict[str, str], view: ErrorView) -> None:
    """Draw whether errors grow with the sequence, a chart a dtype."""
    limits = table.loc[table["error"] > 0, "error"].agg(["min", "max"]).tolist()
    view = replace(view, what=f"{view.label} by seqlen")
    _facets(table, lambda rows: by_seqlen_chart(rows, palette, limits), "error_by_seqlen", view)


def beyond(chosen: Filters, table: pd.DataFrame, tensor: str, measure: str) -> tuple[pd.DataFrame, str]:
    """Return the errors of the cases whose inputs were varied, and of which masks and shapes they are.

    Where the slice has none, they are of all masks and shapes.
    """
    if not _varied(table).empty:
        found = errors(chosen, tensor, measure, by_inputs=True)
        return _varied(found), f"{chosen.mask or 'every'} mask, {chosen.shape or 'every batch and heads'}"
    wider = errors(replace(chosen, mask=None, shape=None), tensor, measure, by_inputs=True)
    return _varied(wider), "all masks, batches and heads: no such errors were taken at those of the filters"


def beyond_normal(table: pd.DataFrame, where: str, palette: dict[str, str], view: ErrorView) -> None:
    """Draw errors on inputs with outliers, large values or heavy tails beside those on normal ones."""
    if table.empty:
        st.info(
            "No errors on other inputs than unit normal ones here. The sweep `accuracy` takes them: outlier channels, "
            "large values, heavy tails, long rows.",
            icon=":material/science:",
        )
        st.code("python -m runner run accuracy", language=None)
        return
    found = [
        accuracy.summary(rows).assign(dtype=dtype, inputs=kind)
        for (dtype, kind), rows in table.groupby(["dtype", "inputs"], sort=True)
    ]
    palette = palette | charts.colours([name for name in table["implementation"].unique() if name not in palette])
    means = pd.concat(found)
    limits = means.loc[means["error"] > 0, "error"].agg(["min", "max"]).tolist()
    draw = partial(by_inputs, palette=palette, limits=limits)
    sliced = replace(view.chosen, mask=None, shape=None) if where.startswith("every mask,") else view.chosen
    _facets(table, draw, "error_by_inputs", replace(view, what=f"{view.label} by kind of inputs", chosen=sliced))
    failing(table)
    whole = pd.concat(found, ignore_index=True).assign(other=lambda rows: rows["inputs"] != accuracy.NORMAL)
    whole = whole.sort_values(["dtype", "implementation", "other", "inputs"])
    columns = ["implementation", "dtype", "inputs", "cases", "error", "worst", "over_naive", "worst_over_naive"]
    st.caption(f"{listing.badges_of(set(table['run_id']))} Geometric means over {where}.", help=_INPUTS_HELP)
    with st.expander("Numbers by kind of inputs", icon=":material/table_rows:"):
        alt = "Errors by implementation, dtype and inputs"
        st.dataframe(whole[columns], hide_index=True, alt=alt, column_config=COLUMNS, placeholder="–")


def failing(table: pd.DataFrame) -> None:
    """Name what is too far from float64 to be given a speed, and why."""
    wrong = table[table["fails"].notna()]
    for (name, dtype, kind), rows in wrong.groupby(["implementation", "dtype", "inputs"], sort=True):
        cases = "; ".join(f"seqlen {text.size(row.seqlen)} × head_dim {row.head_dim}" for row in rows.itertuples())
        st.markdown(
            f":material/error: **{text.plain(name)}** fails the check in {dtype} on {kind} inputs at {cases}: "
            f"{text.plain(rows['fails'].iloc[0])}"
        )


def every_case(table: pd.DataFrame) -> None:
    """Draw a row a case and implementation."""
    st.dataframe(
        table.dropna(axis="columns", how="all"),
        hide_index=True,
        alt="Error of every shape",
        column_config=COLUMNS,
        placeholder="–",
    )


def _varied(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the cases that were tried on normal inputs and on others, so that like stands beside like."""
    cases = pd.MultiIndex.from_frame(table[["dtype", "seqlen", "head_dim", "shape", "implementation"]])
    return table[cases.isin(cases[table["inputs"] != accuracy.NORMAL])]


def _facets(table: pd.DataFrame, figure_of: Callable[[pd.DataFrame], go.Figure], key: str, view: ErrorView) -> None:
    """Draw one chart a dtype."""

    def draw(rows: pd.DataFrame, dtype: str | None) -> None:
        title = view.title(rows, cells.dtype_name(dtype))
        charts.show(figure_of(rows), title, key=f"{key}_{dtype}", alt=title.what)

    cells.facets(table, draw)


def frontier_chart(summary: pd.DataFrame, palette: dict[str, str], limits: Sequence[float]) -> go.Figure:
    """Return a mark an implementation, speedup across and error up; the frontier is filled and joined by steps."""
    figure = go.Figure()
    known = summary[summary["speedup"].notna() & (summary["error"] > 0)]
    front = known[known["frontier"]].sort_values("speedup")
    figure.add_scatter(
        x=front["speedup"],
        y=front["error"],
        mode="lines",
        line={"shape": "vh", "color": charts.EMPTY_COLOUR, "width": 1},
        showlegend=False,
        hoverinfo="skip",
    )
    rows = {row["implementation"]: row for row in known.to_dict("records")}
    for name in charts.ordered(rows):
        row, symbol = rows[name], charts.symbol(name)
        figure.add_scatter(
            x=[row["speedup"]],
            y=[row["error"]],
            name=name,
            mode="markers",
            marker={
                "symbol": symbol if row["frontier"] else f"{symbol}-open",
                "size": 12,
                "color": palette[name],
                "line": {"width": 2},
            },
            customdata=[f"{name}<br>{text.ratio(row['speedup'])}, error {row['error']:.3g}<br>{row['cases']} shapes"],
            hovertemplate="%{customdata}<extra></extra>",
        )
    naive = summary.loc[summary["implementation"] == NAIVE, "error"]
    if len(naive):
        figure.add_hline(y=float(naive.iloc[0]), line={"dash": "dash", "width": 1.5, "color": charts.EMPTY_COLOUR})
    figure.update_xaxes(
        type="log", title="speedup over the baseline", tickvals=_TWOS, ticktext=[f"{mark:g}×" for mark in _TWOS]
    )
    return _finish(figure, limits)


def by_seqlen_chart(table: pd.DataFrame, palette: dict[str, str], limits: Sequence[float]) -> go.Figure:
    """Return the geometric mean of the errors at each seqlen, a line an implementation; torch_naive's is dashed."""
    means = table[table["error"] > 0].groupby(["implementation", "seqlen"])["error"].agg(geometric_mean).reset_index()

    def hover(row: dict) -> str:
        return f"{row['error']:.3g}"

    traces = charts.lines(means.to_dict("records"), "error", palette, hover, of="implementation", by="seqlen")
    for trace in traces:
        trace["line"] |= {"dash": "dash" if trace["name"] == NAIVE else "solid"}
    return charts.by_size(traces, "seqlen", means["seqlen"], _axis(limits), height=_HEIGHT, beside=palette)


def by_inputs(table: pd.DataFrame, palette: dict[str, str], limits: Sequence[float]) -> go.Figure:
    """Return the geometric mean of the errors on each kind of inputs, a mark an implementation, side by side.

    The mark of torch_naive is open.
    """
    figure = go.Figure()
    means = table[table["error"] > 0].groupby(["implementation", "inputs"])["error"].agg(geometric_mean).reset_index()
    kinds = sorted(means["inputs"].unique(), key=lambda kind: (kind != NORMAL, kind))
    names = charts.ordered(means["implementation"])
    for at, name in enumerate(names):
        rows = means[means["implementation"] == name]
        symbol = charts.symbol(name)
        aside = _WIDTH * ((at + 0.5) / len(names) - 0.5)
        figure.add_scatter(
            x=[kinds.index(kind) + aside for kind in rows["inputs"]],
            y=rows["error"],
            name=name,
            mode="markers",
            marker={
                "symbol": f"{symbol}-open" if name == NAIVE else symbol,
                "size": 11,
                "color": palette[name],
                "line": {"width": 2},
            },
            customdata=[f"{name}<br>{row.inputs} inputs: {row.error:.3g}" for row in rows.itertuples()],
            hovertemplate="%{customdata}<extra></extra>",
        )
    for between in range(1, len(kinds)):
        figure.add_vline(x=between - 0.5, line={"color": charts.EMPTY_COLOUR, "width": 1, "dash": "dot"})
    figure.update_xaxes(title="inputs", tickvals=[*range(len(kinds))], ticktext=kinds, range=[-0.5, len(kinds) - 0.5])
    return _finish(figure, limits)


def _finish(figure: go.Figure, limits: Sequence[float]) -> go.Figure:
    figure.update_yaxes(**_axis(limits))
    return figure.update_layout(
        height=_HEIGHT + 40, margin=charts.MARGIN, legend=charts.LEGEND, hovermode="closest", showlegend=True
    )


def _axis(limits: Sequence[float]) -> dict:
    """Return the axis of errors, the same for all dtypes: ticks at powers of ten, or between if those would be few."""
    low, high = limits
    digits = (1,) if high > 100 * low else (1, 2, 5) if high > 5 * low else (1, 1.5, 2, 3, 4, 5, 7)
    marks = [digit * 10.0**power for power in range(-17, 4) for digit in digits]
    axis = charts.log_axis_at(low, high, marks, lambda mark: f"{mark:.1e}".replace(".0e", "e"))
    return (axis if "range" in axis else charts.with_range(axis, low, high)) | {"title": {"text": _ERROR_AXIS}}


@st.cache_data(max_entries=60, show_spinner=False)
def _errors(home: str, version: str, chosen: Filters, tensor: str, measure: str, by_inputs: bool) -> pd.DataFrame:
    return accuracy.errors(store(), chosen, tensor, measure, by_inputs=by_inputs)
