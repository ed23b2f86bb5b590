"""Import results from other machines and tools: what was understood is shown before anything is stored."""

import streamlit as st

from pages.ui.draw import messages, text
from pages.ui.filters.select import widget
from pages.ui.shell import access, layout
from pages.ui.upload import files
from results.formats import UploadError

layout.header("upload")
st.markdown(
    "Tables (CSV, Excel, Markdown), exports of this app, run folders, and result files of other tools as they are. "
    "A table needs an implementation, a sequence length and a latency; you can say which column is which."
)
if not access.may_run():
    st.stop()
whole = widget("folder")
several, key = ("directory", "directory") if whole else (True, "files")
words, limit = {"limit": files.LIMIT_MB}, files.LIMIT_MB
given = widget("files", words=words, accept_multiple_files=several, max_upload_size=limit, key=key)
with st.expander("An example", icon=":material/description:"):
    st.code(files.EXAMPLE, language=None)
    messages.offer("Download the example", "example.csv", files.EXAMPLE, "example")
try:
    taken = files.taken(tuple((file.name, file.getvalue()) for file in given)) if given else []
except UploadError as error:
    st.error(text.plain(str(error)), icon=":material/error:")
    taken = []
shown = [each for name, data in files.each_once(taken) if (each := files.show(name, data))]
together = st.container()
ready = [found for found, _ in shown if files.new_numbers(found)]
if ready:
    files.ask_gpu(ready)
    numbers = sum(files.new_numbers(found) for found in ready)
    rejected = sum(len(found.rejected) for found in ready)
    label = f"Import {messages.counted(numbers, 'number')} from {messages.counted(len(ready), 'file')}"
    icon = ":material/download_done:"
    st.button(label, type="primary", icon=icon, on_click=files.import_all, args=(ready,), key="import")
    left_out = f"Left out: {messages.counted(rejected, 'rejected value')}. " if rejected else ""
    st.caption(f"{left_out}A file is imported completely or not at all. Runs you already have are skipped.")
files.show_imports()  # where the button was that imported
with together:
    files.check(shown)  # last, because the checks of a long file take a minute
