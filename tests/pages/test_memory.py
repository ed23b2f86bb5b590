import json
from dataclasses import replace

from pages.ui.memory import fits
from pages.ui.shell.data import asked_ahead
from results.query import pages
from results.slice import Filters
from tests.pages.conftest import GPU, shown


def _table():
    slice_ = Filters(gpu=GPU, workload="attention", mask="causal", mode="fwd", baseline="torch_naive")
    table = asked_ahead(pages.memory, replace(slice_, shape="B1 H2"), "peak_memory_mb")
    return table.assign(head_dim=[str(int(d)) for d in table["head_dim"]])


def test_the_headline_names_the_saving_and_who_runs_out_of_memory(app):
    page = app.switch_page("pages/memory.py").run()
    text = shown(page)
    assert "triton_fa2 takes 128 MiB at seqlen 256, 8.00× less than torch_naive" in text
    assert "torch_naive is out of memory from 512 in float16" in text


def test_lines_end_where_memory_does_and_the_device_has_its_own(app):
    page = app.switch_page("pages/memory.py").run()
    spec = json.loads(page.get("plotly_chart")[0].proto.spec)
    names = [trace.get("name") for trace in spec["data"]]
    assert {"torch_naive", "triton_fa2", "torch_naive formula", "torch_naive OOM"} <= set(names)
    assert any("device memory 1000 MiB" in str(trace.get("text")) for trace in spec["data"])
    assert spec["layout"]["yaxis"]["type"] == "log"


def test_memory_of_bwd_alone_is_not_known_so_another_mode_is_shown_and_named(app):
    page = app.switch_page("pages/memory.py").run()
    page.selectbox(key="mode").select("bwd").run()
    assert "· forward ·" in shown(page)


def test_what_fits_in_another_memory_is_said_as_measured_and_by_formula(app):
    page = app.switch_page("pages/memory.py").run()
    page.selectbox(key="fits_in").select("8 GB").run()
    assert page.subheader[0].value == "Longest sequence in 8.00 GiB"
    longest = fits.longest(_table(), 8192.0).set_index("implementation")
    assert longest.loc["triton_fa2", "measured"] == 512
    assert longest.loc["torch_naive", "no_more_from"] == 512
    assert longest.loc["triton_fa2", "formula"] > longest.loc["torch_naive", "formula"] > 512
    drawn = next(
        element.proto.body for element in page.get("html") if "Longest sequence that fits" in element.proto.body
    )
    assert '<th scope="row">triton_fa2</th><td class="text">float16</td><td>512</td><td>512 MiB</td><td></td>' in drawn
