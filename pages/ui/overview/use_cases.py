"""What to use when, and what each implementation was seen to do; both from stored results."""

from __future__ import annotations

from dataclasses import asdict, replace

import pandas as pd
import streamlit as st

from pages.ui.draw import colours, messages, tables, text, titles
from pages.ui.draw.tables import Bar, BarAxis, TableColumn
from pages.ui.run import background
from pages.ui.shell.data import ask, ask_slowly, store
from results.capabilities import CAPABILITIES, declares
from results.recommend import advice, features
from results.render import advice as rendered_advice
from results.slice import Filters
from runner import launch
from runner.launch import LaunchError

_LISTING_S = 60.0  # how long what is installed is kept, as by Run sweep
MARKS = {
    features.RAN: "✓",
    features.CHECKED: "✓ not timed",
    features.REFUSED: "✗ refused",
    features.FAILED: "✗ failed",
    features.NOT_TRIED: "not tried",
}


def show(chosen: Filters) -> None:
    """Draw the advice of the GPU, use case by use case, then features by implementation."""
    found = ask_slowly(advice.advise, chosen)
    st.subheader("What to use when")
    if found:
        _advice(found, chosen)
    else:
        st.info(
            "No use case has measured shapes on this GPU. Run a sweep such as fa_paper.",
            icon=":material/lightbulb:",
        )
    st.subheader("Features by implementation")
    _features(chosen)
    st.download_button(
        "This page as Markdown",
        data=lambda: rendered_advice.render(store(), chosen),
        file_name="what_to_use_when.md",
        mime="text/markdown",
        on_click="ignore",
        icon=":material/article:",
        key="guide_md",
    )


def advice_table(found: list[advice.Advice]) -> pd.DataFrame:
    """Return advice as rows of numbers."""
    table = pd.DataFrame([asdict(one) for one in found])
    return table.assign(runs=[", ".join(runs) for runs in table["runs"]])


def _advice(found: list[advice.Advice], chosen: Filters) -> None:
    """Draw a row a use case: what to use, the time that it loses against the fastest, and its memory, as bars."""
    palette = colours.palette([one.implementation for one in found])
    lost = tables.linear_axis([10.0, *(100 * (one.behind - 1) for one in found)])
    baseline = str(chosen.baseline)
    columns = {
        "use_case": TableColumn("use case", text=True),
        "implementation": TableColumn("use", text=True),
        "lost": TableColumn(
            "time lost", axis=lost, help="How much longer it takes than the fastest of each shape, on average"
        ),
        "fastest": TableColumn("fastest in"),
        "speedup": TableColumn(f"over {baseline}", text.ratio, "Mean speedup"),
        "memory": TableColumn("memory", axis=BarAxis(0.0, 100.0), help=f"Mean peak memory, as a share of {baseline}'s"),
        "backend": TableColumn("within PyTorch", text=True, help="The best SDPA backend, and the time it loses"),
    }
    rows = [_row(one, palette[one.implementation]) for one in found]
    tables.show_table(rows, columns, "What to use by use case, with time lost and memory")
    st.caption(
        "Recommended: the implementation closest to the fastest one on average. Each use case sets mask, mode and "
        "shapes itself; those filters have no effect here.",
        help=f"Geometric mean over the measured shapes of this GPU. Missing numbers count as {text.plain(baseline)}.",
    )
    with st.expander("Every number", icon=":material/table_rows:", key="advice_numbers", on_change="rerun") as numbers:
        if numbers.open:
            _numbers(found, baseline)
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
    """Say in how many shapes it is the fastest: all 18, or 12 of 15, tied in 2."""
    tied = f", tied in {one.ties}" if one.ties else ""
    return f"all {one.cases} shapes" if one.wins == one.cases else f"{one.wins} of {one.cases} shapes{tied}"


def _lost_words(behind: float | None) -> str:
    """Write the time lost against the fastest: none below half a percent."""
    lost = 100 * ((behind or 1.0) - 1)
    return "none" if lost < 0.5 else f"+{lost:.0f} %"


