"""What to use when, and what each implementation was seen to do; both from stored results."""

from __future__ import annotations

from dataclasses import asdict

import pandas as pd
import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.run import plan_form
from pages.ui.shell.data import ask, ask_slowly, store
from results.recommend import advice, features
from results.render import advice as rendered_advice
from results.slice import Filters

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
            "No use case has measured shapes on this GPU; an own sweep such as fa_paper brings some.",
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
    table = advice_table(found)
    st.markdown("\n".join(f"- **{one.use_case}**: {_sentence(one, chosen)}" for one in found))
    st.dataframe(
        table[
            [
                "use_case",
                "implementation",
                *(n for n in table if n not in ("use_case", "implementation", "about")),
                "about",
            ]
        ],
        hide_index=True,
        alt="Recommended implementation by use case with the numbers it rests on",
        column_config={
            "use_case": st.column_config.TextColumn("use case", pinned=True),
            "about": st.column_config.TextColumn("shapes", width="large"),
            "behind": st.column_config.NumberColumn(
                "of fastest", format="%.2f×", help="Its time over the fastest's, geometric mean of the cases it has"
            ),
            "worst": st.column_config.NumberColumn("worst", format="%.2f×"),
            "covered": st.column_config.NumberColumn("covered", help="Cases in which it has a time"),
            "cases": st.column_config.NumberColumn("of cases"),
            "speedup": st.column_config.NumberColumn("speedup", format="%.2f×", help=f"Over {chosen.baseline}"),
            "compared": st.column_config.NumberColumn("compared", help="Cases with both"),
            "memory_reduction": st.column_config.NumberColumn("less memory", format="%.1f×"),
            "backend": st.column_config.TextColumn("PyTorch's own", help="The best backend of sdpa_kernel"),
            "backend_behind": st.column_config.NumberColumn("of fastest", format="%.2f×"),
        },
    )
    st.caption(
        "Recommended is who loses least time against the fastest of each case, by geometric mean; where it has no "
        f"number {text.plain(chosen.baseline)} stands in for it. Wins and ties by verdict. "
        "Only shapes of this GPU count."
    )
    messages.download("Download advice", "advice", lambda: table, "advice_csv")


def _sentence(one: advice.Advice, chosen: Filters) -> str:
    speedup = f", {text.ratio(one.speedup)} {text.plain(chosen.baseline)}" if one.speedup else ""
    memory = f", {text.ratio(one.memory_reduction)} less memory" if one.memory_reduction else ""
    return (
        f"**{text.plain(one.implementation)}**, on average {text.ratio(one.behind)} the fastest's time over "
        f"{one.covered} of {one.cases} cases ({one.wins} wins, {one.ties} ties){speedup}{memory}"
    )


def _features(chosen: Filters) -> None:
    table = ask_slowly(features.features, chosen)
    if table.empty:
        st.caption("Nothing was tried on this GPU.")
        return
    order = list(features.FEATURES)
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
        "✓ and how many latencies there are, or that only errors were taken; ✗ every try was refused or failed; seen "
        "on this GPU, not declared."
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
    label = "What this checkout's implementations declare, and whether they can run here"
    if not st.toggle(label, key="declared", bind="query-params"):
        return
    found = plan_form.what_is_here()
    if found is None:
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
    features = ("causal", "window", "gqa", "backward")
    return {
        "name": entry["name"],
        "level": entry.get("level", "op"),
        "dtypes": ", ".join(able["dtypes"]),
        "head_dim": f"up to {able['max_head_dim']}" if able["max_head_dim"] else "any",
        "features": ", ".join(name for name in features if able[name]),
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
