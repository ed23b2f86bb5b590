"""The frame of the app: pages, shared filters, the notice of the store."""

from __future__ import annotations

import streamlit as st

from pages.ui.filters import sidebar
from pages.ui.shell import layout, page_body
from pages.ui.shell.data import store

RESULTS = (  # file, title, icon, what it answers
    ("overview", "Overview", "leaderboard", "Which attention is fastest on a GPU, by how much, and whether it fits."),
    ("speedup", "Speedup", "bolt", "Speedup over the baseline by seqlen and head_dim, with every failure named."),
    ("memory", "Memory", "memory", "Memory by seqlen against the device's capacity and the formula."),
    (
        "scaling",
        "Scaling",
        "trending_up",
        "Time, throughput and memory by seqlen, their share of the device's peak, and the roofline.",
    ),
    (
        "accuracy",
        "Accuracy",
        "target",
        "Errors against float64 beside those of a plain implementation, and what speed costs in accuracy.",
    ),
    (
        "decode",
        "Decode",
        "text_rotation_none",
        "Which decode kernel is fastest by context and batch, and its share of the copy bandwidth.",
    ),
)
MODELS = (  # likewise; without the shared filters
    (
        "models",
        "Models",
        "model_training",
        "Whole models: whether they fit, how fast they generate and train, and what their memory is made of.",
    ),
)
LEVELS = {"decode": "decode"}  # by file, where it is not the operator's
EVIDENCE = (  # file, title, icon, what it answers
    (
        "compare",
        "Compare",
        "compare_arrows",
        "Two runs, implementations or GPUs: what changed, a verdict for each cell, regressions first.",
    ),
    (
        "sustained",
        "Sustained",
        "thermostat",
        "Half a minute of back-to-back calls: burst and sustained TFLOP/s, clock, power and temperature.",
    ),
    (
        "findings",
        "Findings",
        "fact_check",
        "Numbers that cannot be what they say, published or own, each with its arithmetic.",
    ),
    (
        "reports",
        "Reports",
        "article",
        "Published reports beside your own runs, in their own tables, with what arithmetic says against them.",
    ),
)
WORK = (  # file, title, icon, what it answers
    (
        "run_sweep",
        "Run sweep",
        "play_circle",
        "Plan a sweep on a device of this machine, start it, follow it, cancel it.",
    ),
    ("runs", "Runs", "history", "Every run and upload: state, environment, log, download."),
    (
        "upload",
        "Upload",
        "upload",
        "Import results from other machines: see what was understood before anything is stored.",
    ),
)


def show() -> None:
    """Draw one view: the page that the URL names."""
    st.set_page_config(page_title="attnbench", page_icon="⚡", layout="wide")
    results, *others = (_pages(group) for group in (RESULTS, MODELS, EVIDENCE, WORK))
    page = st.navigation([*results, *(page for group in others for page in group)], expanded=True)
    notice = store().notice or store().mended
    if notice:
        st.warning(notice, icon=":material/info:")
    page_body.none_yet()
    with layout.around():
        if page in results:
            sidebar.draw(LEVELS.get(page.url_path, "op"))
        page.run()


def _pages(group: tuple[tuple[str, str, str, str], ...]) -> list[st.Page]:
    return [
        st.Page(f"pages/{file}.py", title=title, icon=f":material/{icon}:", help=help, default=file == "overview")
        for file, title, icon, help in group
    ]
