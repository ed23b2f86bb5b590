"""The page Memory: peaks by sequence length, what does not fit, and what a peak is made of beside its formula."""

import json
from contextlib import closing
from dataclasses import replace

import pandas as pd
import pytest

from pages.ui import memory
from pages.ui.shell.data import asked_ahead
from results.files import journal
from results.files.journal import RunFolder
from results.query import memory as kinds
from results.query import pages
from results.records import Measurement, Run, Status, attention_case
from results.slice import Filters
from results.store.database import open_store
from tests.pages.conftest import GPU, shown


def _table():
    slice_ = Filters(gpu=GPU, workload="attention", mask="causal", mode="fwd", baseline="torch_naive")
    table = asked_ahead(pages.memory, replace(slice_, shape="B1 H2"), "peak_memory_mb")
    return table.assign(head_dim=[str(int(d)) for d in table["head_dim"]])


def test_the_page_names_the_saving_who_runs_out_of_memory_and_what_fits(app):
    app.session_state["memory_kinds"] = True  # the expander is open
    page = app.switch_page("pages/memory.py").run()
    assert "Saved for backward is measured with forward and backward" in shown(page)
    assert "of_formula" in page.dataframe[0].value
    words = shown(page)
    assert "triton_fa2 takes 128 MiB at seqlen 256, 1/8 of torch_naive" in words
    assert "torch_naive is out of memory from 512 in float16" in words
    spec = json.loads(page.get("plotly_chart")[0].proto.spec)
    traces = {trace.get("name"): trace for trace in spec["data"]}
    assert {"torch_naive", "triton_fa2", "torch_naive formula"} <= set(traces)
    assert traces["torch_naive OOM"]["x"] == [512]
    assert any("device memory 1000 MiB" in str(trace.get("text")) for trace in spec["data"])
    assert spec["layout"]["yaxis"]["type"] == "log"
    page.selectbox(key="fits_in").select("8 GB").run()
    assert page.subheader[0].value == "Longest sequence in 8.00 GiB at batch 1"
    assert "Download what fits" in {button.proto.label for button in page.get("download_button")}
    longest = memory.longest(_table(), 8192.0)[1].set_index("implementation")
    assert longest.loc["triton_fa2", "measured"] == 512
    assert longest.loc["torch_naive", "no_more_from"] == 512
    assert longest.loc["triton_fa2", "formula"] > longest.loc["torch_naive", "formula"] > 512
    drawn = next(element.proto.body for element in page.get("html") if "Longest sequence in" in element.proto.body)
    assert '<th scope="row">triton_fa2</th><td>512</td><td>512 MiB</td><td>–</td>' in drawn
    table = _table()
    fewer = table.assign(batch=[512 // seqlen for seqlen in table["seqlen"]])
    batch, longest = memory.longest(fewer, 8192.0)
    known = longest.dropna(subset=["measured", "formula"])
    assert (batch, len(known) > 0) == (1, True)
    assert (known["formula"] >= known["measured"]).all()
    at_one = memory.longest(table, 8192.0)[1].set_index("implementation")["formula"]
    assert longest.set_index("implementation")["formula"]["torch_naive"] == at_one["torch_naive"]
    page.radio(key="mode").set_value("bwd").run()
    title = json.loads(page.get("plotly_chart")[0].proto.spec)["layout"]["title"]["text"]
    assert "· forward<" in title and "over torch_naive" not in title


def test_one_of_several_equals_is_not_named_alone(monkeypatch):
    said = []
    monkeypatch.setattr(memory.st, "markdown", said.append)
    row = {"dtype": "float16", "seqlen": 4096, "value": 64.0, "reduction": 257.0, "status": "ok"}
    table = pd.DataFrame([row | {"implementation": name} for name in ("a", "b", "c", "d")])
    memory.headline(table, Filters(baseline="plain"))
    memory.headline(table.head(2), Filters(baseline="plain"))
    memory.headline(table.head(2).assign(value=[256.0, 257.0]), Filters(baseline="plain"))
    assert said == [
        "## 4 implementations take 64.0 MiB at seqlen 4k, 1/257 of plain",
        "## a, b take 64.0 MiB at seqlen 4k, 1/257 of plain",
        "## a, b take 256 MiB to 257 MiB at seqlen 4k, 1/257 of plain",
    ]


SLICE = {"gpu": "A GPU", "workload": "attention", "mask": "causal", "timing": "kernel", "baseline": "torch_naive"}
VALUES = {"inputs_memory_mb": 12.0, "extra_memory_mb": 6.0, "peak_memory_mb": 18.0, "reserved_memory_mb": 20.0}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of one run, with nothing published; no test here changes it."""
    home, rows = tmp_path_factory.mktemp("home"), []
    for seqlen in (1024, 2048):
        case = attention_case(batch=1, num_heads=4, seqlen=seqlen, head_dim=64, dtype="float16", causal=True)
        for mode, factor in (("fwd", 1), ("fwd_bwd", 2)):
            rows += [_row(case, metric, mode, value * factor) for metric, value in VALUES.items()]
        rows.append(_row(case, "activation_memory_mb", "fwd_bwd", 7.0))
    RunFolder.create(home, Run("a", "local", gpu_name="A GPU"), rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "PUBLISHED", home / "none")
        with closing(open_store(home)) as opened:
            yield opened


def _row(case, metric: str, mode: str, value: float) -> Measurement:
    return Measurement("a", case, "torch_naive", metric, Status.OK, mode=mode, value=value)


@pytest.mark.parametrize("mode,peak", [("fwd", 18.0), ("fwd_bwd", 36.0)])
def test_every_kind_of_memory_stands_beside_its_formula_in_the_mode_of_the_slice(store, mode, peak):
    row = kinds.parts(store, Filters(**SLICE, mode=mode), ["a"]).iloc[0]
    assert row[["peak_memory_mb", "activation_memory_mb"]].tolist() == [peak, 7.0]
    tensor = 4 * 1024 * 64 * 2 / 2**20
    assert row["given"] == (3 if mode == "fwd" else 4) * tensor
    assert row["kv_cache"] == 2 * tensor
    assert row["matrices"] == (2 if mode == "fwd" else 4) * 4 * 1024**2 * 2 / 2**20
    assert row["peak"] == pytest.approx(row[["given", "returned", "matrices", "workspace"]].sum())


def test_the_kinds_are_those_of_the_rows_that_are_drawn(store):
    filters = Filters(**SLICE, mode="fwd")
    drawn = pages.memory(store, filters, "peak_memory_mb").query("seqlen == 2048").assign(head_dim="64")
    found = memory.kinds_of(kinds.parts(store, filters, ["a"]), drawn)
    assert found["seqlen_q"].tolist() == [2048]
    assert found["of_formula"].iloc[0] == pytest.approx(18.0 / found["peak"].iloc[0])
    nothing = pd.DataFrame(columns=["run_id", "implementation", "seqlen", "dtype", "shape", "head_dim"])
    assert memory.kinds_of(kinds.parts(store, Filters(**SLICE, mode="fwd"), ["a"]), nothing).empty
