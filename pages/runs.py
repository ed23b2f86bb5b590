"""Every run and upload: state, environment, log, what differs from another; take it away, run it again, delete it."""

from __future__ import annotations

import streamlit as st

from pages.ui import detail, findings, messages, records, records_actions, words
from pages.ui.data import ask
from results import queries

messages.header("Runs", ":material/history:", "Every run and upload: how it ended, where it was taken, its numbers.")
records_actions.trash_can()
table = records.with_states(ask(queries.runs))
if table.empty:
    st.info("No runs yet. Run a sweep here, or upload results from another machine.", icon=":material/inbox:")
    st.stop()

records.show_table(table)
names = table["run_id"].tolist()
chosen = st.selectbox("Run", names, key="run_id", bind="query-params", help="Type to search.")
row = table[table["run_id"] == chosen].iloc[0]
st.subheader(words.plain(chosen if words.missing(row["title"]) else row["title"]))
badges = (messages.source_badges([row["source"]]), records.state_badge(row["state"]), findings.badge([chosen]))
st.markdown(" ".join(badges))
st.caption(f"{messages.counted(int(row['numbers']), 'number')}, {messages.counted(int(row['failures']), 'failure')}")
facts, log = st.columns(2)
with facts:
    st.markdown("**Environment**")
    detail.run_facts(row)
with log:
    st.markdown("**End of the log**")
    records.show_log(chosen, row["source"])
records_actions.beside(row, table)
st.markdown("**Take it away, run it again, delete it**")
records_actions.downloads(chosen)
records_actions.again(row)
records_actions.delete(row)
