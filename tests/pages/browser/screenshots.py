"""Pictures of every page, light, dark and 390 px wide: python -m tests.pages.browser.screenshots FOLDER [HOME]."""

import sys
import tempfile
from pathlib import Path

from tests.pages.browser.serving import PAGES, Server, chromium, drawn, visit

LOOKS = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}


def take(folder: Path, home: Path, pages: tuple[str, ...] = PAGES) -> list[Path]:
    """Write <page>-<look>.png for each page and look; the whole page, not only its first screen."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(home).start()
    written = []
    try:
        with chromium() as browser:
            for look, context in LOOKS.items():
                for name in pages:
                    page = drawn(visit(browser, f"{server.url}/{name}", **context))
                    height = page.evaluate(
                        "Math.max(...[...document.querySelectorAll('[data-testid=stMain]')].map(e => e.scrollHeight))"
                    )
                    page.set_viewport_size({"width": context["viewport"]["width"], "height": min(height + 40, 6000)})
                    drawn(page)
                    path = folder / f"{name.split('?')[0] or 'overview'}-{look}.png"
                    page.screenshot(path=path)
                    written.append(path)
                    page.context.close()
    finally:
        server.stop()
    return written


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        wanted = tuple(sys.argv[3:]) or PAGES
        for path in take(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else empty), wanted):
            print(path)
