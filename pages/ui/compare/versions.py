"""Two versions of the kernels that one sweep measured round by round, as `runner run --against` does."""

from functools import partial

import streamlit as st

from pages.ui import findings
from pages.ui.compare import choose, verdicts
from pages.ui.draw import messages
from pages.ui.filters import select
from pages.ui.shell.data import records_of, store
from results.compare.against import compare_versions
from results.compare.compare import Comparison
from results.files import library


def section() -> None:
    """Ask for a run of two versions; draw its verdicts, the differences of the versions, and every cell."""
    runs = dict(store().rows(choose.VERSIONS))
    if not runs:
        st.info("No sweep measured two versions yet.", icon=":material/inbox:")
        st.code("python -m runner run quick --against COMMIT", language=None)
        return
    run_id = select.named_choice("Run", "versions_of", list(runs))
    found = _judged(run_id, library.stamp(library.find(run_id)))
    if found.cells:
        voided = findings.voided([found.second])
        verdicts.show_cells(verdicts.answer(found, voided, "versions_timing"))
        table = partial(verdicts.cells_table, found, voided)
        messages.download("Download shapes", f"versions-{found.second}", table, "versions_csv")
    verdicts.remarks(found)
    st.subheader("What differs between the versions")
    verdicts.what_changed(found)
    if runs[run_id]:
        st.caption(f"Each kernel time contains {1e3 * runs[run_id]:.1f} µs that an empty kernel also takes.")
    messages.command(f"python -m results compare {run_id}")


@st.cache_resource(max_entries=4, show_spinner="Judging every cell")
def _judged(run_id: str, _stamp: tuple) -> Comparison:
    return compare_versions(*records_of(run_id))