def _share_words(percent: float) -> str:
    """Write a share of the baseline's memory: 1/30 where it is small."""
    return f"1/{100 / percent:.0f}" if percent < 50 else f"{percent:.0f} %"


def _numbers(found: list[advice.Advice], baseline: str) -> None:
    table = advice_table(found)
    first = ["use_case", "implementation"]
    st.dataframe(
        table[[*first, *(name for name in table if name not in (*first, "about")), "about"]],
        hide_index=True,
        placeholder="–",
        alt="Recommended implementation by use case with the numbers it rests on",
        column_config={
            "use_case": st.column_config.TextColumn("use case", pinned=True),
            "about": st.column_config.TextColumn("shapes", width="large"),
            "behind": st.column_config.NumberColumn(
                "of fastest", format="%.2f×", help="Its time over the fastest's, geometric mean"
            ),
            "worst": st.column_config.NumberColumn("worst", format="%.2f×"),
            "covered": st.column_config.NumberColumn("timed", help="Shapes in which it has a time"),
            "cases": st.column_config.NumberColumn("of shapes"),
            "speedup": st.column_config.NumberColumn("speedup", format="%.2f×", help=f"Over {baseline}"),
            "compared": st.column_config.NumberColumn("compared", help="Shapes with both"),
            "memory_reduction": st.column_config.NumberColumn("less memory", format="%.1f×"),
            "backend": st.column_config.TextColumn("within PyTorch", help="The best SDPA backend"),
            "backend_behind": st.column_config.NumberColumn("of fastest", format="%.2f×"),
        },
    )


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
    st.dataframe(
        wide,
        hide_index=True,
        alt="Features by implementation, as they were seen on this GPU",
        height=38 + 35 * len(wide),
        column_config={"feature": st.column_config.TextColumn("feature", pinned=True, width=180)},
    )
    st.caption(
        "What was seen to run on this GPU, with the number of latencies.",
        help="Not timed: only errors were taken. Refused: every try was unsupported. Failed: every try ended so.",
    )
    why = table[table["seen"].isin([features.REFUSED, features.FAILED])][["implementation", "feature", "seen", "why"]]
    if len(why):
        with st.expander("Why not", icon=":material/block:"):
            st.dataframe(
                why,
                hide_index=True,
                alt="Why features were refused or failed",
                column_config={"why": st.column_config.TextColumn("why", width="large")},
            )
    _declared()


def _declared() -> None:
    """Draw what the implementations of this checkout declare; asked for, because it takes seconds."""
    label = "Installed implementations and what they support"
    if not st.toggle(label, key="declared", bind="query-params"):
        return
    try:
        with st.spinner("Looking for implementations"):
            found = background.ask("listing", lambda: launch.listing(), keep_s=_LISTING_S).result()
    except LaunchError as error:
        st.error(text.plain(error), icon=":material/error:")
        return
    table = pd.DataFrame([_capabilities(entry) for entry in found["implementations"]])
    st.dataframe(
        table,
        hide_index=True,
        alt="Implementations of this checkout with what they declare",
        column_config={
            "description": st.column_config.TextColumn("description", width="large"),
            "reason": st.column_config.TextColumn("why it cannot run on this machine", width="large"),
        },
    )


def _capabilities(entry: dict) -> dict[str, str]:
    """Return an implementation's row: what it takes, in words."""
    able = entry["capabilities"]
    chips = (able["min_compute_capability"], able["max_compute_capability"])
    low, high = (".".join(map(str, chip)) if chip else "" for chip in chips)
    return {
        "name": entry["name"],
        "level": entry.get("level", "op"),
        "dtypes": ", ".join(able["dtypes"]),
        "head_dim": f"up to {able['max_head_dim']}" if able["max_head_dim"] else "any",
        "features": ", ".join(words for name, words in CAPABILITIES.items() if declares(able, name)),
        "memory": "seqlen squared" if able["materialises_scores"] else "seqlen",
        "compute capability": "any"
        if not low
        else low
        if low == high
        else f"{low} and up"
        if not high
        else f"{low} to {high}",
        "description": entry["description"],
        "reason": entry["reason"] or "",
    }
