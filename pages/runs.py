"""All runs and uploads: state, environment, log, findings; download, repeat, delete, compare with another."""

import streamlit as st

from pages.ui import findings
from pages.ui.draw import detail, messages, text
from pages.ui.filters.select import named_choice
from pages.ui.run import cluster_form
from pages.ui.runs import actions, listing
from pages.ui.shell import address, layout
from pages.ui.shell.data import ask
from results.query import pages

layout.header("runs")
actions.trash_can()
table = listing.with_states(ask(pages.runs))
actions.broken_runs(set(table["run_id"]))
if table.empty:
    st.info("No runs yet. Run a sweep here, or upload results from another machine.", icon=":material/inbox:")
    st.stop()

listing.show_table(table)
names = table["run_id"].tolist()
if "run" in st.query_params:  # the parameter in links of other pages
    st.session_state.setdefault("run_id", st.query_params["run"])
    address.check("Run", "run", names)
chosen = named_choice("Run", "run_id", names, names[0], listing.words_of(table), help="Type to search.")
row = table[table["run_id"] == chosen].iloc[0]
st.header(text.plain(chosen if text.missing(row["title"]) else row["title"]))
badges = (messages.source_badges([row["source"]]), listing.state_badge(row["state"]), findings.badge([chosen]))
st.markdown(" ".join(badges))
st.caption(f"{listing.counts(row)}.")
st.markdown("**Environment**")
detail.run_facts(row)
listing.show_cards(row)
cluster_form.of_run(row)
st.markdown("**End of the log**")
listing.show_log(chosen, row["source"])
actions.other_environment(row, table)
st.markdown("**Findings**")
findings.section([chosen], key="findings_of_run")
actions.rule(row)
st.markdown("**Download, repeat, rename, delete**")
actions.downloads(row)
actions.again(row)
actions.rename(row)
actions.delete(row)
