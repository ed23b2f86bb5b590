"""The entry: `streamlit run app.py`. Streamlit imports it once for its server, and runs it for every view."""

from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.ui.shell import guard, warming

if get_script_run_ctx(suppress_warning=True) is None:
    middleware: Any = [(guard.Guard, (), {})]  # unpacked like Starlette's Middleware, without importing it
    app = st.App("app.py", lifespan=warming.before_the_first_visit, middleware=middleware)
else:
    from pages.ui.shell import dashboard

    dashboard.show()
