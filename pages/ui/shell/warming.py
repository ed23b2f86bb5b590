"""Work done while the server starts, so that the first visit is fast: imports, the store, and first answers."""

import gc
import importlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from streamlit import delta_generator
from streamlit.runtime.pages_manager import PagesManager

PATIENCE_S = 5.0  # after this time the server answers, and its first page waits for the rest
# Imports of the pages, and of Streamlit at its first page.
_MODULES = (
    "pages.ui.overview.views", "pages.ui.overview.my_shape", "pages.ui.compare.verdicts", "pages.ui.findings",
    "pages.ui.shell.dashboard",
    "pyarrow", "streamlit.emojis", "streamlit.material_icon_names", "PIL.ImageFile", "packaging.utils",
)  # fmt: skip


@asynccontextmanager
async def before_the_first_visit(_: object) -> AsyncIterator[None]:
    """Let the server answer when the first view is ready, or after a few seconds; for st.App."""
    warm = threading.Thread(target=_warm, name="warming", daemon=True)
    warm.start()
    warm.join(PATIENCE_S)
    yield
    gc.unfreeze()


def first_view() -> None:
    """Load the data and modules of the first view of Start."""
    # Imported here, because Streamlit's caches want a running server.
    from pages.ui.draw import charts
    from pages.ui.filters import offers
    from pages.ui.overview import ranking
    from pages.ui.shell.data import asked_ahead
    from results.query import declared, pages, pairing, speedups
    from results.recommend import cards, certainty

    PagesManager.uses_pages_directory = False  # else the first page lists the files of pages/ before st.navigation runs
    chosen = offers.at_first(asked_ahead)
    if chosen.gpu is not None:
        of_slice = (ranking.judged, speedups.usable_baseline, pages.peak_memory, pages.provenance, pairing.outdated)
        questions: list[tuple[Any, ...]] = [(question, chosen) for question in of_slice]
        questions += [(declared.colours,), (pages.runs,), (pages.run_dates,), (declared.declared, "op")]
        questions += [(cards.relatives, chosen.gpu), (certainty.variation, chosen.gpu)]
        best = ranking.best_of(ranking.rivals_of(asked_ahead(speedups.ranked, chosen), chosen))
        questions.append((cards.over_relative, chosen, best["implementation"] if best else str(chosen.baseline)))
        for question, *about in questions:
            asked_ahead(question, *about)
        for gpu in asked_ahead(offers.gpus, "op"):
            offers.first_settings(asked_ahead, gpu=gpu)
    for name in _MODULES:
        importlib.import_module(name)
    charts.figure(
        charts.Chart([charts.Series("", [1], [1], "#000000", line="solid")], {}, {})
    )  # imports half of Plotly
    # Streamlit asks once, at its first element, how it was started; finding the files of all modules takes it 0.1 s.
    getattr(delta_generator, "_maybe_print_use_warning", bool)()


def _warm() -> None:
    first_view()
    # Streamlit collects garbage after every run of a script, before the browser hears that it is over. What is here by
    # now stays for good, and looking through it each time takes longer than many a run.
    gc.collect()
    gc.freeze()
