"""Errors against float64: the frontier with speed, errors by seqlen, and errors on other inputs than unit normal."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import streamlit as st

from pages.ui.draw import charts, colours, messages, tables, text, titles
from pages.ui.draw.charts import Chart, ReferenceLine, Series
from pages.ui.filters import chips, select
from pages.ui.runs import listing
from pages.ui.shell.data import ask
from results.capabilities import CERTIFICATES, record
from results.derive import geometric_mean
from results.query import accuracy
from results.query.accuracy import NAIVE, NORMAL
from results.render.certificates import COMMAND, cells
from results.slice import Filters

_WIDTH = 0.8  # share of the room of a kind of inputs that its marks take
_HEIGHT = 380
_TWOS = [2.0**power for power in range(-8, 9)]
COLUMNS = tables.declared("accuracy")
COLUMNS |= {"frontier": st.column_config.CheckboxColumn("on the frontier")}


@dataclass(frozen=True)
class ErrorView:
    """The choices of the page: an error of one tensor, over a slice."""

    chosen: Filters
    tensor: str
    measure: str
    what: str = ""  # the quantity of a chart; empty: the error itself

    @property
    def label(self) -> str:
        """Return the name of the error."""
        return f"{accuracy.MEASURES[self.measure]} of {self.tensor}"

    def title(self, table: pd.DataFrame, dtype: str | None = None) -> titles.ChartTitle:
        """Return the title of a chart or file with these rows."""
        sliced = replace(self.chosen, mode="fwd" if self.tensor == "out" else "bwd")
        what = (self.what or self.label) + (f", {dtype}" if dtype else "")
        what = what[0].upper() + what[1:]
        versus = "speedup" in what
        return titles.of_slice(what, sliced, table["run_id"].unique(), versus=versus)


def show() -> None:
    """Draw error against speed, errors by seqlen and by kind of inputs, every number, and the certificates."""
    chosen = chips.current()
    left, right = st.columns(2)
    with left:
        tensor = select.pills("Error of", "tensor", accuracy.TENSORS, "out")
    with right:
        labels = accuracy.MEASURES
        measure = select.segments("Measure", "error", list(labels), "error", format_func=labels.get)
    view = ErrorView(chosen, tensor, measure)
    everything = ask(accuracy.errors, chosen, tensor, measure)
    if everything.empty:
        messages.nothing_measured("accuracy", gpu=text.plain(chosen.gpu or "any GPU"))
        return
    palette = colours.palette(everything["implementation"].unique().tolist())
    table = everything[everything["inputs"] == NORMAL]
    if len(table):
        headline(table, chosen)
        st.subheader("Accuracy against speed")
        if table["speedup"].notna().any():
            frontier(table, palette, view)
        else:
            st.caption("No times for these errors with this timing and baseline. Choose others in the filters.")
        with st.expander("Error and speedup in numbers", icon=":material/table_rows:"):
            summaries(table)
        st.subheader("Does the error grow with the sequence?")
        limits = _limits(table["error"])
        title = replace(view, what=f"{view.label} by seqlen").title
        charts.show_by_dtype(table, lambda rows, _: by_seqlen_chart(rows, palette, limits), title, "error_by_seqlen")
    st.subheader("Other inputs than unit normal")
    beyond_normal(everything, palette, view)
    with st.expander("Every shape", icon=":material/table_rows:"):
        tables.grid(everything.dropna(axis="columns", how="all"), "Error of every shape", COLUMNS)
    label = "Certificates: leaks, batches, padding, repeats, NaN"
    messages.folded(label, "certificates", certificates, ":material/verified_user:")
    messages.download_slice("Download errors", view.title(everything), chosen, lambda: everything, "errors_csv")
    messages.provenance(chosen)


def headline(table: pd.DataFrame, chosen: Filters) -> None:
    """Name for each dtype the most accurate implementation, and the fastest one on the frontier."""
    for dtype, rows in table.groupby("dtype", sort=True):
        found = accuracy.summary(rows)
        closest, frontier = found.iloc[0], found[found["frontier"]]
        sentence = (
            f"## {dtype}: {text.plain(closest['implementation'])} is the most accurate (error {closest['error']:.2g})"
        )
        fastest = frontier.loc[frontier["speedup"].idxmax()] if len(frontier) else closest
        if len(frontier) and fastest["implementation"] != chosen.baseline:
            sentence += (
                f"; {text.plain(fastest['implementation'])} is the fastest: "
                f"{text.ratio(fastest['speedup'])} {text.plain(chosen.baseline)} at error {fastest['error']:.2g}"
            )
            if not text.missing(fastest["over_naive"]):
                sentence += f" ({text.ratio(fastest['over_naive'])} that of {text.plain(NAIVE)})"
        st.markdown(f"{sentence}.")


def frontier(table: pd.DataFrame, palette: dict[str, str], view: ErrorView) -> None:
    """Draw error by speedup, one chart for each dtype; explain it, and name what has no time."""
    timed = table.groupby("dtype")["speedup"].transform(lambda speedups: speedups.notna().any())
    drawn = table[timed]
    limits = _limits(_summaries(drawn, ["dtype"])["error"])

    def chart(rows: pd.DataFrame, dtype: str | None) -> Chart:
        return frontier_chart(accuracy.summary(rows), palette, limits)

    charts.show_by_dtype(drawn, chart, replace(view, what=f"{view.label} against speedup").title, "frontier")
    untimed = sorted(set(table.loc[~timed, "dtype"]))
    names = sorted(set(table["implementation"]) - set(table.loc[table["speedup"].notna(), "implementation"]))
    if left_out := [*untimed, *names]:
        st.caption(f"No time, so not drawn: {', '.join(map(text.plain, left_out))}.")
    runs = set(table["run_id"])
    counts = {"numbers": messages.counted(len(table), "number"), "runs": messages.counted(len(runs), "run")}
    passes = "forward" if view.tensor == "out" else "backward"
    messages.say("accuracy", badges=listing.badges_of(runs), passes=passes, **counts)


def summaries(table: pd.DataFrame) -> None:
    """Draw the numbers of the frontier charts, a row for each implementation and dtype."""
    whole = _summaries(table, ["dtype"])
    whole = whole if whole["compared"].any() else whole.drop(columns=["compared", "frontier"])
    first = ["implementation", "dtype"]
    shown = whole[[*first, *(name for name in whole if name not in first)]].dropna(axis="columns", how="all")
    tables.grid(shown, "Error and speedup of every implementation by dtype", COLUMNS)


def _summaries(table: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return a row for each implementation and group of a table, with the columns of the group."""
    groups = table.groupby(by, sort=True)
    found = [accuracy.summary(rows).assign(**dict(zip(by, kind, strict=True))) for kind, rows in groups]
    return pd.concat(found, ignore_index=True)


