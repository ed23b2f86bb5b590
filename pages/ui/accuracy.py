"""Errors against float64: which error, the frontier with speed, errors by seqlen, inputs beyond unit normal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import cells, charts, messages, text
from pages.ui.runs import listing
from pages.ui.shell.data import store
from results.derive import geometric_mean
from results.query import accuracy
from results.query.accuracy import NAIVE, NORMAL
from results.slice import Filters

_WIDTH = 0.8  # of the room of a kind of inputs that its marks take
_TWOS = [2.0**power for power in range(-8, 9)]
_ERROR = {"format": "%.2e"}
_TIMES = {"format": "%.2f×"}
COLUMNS = {
    "implementation": st.column_config.TextColumn("implementation", width="medium", pinned=True),
    "cases": st.column_config.NumberColumn("cases"),
    "error": st.column_config.NumberColumn("error", help="Geometric mean of the cases", **_ERROR),
    "worst": st.column_config.NumberColumn("worst", help="Largest of the cases", **_ERROR),
    "naive_error": st.column_config.NumberColumn("torch_naive's error", **_ERROR),
    "over_naive": st.column_config.NumberColumn(
        "over torch_naive's", help="Error over that of torch_naive in the same dtype and case", **_TIMES
    ),
    "worst_over_naive": st.column_config.NumberColumn("at worst", **_TIMES),
    "speedup": st.column_config.NumberColumn("speedup", help="Geometric mean over the baseline", **_TIMES),
    "lowest": st.column_config.NumberColumn("lowest", **_TIMES),
    "highest": st.column_config.NumberColumn("highest", **_TIMES),
    "compared": st.column_config.NumberColumn("timed cases"),
    "frontier": st.column_config.CheckboxColumn("on the frontier"),
    "fails": st.column_config.TextColumn("fails the check", help="Too far off to be given a speed", width="medium"),
    "latency_ms": st.column_config.NumberColumn("latency (ms)", format="%.4g"),
}


def choose() -> tuple[str, str]:
    """Ask for the tensor and the kind of error; return both."""
    left, right = st.columns(2)
    with left:
        tensor = st.pills("Error of", accuracy.TENSORS, default="out", required=True, key="tensor", bind="query-params")
    with right:
        measure = st.segmented_control(
            "As",
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
        sentence = f"**{dtype}**: {text.plain(closest['implementation'])} is closest with {closest['error']:.2g}"
        fastest = frontier.loc[frontier["speedup"].idxmax()] if len(frontier) else closest
        if len(frontier) and fastest["implementation"] != chosen.baseline:
            sentence += (
                f"; {text.plain(fastest['implementation'])} is {text.ratio(fastest['speedup'])} "
                f"{text.plain(chosen.baseline)} with {fastest['error']:.2g}"
            )
            if not text.missing(fastest["over_naive"]):
                sentence += f", {text.ratio(fastest['over_naive'])} the error of {text.plain(accuracy.NAIVE)}"
        st.markdown(f"{sentence}.")


def frontier(table: pd.DataFrame, palette: dict[str, str], chosen: Filters, label: str) -> None:
    """Draw error against speedup, a mark an implementation, a chart a dtype."""

    def draw(rows: pd.DataFrame) -> object:
        return frontier_chart(accuracy.summary(rows), palette, label)

    timed = table.groupby("dtype")["speedup"].transform(lambda speedups: speedups.notna().any())
    _facets(table[timed], draw, "frontier", f"{label} against speedup over {chosen.baseline}")
    untimed = sorted(set(table.loc[~timed, "dtype"]))
    names = sorted(set(table["implementation"]) - set(table.loc[table["speedup"].notna(), "implementation"]))
    left_out = [*untimed, *names]
    if left_out:
        st.caption(f"Without a time beside its errors in this slice: {', '.join(map(text.plain, left_out))}.")


def caption(chosen: Filters, table: pd.DataFrame, tensor: str) -> None:
    """Say what the frontier shows."""
    mode = "forward" if tensor == "out" else "backward"
    timing = text.TIMING_WORDS.get(chosen.timing or "", "time")
    runs = messages.counted(table["run_id"].nunique(), "run")
    st.caption(
        f"{listing.badges_of(set(table['run_id']))} "
        f"Further right is faster ({mode}, {timing}, over {text.plain(chosen.baseline)}), lower is closer to "
        f"float64; both are geometric means of {messages.counted(len(table), 'number')} of {runs}, on unit normal "
        "inputs. Filled marks are on the frontier: none other is both as close and as fast within 2 %. Dashed: "
        "torch\\_naive's error in the same dtype, what plain code makes. The mode of the filters has no effect here."
    )


def summaries(table: pd.DataFrame) -> None:
    """Draw the numbers of the frontier charts, a row an implementation and dtype."""
    found = [accuracy.summary(rows).assign(dtype=dtype) for dtype, rows in table.groupby("dtype", sort=True)]
    whole = pd.concat(found, ignore_index=True)
    whole = whole if whole["compared"].any() else whole.drop(columns=["compared", "frontier"])
    first = ["implementation", "dtype"]
    st.dataframe(
        whole[[*first, *(name for name in whole if name not in first)]].dropna(axis="columns", how="all"),
        hide_index=True,
        alt="Error and speedup of every implementation by dtype",
        column_config=COLUMNS,
    )


def by_seqlen(table: pd.DataFrame, palette: dict[str, str], label: str) -> None:
    """Draw whether errors grow with the sequence, a chart a dtype."""
    _facets(table, lambda rows: by_seqlen_chart(rows, palette, label), "error_by_seqlen", f"{label} by seqlen")


def beyond(chosen: Filters, table: pd.DataFrame, tensor: str, measure: str) -> tuple[pd.DataFrame, str]:
    """Return the errors of the cases whose inputs were varied, and of which masks and shapes they are.

    Where the slice has none, they are of all masks and shapes.
    """
    if not _varied(table).empty:
        found = errors(chosen, tensor, measure, by_inputs=True)
        return _varied(found), f"{chosen.mask or 'every'} mask, {chosen.shape or 'every batch and heads'}"
    wider = errors(replace(chosen, mask=None, shape=None), tensor, measure, by_inputs=True)
    return _varied(wider), "every mask, batch and heads: the slice of the filters has none"


def beyond_normal(table: pd.DataFrame, where: str, palette: dict[str, str], label: str) -> None:
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
    draw = partial(by_inputs, palette=palette, label=label)
    _facets(table, draw, "error_by_inputs", f"{label} by kind of inputs")
    failing(table)
    whole = pd.concat(found, ignore_index=True).assign(other=lambda rows: rows["inputs"] != accuracy.NORMAL)
    whole = whole.sort_values(["dtype", "implementation", "other", "inputs"])
    columns = ["implementation", "dtype", "inputs", "cases", "error", "worst", "over_naive", "worst_over_naive"]
    st.dataframe(
        whole[columns], hide_index=True, alt="Errors by implementation, dtype and inputs", column_config=COLUMNS
    )
    st.caption(
        f"{listing.badges_of(set(table['run_id']))} Geometric means over {where}. "
        "normal: q, k, v and dout are standard normal. outliers: a few channels of k are 30 times as large, as in "
        "trained models. large: q, k and v are 8 times as large, so that every softmax has one winner. "
        "heavy_tails: q, k and v are normal numbers over uniform ones of at least a thousandth, scores reach 100000."
    )


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
        table.dropna(axis="columns", how="all"), hide_index=True, alt="Error of every case", column_config=COLUMNS
    )


def _varied(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the cases that were tried on normal inputs and on others, so that like stands beside like."""
    cases = pd.MultiIndex.from_frame(table[["dtype", "seqlen", "head_dim", "shape", "implementation"]])
    return table[cases.isin(cases[table["inputs"] != accuracy.NORMAL])]


