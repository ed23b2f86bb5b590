"""Import results from other machines: what was understood is shown before anything is stored."""

from __future__ import annotations

import streamlit as st

from pages.ui import uploads
from pages.ui.draw import messages
from pages.ui.shell import layout
from results.formats.archives import bundled

layout.header("Upload", ":material/upload:", "Bring in results from other machines; see first what is understood.")
st.markdown(
    "CSV, JSON, JSON lines or a Markdown report, a run folder (as zip or tar, or its files), or an export "
    "of this app as CSV, JSON or Markdown (Markdown leaves out samples; Parquet is not taken). "
    "Needed are an implementation, a size (such as `seqlen`) and a number (such as `latency_ms`); names vary."
)
files = st.file_uploader(
    "Files with results",
    type=list(uploads.ENDINGS),
    accept_multiple_files=True,
    max_upload_size=uploads.LIMIT_MB,
    key="files",
    help=f"Up to {uploads.LIMIT_MB} MB each. Nothing is stored before you press import.",
)
with st.expander("An example", icon=":material/description:"):
    st.code(uploads.EXAMPLE, language=None)
    messages.download_text("Download the example", "example.csv", uploads.EXAMPLE)
done = st.session_state.pop("imported", None)
if done:
    uploads.show_outcome(done)
understood = [uploads.show(name, data) for name, data in bundled([(file.name, file.getvalue()) for file in files])]
uploads.overview(understood)
ready = [found for found in understood if found is not None and uploads.new_numbers(found)]
if ready:
    uploads.ask_gpu(ready)
    numbers = sum(uploads.new_numbers(found) for found in ready)
    rejected = sum(len(found.rejected) for found in ready)
    label = f"Import {messages.counted(numbers, 'number')} from {messages.counted(len(ready), 'file')}"
    icon = ":material/download_done:"
    st.button(label, type="primary", icon=icon, on_click=uploads.import_all, args=(ready,), key="import")
    left_out = f"Left out: {messages.counted(rejected, 'rejected value')}. " if rejected else ""
    st.caption(f"{left_out}Of each file all new runs are imported, or none; a run that is here already is left alone.")
