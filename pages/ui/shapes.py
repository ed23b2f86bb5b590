"""The parts of the page Model shapes: the slice, the answer, a table of all shapes, and one shape in detail."""

import pandas as pd
import streamlit as st

from pages.ui.draw import cells, colours, messages, tables, text
from pages.ui.draw.detail import latency_bar
from pages.ui.filters import offers
from pages.ui.filters.select import named_choice
from pages.ui.run import one_shape
from pages.ui.shell.data import ask, ask_slowly
from results.levels.real_shapes import SHAPES
from results.query import pages, shapes
from results.records import case_to_json
from results.store.database import Store

TIMINGS = {"kernel": "device time", "eager": "eager calls", "as published": "as published"}
EVERY = "all"
_WIDTH = 170  # pixels of a choice, so that two fit side by side on a phone
_TICKS = (0.25, 1.0, 4.0)


def show() -> None:
    """Draw the answer for one GPU, every shape with the fastest on either side, and one shape in detail."""
    there = ask_slowly(shapes.there)
    if not there:
        messages.nothing_measured("shapes", count=len(SHAPES))
        return
    with st.container(horizontal=True):
        gpu, timing = choose_device(there)
        numbers, duels = ask_slowly(measured, gpu, timing)
        rows = choose(duels)
    headline(gpu, rows)
    table(rows)
    days, runs = ask(pages.run_dates), sorted(set(rows["run_id"].dropna()))
    named = [", ".join(filter(None, (text.plain(run), days.get(run)))) for run in runs]
    messages.say("shapes", runs=f"Here: {'; '.join(named)}." if named else "")
    st.subheader("One shape in detail")
    detail(numbers, rows)
    messages.download("Download shapes", "attnbench-shapes-of-models", lambda: rows, "shapes_csv")


def measured(store: Store, gpu: str, timing: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return every time of a shape, and our fastest with the fastest other; a question for `ask`."""
    numbers = shapes.numbers(store, gpu, timing)
    return numbers, shapes.duels(numbers)


def choose_device(there: list[tuple[str, str]], key: str = "shapes") -> tuple[str, str]:
    """Ask for a GPU and a timing, with keys of that prefix; the default is the GPU of the page Start."""
    gpus = list(dict.fromkeys(gpu for gpu, _ in there))
    of_start = st.session_state.get("gpu", ask(offers.first_gpu, "op"))
    first_gpu = of_start if of_start in gpus else gpus[0]
    gpu = named_choice("GPU", f"{key}_gpu", gpus, first_gpu, str, width=230)
    timings = [timing for each, timing in there if each == gpu]
    first = next((timing for timing in TIMINGS if timing in timings), timings[0])
    timing = named_choice("Timing", f"{key}_timing", timings, first, lambda name: TIMINGS.get(name, name), width=_WIDTH)
    return gpu, timing


def choose(duels: pd.DataFrame) -> pd.DataFrame:
    """Ask for mode, dtype and domain; return their rows."""
    modes = [mode for mode in text.MODE_WORDS if mode in set(duels["mode"])]
    mode = named_choice("Mode", "shapes_mode", modes, modes[0], text.MODE_WORDS.__getitem__, width=_WIDTH)
    dtypes = cells.dtypes(duels)
    dtype = named_choice("dtype", "shapes_dtype", dtypes, dtypes[0], cells.dtype_name, width=_WIDTH)
    domains = [EVERY, *duels["domain"].drop_duplicates()]
    domain = named_choice("Domain", "shapes_domain", domains, EVERY, str, width=_WIDTH)
    rows = duels[(duels["mode"] == mode) & (duels["dtype"] == dtype)]
    return rows if domain == EVERY else rows[rows["domain"] == domain]


def headline(gpu: str, rows: pd.DataFrame) -> None:
    """Answer the page's question for the chosen shapes."""
    found = shapes.summed_up(rows)
    if found is None:
        st.markdown("## No shape here has a time of both our kernels and another implementation.")
        return
    mode = text.MODE_WORDS[rows["mode"].iloc[0]]
    st.markdown(
        f"## On {text.plain(gpu)} ({mode}) our fastest kernel is ahead of the fastest other in {found['ahead']} of "
        f"{found['shapes']} shapes: {text.ratio(found['mean'])} on average"
    )
    lowest, highest = (rows.loc[rows["ratio"].dropna().agg(which)] for which in ("idxmin", "idxmax"))
    facts = {"mean": f"{found['shapes']} shapes", "lowest": lowest["shape"], "highest": highest["shape"]}
    values = (found[name] for name in ("mean", "low", "high"))
    said = zip(facts.items(), values, strict=True)
    tables.show_facts(messages.fact(name, text.ratio(value), below) for (name, below), value in said)


def table(rows: pd.DataFrame) -> None:
    """Draw every shape by domain: the fastest on either side, and their ratio as a bar."""
    palette = colours.palette(sorted({*rows["ours"].dropna(), *rows["other"].dropna()}))
    axis = tables.BarAxis(_TICKS[0], _TICKS[-1], _TICKS, line=1.0)
    columns = tables.declared("shapes", {"bar": axis})
    for domain, of_domain in rows.groupby("domain", sort=False):
        st.subheader(str(domain).capitalize())
        drawn = [row | {"bar": _bar(row, palette)} for row in of_domain.to_dict("records")]
        tables.show_table(drawn, columns, f"Shapes of {domain} models")


def detail(numbers: pd.DataFrame, rows: pd.DataFrame) -> None:
    """Ask for a shape and draw every implementation's time in it."""
    names = {str(row.place): f"{row.shape} · {row.sizes}" for row in rows.itertuples(index=False)}
    place = named_choice("Shape in detail", "shapes_place", list(names), next(iter(names)), names.__getitem__)
    cell = rows[rows["place"] == int(place)].iloc[0]
    of_cell = numbers[
        (numbers["place"] == int(place)) & (numbers["dtype"] == cell["dtype"]) & (numbers["mode"] == cell["mode"])
    ]
    palette = colours.palette(of_cell["implementation"].tolist())
    columns = tables.declared("one_shape", {"bar": tables.log_axis(of_cell["latency_ms"])})
    drawn = [row | {"bar": latency_bar(row, palette)} for row in of_cell.to_dict("records")]
    tables.show_table(drawn, columns, f"Latency of every implementation, {cell['shape']}")
    shape = SHAPES[int(place)]
    st.caption(f"{text.model_shape(shape)} Run {text.plain(cell['run_id'])}.")
    one_shape.show("Run this shape here", case_to_json(shape.in_dtype(cell["dtype"])), mode=cell["mode"])


def _bar(row: dict, palette: dict[str, str]) -> tables.Bar | str:
    if text.missing(row["ratio"]):
        return "no time of ours" if text.missing(row["ours"]) else "no other"
    colour = palette[row["ours"] if row["ratio"] >= 1 else row["other"]]
    return tables.Bar(row["ratio"], text.ratio(row["ratio"]), colour, hatched=row["ratio"] < 1)
