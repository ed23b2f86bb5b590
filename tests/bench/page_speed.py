"""`python -m tests.bench.page_speed HOME`: how fast the pages are in Chromium, over a home that make_store.py made.

Every figure is compared with an empty Streamlit page measured in the same minute, because a busy machine slows both.
Filter changes go to slices that no one has asked for yet, so that no cache answers them.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.bench.make_store import GPUS, IMPLEMENTATIONS
from tests.pages.browser.serving import DEADLINE_MS, Server, chromium, drawn, settled

EMPTY = """
import time

import streamlit as st

st.title("An empty page")
st.button("again")
st.text(time.time_ns())
"""
MODES = ("fwd", "bwd", "fwd_bwd")
PAGES = ("Memory", "Start", "Explore")  # the changes end on Speedup, which is what Explore opens on
HEAT = ".stBidiComponent td"
# The time from the press that starts a rerun until the paint after the last change of the page or of the script state.
_WATCH = Path(__file__).with_suffix(".js").read_text()


def first_views(browser: Browser, views: dict[str, tuple[Server, str, str]], turns: int) -> dict[str, list[float]]:
    """Seconds from a server that has just come up to what is seen of a page; views take turns in a warm browser."""
    contexts = {name: browser.new_context(viewport={"width": 1440, "height": 900}) for name in views}
    taken: dict[str, list[float]] = {name: [] for name in views}
    for turn in range(turns + 1):
        for name, (server, path, seen) in views.items():
            server.start()
            page = contexts[name].new_page()
            start = time.perf_counter()
            page.goto(f"{server.url}/{path}")
            # `expect` lists all elements of the page while it waits, which would slow a large page down more.
            page.wait_for_selector(seen, timeout=DEADLINE_MS)
            if turn:
                taken[name].append(time.perf_counter() - start)
            page.close()
            server.stop()
    return taken


def slices() -> Iterator[tuple[str, str]]:
    """Which filter to set to what, each in its turn; no slice comes twice in the first dozen turns."""
    for turn in count(1):
        for name, options in {"mode": MODES, "baseline": IMPLEMENTATIONS[::-1], "gpu": GPUS}.items():
            yield name, options[turn % len(options)]


def choose(page: Page, name: str, option: str) -> float:
    """Milliseconds from choosing an option in the chip of a filter until the page has settled."""
    page.locator(f".st-key-chip_{name} button").click()
    found = page.get_by_test_id("stPopoverBody").get_by_text(option, exact=True)
    expect(found).to_be_visible()
    page.evaluate(_WATCH)
    found.click()
    took = page.evaluate("window.took")
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("stPopoverBody")).to_have_count(0)
    return took


def press(page: Page, role: str, name: str) -> float:
    """Milliseconds from a click until the page has settled."""
    page.evaluate(_WATCH)
    page.get_by_role(role, name=name, exact=True).first.click()
    return page.evaluate("window.took")


def report(name: str, values: list[float], unit: str, other: float | None = None) -> float:
    """Print a line; returns the median."""
    middle = statistics.median(values)
    ratio = f", {middle / other:.2f} of the empty page" if other else ""
    print(f"{name:44s} {middle:8.3g} {unit} (median of {len(values)}, {min(values):.3g} to {max(values):.3g}){ratio}")
    return middle


def _interactions(browser: Browser, app: Server, empty: Server, times: int) -> None:
    blank = browser.new_page()
    blank.goto(empty.url)
    expect(blank.locator("h1")).to_be_visible()
    settled(blank)
    blank.get_by_role("button", name="again").click()  # the first rerun of a server is not like the others
    time.sleep(2)
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{app.url}/speedup?gpu={GPUS[0]}&baseline={IMPLEMENTATIONS[-1]}&mode={MODES[0]}")
    drawn(page)
    changes, nothing = {}, []
    for (label, option), _ in zip(slices(), range(times), strict=False):
        nothing.append(press(blank, "button", "again"))
        changes.setdefault(label, []).append(choose(page, label, option))
    empty_page = report("a rerun of the empty page", nothing, "ms")
    report("filter change to idle", [ms for values in changes.values() for ms in values], "ms", empty_page)
    for label, values in changes.items():
        report(f"  {label}", values, "ms", empty_page)
    switches = {name: [] for name in PAGES}
    for _ in range(times // 2):
        for name, values in switches.items():
            values.append(press(page, "link", name))
    report("page switch to idle", [ms for values in switches.values() for ms in values[1:]], "ms", empty_page)
    for name, values in switches.items():
        report(f"  to {name}", values[1:], "ms", empty_page)


def _first(browser: Browser, app: Server, empty: Server, turns: int) -> None:
    views = {"empty page": (empty, "", "h1"), "Start": (app, "", HEAT)}
    views |= {name: (app, name.lower(), "h2") for name in ("Compare", "Findings")}
    taken = first_views(browser, views, turns)
    for name, of in {"empty page": None, "Start": "empty page", "Compare": "Start", "Findings": "Start"}.items():
        report(f"{name}, server up to answer visible", taken[name], "s")
        if of:
            report(f"  over {of} in its turn", [a / b for a, b in zip(taken[name], taken[of], strict=True)], "times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--turns", type=int, default=9, help="of the first views")
    parser.add_argument("--only", choices=("first", "changes"), nargs="*", default=("first", "changes"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        script = Path(folder) / "empty.py"
        script.write_text(EMPTY)
        empty, app = Server(Path(folder), script=script), Server(options.home)
        print(f"load of the machine: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
        if "first" in options.only:
            _first(browser, app, empty, options.turns)
        if "changes" in options.only:
            empty.start(), app.start()
            try:
                _interactions(browser, app, empty, options.times)
            finally:
                empty.stop(), app.stop()
        print(f"load of the machine: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
