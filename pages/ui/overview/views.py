"""The other views of Start: every GPU, the features of a program, and what to use when."""

import html
from dataclasses import asdict, replace

import pandas as pd
import streamlit as st

from pages.ui import shapes
from pages.ui.draw import cells, charts, colours, maps, messages, tables, text, titles
from pages.ui.filters import select
from pages.ui.filters.chips import TIMINGS
from pages.ui.overview import my_card
from pages.ui.shell.data import ask, ask_slowly, store
from results.levels import Level
from results.query import block_sparse
from results.recommend import advice, features, finder, winners
from results.render import slice as rendered
from results.slice import NOT_STATED, Filters, level_in

_BLOCKS = "Speedup of the fastest block-sparse call over the fastest dense call"
_MARKS = text.WORDS["feature_marks"]


def every_gpu(chosen: Filters) -> None:
    """Draw a map for each dtype: shapes down, GPUs across, each cell with the fastest implementation and its lead."""
    table = ask_slowly(winners.winners_by_gpu, chosen, TIMINGS)
    table = table[table[["gpu", "seqlen", "head_dim"]].notna().all(axis="columns")]
    if table.empty:
        messages.nothing_here(chosen)
        return
    table = table.assign(width=[str(int(width)) for width in table["head_dim"]])
    table, head_dim = select.rows_of_one(table, "width", "winner", "gpus_head_dim", "head_dim", first="128")
    level = level_in(chosen)
    found = gpu_cells(level, table)
    rows = found.to_dict("records")
    gpus = found["gpu"].drop_duplicates().tolist()
    winning = found["winner"].dropna().unique().tolist()
    every = replace(chosen, gpu=None, timing=None, shape=None)
    title = titles.of_slice("Fastest implementation by seqlen and GPU", every, more=(f"head_dim {head_dim}",))
    short = text.without_maker(gpus) | {NOT_STATED: "GPU not stated"}
    across = maps.MapAxis("gpu", "GPU", gpus, short.__getitem__)
    look = replace(maps.winners(colours.palette(winning), winning), legend=(), names={})
    maps.show(level, rows, look, "gpu_map", title.what, title=title, across=across)
    there = [f"{mark} {meaning}" for mark, meaning in cells.MARKS.items() if mark in set(found["mark"])]
    st.caption(
        f"{' · '.join(map(text.plain, text.slice_parts(every)))}. Device time if available, else eager, else as "
        "published; each GPU against its own baseline.",
        help=". ".join([*there, "A word in a cell is the most frequent failure", "Shapes of a cell are averaged."]),
    )
    names = ["gpu", "dtype", "seqlen", "head_dim", "winner", "latency_ms", "speedup", "next", "margin", "cases"]
    config = cells.NUMBERS | cells.WINNERS | {"gpu": tables.words("GPU", pinned=True)}
    tables.grid(found[names], "Fastest implementation of every GPU and shape", config)


def gpu_cells(level: Level, table: pd.DataFrame) -> pd.DataFrame:
    """Return the winners of every GPU, with the words of the map."""
    rows = cells.winner_cells(level, table)
    return rows.assign(
        hover=[f"{html.escape(gpu)}<br>{said}" for gpu, said in zip(rows["gpu"], rows["hover"], strict=True)]
    )


def finder_of_features() -> None:
    """Ask for features; draw a row a GPU, who declares them, and the command where nobody measured them."""
    wants = list(finder.WANTS.values())
    words = select.bound(st.pills, "I need", "finder_needs", wants, selection_mode="multi")
    wanted = tuple(name for name, said in finder.WANTS.items() if said in (words or ()))
    if not wanted:
        st.info("Choose what your program needs, such as a sliding window and softcap.", icon=":material/tune:")
        return
    able = ask(finder.able, wanted)
    names = ", ".join(map(text.plain, able)) or "none in a run here"
    st.markdown(f"Implementations that declare all of it: {names}.")
    table = ask_slowly(finder.found, wanted)
    missing = table[table["winner"].isna()]["gpu"].tolist()
    if missing or table.empty:
        st.markdown(f"Nobody has measured it on {', '.join(map(text.plain, missing)) or 'any GPU'}. Measure it there:")
        st.code(finder.command(wanted), language=None, wrap_lines=True)
    tables.grid(table, "The fastest implementation with these features on each GPU", tables.declared("finder"))


def block_masks() -> None:
    """Draw a line for each sparsity over the number of tokens, or say how to measure it."""
    st.subheader("Block-sparse masks: from which sparsity and length they pay")
    every = ask_slowly(block_sparse.rows)
    if every.empty:
        messages.nothing_measured("blocks")
        return
    with st.container(horizontal=True):
        there = list(every[["gpu", "timing"]].drop_duplicates().itertuples(index=False, name=None))
        gpu, timing = shapes.choose_device(there, "blocks")
        table = every[(every["gpu"] == gpu) & (every["timing"] == timing)]
        modes = [each for each in text.MODE_WORDS if each in set(table["mode"])]
        mode = select.named_choice("Mode", "blocks_mode", modes, modes[0], text.MODE_WORDS.__getitem__, width=150)
    table = table[table["mode"] == mode]
    pays = block_sparse.pays_from(table)
    said = (
        f"{text.size(tokens)} {f'from {pays[tokens]:g} % on' if tokens in pays else 'not in what was measured'}"
        for tokens in sorted(table["tokens"].unique())
    )
    st.markdown(f"Tokens, and the share of blocks left out from which it is faster than dense: {'; '.join(said)}.")
    best = table.sort_values("speedup", ascending=False).drop_duplicates(["tokens", "sparsity"])
    best = best.assign(left_out=[f"{sparsity:g} %" for sparsity in best["sparsity"]])
    names = [f"{sparsity:g} %" for sparsity in sorted(best["sparsity"].unique())]
    hover = "{speedup:.2f}×, {implementation} over {dense}".format_map
    drawn = charts.lines(best.to_dict("records"), "speedup", colours.palette(names), hover, of="left_out", by="tokens")
    chart = charts.by_size(drawn, "tokens", best["tokens"], charts.titled("speedup"))
    runs = ", ".join(sorted(table["run_id"].unique()))
    title = titles.ChartTitle(_BLOCKS, (gpu, f"{text.MODE_WORDS[mode]}, share of blocks left out"), f"run {runs}")
    charts.show(replace(chart, rules=[charts.ReferenceLine(1.0)]), title, key="blocks_chart")
    columns = tables.declared("block_sparse")
    tables.grid(table[[*columns]], "Times of block-sparse calls", columns)
    messages.download("Download block-sparse calls", "attnbench-block-sparse", lambda: table, "blocks_csv")