def _facets(table: pd.DataFrame, figure_of: Callable[[pd.DataFrame], go.Figure], key: str, alt: str) -> None:
    """Draw one chart a dtype."""

    def draw(rows: pd.DataFrame, dtype: str | None) -> None:
        about = f"{alt}, {cells.dtype_name(dtype)}"
        st.plotly_chart(figure_of(rows), key=f"{key}_{dtype}", config=charts.BARE, alt=about)

    cells.facets(table, draw)


def frontier_chart(summary: pd.DataFrame, palette: dict[str, str], label: str) -> go.Figure:
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
    for row in known.sort_values("implementation").to_dict("records"):
        name, symbol = row["implementation"], charts.symbol(row["implementation"])
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
            customdata=[f"{name}<br>{text.ratio(row['speedup'])}, error {row['error']:.3g}<br>{row['cases']} cases"],
            hovertemplate="%{customdata}<extra></extra>",
        )
    naive = summary.loc[summary["implementation"] == NAIVE, "error"]
    if len(naive):
        figure.add_hline(y=float(naive.iloc[0]), line={"dash": "dash", "width": 1.5, "color": charts.EMPTY_COLOUR})
    figure.update_xaxes(type="log", title="speedup", tickvals=_TWOS, ticktext=[f"{mark:g}×" for mark in _TWOS])
    return _finish(figure, label, summary["error"])


