"""A published report beside an own run: its tables, the numbers, the chart, what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from pages.ui.draw import charts, messages, text
from pages.ui.reports.choose import Choice, own_runs
from results.checks import CHECKS, DOUBTFUL, IMPOSSIBLE, Finding
from results.metrics import METRICS, Metric
from results.reports import side_by_side
from results.reports.notes import shipped_notes
from results.reports.rendering import quoted
from results.reports.side_by_side import Section
from results.store.database import Store

_TITLES = {rule.name: rule.title for rule in CHECKS}


def coverage(found: Sequence[Section], problems: Sequence[Finding], choice: Choice) -> None:
    """Say how much of the report the run has, and how much of the report cannot be."""
    rows, all_rows = side_by_side.covered(found)
    impossible, doubtful = (sum(finding.weight == weight for finding in problems) for weight in (IMPOSSIBLE, DOUBTFUL))
    with st.grid(3, min_column_width=150):
        st.metric("Tables", len({section.title for section in found}), border=True, height="stretch")
        st.metric("Rows with both", f"{rows} of {all_rows}", border=True, height="stretch")
        st.metric(
            "Impossible",
            impossible,
            f"{doubtful} doubtful",
            delta_arrow="off",
            delta_color="off",
            border=True,
            height="stretch",
            help="Findings by arithmetic; see the view Findings.",
        )
    if choice.run and not rows:
        wanted = ", ".join(sorted({own for _, own in choice.places}))
        st.info(
            f"{text.plain(choice.run)} has none of this report's rows. They need the report's own shapes and "
            f"{text.plain(wanted)}; a sweep can be edited to them.",
            icon=":material/table_rows:",
        )
        st.page_link("pages/run_sweep.py", label="Run sweep", icon=":material/play_circle:")


def tables(found: Sequence[Section], choice: Choice) -> None:
    """Draw every table in the report's own layout; each cell says printed / own."""
    st.caption("Each cell says printed / own." if choice.run else "Each cell is to the letter.")
    for section in found:
        if section.title:
            st.markdown(f"**{text.plain(section.title)}**")
        rows = [
            [*map(text.plain, row.labels), *(_cell(row, at, choice) for at in range(len(section.columns)))]
            for row in section.rows
        ]
        header = [text.plain(name) for name in (*section.labels, *section.columns)]
        alt = f"{section.title or choice.report}, {'printed and own' if choice.run else 'as printed'}"
        st.table(pd.DataFrame(rows, columns=header), hide_index=True, alt=alt)
        if section.setting and choice.run:
            st.caption(f"Of the own run: {text.plain(section.setting)}.")


def numbers(found: Sequence[Section]) -> pd.DataFrame:
    """Return both numbers of every cell as data."""
    rows = [{"table": section.title, **pair} for section in found for pair in side_by_side.pairs(section)]
    return pd.DataFrame(rows).dropna(axis="columns", how="all")


def numbers_table(table: pd.DataFrame) -> None:
    """Draw both numbers of every cell as columns that sort."""
    st.dataframe(
        table,
        hide_index=True,
        alt="Printed and own number of every cell",
        column_config={
            "printed": st.column_config.NumberColumn("printed", format="%.4g", help="In the unit of its column"),
            "own": st.column_config.NumberColumn("own", format="%.4g"),
            "own / printed": st.column_config.NumberColumn("own / printed", format="%.2f×"),
        },
    )
    st.caption("Statistic: as the report printed it; of an own run the median, in a column with deviations the mean.")


def metrics(table: pd.DataFrame) -> list[str]:
    """Return the metrics that have both numbers somewhere, speedups first, then those with most."""
    both = _with_both(table)
    names = both["metric"].value_counts().index.tolist() if len(both) else []
    return sorted(names, key=lambda name: name != "speedup")


def figure(table: pd.DataFrame, metric: str) -> go.Figure:
    """Return own against printed, of one metric."""
    both = _with_both(table)
    return _own_against_printed(both[both["metric"] == metric], METRICS[metric])


def chart(table: pd.DataFrame, choice: Choice) -> None:
    """Draw own against printed, of a metric that the reader chooses."""
    names = metrics(table)
    if not names:
        st.info("Nothing here has both numbers; choose another run beside it.", icon=":material/show_chart:")
        return
    metric = names[0]
    if len(names) > 1:
        metric = st.pills(
            "Metric",
            names,
            default=names[0],
            required=True,
            key="report_metric",
            bind="query-params",
            format_func=lambda name: METRICS[name].label,
        )
    alt = f"{METRICS[metric].label} of the own run against the printed one, a point a cell, and where both are the same"
    st.plotly_chart(figure(table, metric), key="report_chart", config=charts.camera(choice.report), alt=alt)
    st.caption(
        "Each point is a cell of the report: across as printed, up as the run has it; above the line the own "
        "number is larger. The same numbers are under Numbers. The camera saves a PNG."
    )


