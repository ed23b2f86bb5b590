"""Recommendations by use case, and features by implementation; both from stored results."""

from dataclasses import asdict, replace

import pandas as pd
import streamlit as st

from pages.ui.draw import colours, messages, tables, text, titles
from pages.ui.draw.tables import Bar, BarAxis
from pages.ui.overview import my_card
from pages.ui.shell.data import ask, ask_slowly, store
from results.recommend import advice, features
from results.render import advice as rendered_advice
from results.slice import Filters

MARKS = text.WORDS["feature_marks"]


def show(chosen: Filters) -> None:
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
    messages.offer(
        "This page as Markdown",
        "what_to_use_when.md",
        lambda: rendered_advice.render(store(), chosen),
        "guide_md",
        icon=":material/article:",
        mime="text/markdown",
    )


def advice_table(found: list[advice.Advice]) -> pd.DataFrame:
    """Return advice as rows of numbers."""
    table = pd.DataFrame([asdict(one) for one in found])
    return table.assign(runs=[", ".join(runs) for runs in table["runs"]])


def _advice(found: list[advice.Advice], chosen: Filters) -> None:
    """Draw a row for each use case: the recommendation, its time lost against the fastest, and its memory."""
    palette = colours.palette([one.implementation for one in found])
    lost = tables.linear_axis([10.0, *(100 * (one.behind - 1) for one in found)])
    baseline = str(chosen.baseline)
    columns = tables.declared("use_cases", {"lost": lost, "memory": BarAxis(0.0, 100.0)}, baseline=baseline)
    rows = [_row(one, palette[one.implementation]) for one in found]
    tables.show_table(rows, columns, "What to use by use case, with time lost and memory")
    messages.say("use_cases", baseline=text.plain(baseline))
    messages.folded("Every number", "advice_numbers", lambda: _numbers(found, baseline))
    title = titles.of_slice("What to use when", replace(chosen, mode=None, mask=None, shape=None))
    messages.download_slice("Download advice", title, chosen, lambda: advice_table(found), "advice_csv")


def _row(one: advice.Advice, colour: str) -> dict[str, object]:
    share = None if not one.memory_reduction else 100 / one.memory_reduction
    backend = (
        None if not one.backend else f"{one.backend.removesuffix('_ATTENTION')}, {_lost_words(one.backend_behind)}"
    )
    return {
        "use_case": f"{one.use_case} ({one.about})",
        "implementation": one.implementation,
        "lost": Bar(100 * (one.behind - 1), _lost_words(one.behind), colour),
        "fastest": _fastest(one),
        "speedup": one.speedup,
        "memory": share and Bar(share, _share_words(share), colour),
        "backend": backend,
    }


def _fastest(one: advice.Advice) -> str:
    """Write the number of shapes it wins, such as all 18, or 12 of 15, tied in 2."""
    tied = f", tied in {one.ties}" if one.ties else ""
    return f"all {one.cases} shapes" if one.wins == one.cases else f"{one.wins} of {one.cases} shapes{tied}"


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
    config = tables.declared("advice")
    config["speedup"] = tables.number("speedup", "%.2f×", f"Over {baseline}")
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
            f"{MARKS[seen]} {n}" if seen == features.RAN else MARKS[seen]
            for seen, n in zip(table["seen"], table["numbers"], strict=True)
        ]
    )
    wide = shown.pivot(index="feature", columns="implementation", values="cell").loc[order]
    growth = ask(features.memory_growth, tuple(wide.columns))
    wide = pd.concat([wide, pd.DataFrame([growth], index=["memory grows"])]).rename_axis("feature").reset_index()
    config = {"feature": tables.words("feature", 180, pinned=True)}
    tables.grid(wide, "Features by implementation, as seen on this GPU", config, height=38 + 35 * len(wide))
    messages.say("features")
    why = table[table["seen"].isin([features.REFUSED, features.FAILED])][["implementation", "feature", "seen", "why"]]
    if len(why):
        with st.expander("Why not", icon=":material/block:"):
            tables.grid(why, "Reasons for refused or failed features", {"why": tables.words("why", "large")})
