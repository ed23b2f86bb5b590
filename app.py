"""The entry: `streamlit run app.py`. What the app shows is in dashboard.py."""

import streamlit as st

from pages.ui import warming

app = st.App("dashboard.py", lifespan=warming.before_the_first_visit)