def beyond_normal(everything: pd.DataFrame, palette: dict[str, str], view: ErrorView) -> None:
    """Draw errors on normal inputs and on inputs with outliers, large values or heavy tails.

    If the slice has no other inputs, draw those of all masks and shapes.
    """
    chosen, wider = view.chosen, replace(view.chosen, mask=None, shape=None)
    here = not _varied(everything).empty
    table = _varied(ask(accuracy.errors, chosen if here else wider, view.tensor, view.measure, by_inputs=True))
    if table.empty:
        messages.nothing_measured("other_inputs")
        return
    palette = palette | colours.palette([name for name in table["implementation"].unique() if name not in palette])
    found = _summaries(table, ["dtype", "inputs"])
    limits = _limits(found["error"])
    sliced = wider if here and chosen.mask is None else chosen
    title = replace(view, what=f"{view.label} by kind of inputs", chosen=sliced).title
    charts.show_by_dtype(table, lambda rows, _: by_inputs(rows, palette, limits), title, "error_by_inputs")
    failing(table)
    whole = found.assign(other=found["inputs"] != NORMAL).sort_values(["dtype", "implementation", "other", "inputs"])
    columns = ["implementation", "dtype", "inputs", "cases", "error", "worst", "over_naive", "worst_over_naive"]
    where = "all masks, batches and heads, because the filters select no such errors"
    if here:
        where = f"{chosen.mask or 'every'} mask, {chosen.shape or 'every batch and heads'}"
    messages.say("other_inputs", badges=listing.badges_of(set(table["run_id"])), where=where)
    with st.expander("Numbers by kind of inputs", icon=":material/table_rows:"):
        tables.grid(whole[columns], "Errors by implementation, dtype and inputs", COLUMNS)


def failing(table: pd.DataFrame) -> None:
    """Name implementations that fail the check, and why."""
    wrong = table[table["fails"].notna()]
    for (name, dtype, kind), rows in wrong.groupby(["implementation", "dtype", "inputs"], sort=True):
        cases = "; ".join(f"seqlen {text.size(row.seqlen)} × head_dim {row.head_dim}" for row in rows.itertuples())
        st.markdown(
            f":material/error: **{text.plain(name)}** fails the check in {dtype} on {kind} inputs at {cases}: "
            f"{text.plain(rows['fails'].iloc[0])}"
        )