def findings_table(problems: Sequence[Finding]) -> None:
    """Draw what arithmetic says against the numbers, the impossible first: an example of each rule, then all."""
    st.markdown("\n".join(_examples(problems)) or "Nothing was found against these numbers.")
    table = pd.DataFrame(
        [{"weight": f.weight, "rule": _TITLES[f.rule], "finding": f.sentence, "where": f.origin} for f in problems],
        columns=["weight", "rule", "finding", "where"],
    )
    st.dataframe(
        table,
        hide_index=True,
        alt="Every finding with its arithmetic",
        column_config={"finding": st.column_config.TextColumn("finding", width="large")},
    )
    st.caption("A finding never hides or changes a number. In a terminal: `python -m results check`.")
    st.page_link("pages/findings.py", label="Findings in all runs", icon=":material/fact_check:")


def in_words(report: str) -> None:
    """Quote what the report says besides its numbers."""
    for note in shipped_notes(report):
        st.markdown(quoted(note))
    st.caption(f"{messages.source_badges(['published'])} Quoted.")


def sections(store: Store, choice: Choice) -> list[Section]:
    """Return the tables of the choice; a question for `ask`."""
    return side_by_side.sections(
        choice.report, side_by_side.published(choice.report), own_runs(choice), dict(choice.places) or None
    )


def findings(store: Store, report: str) -> list[Finding]:
    """Return the findings of a report; a question for `ask`."""
    return side_by_side.findings(side_by_side.published(report))


def _examples(problems: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each rule that found something: how often, and its first sentence."""
    for rule in dict.fromkeys(finding.rule for finding in problems):
        found = [finding for finding in problems if finding.rule == rule]
        many = f"{found[0].weight}, {_TITLES[rule]}: {len(found)}"
        yield f"- **{text.plain(many)}.** For example: {text.plain(found[0].sentence)}"


def _own_against_printed(pairs: pd.DataFrame, metric: Metric) -> go.Figure:
    """Return each cell of a report as a point, printed across and own up, both logarithmic; on the line they agree."""
    figure = go.Figure()
    names = [name for name in pairs.columns if name not in ("column", "metric", "printed", "own", "own / printed")]
    for at, (column, rows) in enumerate(pairs.groupby("column", sort=False)):
        what = [
            ", ".join(str(row[name]) for name in names if row[name] == row[name]) for row in rows.to_dict("records")
        ]
        figure.add_scatter(
            x=rows["printed"],
            y=rows["own"],
            name=column,
            mode="markers",
            marker={
                "symbol": charts.SYMBOLS[at % len(charts.SYMBOLS)],
                "size": 8,
                "color": charts.SPARE_COLOURS[at % len(charts.SPARE_COLOURS)],
                "line": {"width": 0.5, "color": "white"},
            },
            customdata=what,
            hovertemplate="%{customdata}<br>printed %{x:.4g}, own %{y:.4g}<extra>" + column + "</extra>",
        )
    low, high = (float(getattr(pairs[["printed", "own"]], end)().agg(end)) for end in ("min", "max"))
    figure.add_scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"dash": "dash", "width": 1.5, "color": charts.EMPTY_COLOUR},
        name="the same",
        hoverinfo="skip",
    )
    unit = f" ({metric.unit})" if metric.unit else ""
    axis = charts.log_axis(low, high)
    figure.update_xaxes(title=f"{metric.label} as printed{unit}", automargin=True, **axis)
    figure.update_yaxes(title=f"{metric.label} of the own run{unit}", automargin=True, **axis)
    figure.update_layout(height=460, margin=charts.CAMERA_MARGIN, legend={"orientation": "h", "y": -0.22})
    return figure


def _with_both(table: pd.DataFrame) -> pd.DataFrame:
    if not {"own", "printed"} <= set(table.columns):
        return table.head(0)
    both = table.dropna(subset=["own", "printed"])
    return both[(both["own"] > 0) & (both["printed"] > 0)]


def _cell(row: side_by_side.Row, at: int, choice: Choice) -> str:
    """Write plain text, but what a report prints bold stays bold where it stands alone."""
    if choice.run:
        return text.plain(side_by_side.both(row, at)).replace(" / ", "\u00a0/ ")  # two lines at most
    return "**".join(text.plain(part) for part in row.printed[at].split("**"))
