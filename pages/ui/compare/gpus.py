"""A comparison of GPUs on their shared shapes."""

from dataclasses import replace

import pandas as pd
import streamlit as st

from pages.ui.draw import charts, colours, messages, tables, text
from pages.ui.draw.titles import ChartTitle, of_runs
from pages.ui.filters import chips, select
from pages.ui.shell import address
from pages.ui.shell.data import ask, store
from results.derive import geometric_mean
from results.levels import level_of
from results.query import gpus
from results.slice import AS_PUBLISHED, ORDER
from results.store.database import Store

QUANTITIES = text.WORDS["gpu_quantities"]  # column: its name, the unit of its axis, what a source must state for it
# A line of the chart has one value of each of these; the order of the choices is given.
_SERIES = {name: ORDER[name] for name in ("mode", "timing", "dtype")} | text.WORDS["gpu_series"]
_ALWAYS_OPEN = {"inputs", "latent_dim", "page_size"}  # only attnbench states these for plain attention
_FIRST = "gluon_hopper"  # shown first if the GPUs have it
_RATIO_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100, 1000)
_DETAILS = ("mode", "timing", "dtype", "seqlen", "head_dim", "batch", "num_heads", "mask")


def section() -> None:
    """Ask for GPUs and an implementation; draw the mean, a chart of one quantity, then every shared shape."""
    pairs = gpus.pairs(store())
    if not pairs:
        messages.say("no_two_gpus")
        return
    chosen = _devices(pairs)
    if len(chosen) < 2:
        st.info("Choose at least two GPUs.", icon=":material/developer_board:")
        return
    names = gpus.implementations(store(), chosen)
    if not names:
        st.info(f"{' and '.join(chosen)} have no implementation in common.", icon=":material/inbox:")
        return
    name = select.named_choice("Implementation", "gpu_implementation", names, _FIRST if _FIRST in names else names[0])
    table = ask(_table, tuple(chosen), name)
    if table.empty:
        st.info("They share no shape: a field that both sources state always differs.", icon=":material/inbox:")
        return
    slowest = _headline(table, chosen)
    _chart(table, name, slowest)
    st.subheader("Every shared shape")
    _every_shape(table)
    messages.download("Download shapes", f"gpus-{name}-{'-'.join(chosen)}".replace(" ", "_"), lambda: table, "gpus_csv")


def _devices(pairs: list[tuple[str, str]]) -> list[str]:
    known = sorted({gpu for pair in pairs for gpu in pair})
    address.check("GPUs", "gpus", known)
    if "gpus" not in st.session_state and not {*known}.intersection(st.query_params.get_all("gpus")):
        st.session_state["gpus"] = list(next((pair for pair in pairs if _share_a_shape(pair)), pairs[0]))
    return st.multiselect("GPUs", known, key="gpus", bind="query-params", select_all=False)


def _share_a_shape(pair: tuple[str, str]) -> bool:
    names = gpus.implementations(store(), list(pair))
    return bool(names) and not ask(_table, pair, names[0]).empty


def _table(store: Store, chosen: tuple[str, ...], name: str) -> pd.DataFrame:
    found = gpus.side_by_side(store, chosen, name)
    masks = [text.mask(causal, window) for causal, window in zip(found["causal"], found["window_size"], strict=True)]
    return found.assign(timing=found["timing"].fillna(AS_PUBLISHED), mask=masks)


def _headline(table: pd.DataFrame, chosen: list[str]) -> str:
    """Warn about limits of the comparison, compare each GPU with the slowest by timing, and return the slowest."""
    assumed = {name for names in table["assumed"] for name in names.split(", ") if name} - _ALWAYS_OPEN
    if assumed:
        words = ", ".join(name.replace("_", " ") if name != "head_dim" else name for name in sorted(assumed))
        messages.say("assumed_fields", words=words)
    if table.groupby("shape")["timing"].nunique().max() > 1:
        messages.say("unknown_timing")
    timing_of = table.groupby("shape")["timing"].first()
    timings = [timing for timing in chips.TIMINGS if timing in set(timing_of)]
    by_timing = {
        timing: table[table["shape"].isin(timing_of.index[timing_of == timing])].pivot_table(
            index="shape", columns="gpu", values="latency_ms"
        )
        for timing in timings
    }
    slowest = by_timing[timings[0]].median().idxmax()  # the same for all sentences
    for timing, times in by_timing.items():
        for gpu in chosen:
            if gpu != slowest:
                ratio = text.ratio(geometric_mean(times[slowest] / times[gpu]))
                st.markdown(
                    f"In {text.TIMED[timing]} {text.plain(gpu)} is **{ratio}** as fast as {text.plain(slowest)}: "
                    f"geometric mean of {messages.counted(len(times), 'shared shape')}."
                )
    return str(slowest)


