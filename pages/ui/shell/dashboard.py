"""The frame of the app: pages, shared filters, the notice of the store."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

import streamlit as st

from pages.ui.filters import chips
from pages.ui.run import badge
from pages.ui.shell import layout, page_body
from pages.ui.shell.data import store

NAME_COLOURS = ("#d97b06", "#5b7cfa")  # of the app's mark and name, to be seen on both themes
_NAME = f"""<svg xmlns="http://www.w3.org/2000/svg" width="150" height="32" viewBox="0 0 150 32">
<path d="M11 3 3 18h7l-2 11 10-16h-7l3-10z" fill="{NAME_COLOURS[0]}"/>
<text x="26" y="23" font-family="sans-serif" font-size="22" font-weight="700" fill="{NAME_COLOURS[1]}">attnbench</text>
</svg>"""


@dataclass(frozen=True)
class PageEntry:
    """A page of the app."""

    file: str  # under pages/, and its address
    title: str
    icon: str
    answers: str
    level: str | None = None  # of the shared filters above the page; None: it has none
    unused: tuple[str, ...] = ()  # of these filters those that its answer does not depend on


@dataclass(frozen=True)
class SidebarSection:
    """An entry of the sidebar: one page, or several views of one thing, one of which is shown."""

    title: str
    icon: str
    pages: tuple[PageEntry, ...]


SECTIONS = (
    SidebarSection(
        "Start",
        "leaderboard",
        (
            PageEntry(
                "overview",
                "Start",
                "leaderboard",
                "Which attention kernel is fastest on a GPU, by how much, and whether it fits in memory.",
                "op",
            ),
        ),
    ),
    SidebarSection(
        "Explore",
        "query_stats",
        (
            PageEntry(
                "speedup",
                "Speedup",
                "bolt",
                "Speedup over the baseline by seqlen and head_dim, with every failure named.",
                "op",
            ),
            PageEntry(
                "scaling",
                "Scaling",
                "trending_up",
                "Time, throughput and memory by seqlen, their share of the device's peak, and the roofline.",
                "op",
            ),
            PageEntry(
                "memory",
                "Memory",
                "memory",
                "Memory by seqlen against the device's capacity and the formula.",
                "op",
                unused=("timing",),
            ),
            PageEntry(
                "accuracy",
                "Accuracy",
                "target",
                "Errors against float64 beside those of a plain implementation, and what speed costs in accuracy.",
                "op",
                unused=("mode",),
            ),
            PageEntry(
                "shapes",
                "Model shapes",
                "deployed_code",
                "The shapes of attention in real models: our fastest kernel beside the fastest other, model by model.",
            ),
            PageEntry(
                "sustained",
                "Power",
                "thermostat",
                "Half a minute of back-to-back calls: burst and sustained TFLOP/s, clock, power and temperature.",
            ),
        ),
    ),
    SidebarSection(
        "Decode",
        "text_rotation_none",
        (
            PageEntry(
                "decode",
                "Decode",
                "text_rotation_none",
                "Which decode kernel is fastest by context and batch, and its share of the copy bandwidth.",
                "decode",
            ),
        ),
    ),
    SidebarSection(
        "Layers",
        "layers",
        (
            PageEntry(
                "layers",
                "Layers",
                "layers",
                "Whole attention layers by the attention inside: times, ranges of speedup, and the share of attention.",
                "layer",
            ),
        ),
    ),
    SidebarSection(
        "Models",
        "model_training",
        (
            PageEntry(
                "models",
                "Models",
                "model_training",
                "Whole models: whether they fit, how fast they generate and train, and what their memory is made of.",
            ),
        ),
    ),
    SidebarSection(
        "Compare",
        "compare_arrows",
        (
            PageEntry(
                "compare",
                "Compare",
                "compare_arrows",
                "Two runs, implementations or GPUs: what changed, a verdict for each cell, regressions first.",
            ),
        ),
    ),
    SidebarSection(
        "Reports",
        "article",
        (
            PageEntry(
                "reports",
                "Reports",
                "article",
                "Published reports beside your own runs, in their own tables, with what arithmetic says against them.",
            ),
            PageEntry(
                "findings",
                "Findings",
                "fact_check",
                "Numbers that are implausible, published or measured here, each with its arithmetic.",
            ),
        ),
    ),
    SidebarSection(
        "Measure",
        "play_circle",
        (
            PageEntry(
                "run_sweep",
                "Run sweep",
                "play_circle",
                "Plan a sweep on this machine or a cluster, start it, follow it, cancel it.",
            ),
            PageEntry("runs", "Runs", "history", "All runs and uploads, with status, environment, log and downloads."),
            PageEntry(
                "upload", "Upload", "upload", "Import results from other machines, with a preview before any is saved."
            ),
        ),
    ),
)
START = "overview"  # the page at the bare address
HELP = PageEntry("units", "Units and terms", "help", "What the units, timings, verdicts and shapes mean.")


def show() -> None:
    """Draw one view: the page that the URL names."""
    st.set_page_config(page_title="attnbench", page_icon="⚡", layout="wide")
    st.logo(_NAME, size="large")
    asked = urlsplit(st.context.url or "").path.strip("/").rpartition("/")[2]
    pages = {entry.file: _page(section, entry, asked) for section in SECTIONS for entry in section.pages}
    pages[HELP.file] = st.Page(f"pages/{HELP.file}.py", title=HELP.title, visibility="hidden")
    by_name = st.Page(partial(_go_to, pages[START]), title="Start", url_path=START, visibility="hidden")
    page = st.navigation([*pages.values(), by_name], expanded=True)
    if page is by_name:
        page.run()
    _below_the_sections(pages[HELP.file])
    notice = store().notice or store().mended
    if notice:
        st.warning(notice, icon=":material/info:")
    page_body.none_yet()
    if page is not pages["run_sweep"]:  # which draws all of it
        badge.draw()
    with layout.around(partial(_controls, page, pages)):
        page.run()


def _page(section: SidebarSection, entry: PageEntry, asked: str) -> st.Page:
    """Return a page as the sidebar shows it: of each section the one that is open, else the first, under its name."""
    files = [each.file for each in section.pages]
    shown = asked if asked in files else files[0]
    return st.Page(
        f"pages/{entry.file}.py",
        title=section.title if entry.file == shown else entry.title,
        icon=f":material/{section.icon}:",
        help=entry.answers if len(files) == 1 else ", ".join(each.title for each in section.pages) + ".",
        default=entry.file == START,
        url_path="start" if entry.file == START else None,  # its own name is that of the page which leads here
        visibility="visible" if entry.file == shown else "hidden",
    )


def _go_to(page: st.Page) -> None:
    """Open a page with the query of the present address: the default page is not found under its own name."""
    st.switch_page(page, query_params={name: st.query_params.get_all(name) for name in st.query_params})


def _below_the_sections(help_page: st.Page) -> None:
    """Say in the sidebar what the app is; a running sweep has its badge here, too."""
    with st.sidebar:
        st.caption(
            "Attention kernels on GPUs: which is fastest, by how much, whether it fits, and whether to believe it."
        )
        st.page_link(help_page, label=HELP.title, icon=f":material/{HELP.icon}:")


def _controls(page: st.Page, pages: dict[str, st.Page]) -> None:
    """Draw what stands between a page's question and its answer: the views of its section, and the filters."""
    for section in SECTIONS:
        entry = next((entry for entry in section.pages if pages[entry.file] == page), None)
        if entry is not None:
            _views(section, pages)
            if entry.level:
                chips.draw(entry.level, entry.unused)


def _views(section: SidebarSection, pages: dict[str, st.Page]) -> None:
    """Link to the pages of a section, above each of them."""
    if len(section.pages) > 1:
        with st.container(horizontal=True, key="views"):
            for entry in section.pages:
                icon = f":material/{entry.icon}:"
                st.page_link(pages[entry.file], label=entry.title, icon=icon)
