"""Every run and upload: state, environment, log, what differs from another; take it away, run it again, delete it."""

from __future__ import annotations

import streamlit as st

from pages.ui import findings
from pages.ui.draw import detail, messages, text
from pages.ui.runs import actions, listing
from pages.ui.shell import layout
from pages.ui.shell.data import ask
from results.query import pages

layout.header("Runs", ":material/history:", "Every run and upload: how it ended, where it was taken, its numbers.")
actions.trash_can()
table = listing.with_states(ask(pages.runs))
if table.empty:
    st.info("No runs yet. Run a sweep here, or upload results from another machine.", icon=":material/inbox:")
    st.stop()

listing.show_table(table)
names = table["run_id"].tolist()
chosen = st.selectbox("Run", names, key="run_id", bind="query-params", help="Type to search.")
row = table[table["run_id"] == chosen].iloc[0]
st.subheader(text.plain(chosen if text.missing(row["title"]) else row["title"]))
badges = (messages.source_badges([row["source"]]), listing.state_badge(row["state"]), findings.badge([chosen]))
st.markdown(" ".join(badges))
st.caption(f"{messages.counted(int(row['numbers']), 'number')}, {messages.counted(int(row['failures']), 'failure')}")
facts, log = st.columns(2)
with facts:
    st.markdown("**Environment**")
    detail.run_facts(row)
    listing.show_cards(row.get("cards"))
with log:
    st.markdown("**End of the log**")
    listing.show_log(chosen, row["source"])
actions.beside(row, table)
st.markdown("**Take it away, run it again, delete it**")
actions.downloads(chosen)
actions.again(row)
actions.delete(row)