def what_to_use(chosen: Filters) -> None:
    """Draw the advice of the GPU, use case by use case, then features by implementation."""
    st.header("What to use when")
    found = ask_slowly(advice.advise, chosen)
    if not found and (other := my_card.stand_in(chosen)):
        chosen = other[0]
        found = ask_slowly(advice.advise, chosen)
    if found:
        _advice(found, chosen)
    else:
        messages.say("no_use_case")
    st.subheader("Features by implementation")
    _features(chosen)
    made, icon = lambda: rendered.render_advice(store(), chosen), ":material/article:"
    messages.offer("This page as Markdown", "what_to_use_when.md", made, "guide_md", icon=icon)


def advice_table(found: list[advice.Advice]) -> pd.DataFrame:
    """Return advice as rows of numbers."""
    table = pd.DataFrame([asdict(one) for one in found])
    return table.assign(runs=[", ".join(runs) for runs in table["runs"]])


def _advice(found: list[advice.Advice], chosen: Filters) -> None:
    """Draw a row for each use case: the recommendation, its time lost against the fastest, and its memory."""
    palette = colours.palette([one.implementation for one in found])
    lost = tables.linear_axis([10.0, *(100 * (one.behind - 1) for one in found)])
    baseline = str(chosen.baseline)
    columns = tables.declared("use_cases", {"lost": lost, "memory": tables.BarAxis(0.0, 100.0)}, baseline=baseline)
    rows = [_row(one, palette[one.implementation]) for one in found]
    tables.show_table(rows, columns, "What to use by use case, with time lost and memory")
    messages.say("use_cases", baseline=text.plain(baseline))
    messages.folded("Every number", "advice_numbers", lambda: _numbers(found, baseline))
    every = replace(chosen, mode=None, mask=None, shape=None, dtype=(), timing=None)  # a use case sets these itself
    title = titles.of_slice("What to use when", every)
    messages.download_slice("Download advice", title, every, lambda: advice_table(found), "advice_csv")


def _row(one: advice.Advice, colour: str) -> dict[str, object]:
    share = None if not one.memory_reduction else 100 / one.memory_reduction
    backend = f"{(one.backend or '').removesuffix('_ATTENTION')}, {_lost_words(one.backend_behind)}"
    wins = f"{one.wins} of {one.cases} shapes{f', tied in {one.ties}' if one.ties else ''}"
    return {
        "use_case": f"{one.use_case} ({one.about})",
        "implementation": one.implementation,
        "lost": tables.Bar(100 * (one.behind - 1), _lost_words(one.behind), colour),
        "fastest": f"all {one.cases} shapes" if one.wins == one.cases else wins,
        "speedup": one.speedup,
        "memory": share and tables.Bar(share, _share_words(share), colour),
        "backend": backend if one.backend else None,
    }


def _lost_words(behind: float | None) -> str:
    """Write the time lost against the fastest; less than half a percent is none."""
    lost = 100 * ((behind or 1.0) - 1)
    return "none" if lost < 0.5 else f"+{lost:.0f} %"


def _share_words(percent: float) -> str:
    """Write a share of the baseline's memory, as a fraction such as 1/30 below one half."""
    return f"1/{100 / percent:.0f}" if percent < 50 else f"{percent:.0f} %"


def _numbers(found: list[advice.Advice], baseline: str) -> None:
    table = advice_table(found)
    first = ["use_case", "implementation"]
    config = tables.declared("advice", baseline=baseline)
    shown = table[[*first, *(name for name in table if name not in (*first, "about")), "about"]]
    tables.grid(shown, "Recommended implementation by use case with its numbers", config)


def _features(chosen: Filters) -> None:
    table = ask_slowly(features.features, chosen)
    if table.empty:
        st.caption("Nothing was tried on this GPU.")
        return
    order = list(dict.fromkeys(table["feature"]))
    shown = table.assign(
        cell=[
            f"{_MARKS[seen]} {n}" if seen == features.RAN else _MARKS[seen]
            for seen, n in zip(table["seen"], table["numbers"], strict=True)
        ]
    )
    wide = shown.pivot(index="feature", columns="implementation", values="cell").loc[order]
    growth = ask(features.memory_growth, tuple(wide.columns))
    wide = pd.concat([wide, pd.DataFrame([growth], index=["memory grows"])]).rename_axis("feature").reset_index()
    config = tables.declared("features")
    tables.grid(wide, "Features by implementation, as seen on this GPU", config, height=38 + 35 * len(wide))
    messages.say("features")
    why = table[table["seen"].isin([features.REFUSED, features.FAILED])][["implementation", "feature", "seen", "why"]]
    if len(why):
        with st.expander("Why not", icon=":material/block:"):
            tables.grid(why, "Reasons for refused or failed features", {"why": tables.words("why", "large")})
