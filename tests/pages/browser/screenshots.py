"""Pictures of pages, light, dark and 390 px wide: python -m tests.pages.browser.screenshots FOLDER [HOME [PAGE...]]."""

import sys
import tempfile
from pathlib import Path

from tests.pages.browser.serving import PAGES, Server, chromium, drawn, visit

LOOKS = {"light": (1440, 900, "light"), "dark": (1440, 900, "dark"), "narrow": (390, 844, "light")}
HEIGHT = "Math.max(...[...document.querySelectorAll('[data-testid=stMain]')].map(e => e.scrollHeight))"


def take(folder: Path, home: str, *pages: str) -> None:
    """Write <page>-<look>.png for each page and look; the whole page, not only its first screen."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(Path(home)).start()
    try:
        with chromium() as browser:
            for look, (width, height, scheme) in LOOKS.items():
                for name in pages or PAGES:
                    window = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
                    page = drawn(visit(browser, f"{server.url}/{name}", **window))
                    page.set_viewport_size({"width": width, "height": min(page.evaluate(HEIGHT) + 40, 6000)})
                    drawn(page).screenshot(path=folder / f"{name.split('?')[0] or 'overview'}-{look}.png")
                    page.context.close()
    finally:
        server.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        take(Path(sys.argv[1]), *(sys.argv[2:] or [empty]))
