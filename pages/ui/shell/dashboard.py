"""The frame of the app: pages, shared filters, the notice of the store."""

from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import streamlit as st

from pages.ui.filters import chips
from pages.ui.run import under_way
from pages.ui.shell import layout, page_body
from pages.ui.shell.data import store
from pages.ui.shell.sections import HELP, SECTIONS, PageEntry, SidebarSection

LOGO = Path(__file__).with_name("logo.svg").read_text(encoding="utf-8")  # its colors are legible on both themes
ABOUT = "Attention kernels on GPUs: which is fastest, by how much, whether it fits, and whether to believe it."
START = "overview"  # the page at the bare address


def show() -> None:
    """Draw the page that the URL names."""
    st.set_page_config(page_title="attnbench", page_icon="⚡", layout="wide")
    st.logo(LOGO, size="large")
    asked = urlsplit(st.context.url or "").path.strip("/").rpartition("/")[2]
    pages = {entry.file: _page(section, entry, asked) for section in SECTIONS for entry in section.pages}
    pages[HELP.file] = st.Page(f"pages/{HELP.file}.py", title=HELP.title, visibility="hidden")
    by_name = st.Page(partial(_go_to, pages[START]), title="Start", url_path=START, visibility="hidden")
    page = st.navigation([*pages.values(), by_name], expanded=True)
    if page is by_name:
        page.run()
    with st.sidebar:
        st.caption(ABOUT)
        st.page_link(pages[HELP.file], label=HELP.title, icon=f":material/{HELP.icon}:")
    opened = store()
    if notice := opened.notice or opened.mended:
        st.warning(notice, icon=":material/info:")
    page_body.none_yet()
    if page is not pages["run_sweep"]:  # that page draws the sweeps itself
        under_way.draw_badge()
    with layout.around(partial(_controls, page, pages)):
        page.run()


def _page(section: SidebarSection, entry: PageEntry, asked: str) -> st.Page:
    """Return a page; the sidebar shows the open page of each section, or its first, under the name of the section."""
    files = [each.file for each in section.pages]
    shown = asked if asked in files else files[0]
    return st.Page(
        f"pages/{entry.file}.py",
        title=section.title if entry.file == shown else entry.title,
        icon=f":material/{section.icon}:",
        default=entry.file == START,
        url_path="start" if entry.file == START else None,  # another page has its name and leads here
        visibility="visible" if entry.file == shown else "hidden",
    )


def _go_to(page: st.Page) -> None:
    """Open a page with the query of the current address: the default page is not found under its own name."""
    st.switch_page(page, query_params={name: st.query_params.get_all(name) for name in st.query_params})


def _controls(page: st.Page, pages: dict[str, st.Page]) -> None:
    """Draw the pages of the section and the filters, between the question of a page and its answer."""
    for section in SECTIONS:
        entry = next((entry for entry in section.pages if pages[entry.file] == page), None)
        if entry is not None and len(section.pages) > 1:
            with st.container(horizontal=True, key="views"):
                for each in section.pages:
                    st.page_link(pages[each.file], label=each.title, icon=f":material/{each.icon}:")
        if entry is not None and entry.level:
            chips.draw(entry.level, entry.unused)