def _chart(table: pd.DataFrame, name: str, slowest: str) -> None:
    """Ask for a quantity and a slice; draw each GPU's ratio to the slowest GPU by shape, and a line at 1."""
    there = {column: names for column, names in QUANTITIES.items() if table[column].notna().any()}
    words = {name: label for name, (label, _, _) in QUANTITIES.items()}
    column = select.pills("Quantity", "quantity", list(there), format_func=words.get)
    rows = table[table["shape"].isin(_one_series(table.drop_duplicates("shape").set_index("shape")).index)]
    label, _, needed = QUANTITIES[column]
    line = rows.iloc[0]
    about = (name, text.MODE_WORDS.get(line["mode"], line["mode"]), line["timing"], line["dtype"], line["mask"])
    shape = [f"head_dim {line['head_dim']:g}"] if not text.missing(line["head_dim"]) else []
    said = "Speed" if column == "latency_ms" else label
    what = f"{said} relative to {slowest}"
    title = ChartTitle(f"{what} by shape", (*(str(word) for word in about), *shape), of_runs(rows["run_id"].unique()))
    found = ratios(rows, column, slowest)
    if found:
        alt = f"{what} by shape, with a line at 1; the table below has the numbers"
        charts.show(ratio_chart(found), title, key="gpus_chart", alt=alt)
    missing = sorted(set(rows["gpu"]) - set(rows.dropna(subset=[column])["gpu"]))
    lacks = f" Not drawn, because {needed} is not stated: {text.plain(', '.join(missing))}." if missing else ""
    source = "" if column == "latency_ms" else f" {level_of('op').flops_source}"
    absent = [f"{name} (needs {needs})" for at, (name, _, needs) in QUANTITIES.items() if at not in there]
    more = f"Not available: {', '.join(absent)}; no source states it. " if absent else ""
    messages.say("gpu_ratios", slowest=text.plain(slowest), lacks=lacks, more=f"{more}{source}".strip())


def ratios(rows: pd.DataFrame, column: str, slowest: str) -> list[dict]:
    """Return for each shape and other GPU its ratio to the slowest GPU in a quantity; above 1 is better."""
    reference = rows[rows["gpu"] == slowest].set_index("shape")[column]
    others = rows[rows["gpu"] != slowest]
    base = others["shape"].map(reference)
    ratio = base / others[column] if column == "latency_ms" else others[column] / base
    return others.assign(ratio=ratio, base=base).dropna(subset=["ratio", "seqlen"]).to_dict("records")


def ratio_chart(found: list[dict]) -> charts.Chart:
    """Return marks of ratios by seqlen, a series for each GPU, and the line at 1."""
    names = sorted({row["gpu"] for row in found})
    palette = {name: colours.SPARE_COLOURS[at % len(colours.SPARE_COLOURS)] for at, name in enumerate(names)}

    def hover(row: dict) -> str:
        sizes = (f"{words} {row[of]:g}" for words, of in (("batch", "batch"), ("heads", "num_heads")) if row[of])
        return ", ".join([text.ratio(row["ratio"]), *sizes])

    marks = enumerate(charts.lines(found, "ratio", palette, hover, of="gpu", line="", size=9))
    drawn = [replace(each, symbol=colours.SYMBOLS[at % len(colours.SYMBOLS)]) for at, each in marks]
    values = [1.0, *(row["ratio"] for row in found)]
    axis = charts.with_range(charts.log_ticks(_RATIO_TICKS, "{:g}×".format), min(values), max(values))
    chart = charts.by_size(drawn, "seqlen", (row["seqlen"] for row in found), axis | charts.titled("ratio"), height=400)
    return replace(chart, series=drawn, rules=[charts.ReferenceLine(1.0)], hover="closest", right=8)


def _one_series(shapes: pd.DataFrame) -> pd.DataFrame:
    """Ask for mode, timing, dtype, head_dim and mask in turn; return the remaining shapes, which form one line."""
    boxes = st.columns(len(_SERIES))
    for box, (name, order) in zip(boxes, _SERIES.items(), strict=True):
        values = [value for value in shapes[name].unique() if not text.missing(value)]
        values.sort(key=lambda value: (order.index(value) if value in order else len(order), str(value)))
        if values:
            labels = {f"{value:g}" if isinstance(value, float) else str(value): value for value in values}
            with box:
                chosen = select.named_choice(name, f"of_{name}", [*labels])
            shapes = shapes[shapes[name] == labels[chosen]]
    return shapes


def _every_shape(table: pd.DataFrame) -> None:
    """Draw a row for each shape with the time of each GPU and the quantities derived from it."""
    first = table.drop_duplicates("shape").set_index("shape")[[*_DETAILS]]
    first = first.sort_values([*_DETAILS], key=_placed)
    first["mode"] = [text.MODE_WORDS.get(mode, mode) for mode in first["mode"]]
    wide, short_names = [first], text.without_maker(table["gpu"].unique())
    for column in QUANTITIES:
        values = table.pivot_table(index="shape", columns="gpu", values=column, dropna=False)
        words = "Time (ms)" if column == "latency_ms" else QUANTITIES[column][0]
        wide.append(values.rename(columns={gpu: f"{short}: {words}" for gpu, short in short_names.items()}))
    found = pd.concat(wide, axis="columns").dropna(axis="columns", how="all")
    written = {name: tables.number(name) for name in found if ": " in name}
    written["num_heads"] = tables.number("heads", None)
    tables.grid(found, "Every shared shape with the numbers of each GPU", written)


def _placed(column: pd.Series) -> pd.Series:
    """Return sort keys: the order of the select boxes with unknown words last, and sizes by size."""
    order = {"head_dim": ()}.get(str(column.name), _SERIES.get(str(column.name), ()))
    return column.map(lambda value: order.index(value) if value in order else len(order)) if order else column