def by_seqlen_chart(table: pd.DataFrame, palette: dict[str, str], label: str) -> go.Figure:
    """Return the geometric mean of the errors at each seqlen, a line an implementation; torch_naive's is dashed."""
    means = table[table["error"] > 0].groupby(["implementation", "seqlen"])["error"].agg(geometric_mean).reset_index()

    def hover(row: dict) -> str:
        return f"{row['implementation']}<br>seqlen {text.size(row['seqlen'])}: {row['error']:.3g}"

    traces = charts.lines(means.to_dict("records"), "error", palette, hover, of="implementation", by="seqlen")
    for trace in traces:
        trace["line"] |= {"dash": "dash" if trace["name"] == NAIVE else "solid"}
    return charts.by_size(traces, "seqlen", means["seqlen"], _axis(label, means["error"]), height=420)


def by_inputs(table: pd.DataFrame, palette: dict[str, str], label: str) -> go.Figure:
    """Return the geometric mean of the errors on each kind of inputs, a mark an implementation, side by side.

    The mark of torch_naive is open.
    """
    figure = go.Figure()
    means = table[table["error"] > 0].groupby(["implementation", "inputs"])["error"].agg(geometric_mean).reset_index()
    kinds = sorted(means["inputs"].unique(), key=lambda kind: (kind != NORMAL, kind))
    names = sorted(means["implementation"].unique())
    for at, (name, rows) in enumerate(means.groupby("implementation", sort=True)):
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
    return _finish(figure, label, means["error"])


def _finish(figure: go.Figure, label: str, errors: pd.Series) -> go.Figure:
    figure.update_yaxes(**_axis(label, errors))
    return figure.update_layout(height=420, margin=charts.MARGIN, legend=charts.LEGEND, hovermode="closest")


def _axis(label: str, errors: pd.Series) -> dict:
    """Return the axis of errors: ticks at powers of ten, or at steps between if those would be few."""
    low, high = errors[errors > 0].min(), errors[errors > 0].max()
    digits = (1,) if high > 100 * low else (1, 2, 5) if high > 5 * low else (1, 1.5, 2, 3, 4, 5, 7)
    marks = [digit * 10.0**power for power in range(-17, 4) for digit in digits]
    axis = charts.log_axis_at(low, high, marks, lambda mark: f"{mark:.1e}".replace(".0e", "e"))
    return axis | {"title": {"text": label}}


@st.cache_data(max_entries=60, show_spinner=False)
def _errors(home: str, version: str, chosen: Filters, tensor: str, measure: str, by_inputs: bool) -> pd.DataFrame:
    return accuracy.errors(store(), chosen, tensor, measure, by_inputs=by_inputs)