def certificates() -> None:
    """Draw the properties that each implementation was tested for, by device, and what was not measured."""
    for device, entry in record(CERTIFICATES).items():
        rows = [
            {"implementation": name, "reason": found} if isinstance(found, str) else {"implementation": name} | found
            for name, found in cells(entry["implementations"])
        ]
        facts = entry["environment"]
        packages = {"torch": facts["torch"], "triton": facts.get("triton")} | facts.get("packages", {})
        versions = text.plain(", ".join(f"{name} {version}" for name, version in packages.items() if version))
        messages.say("certificates", **facts | {"device": text.plain(device), "versions": versions})
        tables.grid(pd.DataFrame(rows), f"Certificates on {device}", {"implementation": tables.words("implementation")})
        for cost in entry.get("price", ()):
            ratio = text.ratio(cost["invariant_ms"] / cost["chosen_ms"])
            st.caption(f"`kernels.batch_invariant()`, {cost['call']}: {ratio} the time of other kernels.")
    messages.terminal(COMMAND, "On other devices, with the price of `kernels.batch_invariant()` on a GPU:")


def _varied(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the cases that were tried on normal and on other inputs."""
    cases = pd.MultiIndex.from_frame(table[["dtype", "seqlen", "head_dim", "shape", "implementation"]])
    return table[cases.isin(cases[table["inputs"] != NORMAL])]


def frontier_chart(summary: pd.DataFrame, palette: dict[str, str], limits: Sequence[float]) -> Chart:
    """Return error by speedup, a mark for each implementation; marks on the frontier are filled and joined by steps."""
    known = summary[summary["speedup"].notna() & (summary["error"] > 0)]
    front = known[known["frontier"]].sort_values("speedup")
    steps: dict[str, Any] = {"line": "solid", "width": 1, "shape": "vh", "legend": False}
    found = [charts.reference("frontier", front["speedup"], front["error"], **steps)]
    rows = {row["implementation"]: row for row in known.to_dict("records")}
    for name in colours.ordered(rows):
        row, symbol = rows[name], colours.symbol(name)
        said = f"{name}\n{text.ratio(row['speedup'])}, error {row['error']:.3g}\n{row['cases']} shapes"
        look: dict[str, Any] = {"symbol": symbol if row["frontier"] else f"{symbol}-open", "size": 12, "outline": 2}
        found.append(Series(name, [row["speedup"]], [row["error"]], palette[name], [said], **look))
    naive = summary.loc[summary["implementation"] == NAIVE, "error"]
    rules = [ReferenceLine(float(error)) for error in naive.iloc[:1]]
    x = charts.log_ticks(_TWOS, "{:g}×".format) | charts.titled("speedup over the baseline")
    return Chart(found, x, _axis(limits), _HEIGHT + 40, rules=rules)


def by_seqlen_chart(table: pd.DataFrame, palette: dict[str, str], limits: Sequence[float]) -> Chart:
    """Return the geometric mean of the errors at each seqlen, a line for each implementation; torch_naive is dashed."""
    rows = _means(table, "seqlen").to_dict("records")
    found = charts.lines(rows, "error", palette, lambda row: f"{row['error']:.3g}")
    found = [replace(line, line="dash" if line.name == NAIVE else "solid") for line in found]
    sizes = [row["seqlen"] for row in rows]
    return charts.by_size(found, "seqlen", sizes, _axis(limits), height=_HEIGHT, room_for=palette)


def by_inputs(table: pd.DataFrame, palette: dict[str, str], limits: Sequence[float]) -> Chart:
    """Return the geometric mean of the errors on each kind of inputs, a mark for each implementation, side by side.

    The mark of torch_naive is open.
    """
    means = _means(table, "inputs")
    kinds = sorted(means["inputs"].unique(), key=lambda kind: (kind != NORMAL, kind))
    names, found = colours.ordered(means["implementation"]), []
    for at, name in enumerate(names):
        rows, symbol = means[means["implementation"] == name], colours.symbol(name)
        aside = _WIDTH * ((at + 0.5) / len(names) - 0.5)
        x = [kinds.index(kind) + aside for kind in rows["inputs"]]
        said = [f"{name}\n{row.inputs} inputs: {row.error:.3g}" for row in rows.itertuples()]
        look: dict[str, Any] = {"symbol": f"{symbol}-open" if name == NAIVE else symbol, "size": 11, "outline": 2}
        found.append(Series(name, x, rows["error"], palette[name], said, **look))
    rules = [ReferenceLine(between - 0.5, dash="dot", width=1, vertical=True) for between in range(1, len(kinds))]
    ticks = {"tickvals": [*range(len(kinds))], "ticktext": kinds, "range": [-0.5, len(kinds) - 0.5]}
    return Chart(found, ticks | charts.titled("inputs"), _axis(limits), _HEIGHT + 40, rules=rules)


def _means(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the geometric mean of the errors of each implementation by a column."""
    known = table[table["error"] > 0]
    return known.groupby(["implementation", by])["error"].agg(geometric_mean).reset_index()


def _limits(errors: pd.Series) -> list[float]:
    return errors[errors > 0].agg(["min", "max"]).tolist()


def _axis(limits: Sequence[float]) -> dict:
    """Return the axis of errors, the same for all dtypes."""
    low, high = limits
    return charts.close_log_axis(low, high, "{:g}".format) | charts.titled("error")
