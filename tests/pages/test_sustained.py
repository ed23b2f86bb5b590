"""The page Power: traces of a sustained load."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import streamlit as st

from pages.ui import sustained as page_parts
from pages.ui.draw import charts
from results.files.journal import RunFolder
from results.query import sustained
from results.records import Measurement, Run, Status, attention_case
from results.store.database import open_store
from tests.pages.conftest import opened, shown

CASE = attention_case(batch=1, num_heads=16, seqlen=4096, head_dim=128, dtype="bfloat16", causal=False)
FLOPS = 4.0 * 16 * 4096 * 4096 * 128
NOTE = "Back-to-back calls for 3 s in slices of about 0.25 s."


def trace(home: Path, run_id: str = "hot", *, name: str = "triton_fa2", power: bool = True) -> None:
    """Twelve slices: four at 400 TFLOP/s, then eight at 300 with the power at its limit; sampled at 500."""
    series = {"sustained_tflops": [400.0] * 4 + [300.0] * 8, "sustained_clock_mhz": [1980.0] * 4 + [1500.0] * 8}
    series |= {"sustained_power_w": [500.0] * 4 + [699.0] * 8} if power else {}
    rows = [
        Measurement(
            run_id, CASE, name, metric, Status.OK, mode="fwd", value=values[-1], samples=tuple(values), n=12, note=NOTE
        )
        for metric, values in series.items()
    ]
    rows.append(Measurement(run_id, CASE, name, "burst_tflops", Status.OK, mode="fwd", value=400.0, n=4, note=NOTE))
    latency = FLOPS / 500e9
    for timing, ms in (("kernel", latency), ("eager", 9 * latency)):
        rows.append(Measurement(run_id, CASE, name, "latency_ms", Status.OK, "fwd", timing, value=ms, n=20))
    skipped = {"status": Status.SKIPPED, "note": "A trace needs a GPU."}
    rows.append(Measurement(run_id, CASE, "torch_naive", "sustained_tflops", mode="fwd", **skipped))
    run = Run(run_id, "local", created="2099-01-01T00:00:00.000Z", gpu_name="A GPU", power_limit_w=700.0, title="Trace")
    RunFolder.create(home, run, rows)  # newer than what ships, so that the page begins with it


def test_a_trace_says_what_remains_and_each_quantity_has_its_panel(empty):
    page = opened("sustained")
    assert "No trace yet" in shown(page)
    assert "--sustained" in page.code[0].value
    trace(empty)
    text = shown(opened("sustained"))
    assert (
        "triton_fa2 sustains 75 % of its first-second throughput: 300 of 400 TFLOP/s, at 1500 MHz, 699 W of 700 W"
        in text
    )
    assert "reaches 500 TFLOP/s: sustained is 60 % of that" in text
    assert "measured here" in text
    store = open_store()
    table = page_parts.named(sustained.traces(store)).query("sustained_tflops > 0")
    slices = sustained.series(store, table.to_dict("records")[0]).assign(trace=table["trace"].iloc[0])
    store.close()
    figure = charts.figure(page_parts.panels(slices, table))
    assert [trace.x[-1] for trace in figure.data] == pytest.approx([3.0] * 4)
    assert [trace.y[-1] for trace in figure.data] == pytest.approx([300.0, 699 / 300, 1500.0, 699.0])
    by_clock = charts.figure(page_parts.panels(slices, table, "sustained_clock_mhz"))
    assert [list(trace.x[3:5]) for trace in by_clock.data] == [[1980.0, 1500.0]] * 3
    assert [line.y0 for line in figure.layout.shapes] == pytest.approx([500.0, 700.0])


def test_a_quantity_that_was_not_watched_has_no_panel_and_a_skipped_trace_is_a_row_with_its_reason(empty):
    trace(empty, power=False)
    page = opened("sustained")
    assert len(json.loads(page.get("plotly_chart")[0].proto.spec)["data"]) == 2
    table = page.dataframe[0].value.set_index("trace")
    row = table[table.index.str.startswith("torch_naive")].iloc[0]
    assert (row["status"], row["note"]) == ("skipped", "A trace needs a GPU.")
    assert "power_limit_w" in table
    assert "sustained_power_w" not in table


def test_several_traces_of_the_same_cell_are_told_apart_by_their_runs(empty):
    trace(empty, "first")
    trace(empty, "second")
    page = opened("sustained")
    names = page.multiselect(key="traces").options
    assert len(names) == len(set(names)) == 2
    page.multiselect(key="traces").set_value(names).run()
    assert "first" in shown(page)
    assert "second" in shown(page)


def test_a_trace_is_read_slice_by_slice_for_its_own_cell_alone(empty):
    trace(empty, "first")
    trace(empty, "second", name="other")
    store = open_store()
    traces = sustained.traces(store)
    named = {(row["run_id"], row["implementation"]): row for row in traces.to_dict("records")}
    series = sustained.series(store, named["second", "other"])
    assert len(series) == 12
    assert series["seconds"].iloc[0] == pytest.approx(0.25)
    assert sustained.series(store, named["first", "torch_naive"]).empty
    store.close()


def test_kernels_are_compared_by_rate_and_energy(empty, monkeypatch):
    pieces: list[str] = []
    monkeypatch.setattr(st, "html", lambda body, **_: pieces.append(body))
    assert "No run measured energy." in shown(opened("sustained"))
    rows = []
    for name, ms, joules in (("triton_fa2", 0.5, 0.4), ("torch_naive", 2.0, 0.9)):
        row = Measurement("energy", CASE, name, "latency_ms", Status.OK, mode="fwd", timing="kernel", value=ms)
        rows += [row, replace(row, metric="energy_j", timing=None, value=joules)]
    RunFolder.create(empty, Run("energy", "local", gpu_name="A GPU", power_limit_w=700.0), rows)
    found = sustained.energies(open_store(empty))
    assert found["joules_per_tflop"].tolist() == pytest.approx([0.9e12 / FLOPS, 0.4e12 / FLOPS])
    limited = 700 / found["joules_per_tflop"].iloc[1]  # 0.4 J in 0.5 ms would be 800 W
    assert found["tflops"].tolist() == pytest.approx([FLOPS / 2e9, limited])
    page = opened("sustained")
    assert "Shape with energy" in [box.label for box in page.selectbox]
    assert "triton_fa2, 241 TFLOP/s within the power limit at 2.91 joules per TFLOP: the least energy" in shown(page)
    assert "joules per TFLOP" in "".join(pieces)
    assert "nvidia-smi -pl" in page.code[0].value
    rows.append(replace(rows[1], metric="energy_power_w", value=600.0))
    cooler = [replace(row, run_id="cooler") for row in rows]
    RunFolder.create(empty, Run("cooler", "local", created="2099-01-01", gpu_name="A GPU", power_limit_w=500.0), cooler)
    page = opened("sustained")  # of runs that recorded the mean power, the rate under load
    assert "triton_fa2, 206 TFLOP/s under load (600 W) at 2.91 joules per TFLOP" in shown(page)
    (chart,) = page.get("plotly_chart")
    assert [line["x"] for line in json.loads(chart.proto.spec)["data"]] == [[500.0, 700.0]] * 4
