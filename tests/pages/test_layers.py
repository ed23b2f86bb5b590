"""The page Layers over a home with a small run of known numbers."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from results.files import cell_files
from results.files.journal import RunFolder
from results.records import Run, Status, case_to_json, layer_case
from tests.builders import add_run, latency
from tests.cases import cases
from tests.pages.conftest import GPU, opened, shown

FACTS = cases(__file__, "FACTS")
RUN = Run("layers-a", "local", created="2026-03-01T00:00:00", gpu_name=GPU, title="Layers", implementations=FACTS)
SPEEDS = {"torch_naive": 8.0, "torch_sdpa_flash": 3.0, "triton_fa2": 2.0}
MODES = {"fwd": 1.0, "bwd": 2.0, "fwd_bwd": 3.0}
MHA = layer_case("mha", batch=1, num_heads=8, num_kv_heads=8, seqlen=512, head_dim=64, dtype="float16", causal=False)


def layer_run(home: Path) -> RunFolder:
    """Two kinds of layers in all modes; in the second, ours fails the check of the backward."""
    rows = []
    for subject, kv_heads in (("mha", 8), ("gqa", 2)):
        case = replace(MHA, subject=subject, num_kv_heads=kv_heads)
        for (name, ms), (mode, times) in product(SPEEDS.items(), MODES.items()):
            given = {"run_id": RUN.run_id, "mode": mode}
            if (subject, name, mode) == ("gqa", "triton_fa2", "bwd"):
                rows.append(latency(name, Status.INCORRECT, case, note="dw_k", **given))
                continue
            rows.append(latency(name, ms * times, case, statistic="median", **given))
            rows.append(latency(name, ms / 4, case, statistic="median", metric="attention_ms", **given))
    return RunFolder.create(home, RUN, rows)


@pytest.fixture
def page(home, app):
    layer_run(home)
    return app.switch_page("pages/layers.py").run()


def test_the_answer_its_tables_and_its_chart_are_those_of_layers(page):
    text = shown(page)
    assert "a layer with the best of our kernels is 1.50× as fast as with the best of PyTorch's" in text
    assert "over 5 comparisons (1.50× to 1.50×): slower in none" in text
    ranges = page.table[0].value.set_index("implementation")
    assert ranges.loc["triton_fa2", "Forward"] == "4.00 to 4.00×, mean 4.00×"
    assert list(ranges.columns) == ["Forward", "Backward", "Forward and backward"]
    table = next(t.value for t in page.dataframe if "fastest" in t.value).set_index(["layer", "mode"])
    assert len(table) == 6
    wrong = table.loc[("gqa B1 H8 KV2 D64 S512", "Backward")]
    assert "incorrect" in wrong["triton_fa2"].lower()
    assert (wrong["fastest"], wrong["speedup"]) == ("torch_sdpa_flash", pytest.approx(8 / 3))
    traces = {trace["name"]: trace for trace in json.loads(page.get("plotly_chart")[0].proto.spec)["data"]}
    assert set(traces) == set(SPEEDS)
    assert traces["triton_fa2"]["x"] == pytest.approx([25.0, 25.0])
    page.radio(key="mode").set_value("fwd_bwd").run()
    traces = {trace["name"]: trace for trace in json.loads(page.get("plotly_chart")[0].proto.spec)["data"]}
    assert traces["torch_naive"]["x"] == pytest.approx([100 / 12] * 2)
    assert [page.radio(key=name).options[0] for name in ("workload", "mode")] == ["all", "all"]
    page.radio(key="workload").set_value("layer gqa").run()
    page.radio(key="mode").set_value("bwd").run()
    tables = [shown.value for shown in page.dataframe if "layer" in shown.value]
    assert [set(table["layer"]) for table in tables] == [{"gqa B1 H8 KV2 D64 S512"}] * len(tables)
    assert list(page.table[0].value.columns) == ["implementation", "Backward"]
    assert not [pills.key for pills in page.pills if pills.key in ("share_mode", "detail_kind", "detail_mode")]
    overview = page.switch_page("pages/overview.py").run()
    assert overview.radio(key="workload").options == ["attention"]


def test_a_chosen_layer_offers_the_trace_that_its_run_recorded(home, page):
    folder = home / "runs" / RUN.run_id
    path = cell_files.path_of(folder, "profile", case_to_json(MHA), "triton_fa2", "fwd")
    path.parent.mkdir()
    path.write_text("{}")
    assert page.pills(key="detail_kind").options == ["mha", "gqa"]
    page.session_state["cell"] = "float16, seqlen 512, heads 8"
    page.run()
    assert [button.proto.label for button in page.get("download_button") if "profile" in button.proto.label] == [
        "triton\\_fa2: profile"
    ]


def test_without_a_layer_the_page_says_what_measures_one(unpublished):
    assert "No layer results yet" in shown(opened("layers"))


def test_layers_without_a_mode_or_of_any_size_are_drawn(home, app):
    """An upload whose rows state no mode, a foreign mode, and sizes that only a 64-bit number holds."""
    layer_run(home)
    huge = replace(MHA, num_heads=999_999_999, num_kv_heads=999_999_999, head_dim=999_999_999)
    odd = product((MHA, huge), SPEEDS, (None, "step", "fwd"))
    rows = [latency(name, 1.0, each, mode=mode) for each, name, mode in odd]
    add_run(home, "layers-odd", *rows, gpu_name="Odd GPU", source="upload")
    app.query_params["gpu"] = "Odd GPU"
    tables = app.switch_page("pages/layers.py").run().dataframe
    assert "H999999999" in "".join(table.value.to_csv() for table in tables)
    app.query_params["detail_mode"] = "not stated"
    shown(app.run())
