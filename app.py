"""The entry: `streamlit run app.py`. Streamlit imports it once for its server, and runs it for every view."""

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.ui.shell import warming

if get_script_run_ctx(suppress_warning=True) is None:
    app = st.App("app.py", lifespan=warming.before_the_first_visit)
else:
    from pages.ui.shell import dashboard

    dashboard.show()
